"""What pictures in text and on paper share: the mask of a stack in tiles, and distances on a logarithmic axis."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from farspan.patterns.arguments import at_least
from farspan.patterns.coverage.tiles import tile_map
from farspan.support import Support

Array = NDArray[Any]


def stack_map(stack: Sequence[Support], length: int, most: int) -> Array:
    """Share of the layers and heads that read anything in each tile of the mask: float64 `[n, n]`, n <= most."""
    side = -(-at_least("length", length, 1) // most)
    maps: dict[int, Array] = {}
    for support in stack:
        if id(support) not in maps:
            maps[id(support)] = tile_map(support, length, side)
    return sum((maps[id(support)] for support in stack), np.zeros(())) / len(stack)


def columns(length: int, width: int) -> Array:
    """Which of `width` columns each distance `0 .. length - 1` falls into on an axis of log(1 + distance)."""
    if length < 2:
        return np.zeros(length, np.int64)
    return np.rint(np.log2(1 + np.arange(length)) / np.log2(length) * (width - 1)).astype(np.int64)


def by_column(values: Array, width: int) -> Array:
    """Mean of `values`, one for each distance, in every column; a column without a distance repeats the one before."""
    at = columns(len(values), width)
    count = np.bincount(at, minlength=width)
    mean = np.bincount(at, weights=values, minlength=width) / np.maximum(count, 1)
    return mean[np.maximum.accumulate(np.where(count > 0, np.arange(width), 0))]


def ticks(length: int) -> list[int]:
    """Distances worth a label: 0, the powers of 4 and the longest."""
    longest = length - 1
    return [0, *(4**k for k in range(16) if 4**k < longest), longest]
