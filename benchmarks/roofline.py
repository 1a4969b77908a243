"""A counted roofline of the forward: operations and loads by cache level, from the pattern and the caches alone."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from farspan import Lines

# Size of a working set that stays in each level of the cache, per core, and where its bandwidth is measured.
LEVELS = {"L1": 16 << 10, "L2": 256 << 10, "L3": 8 << 20, "DRAM": 256 << 20}
# Bytes up to which a level holds what was touched last (typical of server cores of this decade).
CAPACITY = {"L1": 32 << 10, "L2": 1 << 20, "L3": 16 << 20}
LANES = 16  # queries that a kernel of 16 lanes serves with one load of a near key


@dataclass(frozen=True)
class Count:
    pairs: int
    flops: int
    compulsory: int  # bytes that must come from or go to memory
    loads: dict[str, int]  # bytes by level


@dataclass(frozen=True)
class Limit:
    at_peak: float  # seconds of the arithmetic alone
    overlapped: float  # seconds if arithmetic and all loads overlap wholly
    serial: float  # seconds if nothing overlaps


def limits(core: Any, seconds: float = 0.1) -> tuple[float, dict[str, float]]:
    """This core's FLOP/s and, by level, bytes a second."""
    bandwidth = {name: 1e9 * core.load_bandwidth(size, seconds) for name, size in LEVELS.items()}
    return 1e9 * core.fma_peak(seconds), bandwidth


def count(lines: Lines, length: int, heads: int, kv_heads: int, head_dim: int, item: int = 4) -> Count:
    """Loads of a kernel that walks one key head upward, each key row serving a group of heads.

    Neighbouring distances are read together: a row then serves 16 lanes from L1. A lone distance d reads rows that
    were last touched at the next shorter distance d'; in between, the kernel touched what d - d' steps touch. The
    level whose capacity holds that is where the row comes from (a least-recently-used cache, no conflicts).
    """
    cost = lines.cost(length, length, heads=heads, kv_heads=kv_heads, head_dim=head_dim)
    distances = [d for d in lines.slashes if d < length]
    group = heads // kv_heads
    row = 2 * head_dim * item  # one key and its value
    loads = dict.fromkeys(LEVELS, 0)
    loads["DRAM"] = cost.forward_bytes
    for n, d in enumerate(distances):
        rows = kv_heads * (length - d)
        if d == 0:
            continue  # the key's first touch is compulsory
        step = d - distances[n - 1]
        if step == 1:
            loads["L1"] += rows * row * group // LANES
            continue
        touched = _union(distances, step) * row + step * group * row  # q and out move as well
        level = next((name for name, size in CAPACITY.items() if touched <= size), "DRAM")
        loads[level] += rows * row
    return Count(cost.pairs, cost.forward_flops, cost.forward_bytes, loads)


def limit(counted: Count, peak: float, bandwidth: dict[str, float]) -> Limit:
    at_peak = counted.flops / peak
    loading = [counted.loads[name] / bandwidth[name] for name in LEVELS]
    return Limit(at_peak, max(at_peak, *loading), at_peak + sum(loading))


def _union(distances: list[int], step: int) -> int:
    """Rows that all distances together touch while the query moves on by `step`."""
    total, end = 0, -step
    for d in distances:
        total += min(step, d + step - end) if d + step > end else 0
        end = max(end, d + step)
    return total
