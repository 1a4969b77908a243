"""The report as files: complete, self-contained, repeatable, and reading only."""

from __future__ import annotations

import os
import re
import shutil
import socket
import subprocess
from html.parser import HTMLParser

import pytest

from farspan.studies.report import build, words
from report_fixture import LanguageCell, fib, mini_cells, partial_cells, probe_cells, write_study

HOSTILE = '"><img src=https://evil.example/x.png onerror=alert(1)>'
FIGURES = {
    "perplexity-vs-length",
    "perplexity-sliding",
    "loss-by-position",
    "loss-differences",
    "alpha",
    "schedules",
    "speed",
    "training-loss",
    "shift-copy",
    "marked-copy",
}


class Outline(HTMLParser):
    """Tags with their attributes, and the depth at which the page ends."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.tags: list[tuple[str, dict[str, str | None]]] = []
        self.feed(text)

    def handle_starttag(self, tag, attributes):
        self.tags.append((tag, dict(attributes)))

    def all(self, tag):
        return [attributes for name, attributes in self.tags if name == tag]


def files_under(folder):
    return {
        path.relative_to(folder): (path.stat().st_mtime_ns, path.read_bytes())
        for path in sorted(folder.rglob("*"))
        if path.is_file()
    }


@pytest.fixture(scope="module")
def built(tmp_path_factory):
    """A partial study with a hostile label, built once: folder, paths, and its files before and after."""
    cells = [*partial_cells()[:6], LanguageCell(HOSTILE, fib("stagger", 10), 0.05), *probe_cells(depths=(2,))]
    folder = write_study(tmp_path_factory.mktemp("runs") / "study", cells)
    before = files_under(folder)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(subprocess, "Popen", _forbidden)
        patch.setattr(socket, "socket", _forbidden)
        paths = build(folder)
    return folder, paths, before, files_under(folder)


def _forbidden(*_, **__):
    raise AssertionError("the report must start nothing and ask no network")


def test_the_first_sentence_with_pairs_says_what_they_are(built):
    _, paths, _, _ = built
    page = paths.html.read_text()
    findings = re.findall("<li>(.*?)</li>", page[page.index('class="findings"') :].split("</ul>")[0], re.DOTALL)
    first, *others = (sentence for sentence in findings if "pairs a token" in sentence)
    assert first.endswith(words.PAIRS)
    assert not any(words.PAIRS in other for other in others)


def test_cell_files_are_left_untouched(built):
    """F35: finished cells keep their bytes and their time of change; the report only adds its own files."""
    _, _, before, after = built
    assert {path: after[path] for path in before} == before
    added = {str(path) for path in after.keys() - before.keys()}
    assert added == {"report.html", "tables.md", "results.csv"} | {
        f"figures/{name}.png" for name in FIGURES | {"perplexity-vs-length-dark"}
    }


def test_every_figure_is_there_in_both_renditions(built):
    _, paths, _, _ = built
    page = Outline(paths.html.read_text())
    assert {a["id"].removeprefix("figure-") for a in page.all("figure")} == FIGURES
    pictures = page.all("svg")
    assert len(pictures) == 2 * len(FIGURES)
    assert all(a["role"] == "img" and len(a["aria-label"]) > 40 for a in pictures)
    assert paths.top_picture.name == "perplexity-vs-length.png"
    assert all(path.read_bytes().startswith(b"\x89PNG") for path in paths.figures)


def test_the_page_is_one_small_file_that_loads_nothing(built):
    _, paths, _, _ = built
    text = paths.html.read_text()
    assert len(text.encode()) < 3_000_000
    page = Outline(text)
    loading = [a.get("src") or a.get("href") or "" for _, a in page.tags]
    assert not [url for url in loading if re.match(r"(https?:)?//", url)]
    assert not page.all("script")
    assert not re.findall(r"@import|url\((?!#)", text)


def test_ids_are_unique(built):
    _, paths, _, _ = built
    ids = [a["id"] for _, a in Outline(paths.html.read_text()).tags if "id" in a]
    assert len(ids) == len(set(ids))


def test_a_label_cannot_become_markup(built):
    _, paths, _, _ = built
    text = paths.html.read_text()
    assert "<img" not in text
    assert "&lt;img src=https://evil" in text
    assert "<img" not in paths.tables.read_text()


def test_partial_results_are_announced_with_the_state_of_every_cell(built):
    _, paths, _, _ = built
    text = paths.html.read_text()
    assert "Partial results" in text
    assert "ValueError: loss is NaN at step 49" in text
    assert "cannot be tested" in text


def test_the_scale_and_what_intervals_leave_out_stand_beside_the_claims(built):
    _, paths, _, _ = built
    claims = paths.html.read_text().split('id="claims"')[1].split("</p>")[0]
    assert "training tokens each 410" in claims
    assert "not the variance between training seeds" in claims


def test_building_again_gives_the_same_bytes(built, tmp_path):
    folder, _, before, after = built
    elsewhere = tmp_path / "study"
    shutil.copytree(folder, elsewhere, ignore=shutil.ignore_patterns("report.html", "figures", "*.md", "*.csv"))
    build(elsewhere)
    again = files_under(elsewhere)
    assert {p: again[p][1] for p in after if p not in before} == {p: after[p][1] for p in after if p not in before}


def test_a_build_that_dies_leaves_the_old_report_whole(built, monkeypatch):
    folder, paths, _, _ = built
    old = {path: path.read_bytes() for path in (paths.html, paths.tables, paths.csv, *paths.figures)}
    replace = os.replace

    def dies(source, target):
        if str(target).endswith("tables.md"):
            raise KeyboardInterrupt
        replace(source, target)

    monkeypatch.setattr(os, "replace", dies)
    monkeypatch.setattr("farspan.studies.report.assembly.language_drawings", lambda *_: [])
    monkeypatch.setattr("farspan.studies.report.assembly.probe_rows", lambda *_: [])
    with pytest.raises(KeyboardInterrupt):
        build(folder)
    assert {path: path.read_bytes() for path in old} == old
    assert not [path for path in folder.iterdir() if path.name.endswith(".tmp")]


@pytest.mark.parametrize(
    ("state", "message"),
    [("failed", "has no finished cell to report on (1 failed)"), ("running", "(1 unfinished)")],
)
def test_a_study_without_a_result_is_refused_in_one_sentence(tmp_path, state, message):
    cell = mini_cells()[2]
    cell.state = state
    folder = write_study(tmp_path, [cell])
    with pytest.raises(ValueError, match=re.escape(message)):
        build(folder)
    assert not (folder / "report.html").exists()


def test_a_folder_that_is_no_study_is_refused(tmp_path):
    with pytest.raises(ValueError, match=r"expected a folder with study\.json"):
        build(tmp_path)
