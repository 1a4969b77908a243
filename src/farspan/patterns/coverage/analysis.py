"""Everything this package can say about a stack of supports, as one result."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import torch

from farspan.patterns.arguments import at_least
from farspan.patterns.coverage.distances import common_factor, distances, union
from farspan.patterns.coverage.hops import NEVER, hops, layers_needed, steps_needed
from farspan.patterns.coverage.paths import log_path_counts
from farspan.patterns.coverage.positions import (
    LONGEST,
    LONGEST_PATHS,
    log_paths_by_position,
    reach_by_position,
    unread_neighbours,
)
from farspan.patterns.coverage.sums import Array, Run, runs_of
from farspan.patterns.coverage.tiles import touched_tiles
from farspan.patterns.coverage.traffic import KeysPerQuery, keys_per_query, kv_bytes, kv_held, last_query
from farspan.support import Lines, Support


@dataclass(frozen=True)
class LayerAnalysis:
    """One layer over `length` tokens. Pairs, FLOPs and bytes are those of all its heads, for one sequence."""

    keys: KeysPerQuery
    reach: int
    """Largest distance read; -1 where nothing is."""
    distances: int
    """Number of distances read."""
    pairs: int
    flops: int
    """Forward, over the whole sequence (prefill)."""
    kv_bytes: int
    """Keys and values read at least once in prefill."""
    decode_flops: int
    """For the last token."""
    decode_kv_bytes: int
    kv_held: float
    """Cache entries per key head that must be held while decoding; `traffic.kv_held`."""
    tiles: dict[int, float]
    """Share of the causal tiles touched, by the side of a tile."""


@dataclass(frozen=True)
class Analysis:
    """A stack of layers, bottom to top. Distances are those of `length` tokens: `0 .. length - 1`."""

    length: int
    layers: tuple[LayerAnalysis, ...]
    toeplitz: bool
    """Whether every layer is made of distances (`Lines`), so that a distance is connected everywhere or nowhere."""
    distances: int
    """Number of distances that at least one layer reads."""
    common_factor: int
    """Greatest common divisor of the distances read; above 1 the stack grids."""
    unread_neighbours: Array = field(repr=False, compare=False)
    """Positions whose left neighbour no layer reads, so that the two meet at no depth."""
    layers_needed: Array | None = field(repr=False, compare=False)
    """uint32 `[length]`: bottom layers that connect each distance at every position, `hops.NEVER` where none do. None
    where that would have to be followed position by position for too long a sequence; `notes` says so."""
    steps: Array | None = field(repr=False, compare=False)
    """uint32 `[length]`: layers that must move information, out of the whole stack. Toeplitz stacks only."""
    hops: Array | None = field(repr=False, compare=False)
    """uint32 `[length]`: steps if every layer read the union of all distances, at any depth. Toeplitz stacks only."""
    log_paths: Array | None = field(repr=False, compare=False)
    """float64 `[length]`: natural logarithm of the number of paths, or of its mean over positions where the stack is
    not Toeplitz. None where the sequence is too long for that; `notes` says so."""
    notes: tuple[str, ...] = ()

    @property
    def connected(self) -> list[float] | None:
        """Share of the distances >= 1 connected by the bottom 1, 2, .. layers."""
        if self.layers_needed is None:
            return None
        depths = np.bincount(self.layers_needed[self.layers_needed < NEVER], minlength=len(self.layers) + 1)
        return ((depths.cumsum()[1:] - 1) / max(self.length - 1, 1)).tolist()

    @property
    def depth(self) -> int | None:
        """Layers, from the bottom, that connect every distance; None where the stack does not."""
        return None if self.layers_needed is None else _worst(self.layers_needed)

    @property
    def unreachable(self) -> list[Run] | None:
        """Distances that the whole stack does not connect (at every position), as runs `(first, last)`."""
        if self.layers_needed is None:
            return None
        return runs_of(np.flatnonzero(self.layers_needed == NEVER))

    @property
    def reach(self) -> int | None:
        """Largest distance up to which the stack connects every distance without a gap."""
        if self.layers_needed is None:
            return None
        gaps = np.flatnonzero(self.layers_needed == NEVER)
        return int(gaps[0]) - 1 if len(gaps) else self.length - 1

    def to_dict(self) -> dict[str, Any]:
        """For JSON. Runs of unreachable distances and broken boundaries are cut after 100; counts are whole. The path
        counts are given at the powers of two and at the longest distance."""
        runs, broken = self.unreachable, self.unread_neighbours
        samples = sorted({*(2**e for e in range(self.length.bit_length()) if 2**e < self.length), self.length - 1})
        return {
            "length": self.length,
            "toeplitz": self.toeplitz,
            "pairs": sum(layer.pairs for layer in self.layers),
            "flops": sum(layer.flops for layer in self.layers),
            "kv_bytes": sum(layer.kv_bytes for layer in self.layers),
            "decode_flops": sum(layer.decode_flops for layer in self.layers),
            "decode_kv_bytes": sum(layer.decode_kv_bytes for layer in self.layers),
            "kv_held": sum(layer.kv_held for layer in self.layers) / len(self.layers),
            "keys_per_query": self.keys_per_query,
            "tiles": self.tiles,
            "distances": self.distances,
            "common_factor": self.common_factor,
            "reach": self.reach,
            "depth": self.depth,
            "connected": self.connected,
            "unreachable": None if runs is None else sum(last - first + 1 for first, last in runs),
            "unreachable_runs": None if runs is None else runs[:100],
            "steps": None if self.steps is None else _worst(self.steps),
            "hops": None if self.hops is None else _worst(self.hops),
            "unread_neighbours": len(broken),
            "unread_neighbours_first": broken[:100].tolist(),
            "log_paths": None if self.log_paths is None else {str(d): _finite(self.log_paths[d]) for d in samples},
            "layers": [dataclasses.asdict(layer) for layer in self.layers],
            "notes": list(self.notes),
        }

    @property
    def keys_per_query(self) -> float:
        """Mean over layers, heads and queries."""
        return sum(layer.keys.mean for layer in self.layers) / len(self.layers)

    @property
    def tiles(self) -> dict[int, float]:
        """Share of the causal tiles touched, mean over layers, by the side of a tile."""
        return {
            side: sum(layer.tiles[side] for layer in self.layers) / len(self.layers) for side in self.layers[0].tiles
        }


def analyse(
    stack: Sequence[Support],
    length: int,
    *,
    heads: int | None = None,
    kv_heads: int | None = None,
    head_dim: int = 64,
    dtype: torch.dtype = torch.bfloat16,
    tiles: Sequence[int] = (16, 64, 128),
) -> Analysis:
    """Geometry and cost of a stack, bottom to top: exact, and without running it.

    Args:
        stack: one support per layer, each made for `length` tokens.
        length: tokens.
        heads: query heads. Default: the most that a support of the stack has of its own.
        kv_heads: key heads. Default: `heads`.
        head_dim: size of a head, for FLOPs and bytes.
        dtype: of keys and values, for bytes.
        tiles: sides of the tiles to count.

    Raises:
        ValueError: the stack is empty, or a support does not fit the length or the heads or differs by batch row.
    """
    at_least("length", length, 1)
    if not isinstance(stack, Sequence) or not all(isinstance(support, Support) for support in stack):
        raise TypeError(f"stack must be a list of supports, one per layer, got {stack!r}")
    if not stack:
        raise ValueError("stack must hold at least one support, got none")
    heads = max(support.heads for support in stack) if heads is None else at_least("heads", heads, 1)
    kv_heads = heads if kv_heads is None else at_least("kv_heads", kv_heads, 1)
    known: dict[int, tuple[LayerAnalysis, Array]] = {}
    for support in stack:
        if id(support) not in known:
            read = distances(support, length)
            known[id(support)] = _layer(support, read, length, heads, kv_heads, head_dim, dtype, tiles), read
    layers = tuple(known[id(support)][0] for support in stack)
    sets = [known[id(support)][1] for support in stack]
    together = union(sets)
    toeplitz = all(isinstance(support, Lines) for support in stack)
    notes, needed, log_paths = [], None, None
    if toeplitz:
        needed, log_paths = layers_needed(sets, length), log_path_counts(sets, length)
        if any(isinstance(support, Lines) and bool((support.vertical_table >= 0).any()) for support in stack):
            notes.append("keys that every query reads (verticals) are left out of distances, hops and paths")
    else:
        if length <= LONGEST:
            needed = reach_by_position(stack, length).layers_needed
        else:
            notes.append(f"reach by position is followed up to {LONGEST} tokens only, so it is not known at {length}")
        if length <= LONGEST_PATHS:
            log_paths = log_paths_by_position(stack, length)
        else:
            notes.append(f"paths by position are counted up to {LONGEST_PATHS} tokens only, not at {length}")
    return Analysis(
        length=length,
        layers=layers,
        toeplitz=toeplitz,
        distances=len(together),
        common_factor=common_factor(together),
        unread_neighbours=unread_neighbours(stack, length),
        layers_needed=needed,
        steps=steps_needed(sets, length) if toeplitz else None,
        hops=hops(together, length) if toeplitz else None,
        log_paths=log_paths,
        notes=tuple(notes),
    )


def _layer(
    support: Support,
    read: Array,
    length: int,
    heads: int,
    kv_heads: int,
    head_dim: int,
    dtype: torch.dtype,
    tiles: Sequence[int],
) -> LayerAnalysis:
    shape: dict[str, Any] = {"heads": heads, "kv_heads": kv_heads, "head_dim": head_dim, "dtype": dtype}
    prefill = support.cost(length, length, **shape)
    decode = last_query(support, length).cost(1, length, **shape)
    return LayerAnalysis(
        keys=keys_per_query(support, length),
        reach=int(read.max(initial=-1)),
        distances=len(read),
        pairs=prefill.pairs,
        flops=prefill.forward_flops,
        kv_bytes=kv_bytes(prefill, heads * length, head_dim, dtype.itemsize),
        decode_flops=decode.forward_flops,
        decode_kv_bytes=kv_bytes(decode, heads, head_dim, dtype.itemsize),
        kv_held=kv_held(support, length, kv_heads),
        tiles={side: touched_tiles(support, length, side) for side in tiles},
    )


def _worst(depths: Array) -> int | None:
    worst = int(depths.max())
    return None if worst == NEVER else worst


def _finite(number: float) -> float | None:
    return float(number) if math.isfinite(number) else None
