"""Entries that say how one row compares."""

from __future__ import annotations

from farspan.studies.report import words
from farspan.studies.report.compare import Comparer, NotComparable
from farspan.studies.report.rows import Row, matched
from farspan.studies.report.tables.table import Entry


def budget(row: Row, reference: Row | None) -> Entry:
    """Whether a row reads as many keys as the reference row, in words, with the ratio."""
    own, theirs = row.pairs(), reference.pairs() if reference else None
    if own is None or not theirs:
        return Entry(words.MISSING)
    if row is reference:
        return Entry("reference")
    return Entry("yes" if matched(own, theirs) else "not matched", f"{own / theirs:.2f}{words.TIMES}")


def difference(row: Row, other: Row | None, comparer: Comparer, length: int, name: str) -> Entry:
    """Loss of a row minus that of another, marked where it is a tie; `name` where both are the same row."""
    if other is None:
        return Entry(words.MISSING)
    if row is other:
        return Entry(name)
    try:
        comparison = comparer.between(row, other, "disjoint", length)
    except NotComparable:
        return Entry("not comparable")
    sign = f"{words.APPROX}{words.THIN}" if comparison.verdict == "tie" else ""
    text = sign + words.signed(comparison.difference)
    if comparison.low is None or comparison.high is None or comparison.verdict == "too few blocks":
        return Entry(text, "too little text")
    return Entry(text, words.interval(comparison.low, comparison.high))


def beyond(row: Row, comparer: Comparer) -> Entry:
    """Change of perplexity of the tokens beyond the training length, with its interval."""
    try:
        shift = comparer.beyond(row)
    except NotComparable:
        return Entry(words.MISSING)
    if shift.low is None or shift.high is None or shift.verdict == "too few blocks":
        return Entry(words.change(shift.difference), "too little text")
    return Entry(words.change(shift.difference), f"{words.change(shift.low)} to {words.change(shift.high)}")
