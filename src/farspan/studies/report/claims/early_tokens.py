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
    expected = comparer.expected_gain(row)
    start += (
        f". With every token beyond {unit:,} tokens of context read from within it instead, the change would be "
        f"{words.change(expected)}"
    )
    return Finding(
        is_no_lower(beyond) if falls is Verdict.SHOWS else Verdict.UNDECIDED,
        f"{start}. Tokens beyond the training length against the same tokens read from within it: {measured(beyond)}.",
        f"{words.name(row.label)} {words.change(gain.difference)} with length, {words.change(beyond.difference)} "
        "beyond the training length",
        beyond.difference,
    )
