"""Connections position by position, for supports that are more than distances; and boundaries nothing crosses."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import torch

from farspan.patterns.arguments import at_least
from farspan.patterns.coverage.distances import entry_corners, queries_at
from farspan.patterns.coverage.hops import NEVER
from farspan.patterns.coverage.sums import Array
from farspan.support import Blocks, Lines, Support

LONGEST = 8192
"""Longest sequence whose pairs are followed one by one: `LONGEST ** 2` bits and as many booleans are held."""
LONGEST_PATHS = 2048
"""Longest sequence whose paths are counted pair by pair: that takes a product of `[T, T]` numbers for each layer."""


@dataclass(frozen=True)
class PositionReach:
    """What a stack connects, pair by pair."""

    layers_needed: Array
    """uint32 `[length]`: the smallest number of bottom layers that connect *every* pair at each distance, or
    `hops.NEVER`."""
    connected: tuple[float, ...]
    """Share of the causal pairs connected after 1, 2, .. layers."""


def reach_by_position(stack: Sequence[Support], length: int) -> PositionReach:
    """Follows every pair of `length` positions through the stack, bottom to top.

    Verticals count here. As everywhere, the residual stream carries every position through every layer.

    Raises:
        ValueError: `length` is above `LONGEST`.
    """
    if at_least("length", length, 1) > LONGEST:
        raise ValueError(
            f"length must be at most {LONGEST} where pairs are followed one by one (a pattern that is not made of"
            f" distances alone), got {length}"
        )
    # Row t holds, in bits, the positions whose information has arrived at position t.
    words = -(-length // 64)
    held = np.zeros((length, words * 64), bool)
    np.fill_diagonal(held, True)
    bits = np.packbits(held, axis=1, bitorder="little").view(np.uint64)
    needed = np.full(length, NEVER, np.uint32)
    needed[0] = 0
    connected: list[float] = []
    causal = length * (length + 1) // 2
    for layer, support in enumerate(stack, 1):
        if connected and connected[-1] == 1.0:
            connected.append(1.0)
            continue
        mask = _shared(support).mask(length, length).cpu().numpy()
        grown = bits.copy()
        for query in range(length):
            grown[query] |= np.bitwise_or.reduce(bits[np.flatnonzero(mask[query])], axis=0, initial=0)
        bits = grown
        everywhere, pairs = _by_distance(bits, length)
        needed[everywhere & (needed == NEVER)] = layer
        connected.append(pairs / causal)
    return PositionReach(needed, tuple(connected))


def log_paths_by_position(stack: Sequence[Support], length: int) -> Array:
    """Natural logarithm of the mean number of paths between two positions at each distance, float64 `[length]`.

    What `paths.log_path_counts` gives for distances, for any support: a path picks in each layer a key that some head
    reads, or the position's own. -inf where no two positions are connected. Counts are float64, scaled after every
    layer: those 1e-300 of the largest and below are lost, and the relative error of the others is `length` * 2**-53 a
    layer.

    Raises:
        ValueError: `length` is above `LONGEST_PATHS`.
    """
    if at_least("length", length, 1) > LONGEST_PATHS:
        raise ValueError(
            f"length must be at most {LONGEST_PATHS} where paths are counted pair by pair (a pattern that is not made"
            f" of distances alone), got {length}"
        )
    own = torch.eye(length, dtype=torch.float64)
    counts, log_scale = own, 0.0
    for support in stack:
        mask = torch.maximum(_shared(support).mask(length, length).cpu().to(torch.float64), own)
        grown = torch.zeros_like(counts)
        for low in range(0, length, 256):
            high = min(low + 256, length)
            grown[low:high, :high] = mask[low:high, :high] @ counts[:high, :high]
        largest = float(grown.max())
        counts, log_scale = grown / largest, log_scale + math.log(largest)
    means = np.array([float(counts.diagonal(-distance).mean()) for distance in range(length)])
    with np.errstate(divide="ignore"):
        return np.log(means) + log_scale


def unread_neighbours(stack: Sequence[Support], length: int) -> Array:
    """Positions t >= 1 at which no layer reads key t - 1: int64, sorted.

    Between two neighbours there is no other position to pass through, so their information meets at no depth, however
    many such layers are stacked. Block-causal masks have one of these at every block boundary (arXiv 2606.02680).
    Exact at any length; nothing of size length x length is built.
    """
    read = np.zeros(at_least("length", length, 1), bool)
    read[0] = True
    for support in stack:
        if isinstance(support, Lines):
            if bool((support.slash_table == 1).any()):
                return np.zeros(0, np.int64)
            verticals = support.vertical_table.flatten().cpu().numpy()
            read[verticals[(verticals >= 0) & (verticals < length - 1)] + 1] = True
            continue
        assert isinstance(support, Blocks)
        read |= queries_at(1, support, *entry_corners(support, length), length)
    return np.flatnonzero(~read)


def _shared(support: Support) -> Support:
    """The pairs of all heads together, as a support of one head."""
    if isinstance(support, Lines):
        slashes, verticals = (t[t >= 0].unique().tolist() for t in (support.slash_table, support.vertical_table))
        return Lines(slashes, verticals)
    assert isinstance(support, Blocks)
    rows = support.index.shape[2]
    merged = support.index.permute(2, 0, 1, 3).reshape(1, 1, rows, -1)
    return Blocks(merged, support.block_q, support.block_k)


def _by_distance(bits: Array, length: int) -> tuple[Array, int]:
    """Which distances are connected at every position, and the number of pairs connected."""
    everywhere, pairs = np.ones(length, bool), 0
    for query in range(length):
        row = np.unpackbits(bits[query].view(np.uint8), bitorder="little")[query::-1]
        everywhere[: query + 1] &= row.astype(bool)
        pairs += int(row.sum())
    return everywhere, pairs
