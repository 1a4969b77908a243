"""In how many ways a stack connects each distance: how strongly its layers mix."""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np

from farspan.patterns.coverage.sums import Array, runs_of, spread


def path_counts(sets: Sequence[Array], length: int) -> Array:
    """The number of paths through the whole stack to each distance, as exact Python integers, `[length]`.

    A path picks one distance of each layer, or 0 (the layer's own key and the residual stream count once together);
    the distances picked add up to the one connected. Meant for a few thousand distances: integers grow with depth.
    """
    counts = np.zeros(length, dtype=object)
    counts[0] = 1
    for numbers in sets:
        counts = spread(counts, runs_of(_with_zero(numbers)), np.add, 0)
    return counts


def log_path_counts(sets: Sequence[Array], length: int) -> Array:
    """The natural logarithms of `path_counts`, float64 `[length]`, -inf where there is no path.

    Counts are summed as float64 and never subtracted: exact up to 2**53 and beyond that within a relative error of
    2**-53 per addition, at most the sum over layers of their keys. A stack whose counts could exceed float64 is summed
    in logarithms instead, with that error of the logarithm in place of the count.
    """
    sets = [_with_zero(numbers[numbers < length]) for numbers in sets]
    fits = sum(math.log2(len(numbers)) for numbers in sets) < 1000
    counts = np.zeros(length) if fits else np.full(length, -np.inf)
    counts[0] = 1.0 if fits else 0.0
    for numbers in sets:
        combine, nothing = (np.add, 0.0) if fits else (np.logaddexp, -np.inf)
        counts = spread(counts, runs_of(numbers), combine, nothing)
    if not fits:
        return counts
    with np.errstate(divide="ignore"):
        return np.log(counts)


def _with_zero(numbers: Array) -> Array:
    return np.concatenate([[0], numbers[numbers > 0]])
