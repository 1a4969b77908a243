"""WaveNet, HDC and DilateFormer (static-patterns.md, B9 and B10)."""

from __future__ import annotations

import itertools
import math

import pytest

from farspan.patterns import dilateformer, hdc, hdc_gaps, wavenet


def sums(layers):
    reached = {0}
    for support in layers:
        reached = {a + b for a, b in itertools.product(reached, support.slashes)}
    return reached


def test_a_wavenet_cycle_connects_every_distance_once():
    """B9: a cycle of ten has a receptive field of 1024, three of them 3 * 1023 + 1."""
    assert sums(wavenet(layer) for layer in range(10)) == set(range(1024))
    assert max(sums(wavenet(layer) for layer in range(30))) == 3 * 1023


def test_wavenet_begins_anew_after_a_cycle():
    assert [wavenet(layer, 3).slashes[-1] for layer in range(7)] == [1, 2, 4, 1, 2, 4, 1]


def test_a_dilation_that_no_support_can_hold_is_refused():
    assert wavenet(30, 31).slashes == (0, 2**30)
    with pytest.raises(ValueError, match=r"^cycle must be at most 31"):
        wavenet(0, 32)


@pytest.mark.parametrize(
    ("rates", "gap", "holes"),
    [
        ([1, 2, 5], 2, 0),
        ([1, 2, 9], 5, 4),
        ([2, 4, 8], 4, 14),
        ([1, 2, 3], 2, 0),
        ([1, 3, 5], 3, 0),
        ([1, 2, 5, 9], 2, 0),
        ([5, 9, 17], 9, 36),
        ([2, 2, 2], 2, 6),
    ],
    ids=str,
)
def test_the_gaps_and_holes_of_the_specification(rates, gap, holes):
    """M_2 and the distances that no sum of taps makes. M_2 <= kernel is not enough: 2, 2, 2."""
    assert hdc_gaps(rates)[1] == gap
    reached = sums(hdc(layer, rates) for layer in range(len(rates)))
    assert max(reached) == 2 * sum(rates)
    assert len(set(range(max(reached) + 1)) - reached) == holes
    assert (holes == 0) == (gap <= 3 and math.gcd(*rates) == 1)


def test_the_gaps_begin_with_the_first_layer():
    """1, 2, 9: M_3 = 9, M_2 = 9 - 4, M_1 = 5 - 2."""
    assert hdc_gaps([1, 2, 9]) == [3, 5, 9]
    assert hdc_gaps([7]) == [7]


@pytest.mark.parametrize("rates", [[], [1, 0], [True]])
def test_rates_are_positive_integers(rates):
    with pytest.raises(ValueError, match=r"^rates must be "):
        hdc_gaps(rates)


def test_rates_repeat_over_depth():
    assert [hdc(layer).slashes for layer in range(4)] == [(0, 1, 2), (0, 2, 4), (0, 3, 6), (0, 1, 2)]


def test_dilations_go_to_equal_groups_of_heads():
    assert dilateformer(6).slashes == ((0, 1, 2),) * 2 + ((0, 2, 4),) * 2 + ((0, 3, 6),) * 2


def test_heads_that_do_not_divide_are_refused():
    with pytest.raises(ValueError, match=r"^heads must be a multiple of the number of dilations, 3, got 4"):
        dilateformer(4)
