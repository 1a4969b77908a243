"""Power-based partial attention (static-patterns.md, B17)."""

from __future__ import annotations

import math

import pytest

from farspan.patterns import partial_power


@pytest.mark.parametrize("exponent", [0.1, 1 / 3, 0.5, 0.625, 0.75, 0.9, 0.999, 1.0])
def test_the_distances_are_where_the_floor_steps(exponent):
    steps = [j for j in range(1, 20_000) if math.floor(j**exponent) != math.floor((j - 1) ** exponent)]
    assert partial_power(exponent, 20_000, window=1).slashes == (0, *steps)


@pytest.mark.parametrize("exponent", [0.5, 0.625, 0.75])
def test_a_query_reads_about_the_power_of_the_length(exponent):
    assert len(partial_power(exponent, 65_536, window=1).slashes) - 1 == math.floor(65_535**exponent)


def test_squares():
    assert partial_power(0.5, 50, window=3).slashes == (0, 1, 2, 4, 9, 16, 25, 36, 49)


def test_more_than_full_attention_is_refused():
    with pytest.raises(ValueError, match=r"^exponent must lie in 0\.01\.\.1, got 1\.5"):
        partial_power(1.5, 64)
