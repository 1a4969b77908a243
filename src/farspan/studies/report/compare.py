"""Paired comparisons between rows, and of a row with itself at another length, on identical tokens."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import lru_cache

from farspan.evaluation.bootstrap import BinComparison, Comparison, compare, compare_bins
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
        self._scored = lru_cache(maxsize=_KEPT)(_scored)
        self._between = lru_cache(maxsize=None)(self._compare)

    def between(self, a: Row, b: Row, protocol: str, length: int | None, min_context: int = 0) -> Comparison:
        """Loss of a minus b in nats at `length`, over tokens with at least `min_context` tokens before them."""
        return self._between(a, b, protocol, length, min_context)

    def bins(self, a: Row, b: Row, length: int | None, edges: Sequence[int]) -> list[BinComparison]:
        """`between` within bins of context, non-overlapping windows."""
        _same_budget(a, b)
        try:
            return compare_bins(self._arm(a, "disjoint", length), self._arm(b, "disjoint", length), edges)
        except ValueError as error:
            raise NotComparable(str(error)) from error

    def beyond(self, row: Row) -> Comparison:
        """Loss of tokens beyond the training length minus the loss of the same tokens read from within it.

        Within: sliding windows of the training length, so that those tokens keep at least half of it as context and
        the early tokens of a window do not flatter the comparison.
        """
        long = self._arm(row, "disjoint", row.longest)
        short = self._arm(row, "sliding", row.train_length)
        short = {s: replace(v, context=long[s].context) for s, v in short.items() if _alike(v, long.get(s))}
        return _checked(long, short, row.train_length)

    def gain_with_length(self, row: Row) -> Comparison:
        """Loss in non-overlapping windows of the longest length minus that in windows of the training length."""
        return _checked(self._arm(row, "disjoint", row.longest), self._arm(row, "disjoint", row.train_length))

    def places(self, rows: Sequence[Row], protocol: str, length: int | None) -> list[Place]:
        """Ranks with ties, best first; rows without per-token losses are left out."""
        left = [row for row in rows if row.nll(protocol, length) is not None]
        left.sort(key=lambda row: row.nll(protocol, length) or 0.0)
        places: list[Place] = []
        number = 1
        while left:
            tied = [left[0], *(row for row in left[1:] if self._ties(row, left[0], protocol, length))]
            places.append(Place(number, tuple(row.label for row in tied)))
            number += len(tied)
            left = [row for row in left if row not in tied]
        return places

    def _ties(self, a: Row, b: Row, protocol: str, length: int | None) -> bool:
        try:
            return self.between(a, b, protocol, length).verdict == "tie"
        except NotComparable:
            return False

    def _compare(self, a: Row, b: Row, protocol: str, length: int | None, min_context: int) -> Comparison:
        _same_budget(a, b)
        return _checked(self._arm(a, protocol, length), self._arm(b, protocol, length), min_context)

    def _arm(self, row: Row, protocol: str, length: int | None) -> dict[int, Scored]:
        if length is None:
            raise NotComparable(f"{row.label} was not evaluated at any length that all its seeds share")
        arm = {cell.seed: scored for cell in row.cells if (scored := self._scored(cell, protocol, length)) is not None}
        if not arm:
            raise NotComparable(f"{row.label} has no per-token losses for {protocol} windows of {length}")
        return arm


def _scored(cell: Cell, protocol: str, length: int) -> Scored | None:
    return cell.scored(protocol, length)


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
            f"{a.label} was trained on {_tokens(a)} tokens and {b.label} on {_tokens(b)}, and their losses differ for that alone"
        )


def _tokens(row: Row) -> str:
    return words.joined([f"{n:,}" for n in row.train_tokens])
