"""Random sets that depend only on where they are drawn."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from farspan.patterns.draws import _mixed, distinct


def test_the_generator_is_splitmix64():
    """The first three numbers for the seed 1234567, which its author's C code gives."""
    steps = np.arange(3, dtype=np.uint64) * np.uint64(0x9E3779B97F4A7C15)
    expected = [6457827717110365317, 3203168211198807973, 9817491932198370423]
    assert _mixed(np.uint64(1234567) + steps).tolist() == expected


@given(st.lists(st.integers(-3, 40), max_size=30), st.integers(0, 12), st.integers(0, 2**40))
def test_each_place_gets_its_number_of_different_numbers_below_its_limit(limits, count, seed):
    chosen = distinct(np.array(limits, np.int64), count, seed, np.arange(len(limits)))
    assert chosen.shape == (len(limits), count)
    for limit, row in zip(limits, chosen.tolist(), strict=True):
        numbers = [number for number in row if number >= 0]
        assert len(set(numbers)) == len(numbers) == min(max(limit, 0), count)
        assert all(number < limit for number in numbers)
        assert numbers == sorted(numbers)


@pytest.mark.parametrize(("count", "sets", "bound"), [(1, 5, 18.5), (2, 10, 27.9), (3, 10, 27.9), (4, 5, 18.5)])
def test_every_set_is_as_likely_as_any(count, sets, bound):
    """Of five numbers, 20,000 times: chi-squared of sets - 1 degrees stays below the bound in 999 of 1000 runs."""
    chosen = distinct(np.full(20_000, 5), count, 3, np.arange(20_000))
    times = np.unique(chosen, axis=0, return_counts=True)[1]
    assert len(times) == sets
    assert ((times - 20_000 / sets) ** 2 / (20_000 / sets)).sum() < bound


def test_all_but_one_of_many_are_drawn():
    """The last missing number comes late, and does come."""
    chosen = distinct(np.array([500]), 499, 0)
    assert len(set(chosen[0].tolist())) == 499


@pytest.mark.parametrize("other", [(1, 0, 0), (0, 1, 0), (0, 0, 1)])
def test_every_number_of_the_stream_names_another_generator(other):
    limits = np.full(50, 10**6)
    same, others = distinct(limits, 4, 0, 0, 0), distinct(limits, 4, *other)
    assert np.array_equal(same, distinct(limits, 4, 0, 0, 0))
    assert not np.isin(same, others).any()
    assert not np.array_equal(distinct(limits, 4, 0, 1, 0), distinct(limits, 4, 1, 0, 0))


def test_a_place_draws_the_same_among_others():
    limits, place = np.arange(100), np.arange(100)
    assert np.array_equal(distinct(limits, 5, 1, place)[40:50], distinct(limits[40:50], 5, 1, place[40:50]))
