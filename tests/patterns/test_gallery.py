from pathlib import Path

import pytest

from farspan.patterns import examples, gallery
from farspan.patterns.rules import PATTERNS

PAGE = Path(__file__).parents[2] / "docs" / "gallery" / "README.md"


def test_every_pattern_has_an_example():
    assert {example.rule["pattern"] for example in examples.EXAMPLES} == set(PATTERNS)
    slugs = [example.slug for example in examples.EXAMPLES]
    assert len(set(slugs)) == len(slugs)


def test_the_page_in_the_repository_is_what_the_code_writes():
    # Made by `farspan pattern gallery docs/gallery`: run it again when this fails.
    assert PAGE.read_text(encoding="utf-8") == gallery.text()
    assert {f"{example.slug}.png" for example in examples.EXAMPLES} == {each.name for each in PAGE.parent.glob("*.png")}


def test_a_page_is_whole_or_not_there(tmp_path, monkeypatch):
    monkeypatch.setattr(gallery, "EXAMPLES", examples.EXAMPLES[:2])
    page, *pictures = gallery.write(tmp_path / "gallery")
    assert page.read_text(encoding="utf-8") == gallery.text()
    assert all(each.read_bytes().startswith(b"\x89PNG") for each in pictures)

    def fail(*_):
        raise RuntimeError("no")

    page.unlink()
    monkeypatch.setattr(gallery, "_page", fail)
    with pytest.raises(RuntimeError):
        gallery.write(tmp_path / "gallery")
    assert not page.exists()
