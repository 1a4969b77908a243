"""The patterns are those of arXiv 2606.28560, number by number (static-patterns.md, A3 and A7)."""

from __future__ import annotations

import pytest
import torch

from farspan import Lines, patterns, schedules
from farspan.patterns import fibonacci, powers, powers_grown

LAYERS = 16

# A3: offsets > W = 8 by layer, linear stagger, T = 1024.
GOLDEN = """
    10,17,28,44,72,116,188,305,494 | 12,19,31,50,82,132,214,346,559 | 13,22,35,56,91,148,239,386,625
    | 9,15,24,38,62,101,163,264,427,691 | 10,16,26,42,68,110,179,289,468,757 | 11,18,28,46,74,120,194,314,508,822
    | 12,19,31,50,80,130,210,339,549,888 | 13,20,33,53,86,139,225,364,590,954 | 13,22,35,57,92,149,241,390,630,1020
    | 9,14,23,37,61,98,158,256,415,671 | 9,15,24,40,64,104,168,272,440,712 | 10,16,26,42,68,110,178,287,465,752
    | 10,17,27,44,72,116,187,303,490,793 | 11,18,29,46,75,122,197,318,515,834 | 11,19,30,49,79,128,206,334,540,874
    | 12,20,32,51,82,134,216,350,566,915
"""
OFFSETS = [[int(number) for number in layer.split(",")] for layer in GOLDEN.split("|")]


def within(support: Lines, length: int) -> list[int]:
    return [d for d in support.slashes if d < length]


def fibonacci_layers(window: int, schedule=schedules.stagger) -> list[Lines]:
    return [fibonacci(window, alpha) for alpha in schedule(LAYERS)]


def powers_layers(window: int, length: int, schedule=schedules.stagger) -> list[Lines]:
    return [powers_grown(window, length, alpha) for alpha in schedule(LAYERS)]


@pytest.mark.parametrize("layer", range(LAYERS))
def test_the_golden_vector(layer):
    """W = 8 look-back keys and the query's own make a window of 9."""
    assert within(fibonacci_layers(9)[layer], 1024) == [*range(9), *OFFSETS[layer]]


@pytest.mark.parametrize("layer", range(LAYERS))
def test_the_last_row_reads_the_golden_vector(layer):
    """The same through the mask, not the list."""
    read = fibonacci_layers(9)[layer].mask(1, 1024)[0].nonzero().flatten()
    assert (1023 - read).flip(0).tolist() == [*range(9), *OFFSETS[layer]]


def test_the_base_is_fibonacci_without_the_doubled_one():
    assert fibonacci(1).slashes == (0, 1, 2, 3, 5, 8, 13, 21, 34, 55, 89, 144, 233, 377, 610, 987)


@pytest.mark.parametrize(("rungs", "slashes"), [(0, (0,)), (1, (0, 1)), (2, (0, 1, 2)), (5, (0, 1, 2, 3, 5, 8))])
def test_rungs_count_the_base(rungs, slashes):
    assert fibonacci(1, rungs=rungs).slashes == slashes


@pytest.mark.parametrize(
    ("alpha", "number", "rung"),
    [(0.5, 5, 2), (0.5, 21, 10), (1.5, 987, 1480), (1.5, 1, 2), (1.5, 5, 8), (0.5, 13, 6), (1.5, 3, 4)],
)
def test_halves_round_to_the_even_number(alpha, number, rung):
    """A1: 18 rungs of the paper's ramp depend on it."""
    base = (1, 2, 3, 5, 8, 13, 21, 34, 55, 89, 144, 233, 377, 610, 987)
    assert fibonacci(1, alpha).slashes == tuple(sorted({0, *(round(alpha * f) for f in base)}))
    assert rung in fibonacci(1, alpha, rungs=base.index(number) + 1).slashes
    half_up = {0, *(int(alpha * f + 0.5) for f in base)}
    assert set(fibonacci(1, alpha).slashes) != half_up


# A3, at 1024 tokens: the longest distance; keys of the last row by W, as (fewest, most, mean) over the layers.
TABLE = {
    "fib fixed": (987, {6: (18, 18, 18), 8: (19, 19, 19), 10: (21, 21, 21), 12: (23, 23, 23)}),
    "fib stagger": (1020, {6: (16, 18, 17.4), 8: (18, 19, 18.8), 10: (19, 21, 20.4), 12: (21, 23, 22)}),
    "fib coprime": (1020, {6: (16, 18, 17.4), 8: (18, 19, 18.8), 10: (19, 21, 20.4), 12: (21, 23, 22)}),
    "pow2 fixed": (512, {8: (15, 15, 15), 12: (19, 19, 19)}),
    "pow2 stagger": (768, {6: (13, 14, 13.7), 8: (14, 16, 15.4), 10: (16, 18, 17), 12: (18, 19, 18.7)}),
}


@pytest.mark.parametrize(
    ("row", "look_back"), [pytest.param(row, w, id=f"{row} W={w}") for row in TABLE for w in TABLE[row][1]]
)
def test_key_counts_and_reach(row, look_back):
    base, name = row.split()
    schedule = getattr(schedules, name)
    window = look_back + 1
    layers = fibonacci_layers(window, schedule) if base == "fib" else powers_layers(window, 1024, schedule)
    distances = [within(layer, 1024) for layer in layers]
    keys = [len(layer) for layer in distances]
    reach, counts = TABLE[row]
    assert (min(keys), max(keys), round(sum(keys) / LAYERS, 1)) == counts[look_back]
    assert max(max(layer) for layer in distances) == reach
    assert [int(layer.mask(1, 1024).sum()) for layer in layers] == keys


def test_the_stagger_covers_133_distances():
    """A7.5: 19 with one alpha, 133 with sixteen; 10 and 124 beyond the window."""
    assert len({d for layer in fibonacci_layers(9, schedules.fixed) for d in within(layer, 1024)}) == 19
    assert len({d for layer in fibonacci_layers(9) for d in within(layer, 1024)}) == 133


# A7.2: what appears beyond the training length

NEVER_TRAINED = [1086, 1151, 1217, 1283, 1349, 1415, 1480]


def beyond(layers: list[Lines], trained: int, length: int) -> list[list[int]]:
    return [[d for d in within(layer, length) if d >= trained] for layer in layers]


def test_late_layers_of_the_stagger_gain_a_rung_at_2048():
    gained = beyond(fibonacci_layers(9), 1024, 2048)
    assert gained == [[]] * 9 + [[rung] for rung in NEVER_TRAINED]
    assert beyond(fibonacci_layers(9), 1024, 1024) == [[]] * 16


def test_other_layers_of_the_coprime_schedule_gain_the_same_rungs():
    gained = beyond(fibonacci_layers(9, schedules.coprime), 1024, 4096)
    assert [layer for layer, rungs in enumerate(gained) if rungs] == [2, 4, 6, 9, 11, 13, 15]
    assert sorted(rung for rungs in gained for rung in rungs) == NEVER_TRAINED


def test_fixed_spacing_gains_nothing():
    assert beyond(fibonacci_layers(9, schedules.fixed), 1024, 4096) == [[]] * 16


# The two powers


def test_powers_end_below_their_reach():
    assert powers(1).slashes == (0, 1, 2, 4, 8, 16, 32, 64, 128, 256, 512)
    assert powers(1, reach=1025).slashes[-1] == 1024


@pytest.mark.parametrize(
    ("reach", "slashes"),
    [(1, (0,)), (2, (0, 1)), (3, (0, 1, 2)), (4, (0, 1, 2)), (5, (0, 1, 2, 4)), (9, (0, 1, 2, 4, 8))],
)
def test_reach_cuts_the_base(reach, slashes):
    assert powers(1, reach=reach).slashes == slashes


def test_powers_grown_gains_rungs_beyond_the_training_length_and_powers_does_not():
    assert within(powers_grown(9, 1024), 1024) == within(powers(9), 1024)
    assert beyond([powers_grown(9, 2048), powers_grown(9, 4096)], 1024, 4096) == [[1024], [1024, 2048]]
    assert beyond([powers(9)], 1024, 4096) == [[]]
    assert powers(9) == powers_grown(9, 1024)


def test_staggered_powers_gain_one_base_rung_in_every_layer_per_doubling():
    """A7.2: 1024 alpha at 2048; 1024 alpha and 2048 alpha at 4096."""
    alphas = schedules.stagger(LAYERS)
    short, middle, long = (powers_layers(9, length) for length in (1024, 2048, 4096))
    for alpha, a, b, c in zip(alphas, short, middle, long, strict=True):
        assert set(b.slashes) - set(a.slashes) == {round(1024 * alpha)}
        assert set(c.slashes) - set(b.slashes) == {round(2048 * alpha)}


def test_below_one_a_grown_pattern_reads_other_keys_for_the_same_query():
    """alpha 0.5 at 2048 brings rung 512, which a query at position 600 could have read at 1024 too."""
    positions = slice(600, 601)
    trained, grown = powers_grown(9, 1024, 0.5), powers_grown(9, 2048, 0.5)
    assert not torch.equal(trained.mask(1024, 1024)[positions], grown.mask(1024, 1024)[positions])
    assert set(grown.slashes) - set(trained.slashes) == {512}
    assert 512 not in powers(9, 0.5).slashes


# The window


@pytest.mark.parametrize("window", [1, 2, 9, 13])
def test_the_window_counts_the_query_itself(window):
    assert patterns.sliding_window(window).slashes == tuple(range(window))
    for build in (fibonacci, powers):
        nearest = build(window, 1000.0).slashes
        assert nearest[:window] == tuple(range(window))
        assert nearest[window] == 1000


@pytest.mark.parametrize("build", [fibonacci, powers])
@pytest.mark.parametrize("alpha", [0.01, 0.5, 0.77, 1.0, 1.5, 7.3])
def test_rungs_inside_the_window_drop_out(build, alpha):
    slashes = build(13, alpha).slashes
    assert slashes == tuple(sorted(set(slashes)))
    assert slashes[:13] == tuple(range(13))
    assert {d for d in slashes if d >= 13} == {d for d in build(1, alpha).slashes if d >= 13}


def test_a_rung_right_behind_the_window_is_kept():
    """The paper's condition is r > W, and W is window - 1."""
    assert 13 in fibonacci(13).slashes
    assert fibonacci(13).slashes == (*range(13), 13, 21, 34, 55, 89, 144, 233, 377, 610, 987)
    assert powers(8).slashes[:10] == (0, 1, 2, 3, 4, 5, 6, 7, 8, 16)


NOT_A_WINDOW = [(0, ValueError), (-3, ValueError), (True, ValueError), (9.0, TypeError), ("9", TypeError)]
WRONG = [
    (fibonacci, {"alpha": 0}, ValueError, "alpha must be a finite number > 0, got 0"),
    (fibonacci, {"alpha": -0.5}, ValueError, "alpha must be a finite number > 0, got -0.5"),
    (fibonacci, {"alpha": float("nan")}, ValueError, "alpha must be a finite number > 0, got nan"),
    (fibonacci, {"alpha": float("inf")}, ValueError, "alpha must be a finite number > 0, got inf"),
    (fibonacci, {"alpha": True}, TypeError, "alpha must be a number > 0, got True"),
    (fibonacci, {"alpha": "1"}, TypeError, "alpha must be a number > 0, got '1'"),
    (fibonacci, {"alpha": None}, TypeError, "alpha must be a number > 0, got None"),
    (fibonacci, {"rungs": -1}, ValueError, "rungs must be an integer >= 0, got -1"),
    (fibonacci, {"rungs": 2.0}, TypeError, "rungs must be an integer >= 0, got 2.0"),
    (fibonacci, {"rungs": True}, ValueError, "rungs must be an integer >= 0, got True"),
    (powers, {"alpha": 0}, ValueError, "alpha must be a finite number > 0, got 0"),
    (powers, {"alpha": float("nan")}, ValueError, "alpha must be a finite number > 0, got nan"),
    (powers, {"reach": 0}, ValueError, "reach must be an integer >= 1, got 0"),
    (powers, {"reach": 2.5}, TypeError, "reach must be an integer >= 1, got 2.5"),
    (powers_grown, {"alpha": 0, "length": 64}, ValueError, "alpha must be a finite number > 0, got 0"),
    (powers_grown, {"length": 0}, ValueError, "length must be an integer >= 1, got 0"),
    (powers_grown, {"length": None}, TypeError, "length must be an integer >= 1, got None"),
    *(
        (build, {"window": window, **more}, error, f"window must be an integer >= 1, got {window!r}")
        for build, more in (
            (patterns.sliding_window, {}),
            (fibonacci, {}),
            (powers, {}),
            (powers_grown, {"length": 64}),
        )
        for window, error in NOT_A_WINDOW
    ),
]


@pytest.mark.parametrize(
    ("build", "arguments", "error", "words"),
    WRONG,
    ids=[f"{build.__name__} {', '.join(f'{k}={v!r}' for k, v in arguments.items())}" for build, arguments, *_ in WRONG],
)
def test_what_has_no_meaning_is_refused_by_name(build, arguments, error, words):
    """F02: never a silent dense result."""
    with pytest.raises(error, match=f"^{words}$"):
        build(**{"window": 9, **arguments})
