"""Which distances a layer reads, and what follows from the numbers alone: unions, common factors, HDC's gaps."""

from __future__ import annotations

from collections.abc import Iterable

import numpy as np

from farspan.patterns.arguments import at_least
from farspan.patterns.coverage.sums import Array
from farspan.support import Blocks, Lines, Support


def distances(support: Support, length: int) -> Array:
    """The distances that at least one query of `length` tokens reads in at least one head: int64, sorted, unique.

    Verticals are left out: a key that everyone reads says nothing about the distances between other tokens.
    """
    at_least("length", length, 1)
    if isinstance(support, Lines):
        return union(slashes for slashes, _ in line_heads(support, length))
    assert isinstance(support, Blocks)
    rows, first = entry_corners(support, length)
    last_row = np.minimum(rows + support.block_q, length) - 1
    nearest = np.maximum(rows - np.minimum(first + support.block_k, length) + 1, 0)
    # A block reads every distance between its nearest and its farthest pair.
    edges = np.zeros(length + 1, np.int64)
    np.add.at(edges, nearest, 1)
    np.add.at(edges, last_row - first + 1, -1)
    return np.flatnonzero(edges[:-1].cumsum() > 0)


def nearest_run(support: Support, length: int) -> int:
    """The largest w such that every query, in every head, reads all of its nearest w keys (those that there are).

    0 where a query does not read its own key. Verticals do not count.
    """
    at_least("length", length, 1)
    if isinstance(support, Lines):
        return min(_run_from_zero(slashes) for slashes, _ in line_heads(support, length))
    assert isinstance(support, Blocks)
    shortest = length
    for head in support.index.flatten(0, 1):
        rows, first = entry_corners(Blocks(head[None, None], support.block_q, support.block_k), length)
        run = 0
        while run < shortest and queries_at(run, support, rows, first, length).all():
            run += 1
        shortest = run
    return shortest


def queries_at(distance: int, support: Blocks, rows: Array, first: Array, length: int) -> Array:
    """bool `[length]`: which queries read the key at this distance through the entries at `rows` and `first`; True
    where there is no such key."""
    low = np.maximum(rows, first + distance)
    high = np.minimum(np.minimum(rows + support.block_q, first + support.block_k + distance), length)
    some = high > low
    edges = np.bincount(low[some], minlength=length + 1) - np.bincount(high[some], minlength=length + 1)
    read = edges[:length].cumsum() > 0
    read[:distance] = True
    return read


def _run_from_zero(numbers: Array) -> int:
    gaps = np.flatnonzero(numbers != np.arange(len(numbers)))
    return int(gaps[0]) if len(gaps) else len(numbers)


def entry_corners(support: Blocks, length: int) -> tuple[Array, Array]:
    """First query row and first key of every entry that holds a causal pair, over all heads; int64 `[entries]`."""
    support.check_rows(length)
    index = support.index.cpu().numpy()
    rows = np.broadcast_to(np.arange(index.shape[2], dtype=np.int64)[:, None] * support.block_q, index.shape)
    first = index.astype(np.int64) * support.block_k
    seen = (index >= 0) & (first < np.minimum(rows + support.block_q, length))
    return rows[seen], first[seen]


def line_heads(support: Lines, length: int) -> list[tuple[Array, Array]]:
    """Slashes and verticals below `length` of every head (and batch row), int64."""
    tables = (support.slash_table, support.vertical_table)
    slashes, verticals = (t.expand(support.batch, support.heads, -1).flatten(0, 1).cpu().numpy() for t in tables)
    return [
        (s[(s >= 0) & (s < length)].astype(np.int64), v[(v >= 0) & (v < length)].astype(np.int64))
        for s, v in zip(slashes, verticals, strict=True)
    ]


def union(sets: Iterable[Array]) -> Array:
    """Distances that at least one layer reads: int64, sorted, unique."""
    sets = list(sets)
    member = np.zeros(1 + max((int(numbers.max(initial=-1)) for numbers in sets), default=-1), bool)
    for numbers in sets:
        member[numbers] = True
    return np.flatnonzero(member)


def common_factor(numbers: Array) -> int:
    """Greatest common divisor of the distances; 0 where there is none but 0.

    Above 1 a stack grids: however deep it is, it connects only multiples of this number. 1 is necessary for covering
    every distance but not sufficient (2 and 3 never add up to 1): `hops` has the exact answer.
    """
    return int(np.gcd.reduce(numbers, initial=0))
