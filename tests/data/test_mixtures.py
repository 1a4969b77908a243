"""Shares of a mixture are kept, and its file is checked."""

from __future__ import annotations

from itertools import cycle, islice, repeat
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from farspan.data.mixtures import MixtureSource, interleave, load_mixture, shipped_mixtures, training_passes

SOURCE = '[[source]]\nname = "{}"\nweight = {}\npath = "{}"\n'


@settings(max_examples=100, deadline=None)
@given(
    weights=st.lists(st.integers(1, 50), min_size=1, max_size=6),
    sizes=st.lists(st.integers(1, 40), min_size=1, max_size=30),
    count=st.integers(1, 400),
)
def test_no_stream_is_ever_more_than_one_item_above_its_share(weights: list[int], sizes: list[int], count: int) -> None:
    shares = [weight / sum(weights) for weight in weights]
    streams = [zip(repeat(i), cycle(sizes[i % len(sizes) :] or sizes)) for i in range(len(shares))]
    drawn = [0] * len(shares)
    for i, size in islice(interleave(streams, shares, lambda item: item[1]), count):
        drawn[i] += size
        excess = [have - share * sum(drawn) for have, share in zip(drawn, shares, strict=True)]
        assert max(excess) <= max(sizes) + 1e-6


def test_shares_of_the_paper_are_kept_within_one_document() -> None:
    shares = [0.35, 0.22, 0.20, 0.01, 0.22]
    lengths = [900, 600, 200, 250, 350]
    streams = [repeat((i, length)) for i, length in enumerate(lengths)]
    drawn = [0] * 5
    for i, length in islice(interleave(streams, shares, lambda item: item[1]), 5000):
        drawn[i] += length
    for have, share in zip(drawn, shares, strict=True):
        assert abs(have - share * sum(drawn)) <= max(lengths)


def test_order_is_the_same_every_time() -> None:
    orders = [
        [i for i, _ in islice(interleave([repeat((0, 3)), repeat((1, 5))], [0.5, 0.5], lambda x: x[1]), 50)]
        for _ in range(2)
    ]
    assert orders[0] == orders[1]
    assert orders[0][0] == 0


def test_merging_ends_with_the_stream_whose_turn_it_is() -> None:
    assert list(interleave([iter("abc"), iter("x")], [0.5, 0.5], len)) == ["a", "x", "b"]


def test_source_that_ran_out_is_named_unless_it_may_repeat() -> None:
    once = MixtureSource(name="small", weight=1, path=Path("a"))
    passes = training_passes(once, lambda: iter("ab"))
    assert list(islice(passes, 2)) == ["a", "b"]
    with pytest.raises(ValueError, match="mixture source 'small' ran out after 2 documents"):
        next(passes)
    again = MixtureSource(name="small", weight=1, path=Path("a"), repeat=True)
    assert "".join(islice(training_passes(again, lambda: iter("ab")), 5)) == "ababa"
    with pytest.raises(ValueError, match="ran out after 0 documents"):
        next(training_passes(again, lambda: iter("")))


def test_mixture_of_the_paper_is_shipped() -> None:
    assert "fibonacci-paper" in shipped_mixtures()
    sources = {source.name: source for source in load_mixture("fibonacci-paper").sources}
    assert [sources[name].weight for name in ("fineweb-edu", "wikipedia", "tinystories")] == [0.35, 0.22, 0.2]
    assert sources["math"].weight + sources["openmathinstruct-2"].weight == pytest.approx(0.23)
    assert all(source.hub is not None for source in sources.values())


def test_override_points_a_source_to_local_files(tmp_path: Path) -> None:
    mixture = load_mixture("fibonacci-paper", {"wikipedia": tmp_path / "a.jsonl"})
    local = next(source for source in mixture.sources if source.name == "wikipedia")
    assert (local.path, local.hub, local.weight) == (tmp_path / "a.jsonl", None, 0.22)
    with pytest.raises(ValueError, match="override 'wiki' names no source"):
        load_mixture("fibonacci-paper", {"wiki": tmp_path})


def test_relative_path_is_taken_from_the_files_folder(tmp_path: Path) -> None:
    (tmp_path / "mix.toml").write_text(SOURCE.format("a", 1, "texts"))
    assert load_mixture(tmp_path / "mix.toml").sources[0].path == tmp_path / "texts"


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (SOURCE.format("a", 0.5, "x"), "weights should sum to 1, they sum to 0.5"),
        (SOURCE.format("a", 0.5, "x") * 2, "source names should differ, got a, a"),
        (SOURCE.format("a", 0, "x"), r"source\.0\.weight: .*greater than 0"),
        (
            SOURCE.format("a", 1, "x") + "wieght = 1\n",
            r"source\.0\.wieght: unknown key; allowed are .*weight",
        ),
        ("seed = 1\n" + SOURCE.format("a", 1, "x"), "seed: unknown key; allowed are source"),
        ("", r"source: Field required"),
        ("source = 3", r"source: "),
        ("[[source]]\nname = 'a'\nweight = 1\n", r"source\.0: exactly one of embedded, path and hub"),
        ("= 3", "not valid TOML"),
    ],
    ids=["sum", "twice", "zero", "key", "top key", "empty", "no table", "no place", "toml"],
)
def test_fault_in_a_file_is_named_with_its_key(tmp_path: Path, content: str, message: str) -> None:
    path = tmp_path / "mix.toml"
    path.write_text(content)
    with pytest.raises(ValueError, match=rf"mix\.toml.*{message}"):
        load_mixture(path)


def test_missing_file_is_named() -> None:
    with pytest.raises(ValueError, match=r"mixture none\.toml is neither a file nor one of .*fibonacci-paper"):
        load_mixture("none.toml")
