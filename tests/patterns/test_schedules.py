"""Alphas over depth (static-patterns.md, A2)."""

from __future__ import annotations

import itertools
import math

import pytest

from farspan import schedules
from farspan.patterns.schedules import coprime_stride

EVERY_RAMP = [schedules.stagger, schedules.coprime, schedules.descending, schedules.shuffled]


def test_fixed_is_one_in_every_layer():
    assert schedules.fixed(3) == [1.0, 1.0, 1.0]
    assert schedules.fixed(2, alpha=0.7) == [0.7, 0.7]


def test_the_stagger_rises_linearly():
    assert schedules.stagger(16) == [0.5 + layer / 15 for layer in range(16)]
    assert schedules.stagger(3, low=1, high=3) == [1.0, 2.0, 3.0]
    assert schedules.stagger(3, low=3, high=1) == [3.0, 2.0, 1.0]


def test_coprime_slots_of_sixteen_layers():
    slots = [0, 7, 14, 5, 12, 3, 10, 1, 8, 15, 6, 13, 4, 11, 2, 9]
    assert schedules.coprime(16) == [0.5 + slot / 15 for slot in slots]


@pytest.mark.parametrize(
    ("layers", "stride"),
    [(8, 3), (12, 5), (16, 7), (18, 7), (24, 11), (32, 15), (5, 2), (7, 3), (9, 4), (10, 3)],
)
def test_the_stride_is_the_largest_without_a_common_factor(layers, stride):
    assert coprime_stride(layers) == stride
    assert math.gcd(stride, layers) == 1
    low, high = 0.5, 1.5
    expected = [low + (high - low) * (stride * layer % layers) / (layers - 1) for layer in range(layers)]
    assert schedules.coprime(layers) == expected


@pytest.mark.parametrize("layers", [1, 2, 3, 4, 6])
def test_depths_without_a_stride_fall_back_to_the_stagger(layers):
    """A2: the paper's code would stop here."""
    assert coprime_stride(layers) == 1
    assert schedules.coprime(layers) == schedules.stagger(layers)


@pytest.mark.parametrize("layers", [*range(1, 40), 64, 96])
def test_coprime_is_a_permutation_of_the_stagger(layers):
    assert sorted(schedules.coprime(layers, low=0.25, high=2)) == schedules.stagger(layers, low=0.25, high=2)


@pytest.mark.parametrize("layers", [5, 8, 16, 24])
def test_coprime_neighbours_differ_more_than_staggered_ones(layers):
    alphas = schedules.coprime(layers)
    smallest = min(abs(a - b) for a, b in itertools.pairwise(alphas))
    assert smallest > 1.5 / (layers - 1)


@pytest.mark.parametrize("schedule", EVERY_RAMP)
def test_a_single_layer_gets_the_middle(schedule):
    assert schedule(1) == [1.0]
    assert schedule(1, low=1, high=4) == [2.5]


@pytest.mark.parametrize("schedule", [schedules.fixed, *EVERY_RAMP])
@pytest.mark.parametrize(
    ("layers", "error"), [(0, ValueError), (-1, ValueError), (True, ValueError), (2.0, TypeError), (None, TypeError)]
)
def test_a_depth_that_is_none_is_refused(schedule, layers, error):
    with pytest.raises(error, match=f"^layers must be an integer >= 1, got {layers}"):
        schedule(layers)


@pytest.mark.parametrize("schedule", EVERY_RAMP)
@pytest.mark.parametrize("bound", ["low", "high"])
@pytest.mark.parametrize(
    ("value", "error"),
    [(0, ValueError), (-1.0, ValueError), (math.nan, ValueError), (math.inf, ValueError), ("1", TypeError)],
)
def test_bounds_are_positive(schedule, bound, value, error):
    with pytest.raises(error, match=f"^{bound} must be a .*number > 0, got "):
        schedule(8, **{bound: value})


def test_a_fixed_alpha_is_positive():
    with pytest.raises(ValueError, match=r"^alpha must be a finite number > 0, got 0"):
        schedules.fixed(8, alpha=0)


@pytest.mark.parametrize("layers", [1, 2, 5, 16])
def test_descending_is_the_stagger_upside_down(layers):
    assert schedules.descending(layers, low=0.25, high=2) == schedules.stagger(layers, low=0.25, high=2)[::-1]


def test_descending_starts_high():
    assert schedules.descending(3) == [1.5, 1.0, 0.5]


@pytest.mark.parametrize("seed", [0, 1, 7])
def test_shuffled_is_a_permutation_of_the_stagger(seed):
    alphas = schedules.shuffled(16, seed=seed)
    assert sorted(alphas) == schedules.stagger(16)
    assert alphas != schedules.stagger(16)
    assert alphas == schedules.shuffled(16, seed=seed)
    assert alphas != schedules.shuffled(16, seed=seed + 1)


def test_the_order_of_a_seed_is_pinned():
    """A study must mean the same on every machine."""
    assert schedules.shuffled(8, low=1, high=8, seed=3) == [1, 6, 8, 3, 2, 7, 5, 4]


def test_stagger_heads_gives_every_layer_the_whole_ramp():
    assert schedules.stagger_heads(3, 5) == [schedules.stagger(5)] * 3
    first, second, _ = schedules.stagger_heads(3, 5)
    assert first is not second


def test_coprime_heads_of_two_layers_and_five_heads():
    """Five heads have stride 2: head h has part 0, 2, 4, 1, 3 of the range; the second layer is one slot further."""
    assert schedules.coprime_heads(2, 5, low=1, high=10) == [[1, 5, 9, 3, 7], [2, 6, 10, 4, 8]]


@pytest.mark.parametrize(("layers", "heads"), [(1, 1), (16, 1), (1, 8), (8, 4), (16, 8), (3, 12)])
def test_coprime_heads_uses_every_alpha_of_the_ramp_once(layers, heads):
    alphas = schedules.coprime_heads(layers, heads)
    assert [len(layer) for layer in alphas] == [heads] * layers
    assert sorted(alpha for layer in alphas for alpha in layer) == schedules.stagger(layers * heads)


@pytest.mark.parametrize("schedule", [schedules.stagger_heads, schedules.coprime_heads])
@pytest.mark.parametrize("name", ["layers", "heads"])
@pytest.mark.parametrize(("value", "error"), [(0, ValueError), (True, ValueError), (2.0, TypeError), (None, TypeError)])
def test_counts_are_positive_integers(schedule, name, value, error):
    with pytest.raises(error, match=f"^{name} must be an integer >= 1, got {value}"):
        schedule(**{"layers": 4, "heads": 4, name: value})


@pytest.mark.parametrize(("seed", "error"), [(-1, ValueError), (True, ValueError), (1.5, TypeError)])
def test_a_seed_is_an_integer(seed, error):
    with pytest.raises(error, match=r"^seed must be an integer >= 0, got "):
        schedules.shuffled(8, seed=seed)
