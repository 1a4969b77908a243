"""Ranks with ties, and how a perplexity shows them."""

from __future__ import annotations

from collections.abc import Sequence

from farspan.studies.report import words
from farspan.studies.report.compare import Place
from farspan.studies.report.rows import Row
from farspan.studies.report.tables.table import Entry


def ranks(places: Sequence[Place]) -> dict[str, str]:
    """Rank by label, `1=` for one that several rows share."""
    return {label: f"{p.number}{'=' if len(p.labels) > 1 else ''}" for p in places for label in p.labels}


def mark(row: Row, nll: float | None, best: Place | None) -> Entry:
    """The perplexity: bold for the lowest, with the sign of a tie for those that share its rank."""
    text = words.perplexity(nll)
    if best is None or row.label not in best.labels:
        return Entry(text)
    sign = "" if row.label == best.labels[0] else f"{words.APPROX}{words.THIN}"
    return Entry(sign + text, strong=True)
