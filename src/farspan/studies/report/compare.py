"""Paired comparisons between rows, and of a row with itself at another length, on identical tokens."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from functools import lru_cache
from math import isfinite

import numpy as np

from farspan.evaluation.comparison import BinComparison, Comparison, compare, compare_bins
from farspan.evaluation.windows import Scored
from farspan.studies.report import words
from farspan.studies.report.results import Cell
from farspan.studies.report.rows import Row

_KEPT = 32


class NotComparable(ValueError):
    """Two rows cannot be compared; the message is the reason, as a clause for the reader."""


@dataclass(frozen=True)
class Place:
    """Rows that share a rank: none of them differs from the first beyond its interval."""

    number: int
    labels: tuple[str, ...]


class Comparer:
    """Reads per-token losses on demand and keeps the last few, so that a large study fits in memory."""

    def __init__(self) -> None:
        self._scored = lru_cache(maxsize=_KEPT)(Cell.scored)
        self._differences = lru_cache(maxsize=None)(self._difference)
        self._shifts = lru_cache(maxsize=None)(self._shift)

    def between(self, a: Row, b: Row, protocol: str, length: int | None) -> Comparison:
        """Loss of a minus b in nats at `length`, over all tokens."""
        return self._differences(a, b, protocol, length)

    def bins(self, a: Row, b: Row, length: int | None, edges: Sequence[int]) -> list[BinComparison]:
        """`between` within bins of context, non-overlapping windows."""
        _same_budget(a, b)
        try:
            return compare_bins(self._arm(a, "disjoint", length), self._arm(b, "disjoint", length), edges)
        except ValueError as error:
            raise NotComparable(str(error)) from error

    def beyond(self, row: Row) -> Comparison:
        """Loss of tokens beyond the training length minus the loss of the same tokens read from within it.

        Within: sliding windows of the training length, so that those tokens keep at least half of it as
        context and the early tokens of a window do not flatter the comparison.
        """
        return self._shifts(row)

    def gain_with_length(self, row: Row) -> Comparison:
        """Loss in non-overlapping windows of the longest length minus that at the training length."""
        return _checked(self._arm(row, "disjoint", row.longest), self._arm(row, "disjoint", row.train_length))

    def expected_gain(self, row: Row) -> float:
        """`gain_with_length` if tokens beyond the training length were read from within it (see `beyond`).

        The first seed's mean in nats, over the same tokens throughout.
        """
        seed = row.cells[0].seed
        long, short = self._arm(row, "disjoint", row.longest)[seed], self._arm(row, "sliding", row.train_length)[seed]
        within = self._arm(row, "disjoint", row.train_length)[seed]
        mixed = np.where(long.context < row.train_length, long.nll, short.nll)
        return float(mixed.mean(dtype=np.float64) - within.nll.mean(dtype=np.float64))

    def best(self, rows: Sequence[Row], protocol: str, length: int | None) -> Place | None:
        """The row of lowest loss and those that tie with it, or None where no row was evaluated."""
        return next(self._places(rows, protocol, length), None)

    def places(self, rows: Sequence[Row], protocol: str, length: int | None) -> list[Place]:
        """All ranks, best first. Rows that cannot be compared with the first of a rank are left out."""
        return list(self._places(rows, protocol, length))

    def _places(self, rows: Sequence[Row], protocol: str, length: int | None) -> Iterator[Place]:
        means = {row: nll for row in rows if (nll := row.nll(protocol, length)) is not None and isfinite(nll)}
        left = sorted(means, key=lambda row: means[row])
        number = 1
        while left:
            leader, *rest = left
            tied, left = [leader], []
            for row in rest:
                try:
                    verdict = self.between(row, leader, protocol, length).verdict
                except NotComparable:
                    continue
                (left if verdict in ("a better", "b better") else tied).append(row)
            yield Place(number, tuple(row.label for row in tied))
            number += len(tied)

    def _difference(self, a: Row, b: Row, protocol: str, length: int | None) -> Comparison:
        _same_budget(a, b)
        return _checked(self._arm(a, protocol, length), self._arm(b, protocol, length))

    def _shift(self, row: Row) -> Comparison:
        long = self._arm(row, "disjoint", row.longest)
        short = self._arm(row, "sliding", row.train_length)
        # The bootstrap picks tokens by a context that both sides share: the long one decides.
        short = {s: replace(v, context=long[s].context) for s, v in short.items() if _alike(v, long.get(s))}
        return _checked(long, short, row.train_length)

    def _arm(self, row: Row, protocol: str, length: int | None) -> dict[int, Scored]:
        if length is None:
            raise NotComparable(f"{row.label} was not evaluated at any length that all its seeds share")
        arm = {cell.seed: scored for cell in row.cells if (scored := self._scored(cell, protocol, length)) is not None}
        if not arm:
            raise NotComparable(f"{row.label} has no per-token losses for {protocol} windows of {length}")
        return arm


def _checked(a: dict[int, Scored], b: dict[int, Scored], min_context: int = 0) -> Comparison:
    try:
        return compare(a, b, min_context=min_context)
    except ValueError as error:
        raise NotComparable(str(error)) from error


def _alike(a: Scored, b: Scored | None) -> bool:
    return b is not None and len(a) == len(b)


def _same_budget(a: Row, b: Row) -> None:
    if a.train_tokens != b.train_tokens:
        raise NotComparable(
            f"{a.label} was trained on {_tokens(a)} tokens and {b.label} on {_tokens(b)}, and their losses differ for "
            "that alone"
        )


def _tokens(row: Row) -> str:
    return words.joined([f"{n:,}" for n in row.train_tokens])
