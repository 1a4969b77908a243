"""Ranks with ties, and how a perplexity shows them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from farspan.studies.report import words
from farspan.studies.report.compare import Comparer
from farspan.studies.report.rows import Row
from farspan.studies.report.tables.table import Entry


@dataclass(frozen=True)
class Standings:
    """Rows at one protocol and length: rank by label, those that share the first, the lowest of them."""

    rank: dict[str, str]
    best: frozenset[str]
    leader: str | None

    def mark(self, row: Row, nll: float | None) -> Entry:
        """The perplexity: bold for the lowest, with the sign of a tie for those that share its rank."""
        text = words.perplexity(nll)
        if row.label == self.leader:
            return Entry(text, strong=True)
        if row.label in self.best:
            return Entry(f"{words.APPROX}{words.THIN}{text}", strong=True)
        return Entry(text)


def standings(rows: Sequence[Row], comparer: Comparer, protocol: str, length: int) -> Standings:
    """`1=` for a rank that several rows share."""
    places = comparer.places(rows, protocol, length)
    rank = {label: f"{p.number}{'=' if len(p.labels) > 1 else ''}" for p in places for label in p.labels}
    best = places[0].labels if places else ()
    return Standings(rank, frozenset(best), best[0] if best else None)
