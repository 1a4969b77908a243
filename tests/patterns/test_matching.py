"""Controls of equal pairs or equal reach (static-patterns.md, A7.1)."""

from __future__ import annotations

import pytest
import torch
from hypothesis import assume, given
from hypothesis import strategies as st

from farspan import Blocks, Lines, Tokens, patterns
from farspan.patterns.coverage.distances import nearest_run
from farspan.patterns.matching import match, match_spec
from farspan.patterns.rules import build

LENGTH = 1024
FAMILIES = ["sliding_window", "powers"]


def fibonacci_of(window, alpha, rungs) -> Lines:
    return patterns.fibonacci(window, alpha, rungs)


random_patterns = st.builds(fibonacci_of, st.integers(1, 40), st.floats(0.3, 3), st.integers(0, 15)) | st.builds(
    Lines, st.lists(st.integers(0, 300), min_size=1, max_size=30)
)


@given(random_patterns, st.integers(1, 300))
def test_a_window_of_equal_pairs_is_within_half_a_key_per_query(pattern, length):
    pairs = pattern.pairs(length, length)
    assume(pairs >= length)
    window = match(pattern, "pairs", "sliding_window", length=length)
    assert window.slashes == tuple(range(len(window.slashes)))
    assert 2 * abs(window.pairs(length, length) - pairs) <= length


@given(random_patterns, st.integers(2, 300), st.floats(0.5, 1.5))
def test_powers_of_equal_pairs_are_within_half_a_key_per_query(pattern, length, alpha):
    assume(pattern.pairs(length, length) >= patterns.powers(1, alpha).pairs(length, length))
    found = match(pattern, "pairs", "powers", length=length, alpha=alpha)
    assert 2 * abs(found.pairs(length, length) - pattern.pairs(length, length)) <= length
    assert set(patterns.powers(1, alpha).slashes) <= set(found.slashes)


@pytest.mark.parametrize("family", FAMILIES)
@pytest.mark.parametrize("alpha", [0.5, 1.0, 1.5])
def test_no_other_window_is_nearer(family, alpha):
    pattern = patterns.fibonacci(13, alpha)
    spec = match_spec(pattern, "pairs", family, length=LENGTH)
    target = pattern.pairs(LENGTH, LENGTH)

    def distance(window):
        return abs(build({**spec, "window": window}, LENGTH).pairs(LENGTH, LENGTH) - target)

    assert distance(spec["window"]) <= min(distance(window) for window in range(1, 60))


def test_a_pattern_of_the_family_matches_itself():
    assert match(patterns.sliding_window(7), "pairs", "sliding_window", length=64) == patterns.sliding_window(7)
    assert match(patterns.powers(7), "pairs", "powers", length=64) == patterns.powers(7)


def test_the_equal_pairs_control_of_the_paper():
    """Fibonacci at W = 8 has 19 * 1024 - 2599 = 16857 pairs; powers have 17358 with window 12 and 16345 with 11."""
    spec = match_spec(patterns.fibonacci(9), "pairs", "powers", length=LENGTH)
    assert spec == {"pattern": "powers", "window": 12, "alpha": 1.0, "reach": 1024}
    assert build(spec, LENGTH).pairs(LENGTH, LENGTH) == 17358


@given(random_patterns)
def test_equal_reach_is_equal_exactly(pattern):
    reach = max(d for d in pattern.slashes if d < LENGTH)
    for family in FAMILIES:
        assert max(match(pattern, "reach", family, length=LENGTH).slashes) == reach


@given(st.integers(1, 60), st.floats(0.3, 3))
def test_powers_of_equal_reach_keep_the_window(window, alpha):
    pattern = patterns.fibonacci(window, alpha)
    spec = match_spec(pattern, "reach", "powers", length=LENGTH)
    run = next(w for w in range(len(pattern.slashes) + 1) if w not in pattern.slashes)
    assert spec["window"] == run


def test_reach_is_that_of_the_length():
    """A rung beyond the sequence is not reached."""
    pattern = patterns.fibonacci(9)
    assert max(match(pattern, "reach", "powers", length=600).slashes) == 377
    assert match(pattern, "reach", "sliding_window", length=600) == patterns.sliding_window(378)


@pytest.mark.parametrize("family", FAMILIES)
def test_a_pattern_that_reads_only_itself_has_a_match(family):
    assert match(patterns.sliding_window(1), "reach", family, length=8) == patterns.sliding_window(1)
    assert match(Lines([0]), "pairs", "sliding_window", length=8) == patterns.sliding_window(1)


@given(random_patterns, st.sampled_from(["pairs", "reach"]), st.sampled_from(FAMILIES))
def test_the_spec_builds_the_match(pattern, by, family):
    pairs = pattern.pairs(LENGTH, LENGTH)
    assume(by == "reach" or pairs >= patterns.powers(1).pairs(LENGTH, LENGTH))
    assert build(match_spec(pattern, by, family, length=LENGTH), LENGTH) == match(pattern, by, family, length=LENGTH)


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        pytest.param({"by": "keys"}, "by must be 'pairs', 'reach' or 'flops', got 'keys'", id="by"),
        pytest.param({"family": "window"}, "family must be 'sliding_window', 'powers' or 'random'", id="family"),
        pytest.param(
            {"pattern": Lines(torch.zeros(2, 1, 1, dtype=torch.int64))},
            "pattern must be the same for all batch rows, got 2 of them",
            id="batch",
        ),
        pytest.param(
            {"by": "reach", "family": "random"},
            "family must be 'sliding_window' or 'powers' by reach: random keys are drawn from everywhere",
            id="random reach",
        ),
        pytest.param(
            {"by": "reach", "pattern": Lines([], [0])}, "pattern must read at least one distance", id="verticals alone"
        ),
        pytest.param({"pattern": Lines([])}, "pattern must read at least one key at length 64, got none", id="nothing"),
        pytest.param({"pattern": Lines([64])}, "pattern must read at least one key at length 64", id="too far"),
        pytest.param({"length": 0}, "length must be an integer >= 1, got 0", id="length"),
        pytest.param({"alpha": 0.0, "family": "powers"}, "alpha must be a finite number > 0", id="alpha"),
        pytest.param(
            {"pattern": Lines([0]), "family": "powers"}, "no powers has 64 pairs at length 64", id="too few pairs"
        ),
        pytest.param({"pattern": Lines([60])}, "no sliding_window has 4 pairs at length 64", id="fewer than one key"),
    ],
)
def test_what_cannot_be_matched_is_refused(arguments, words):
    arguments = {"pattern": patterns.fibonacci(4), "by": "pairs", "family": "sliding_window", "length": 64, **arguments}
    with pytest.raises(ValueError, match=words):
        match(**arguments)


def test_a_match_more_than_half_a_key_away_is_refused():
    """The nearest is a window of one, 0.8 keys per query too many."""
    with pytest.raises(ValueError, match="no powers has 27 pairs at length 10: the nearest, window 1, has 35"):
        match(Lines([0, 1, 2]), "pairs", "powers", length=10)


def test_flops_are_pairs():
    for family in (*FAMILIES, "random"):
        found = match_spec(patterns.fibonacci(9), "flops", family, length=LENGTH)
        assert found == match_spec(patterns.fibonacci(9), "pairs", family, length=LENGTH)


# Patterns that differ by head, have verticals or are made of blocks or tokens

BLOCKS = Blocks(torch.tensor([[[[0, -1, -1], [0, 1, -1], [0, 1, 2], [0, 2, 3]]]], dtype=torch.int32), 16, 16)
OTHERS = [
    pytest.param(Lines([[0, 1, 2], list(range(12))]), 2, 11, id="two heads"),
    pytest.param(Lines(range(5), [0, 1]), 1, 4, id="sinks"),
    pytest.param(BLOCKS, 1, 63, id="blocks"),
    pytest.param(Tokens(torch.arange(64, dtype=torch.int32).reshape(1, 1, 64, 1).expand(1, 3, 64, 1)), 3, 0, id="self"),
]


@pytest.mark.parametrize(("pattern", "heads", "reach"), OTHERS)
@pytest.mark.parametrize("family", [*FAMILIES, "random"])
def test_any_support_has_a_control_of_its_mean_pairs(pattern, heads, reach, family):
    target = torch.as_tensor(pattern.pairs(64, 64), dtype=torch.float64).mean().item()
    if target < patterns.powers(1).pairs(64, 64) and family == "powers":
        with pytest.raises(ValueError, match=r"^no powers has .* pairs at length 64"):
            match(pattern, "pairs", family, length=64)
        return
    found = match(pattern, "pairs", family, length=64)
    assert found.heads == 1
    assert 2 * abs(found.pairs(64, 64) - target) <= 64


@pytest.mark.parametrize(("pattern", "heads", "reach"), OTHERS)
@pytest.mark.parametrize("family", FAMILIES)
def test_any_support_has_a_control_of_its_reach(pattern, heads, reach, family):
    assert max(match(pattern, "reach", family, length=64).slashes) == reach


@given(random_patterns, st.integers(1, 100), st.integers(0, 5))
def test_random_keys_keep_the_window_and_the_pairs(pattern, length, layer):
    pairs = pattern.pairs(length, length)
    assume(pairs >= length)
    spec = match_spec(pattern, "pairs", "random", length=length, seed=3, layer=layer)
    run = next(w for w in range(length + 1) if w == length or w not in pattern.slashes)
    assert spec["window"] == min(max(run, 1), spec["keys"])
    assert (spec["seed"], spec["layer"]) == (3, layer)
    found = build(spec, length)
    assert 2 * abs(found.pairs(length, length) - pairs) <= length
    assert found == match(pattern, "pairs", "random", length=length, seed=3, layer=layer)
    assert found.pairs(length, length) == patterns.sliding_window(spec["keys"]).pairs(length, length)


@pytest.mark.parametrize(
    ("pattern", "run"),
    [
        (Lines([[0, 1, 2, 5], [0, 1]]), 2),
        (Lines([1, 2]), 0),
        (Lines(range(200)), 64),
        (BLOCKS, 17),
        (Blocks(torch.tensor([[[[0, -1], [0, 1], [1, 2], [2, 3]]]]), 16, 16), 17),
    ],
    ids=["heads", "no self", "all", "hole", "blocks"],
)
def test_the_nearest_run_is_read_by_every_query(pattern, run):
    assert nearest_run(pattern, 64) == run
    mask = pattern.mask(64, 64)
    read = [bool(mask.diagonal(-d, -2, -1).all()) for d in range(64)]
    assert next((d for d in range(64) if not read[d]), 64) == run
