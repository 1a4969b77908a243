"""The paper's claims about language models, and the controls it lacks (static-patterns.md A6, A7)."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable

import numpy as np

from farspan.evaluation.bootstrap import Comparison
from farspan.studies.report import words
from farspan.studies.report.claims.verdicts import (
    COLLAPSE,
    TIE,
    Claim,
    Finding,
    Verdict,
    bounds,
    is_above,
    is_below,
    is_equal,
    is_no_lower,
    measured,
)
from farspan.studies.report.compare import Comparer, NotComparable
from farspan.studies.report.results import Study
from farspan.studies.report.rows import FAMILY_NAMES, MATCHED, Row, family, matched

MOVED = 0.05
"""A tenth of the half-range [0.5, 1.5] that a schedule spans: less than this and a learned alpha has not moved."""

Judge = Callable[[Comparison], Verdict]
_AT_TRAINING_LENGTH = "Compared at the training length, non-overlapping windows, on identical tokens. "
_BETTER = _AT_TRAINING_LENGTH + "Shows if the whole interval of the difference is below zero."


def language_claims(study: Study, rows: list[Row], comparer: Comparer) -> list[Claim]:
    """Every claim, in the order a reader meets them."""
    book = _Book(study, rows, comparer)
    return [
        book.stagger_beats_fixed("fibonacci"),
        book.stagger_beats_fixed("powers"),
        book.stagger_equals_coprime(),
        book.learned_stays(),
        book.learned_no_better(),
        book.bases_at_equal_window(),
        book.bases_at_equal_pairs(),
        book.beats_window_at_equal_pairs(),
        book.dense_collapses(),
        book.sparse_holds(),
        book.gain_is_early_tokens(),
    ]


class _Book:
    def __init__(self, study: Study, rows: list[Row], comparer: Comparer) -> None:
        self.study, self.rows, self.comparer = study, rows, comparer

    def stagger_beats_fixed(self, base: str) -> Claim:
        pairs = self._same_window((base, "stagger"), (base, "fixed"))
        return Claim(
            f"stagger-beats-fixed-{base}",
            f"Staggering alpha over depth beats a fixed alpha ({FAMILY_NAMES[base]})",
            _BETTER,
            self._judge(pairs, is_below) or self._missing((base, "stagger"), (base, "fixed")),
        )

    def stagger_equals_coprime(self) -> Claim:
        pairs = self._same_window(("fibonacci", "coprime"), ("fibonacci", "stagger"))
        return Claim(
            "stagger-equals-coprime",
            "The order of the alphas does not matter: coprime equals the linear stagger",
            _AT_TRAINING_LENGTH + f"Shows if the whole interval lies within {TIE} nats of zero, about 1 % of perplexity.",
            self._judge(pairs, is_equal) or self._missing(("fibonacci", "coprime"), ("fibonacci", "stagger")),
        )

    def learned_stays(self) -> Claim:
        findings = [_movement(row) for row in self.rows if row.schedule == "learned" and row.first.get("alphas")]
        return Claim(
            "learned-stays",
            "A learned alpha hardly moves from where it starts",
            f"Shows if no layer's alpha moved by {MOVED} or more in any seed, a tenth of the 0.5 that a stagger spans "
            "on either side of 1.",
            tuple(findings) or self._missing(("fibonacci", "learned")),
        )

    def learned_no_better(self) -> Claim:
        pairs = self._same_window(("fibonacci", "learned"), ("fibonacci", "stagger"))
        return Claim(
            "learned-no-better",
            "Learning alpha is no better than staggering it",
            _AT_TRAINING_LENGTH + f"Shows if the interval rules out that learning is better by {TIE} nats or more, and "
            "does not show if all of it says that learning is better.",
            self._judge(pairs, is_no_lower) or self._missing(("fibonacci", "learned"), ("fibonacci", "stagger")),
        )

    def bases_at_equal_window(self) -> Claim:
        pairs = [p for s in ("fixed", "stagger") for p in self._same_window(("fibonacci", s), ("powers", s))]
        return Claim(
            "bases-equal-window",
            "Fibonacci spacing beats powers of two at the same window",
            _BETTER + " The two bases need not read the same number of keys at one window; see the next claim.",
            self._judge(pairs, is_below)
            or self._missing(("fibonacci", "fixed"), ("powers", "fixed"))
            + self._missing(("fibonacci", "stagger"), ("powers", "stagger")),
        )

    def bases_at_equal_pairs(self) -> Claim:
        pairs = [
            (a, b)
            for a in self._find("fibonacci")
            for b in self._find("powers", a.schedule)
            if matched(a.pairs(), b.pairs())
        ]
        return Claim(
            "bases-equal-pairs",
            "Fibonacci spacing beats powers of two at the same number of pairs",
            _BETTER + f" Pairs count as equal within {MATCHED:.0%}.",
            self._judge(pairs, is_below) or self._no_match(("fibonacci", ""), ("powers", "")),
        )

    def beats_window_at_equal_pairs(self) -> Claim:
        pairs = [
            (a, b)
            for a in self._find("fibonacci", "stagger")
            for b in self._find("window")
            if matched(a.pairs(), b.pairs())
        ]
        return Claim(
            "beats-window",
            "Staggered Fibonacci spacing beats a plain sliding window with the same number of pairs",
            _BETTER + f" Pairs count as equal within {MATCHED:.0%}.",
            self._judge(pairs, is_below) or self._no_match(("fibonacci", "stagger"), ("window", "")),
        )

    def dense_collapses(self) -> Claim:
        return Claim(
            "dense-collapses",
            "Dense attention collapses beyond its training length",
            _BEYOND + "Shows if the whole interval is above a rise of 10 % of perplexity.",
            self._beyond(self._find("dense"), is_above) or self._missing(("dense", "")),
        )

    def sparse_holds(self) -> Claim:
        sparse = [row for row in self.rows if row.family in ("fibonacci", "powers", "window")]
        return Claim(
            "sparse-holds",
            "The sparse patterns do not collapse beyond their training length",
            _BEYOND + "Shows if the whole interval is below a rise of 10 % of perplexity, for every sparse model.",
            self._beyond(sparse, is_below) or self._missing(("fibonacci", "stagger")),
        )

    def gain_is_early_tokens(self) -> Claim:
        rows = [row for row in self._find("fibonacci") if row.schedule in ("fixed", "stagger")]
        findings = []
        for row in rows:
            try:
                findings.append(self._early_tokens(row))
            except NotComparable as error:
                findings.append(_untested(str(error)))
        return Claim(
            "gain-is-early-tokens",
            "Where perplexity improves with evaluation length, that is the early-token effect and no use of longer context",
            "Longer non-overlapping windows have fewer tokens with little context, which lowers perplexity by itself. Shows "
            f"if perplexity falls with length while tokens beyond the training length gain less than {TIE} nats over the "
            "same tokens read from within it; does not show if there is no fall, or if all of the interval is a gain.",
            tuple(findings) or self._missing(("fibonacci", "stagger")),
        )

    def _early_tokens(self, row: Row) -> Finding:
        gain, beyond = self.comparer.gain_with_length(row), self.comparer.beyond(row)
        unit, longest = row.train_length, row.longest or row.train_length
        start = (
            f"{row.label}: from {unit:,} to {longest:,} tokens the non-overlapping perplexity changes by "
            f"{words.change(gain.difference)}, {measured(gain)}"
        )
        falls = is_below(gain)
        if falls is Verdict.NOT:
            return Finding(Verdict.NOT, f"{start}: it does not improve with length, so there is nothing to explain.")
        expected = _expected_change(row)
        clause = (
            f". Had the loss beyond {unit:,} tokens of context stayed at its mean between {unit // 2:,} and {unit:,}, the change "
            f"would be {words.change(expected)}"
            if expected is not None
            else ""
        )
        verdict = is_no_lower(beyond) if falls is Verdict.SHOWS else Verdict.UNDECIDED
        return Finding(
            verdict,
            f"{start}{clause}. Tokens beyond the training length against the same tokens read from within it: {measured(beyond)}.",
        )

    def _beyond(self, rows: Iterable[Row], judge: Callable[[Comparison, float], Verdict]) -> tuple[Finding, ...]:
        findings = []
        for row in rows:
            try:
                shift = self.comparer.beyond(row)
            except NotComparable as error:
                findings.append(_untested(f"{row.label}: {error}"))
                continue
            text = f"{row.label}: perplexity {words.change(shift.difference)} beyond {row.train_length:,} tokens, {measured(shift)}."
            findings.append(Finding(judge(shift, COLLAPSE), text))
        return tuple(findings)

    def _judge(self, pairs: Iterable[tuple[Row, Row]], judge: Judge) -> tuple[Finding, ...]:
        findings = []
        for a, b in pairs:
            try:
                comparison = self.comparer.between(a, b, "disjoint", a.train_length)
            except NotComparable as error:
                findings.append(_untested(f"{a.label} against {b.label}: {error}"))
                continue
            findings.append(Finding(judge(comparison), _versus(a, b, comparison)))
        return tuple(findings)

    def _find(self, base: str, schedule: str = "") -> list[Row]:
        return [r for r in self.rows if r.family == base and (not schedule or r.schedule == schedule)]

    def _same_window(self, first: tuple[str, str], second: tuple[str, str]) -> list[tuple[Row, Row]]:
        return [(a, b) for a in self._find(*first) for b in self._find(*second) if a.window == b.window]

    def _missing(self, *roles: tuple[str, str]) -> tuple[Finding, ...]:
        """Why a claim has no pair of rows: cells that are planned but not finished, or not planned at all."""
        reasons = []
        for base, schedule in roles:
            if self._find(base, schedule):
                continue
            planned = [
                cell
                for cell in self.study.of_task("language")
                if family(str(cell.group.get("pattern", ""))) == base
                and (not schedule or cell.group.get("schedule") == schedule)
            ]
            name = " ".join(filter(None, [FAMILY_NAMES.get(base, base), schedule]))
            if planned:
                reasons += [f"cell {cell.id} ({cell.label}) is {_state(cell.state)}" for cell in planned]
            else:
                reasons.append(f"the study plans no cell with {name}")
        text = "; ".join(reasons) or "no two finished cells share a window"
        return (_untested(f"{text[0].upper()}{text[1:]}."),)

    def _no_match(self, first: tuple[str, str], second: tuple[str, str]) -> tuple[Finding, ...]:
        ours, theirs = self._find(*first), self._find(*second)
        if not ours or not theirs:
            return self._missing(first, second)
        gaps = [(abs(math.log((a.pairs() or 1) / (b.pairs() or 1))), a, b) for a in ours for b in theirs]
        _, a, b = min(gaps, key=lambda gap: gap[0])
        return (
            _untested(
                f"No finished pair of cells reads the same number of keys; the nearest are {a.label} with "
                f"{words.keys(a.pairs())} and {b.label} with {words.keys(b.pairs())} pairs a token."
            ),
        )


_BEYOND = (
    "Tokens with at least a training length of context in the longest non-overlapping windows, against the same tokens in "
    "sliding windows of the training length. "
)


def _versus(a: Row, b: Row, comparison: Comparison) -> str:
    pairs = f"{words.keys(a.pairs())} and {words.keys(b.pairs())} pairs a token"
    if not matched(a.pairs(), b.pairs()):
        pairs += ", not matched"
    nll_a, nll_b = (row.nll("disjoint", row.train_length) for row in (a, b))
    low, high = bounds(comparison)
    outcome = f"{a.label} is better" if high < 0 else f"{b.label} is better" if low > 0 else "a tie"
    return (
        f"{a.label} {words.perplexity(nll_a)}, {b.label} {words.perplexity(nll_b)} ({pairs}): {outcome}, "
        f"{measured(comparison)}."
    )


def _movement(row: Row) -> Finding:
    moves = [
        (abs(end - start), layer, start, end)
        for cell in row.cells
        if cell.result.get("alphas")
        for layer, (start, end) in enumerate(
            zip(cell.result["alphas"]["initial"], cell.result["alphas"]["final"], strict=True), start=1
        )
    ]
    most, layer, start, end = max(moves)
    mean = float(np.mean([move[0] for move in moves]))
    text = (
        f"{row.label}: the largest move is {most:.3f} (layer {layer}, {start:.3f} to {end:.3f}), the mean move {mean:.3f} over "
        f"{words.plural(len(moves), 'layer')} of {words.plural(len(row.cells), 'seed')}."
    )
    return Finding(Verdict.SHOWS if most < MOVED else Verdict.NOT, text)


def _expected_change(row: Row) -> float | None:
    """Change of the mean loss with length if tokens beyond the training length did as well as late ones within it.

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
    total = scored.nll[within].sum(dtype=np.float64) + (~within).sum() * scored.nll[late].mean(dtype=np.float64)
    return float(total / len(scored) - entries[0]["nll"])


def _untested(text: str) -> Finding:
    return Finding(Verdict.UNTESTED, text)


def _state(state: str) -> str:
    return {"failed": "failed", "running": "still running", "not started": "not started"}.get(state, state)
