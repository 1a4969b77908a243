"""Tiles of the score matrix that hold at least one pair: what a kernel that works in tiles has to compute."""

from __future__ import annotations

import numpy as np

from farspan.patterns.arguments import at_least
from farspan.patterns.coverage.distances import entry_corners, line_heads
from farspan.patterns.coverage.sums import Array
from farspan.support import Blocks, Lines, Support


def touched_tiles(support: Support, length: int, tile: int) -> float:
    """Touched tiles / causal tiles of `tile x tile` pairs, averaged over heads and batch rows. Exact, at any length.

    Raises:
        TypeError, ValueError: `length` or `tile` is not an integer >= 1.
    """
    at_least("length", length, 1)
    at_least("tile", tile, 1)
    count = -(-length // tile)
    causal = count * (count + 1) // 2
    if isinstance(support, Lines):
        touched = [_by_lines(*lines, length, tile) for lines in line_heads(support, length)]
        return sum(touched) / (len(touched) * causal)
    assert isinstance(support, Blocks)
    return _by_entries(support, length, tile) / (support.batch * support.heads * causal)


def _by_lines(slashes: Array, verticals: Array, length: int, tile: int) -> int:
    """Touched tiles of one head. Which tiles a slash touches depends on their row minus their column alone, except in
    a last row of tiles that is cut off."""
    rows = length // tile
    rest = length - rows * tile
    # Distance m * tile lies on the diagonal of the tiles m below the main one, any other also in those m + 1 below.
    whole = np.zeros(rows + 2, bool)
    whole[slashes // tile] = True
    whole[-(-slashes // tile)] = True
    whole = whole[:rows]
    total = int((whole * (rows - np.arange(rows))).sum())
    cut = np.zeros(rows + 2, bool)
    if rest:
        cut[-(-slashes // tile)] = True
        cut[slashes[slashes % tile < rest] // tile] = True
        total += int(cut[: rows + 1].sum())
    missing = np.concatenate([[0], (~whole).cumsum()])
    for column in np.unique(verticals // tile):
        total += int(missing[max(rows - column, 0)])
        total += int(rest > 0 and not cut[rows - column])
    return total


def _by_entries(support: Blocks, length: int, tile: int) -> int:
    """Touched tiles of all heads and batch rows together."""
    count = -(-length // tile)
    total = 0
    for index in support.index.flatten(0, 1):
        head = Blocks(index[None, None], support.block_q, support.block_k)
        rows, first = entry_corners(head, length)
        last_row = np.minimum(rows + support.block_q, length) - 1
        last_key = np.minimum(first + support.block_k, length) - 1
        found = [np.zeros(0, np.int64)]
        for down in range((support.block_q - 1) // tile + 2):
            for across in range((support.block_k - 1) // tile + 2):
                i, j = rows // tile + down, first // tile + across
                inside = (i * tile <= last_row) & (j * tile <= last_key)
                lowest = np.minimum(last_row, (i + 1) * tile - 1)
                inside &= lowest >= np.maximum(first, j * tile)
                found.append(np.unique((i * count + j)[inside]))
        total += len(np.unique(np.concatenate(found)))
    return total
