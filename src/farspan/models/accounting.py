"""What the layers of a model read, counted and not measured."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass

import torch
from torch import Tensor

from farspan.models.static_rule import StaticRule
from farspan.support import Lines, Support

MOST_WAITING = 4096
"""Lengths that wait to be counted: a long decoding asks for another one at every step."""


@dataclass(frozen=True)
class Count:
    """Calls, and over their batch rows and query heads the queries, and the pairs of (query, key).

    `queries` are those of the batch rows, once for all heads. `causal` are the pairs that dense attention would
    read, so without padding and other documents.
    """

    calls: int = 0
    queries: int = 0
    pairs: int = 0
    causal: int = 0

    def __add__(self, other: Count) -> Count:
        return Count(
            self.calls + other.calls,
            self.queries + other.queries,
            self.pairs + other.pairs,
            self.causal + other.causal,
        )

    @property
    def density(self) -> float:
        """Pairs kept / causal pairs; 0 where there is no causal pair."""
        return self.pairs / self.causal if self.causal else 0.0


@dataclass(frozen=True)
class Account:
    """One count for each layer and phase; `compiled` says that calls in compiled graphs went by uncounted."""

    counts: dict[tuple[int, str], Count]
    compiled: bool

    def __iter__(self) -> Iterator[tuple[tuple[int, str], Count]]:
        return iter(self.counts.items())

    def total(self, phase: str) -> Count:
        """The sum over layers of one phase, "prefill" or "decode"."""
        known = sorted({each for _, each in self.counts})
        if phase not in known:
            raise ValueError(f"phase must be one of {', '.join(known)}, got {phase!r}")
        return sum((count for (_, each), count in self.counts.items() if each == phase), Count())


class Tally:
    """Counts one layer in one phase. Static rules wait with their lengths alone, which costs a step next to nothing."""

    def __init__(self, heads: int) -> None:
        self.heads = heads
        self.reset()

    def reset(self) -> None:
        """Back to no call."""
        self.count = Count()
        self.waiting: Counter[tuple[int, int, int]] = Counter()
        self.compiled = False

    def record(self, rule: StaticRule | Lines, q_len: int, k_len: int, batch: int) -> None:
        """A call of a static rule on rows that begin with their first key."""
        self.waiting[q_len, k_len, batch] += 1
        if len(self.waiting) == MOST_WAITING:
            self.settle(rule)

    def settle(self, rule: StaticRule | Lines | None) -> None:
        """Counts what waits, by the rule that it was recorded under."""
        for (q_len, k_len, batch), calls in self.waiting.items():
            assert rule is not None
            support = rule.support(q_len, k_len) if isinstance(rule, StaticRule) else rule
            one = counted(support, self.heads, q_len, k_len, batch, None)
            self.count += Count(calls, one.queries * calls, one.pairs * calls, one.causal * calls)
        self.waiting.clear()

    def add(self, support: Support | None, q_len: int, k_len: int, batch: int, start: Tensor | None) -> None:
        """A call whose pairs depend on more than its lengths."""
        self.count += counted(support, self.heads, q_len, k_len, batch, start)


def counted(support: Support | None, heads: int, q_len: int, k_len: int, batch: int, start: Tensor | None) -> Count:
    """One call: `batch` rows, `start` int `[batch, q_len]` or None; no support is dense attention."""
    if start is None:
        causal = batch * (q_len * k_len - q_len * (q_len - 1) // 2)
    else:
        position = torch.arange(k_len - q_len, k_len, device=start.device)
        causal = int((position + 1 - start.clamp_min(0)).clamp_min(0).sum())
    pairs = causal * heads
    if support is not None:
        rows = torch.as_tensor(support.pairs(q_len, k_len, start)).reshape(-1, support.heads)
        pairs = int(rows.sum()) * (batch // len(rows)) * (heads // support.heads)
    return Count(1, batch * q_len, pairs, causal * heads)
