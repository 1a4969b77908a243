"""Keys per query, and what decoding has to hold and to move."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import torch

from farspan.patterns.arguments import at_least
from farspan.patterns.coverage.distances import entry_corners, line_heads
from farspan.patterns.coverage.sums import Array
from farspan.support import Blocks, Cost, Lines, Support


@dataclass(frozen=True)
class KeysPerQuery:
    """Over all queries and heads."""

    least: int
    mean: float
    most: int


def keys_per_query(support: Support, length: int) -> KeysPerQuery:
    """Least, mean and largest number of keys that a query of `length` tokens reads in one head. Exact."""
    at_least("length", length, 1)
    counts = _line_counts(support, length) if isinstance(support, Lines) else _entry_counts(support, length)
    pairs = torch.as_tensor(support.pairs(length, length), dtype=torch.float64).mean().item()
    return KeysPerQuery(min(int(c.min()) for c in counts), pairs / length, max(int(c.max()) for c in counts))


def kv_held(support: Support, length: int, kv_heads: int = 1) -> float:
    """Cache entries that a key head must hold while `length` tokens are decoded, at the worst moment.

    The rest, up to `length` minus this, may be dropped: nothing can read it any more. For `Lines` the sequence may go
    on for ever, so a key is held until it is older than the reach, and a vertical always; for `Blocks` and `Tokens`,
    which end with the sequence, until its last reader within `length` tokens. The mean over `kv_heads` key heads is
    returned; a key head holds what any of its query heads reads.

    Raises:
        ValueError: the support differs by batch row, or its heads do not fit `kv_heads`.
    """
    at_least("length", length, 1)
    if support.batch > 1:
        raise ValueError(f"support must be the same for all batch rows, got {support.batch} of them")
    if support.heads % kv_heads and support.heads > 1:
        raise ValueError(f"kv_heads must divide the {support.heads} heads of the support, got {kv_heads}")
    groups = np.array_split(np.arange(support.heads), min(kv_heads, support.heads))
    if isinstance(support, Lines):
        return sum(_held_by_lines(support, group, length) for group in groups) / len(groups)
    edges = np.zeros(length + 1, np.int64)
    for group in groups:
        last = _last_readers(support, group, length)
        keys = np.flatnonzero(last > np.arange(length))
        edges[keys] += 1
        np.add.at(edges, last[keys], -1)
    return int(edges.cumsum().max()) / len(groups)


def last_query(support: Support, length: int) -> Support:
    """The support of the last of `length` queries alone: what decoding its token costs."""
    if isinstance(support, Lines):
        return support
    assert isinstance(support, Blocks)
    support.check_rows(length)
    return Blocks(support.index[:, :, -1:], 1, support.block_k)


def kv_bytes(cost: Cost, queries: int, head_dim: int, size: int) -> int:
    """Bytes of keys and values in `cost`, for `queries` rows (of all heads) of `size`-byte numbers."""
    return cost.forward_bytes - queries * (2 * head_dim * size + max(4, size))


def _line_counts(support: Lines, length: int) -> list[Array]:
    counts = []
    for slashes, verticals in line_heads(support, length):
        member = np.zeros(length, np.int64)
        member[slashes] = 1
        member[verticals] += 1
        keys = member.cumsum()
        for vertical in verticals:
            both = vertical + slashes
            keys[both[both < length]] -= 1
        counts.append(keys)
    return counts


def _entry_counts(support: Support, length: int) -> list[Array]:
    assert isinstance(support, Blocks)
    support.check_rows(length)
    index = support.index.cpu().numpy().astype(np.int64)
    first = np.where(index < 0, length, index * support.block_k)
    counts = []
    for within in range(min(support.block_q, length)):
        queries = np.arange(within, length, support.block_q)
        seen = np.clip(queries[:, None] + 1 - first[:, :, : len(queries)], 0, support.block_k)
        counts.append(seen.sum(-1))
    return counts


def _held_by_lines(support: Lines, heads: Array, length: int) -> int:
    tables = (support.slash_table[0], support.vertical_table[0])
    slashes, verticals = (t.expand(support.heads, -1)[heads].unique().cpu().numpy() for t in tables)
    reach = min(int(slashes.max(initial=0)), length)
    return reach + int(((verticals >= 0) & (verticals < length - reach)).sum())


def _last_readers(support: Support, heads: Array, length: int) -> Array:
    """For each key the last query that reads it in any of these heads, or -1; int64 `[length]`."""
    assert isinstance(support, Blocks)
    head = Blocks(support.index[:, heads], support.block_q, support.block_k)
    rows, first = entry_corners(head, length)
    last_row = np.minimum(rows + support.block_q, length) - 1
    readers = np.full(-(-length // support.block_k), -1, np.int64)
    np.maximum.at(readers, first // support.block_k, last_row)
    last = readers.repeat(support.block_k)[:length]
    return np.where(last >= np.arange(length), last, -1)
