"""Tiles of the score matrix that hold at least one pair: what a kernel that works in tiles has to compute."""

from __future__ import annotations

import numpy as np
from torch import Tensor

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
    heads = support.index.flatten(0, 1)
    return sum(len(_entry_tiles(index, support, length, tile)) for index in heads) / (len(heads) * causal)


def tile_map(support: Support, length: int, tile: int) -> Array:
    """Share of the heads (and batch rows) that read anything in each tile: float64 `[n, n]`, n = ceil(length / tile).

    Rows are queries. For pictures: n should be a few hundred at most.
    """
    count = -(-at_least("length", length, 1) // at_least("tile", tile, 1))
    total = np.zeros((count, count))
    if isinstance(support, Lines):
        heads = line_heads(support, length)
        down = np.arange(count)[:, None] - np.arange(count)
        for slashes, verticals in heads:
            whole, cut = _diagonals(slashes, length, tile)
            touched = (down >= 0) & whole[down]
            if length % tile:
                touched[-1] = cut[down[-1]]
            touched[:, verticals // tile] = down[:, verticals // tile] >= 0
            total += touched
        return total / len(heads)
    assert isinstance(support, Blocks)
    for index in support.index.flatten(0, 1):
        total.flat[_entry_tiles(index, support, length, tile)] += 1
    return total / (support.batch * support.heads)


def _diagonals(slashes: Array, length: int, tile: int) -> tuple[Array, Array]:
    """Which tiles m below the main diagonal the slashes touch, bool `[n]`: in whole rows of tiles, and in a last row
    that is cut off."""
    count = -(-length // tile)
    rest = length % tile
    # Distance m * tile lies on the diagonal of the tiles m below the main one, any other also in those m + 1 below.
    whole, cut = np.zeros(count + 1, bool), np.zeros(count + 1, bool)
    beyond = -(-slashes // tile)
    whole[slashes // tile] = whole[beyond] = True
    cut[beyond] = cut[slashes[slashes % tile < rest] // tile] = True
    return whole[:count], cut[:count]


def _by_lines(slashes: Array, verticals: Array, length: int, tile: int) -> int:
    """Touched tiles of one head."""
    whole, cut = _diagonals(slashes, length, tile)
    rows, rest = length // tile, length % tile
    total = int((whole[:rows] * (rows - np.arange(rows))).sum()) + (int(cut.sum()) if rest else 0)
    missing = np.concatenate([[0], (~whole[:rows]).cumsum()])
    for column in np.unique(verticals // tile):
        total += int(missing[max(rows - column, 0)])
        total += int(rest > 0 and not cut[rows - column])
    return total


def _entry_tiles(index: Tensor, support: Blocks, length: int, tile: int) -> Array:
    """Touched tiles of the head with this index, as row * n + column, sorted and unique."""
    count = -(-length // tile)
    head = Blocks(index[None, None], support.block_q, support.block_k)
    rows, first = entry_corners(head, length)
    last_row = np.minimum(rows + support.block_q, length) - 1
    last_key = np.minimum(first + support.block_k, length) - 1
    found = [np.zeros(0, np.int64)]
    for down in range((support.block_q - 1) // tile + 2):
        for across in range((support.block_k - 1) // tile + 2):
            i, j = rows // tile + down, first // tile + across
            lowest = np.minimum(last_row, (i + 1) * tile - 1)
            inside = (i * tile <= last_row) & (j * tile <= last_key) & (lowest >= np.maximum(first, j * tile))
            found.append(np.unique((i * count + j)[inside]))
    return np.unique(np.concatenate(found))
