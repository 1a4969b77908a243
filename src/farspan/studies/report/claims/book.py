"""Looks up the rows that a claim compares, judges them, and says why where there is nothing to compare."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable

from farspan.evaluation.comparison import Comparison
from farspan.studies.report import words
from farspan.studies.report.claims.verdicts import COLLAPSE, Finding, Verdict, bounds, measured
from farspan.studies.report.compare import Comparer, NotComparable
from farspan.studies.report.kinds import Kind, kind
from farspan.studies.report.results import Study
from farspan.studies.report.rows import Row, matched

Findings = tuple[Finding, ...]
_STATES = {
    "finished": "has finished",
    "unfinished": "has not finished",
    "failed": "failed",
    "not started": "has not started",
}


class Book:
    """The finished rows of a study and the means to compare them."""

    def __init__(self, study: Study, rows: list[Row], comparer: Comparer) -> None:
        self.study, self.rows, self.comparer = study, rows, comparer

    def find(self, wanted: Kind) -> list[Row]:
        """Finished rows of a kind; without a schedule, of the whole family."""
        return [row for row in self.rows if _is(row.kind, wanted)]

    def same_window(self, first: Kind, second: Kind) -> list[tuple[Row, Row]]:
        """Pairs of rows whose rules name the same window."""
        return [
            (a, b) for a in self.find(first) for b in self.find(second) if a.window is not None and a.window == b.window
        ]

    def same_pairs(self, first: Kind, second: Kind, same_schedule: bool) -> list[tuple[Row, Row]]:
        """Pairs of rows that read the same number of keys at the training length."""
        return [
            (a, b)
            for a in self.find(first)
            for b in self.find(second)
            if matched(a.pairs(), b.pairs()) and (not same_schedule or a.schedule == b.schedule)
        ]

    def judge(self, pairs: Iterable[tuple[Row, Row]], verdict: Callable[[Comparison], Verdict]) -> Findings:
        """One finding a pair, at the training length."""
        findings = []
        for a, b in pairs:
            try:
                comparison = self.comparer.between(a, b, "disjoint", a.train_length)
            except NotComparable as error:
                findings.append(untested(f"{words.name(a.label)} against {words.name(b.label)}: {error}."))
                continue
            short = f"{words.name(a.label)} against {words.name(b.label)} {words.signed(comparison.difference)} nats"
            findings.append(Finding(verdict(comparison), _versus(a, b, comparison), short, comparison.difference))
        return tuple(findings)

    def beyond(self, rows: Iterable[Row], verdict: Callable[[Comparison, float], Verdict]) -> Findings:
        """One finding a row: what text beyond its training length costs it, against `COLLAPSE`."""
        findings = []
        for row in rows:
            try:
                shift = self.comparer.beyond(row)
            except NotComparable as error:
                findings.append(untested(f"{words.name(row.label)}: {error}."))
                continue
            short = f"{words.name(row.label)} {words.change(shift.difference)}"
            text = (
                f"{words.name(row.label)}: perplexity {words.change(shift.difference)} beyond {row.train_length:,} "
                f"tokens, {measured(shift)}."
            )
            findings.append(Finding(verdict(shift, COLLAPSE), text, short, shift.difference))
        return tuple(findings)

    def missing(self, *kinds: Kind) -> Findings:
        """Why there is no row: cells that are planned but have no result, or none planned."""
        reasons: list[str] = []
        for wanted in kinds:
            if self.find(wanted):
                continue
            planned = [cell for cell in self.study.of_task("language") if _is(kind(cell.group), wanted)]
            reasons += [f"cell {cell.id} ({cell.label}) {_STATES[cell.state]}" for cell in planned]
            if not planned:
                reasons.append(f"the study plans no {wanted.name} cell")
        reason = "; ".join(dict.fromkeys(reasons)) or "no two finished cells share a window"
        return (untested(f"{reason[0].upper()}{reason[1:]}."),)

    def no_match(self, first: Kind, second: Kind) -> Findings:
        """Why there are no two rows of equal pairs: the nearest, or what is missing."""
        ours, theirs = self.find(first), self.find(second)
        if not ours or not theirs:
            return self.missing(first, second)
        gaps = [(abs(math.log((a.pairs() or 1) / (b.pairs() or 1))), a, b) for a in ours for b in theirs]
        _, a, b = min(gaps, key=lambda gap: gap[0])
        return (
            untested(
                f"No finished pair of cells reads the same number of keys; the nearest are {words.name(a.label)} with "
                f"{words.keys(a.pairs())} and {words.name(b.label)} with {words.keys(b.pairs())} pairs a token."
            ),
        )


def untested(text: str) -> Finding:
    """A finding that is none, and why."""
    return Finding(Verdict.UNTESTED, text)


def _is(actual: Kind, wanted: Kind) -> bool:
    return actual.family == wanted.family and wanted.schedule in ("", actual.schedule)


def _versus(a: Row, b: Row, comparison: Comparison) -> str:
    pairs = f"{words.keys(a.pairs())} and {words.keys(b.pairs())} pairs a token"
    if not matched(a.pairs(), b.pairs()):
        pairs += ", not matched"
    nll_a, nll_b = (row.nll("disjoint", row.train_length) for row in (a, b))
    low, high = bounds(comparison)
    outcome = (
        f"{words.name(a.label)} is better" if high < 0 else f"{words.name(b.label)} is better" if low > 0 else "a tie"
    )
    return (
        f"{words.name(a.label)} {words.perplexity(nll_a)}, {words.name(b.label)} {words.perplexity(nll_b)} ({pairs}): "
        f"{outcome}, {measured(comparison)}."
    )
