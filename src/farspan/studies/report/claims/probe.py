"""What the copy probe says: which distances a pattern lets a model reach (static-patterns.md A6, C3)."""

from __future__ import annotations

from farspan.studies.report import words
from farspan.studies.report.claims.verdicts import Claim, Finding, Verdict, sign_test, wilson
from farspan.studies.report.rows import ProbeRow

SOLVED = 0.9
SURE = 0.05


def probe_claims(rows: list[ProbeRow]) -> list[Claim]:
    """Claims about shift-copy; `rows` as `probe_rows` gives them."""
    return [_dense_solves(rows), _stagger_beats_fixed(rows), _direct_reading(rows)]


def _dense_solves(rows: list[ProbeRow]) -> Claim:
    findings = []
    for row in rows:
        if row.kind.family == "dense":
            solved, asked = len(row.solved(SOLVED)), len(row.accuracy)
            verdict = Verdict.SHOWS if solved == asked else Verdict.NOT
            text = f"{words.name(row.label)}, depth {row.depth}: {solved} of {asked} distances above {SOLVED}."
            findings.append(Finding(verdict, text, f"depth {row.depth}, {solved} of {asked}", solved))
    return Claim(
        "probe-dense-solves",
        "The task can be learned at this budget: dense attention copies from every distance",
        f"A control. Shows if dense attention passes {SOLVED} at every distance; if not, a pattern's failure may be "
        "the training budget's.",
        tuple(findings) or (Finding(Verdict.UNTESTED, "No finished dense cell in this probe."),),
        universal=True,
    )


def _stagger_beats_fixed(rows: list[ProbeRow]) -> Claim:
    findings = []
    for a in (row for row in rows if row.kind.schedule == "stagger"):
        for b in (
            row for row in rows if (row.kind.family, row.kind.schedule, row.depth) == (a.kind.family, "fixed", a.depth)
        ):
            findings.append(_paired(a, b))
    return Claim(
        "probe-stagger-beats-fixed",
        "A staggered alpha copies from more distances than a fixed one",
        f"Counts distances passed (accuracy above {SOLVED}) by one and not the other. Shows if an exact two-sided "
        f"sign test gives p < {SURE}.",
        tuple(findings)
        or (Finding(Verdict.UNTESTED, "No depth has both a finished staggered and a finished fixed cell."),),
    )


def _paired(a: ProbeRow, b: ProbeRow) -> Finding:
    both = sorted(a.accuracy.keys() & b.accuracy.keys())
    ours, theirs = set(a.solved(SOLVED)) & set(both), set(b.solved(SOLVED)) & set(both)
    only_a, only_b = len(ours - theirs), len(theirs - ours)
    p = sign_test(only_a, only_b)
    verdict = Verdict.UNDECIDED if p >= SURE else Verdict.SHOWS if only_a > only_b else Verdict.NOT
    return Finding(
        verdict,
        f"Depth {a.depth}: {words.name(a.label)} copies from {len(ours)} and {words.name(b.label)} from {len(theirs)} "
        f"of {words.plural(len(both), 'distance')}; {only_a} only by the former, {only_b} only by the latter (sign "
        f"test p = {p:.3f}).",
        f"{words.name(a.label)} {len(ours)} and {words.name(b.label)} {len(theirs)} at depth {a.depth}",
        only_a - only_b,
    )


def _direct_reading(rows: list[ProbeRow]) -> Claim:
    counts = {True: [0, 0], False: [0, 0]}  # reads directly -> [passed, asked]
    for row in rows:
        if row.direct:
            for distance, accuracy in row.accuracy.items():
                tally = counts[row.reads(distance)]
                tally[0] += accuracy > SOLVED
                tally[1] += 1
    statement = "What a model copies from is what some layer reads directly, rarely a sum over several layers"
    rule = (
        f"Over all sparse cells whose patterns are made of distances: the share of distances passed (above {SOLVED}) "
        "among those some layer reads directly and among the rest. Shows if the 95 % (Wilson) interval of the first "
        "lies above that of the second."
    )
    (hit, direct), (reached, rest) = counts[True], counts[False]
    if not direct or not rest:
        side = "reads any of its distances directly" if not direct else "leaves a distance to several layers"
        return Claim(
            "probe-direct-reading",
            statement,
            rule,
            (Finding(Verdict.UNTESTED, f"No finished sparse cell {side}."),),
        )
    (low_a, high_a), (low_b, high_b) = wilson(hit, direct), wilson(reached, rest)
    verdict = Verdict.SHOWS if low_a > high_b else Verdict.NOT if high_a < low_b else Verdict.UNDECIDED
    text = (
        f"Read directly: {hit} of {direct} passed ({words.share(low_a)} to {words.share(high_a)}); not read directly: "
        f"{reached} of {rest} ({words.share(low_b)} to {words.share(high_b)})."
    )
    return Claim("probe-direct-reading", statement, rule, (Finding(verdict, text),))
