"""Does perplexity that falls with evaluation length come from longer context, or from fewer early tokens?

Longer non-overlapping windows have fewer tokens with little context, which alone lowers perplexity (ALiBi,
arXiv 2108.12409, appendix B; static-patterns.md A7.3).
"""

from __future__ import annotations

from farspan.studies.report import words
from farspan.studies.report.claims.book import Book, untested
from farspan.studies.report.claims.verdicts import (
    TIE,
    Claim,
    Finding,
    Verdict,
    is_below,
    is_no_lower,
    measured,
)
from farspan.studies.report.compare import Comparer, NotComparable
from farspan.studies.report.kinds import Kind
from farspan.studies.report.rows import Row


def gain_is_early_tokens(book: Book) -> Claim:
    """Judged for the two schedules whose improvement with length the paper reports."""
    kinds = [Kind("fibonacci", "fixed"), Kind("fibonacci", "stagger")]
    findings = []
    for row in (row for one in kinds for row in book.find(one)):
        try:
            findings.append(_early_tokens(row, book.comparer))
        except NotComparable as error:
            findings.append(untested(f"{words.name(row.label)}: {error}."))
    return Claim(
        "gain-is-early-tokens",
        "Where perplexity improves with evaluation length, it is the early-token effect and no use of longer context",
        "Longer non-overlapping windows have fewer tokens with little context, which lowers perplexity by itself. "
        f"Shows if perplexity falls with length while tokens beyond the training length gain less than {TIE} nats "
        "over the same tokens read from within it; does not show if there is no fall, or if all of the interval is a "
        "gain.",
        tuple(findings) or book.missing(*kinds),
    )


def _early_tokens(row: Row, comparer: Comparer) -> Finding:
    gain, beyond = comparer.gain_with_length(row), comparer.beyond(row)
    unit, longest = row.train_length, row.longest or row.train_length
    start = (
        f"{words.name(row.label)}: from {unit:,} to {longest:,} tokens the non-overlapping perplexity changes by "
        f"{words.change(gain.difference)}, {measured(gain)}"
    )
    falls = is_below(gain)
    if falls is Verdict.NOT:
        text = f"{start}: it does not improve with length, so there is nothing to explain."
        return Finding(
            Verdict.NOT, text, f"{words.name(row.label)} {words.change(gain.difference)} with length", gain.difference
        )
    expected = _expected_change(row)
    if expected is not None:
        start += (
            f". Had the loss beyond {unit:,} tokens of context stayed at its mean between {unit // 2:,} and {unit:,}, "
            f"the change would be {words.change(expected)}"
        )
    return Finding(
        is_no_lower(beyond) if falls is Verdict.SHOWS else Verdict.UNDECIDED,
        f"{start}. Tokens beyond the training length against the same tokens read from within it: {measured(beyond)}.",
        f"{words.name(row.label)} {words.change(gain.difference)} with length, {words.change(beyond.difference)} "
        "beyond the training length",
        beyond.difference,
    )


def _expected_change(row: Row) -> float | None:
    """Change of the mean loss if tokens beyond the training length did as well as late ones within it.

    From the first seed's losses at the longest length and its mean at the training length.
    """
    entries = row.entries("disjoint", row.train_length)
    scored = row.cells[0].scored("disjoint", row.longest) if row.longest else None
    if not entries or scored is None:
        return None
    within = scored.context < row.train_length
    late = within & (scored.context >= row.train_length // 2)
    if not late.any():
        return None
    mean = scored.nll[late].mean(dtype="float64")
    total = scored.nll[within].sum(dtype="float64") + (~within).sum() * mean
    return float(total / len(scored) - entries[0]["nll"])
