"""From an interval to a verdict, and from that to words. Nothing here knows which answer the paper gave."""

from __future__ import annotations

import math
from dataclasses import dataclass
from enum import Enum

from farspan.evaluation.comparison import Comparison
from farspan.studies.report import words

TIE = 0.01
"""Nats, about 1 % of perplexity: two models this close count as equal where a claim says that they are."""

COLLAPSE = math.log(1.10)
"""Nats: a model collapses if text beyond its training length costs it more than 10 % of perplexity."""


class Verdict(Enum):
    """What the data of this study say about a claim."""

    SHOWS = "shows"
    NOT = "does not show"
    UNDECIDED = "undecided at this scale"
    UNTESTED = "cannot be tested"


@dataclass(frozen=True)
class Finding:
    """One comparison that bears on a claim: verdict, the sentence with the numbers, the same in a few words.

    `size` orders findings of one claim; None where there is no number.
    """

    verdict: Verdict
    text: str
    short: str = ""
    size: float | None = None


@dataclass(frozen=True)
class Claim:
    """A claim and what was found. `rule` says how a verdict is reached.

    One contradiction refutes a `universal` claim; elsewhere findings that disagree leave it undecided.
    """

    key: str
    statement: str
    rule: str
    findings: tuple[Finding, ...]
    universal: bool = False

    @property
    def verdict(self) -> Verdict:
        """Shows if every testable finding does; what one that contradicts means depends on `universal`."""
        verdicts = [f.verdict for f in self.findings if f.verdict is not Verdict.UNTESTED]
        if not verdicts:
            return Verdict.UNTESTED
        if all(v is Verdict.SHOWS for v in verdicts):
            return Verdict.SHOWS
        if Verdict.NOT in verdicts and (self.universal or Verdict.SHOWS not in verdicts):
            return Verdict.NOT
        return Verdict.UNDECIDED

    @property
    def summary(self) -> str:
        """One sentence: the only finding, or how many of them say what."""
        tested = [f for f in self.findings if f.verdict is not Verdict.UNTESTED]
        if len(tested) == 1:
            return tested[0].text
        if not tested:
            return self.findings[0].text
        counts = [(v, sum(f.verdict is v for f in tested)) for v in Verdict]
        said = words.joined([f"{n} of {len(tested)} comparisons {_IN_COUNTS[v]}" for v, n in counts if n])
        brief = [f for f in tested if f.short]
        if len(brief) <= _LISTED:
            return f"{said}{': ' if brief else ''}{'; '.join(f.short for f in brief)}."
        ordered = sorted(brief, key=lambda f: f.size or 0.0)
        return f"{said}, from {ordered[0].short} to {ordered[-1].short}."


_LISTED = 3
_IN_COUNTS = {
    Verdict.SHOWS: "show it",
    Verdict.NOT: "say the opposite",
    Verdict.UNDECIDED: "are undecided",
    Verdict.UNTESTED: "cannot be tested",
}


def is_below(comparison: Comparison, bound: float = 0.0) -> Verdict:
    """Shows if the whole interval lies below `bound`, does not show if it lies above, else undecided."""
    low, high = bounds(comparison)
    if high < bound:
        return Verdict.SHOWS
    return Verdict.NOT if low > bound else Verdict.UNDECIDED


def is_above(comparison: Comparison, bound: float) -> Verdict:
    """Shows if the whole interval lies above `bound`, does not show if it lies below, else undecided."""
    low, high = bounds(comparison)
    if low > bound:
        return Verdict.SHOWS
    return Verdict.NOT if high < bound else Verdict.UNDECIDED


def is_equal(comparison: Comparison) -> Verdict:
    """Shows if the whole interval lies within +-TIE, not if a difference above TIE is no tie, else undecided."""
    low, high = bounds(comparison)
    if max(abs(low), abs(high)) < TIE:
        return Verdict.SHOWS
    differs = (low > 0 or high < 0) and abs(comparison.difference) > TIE
    return Verdict.NOT if differs else Verdict.UNDECIDED


def is_no_lower(comparison: Comparison) -> Verdict:
    """Shows if the interval excludes an advantage of TIE or more, does not show if all of it is below 0."""
    low, high = bounds(comparison)
    if high < 0:
        return Verdict.NOT
    return Verdict.SHOWS if low > -TIE else Verdict.UNDECIDED


def bounds(comparison: Comparison) -> tuple[float, float]:
    """The interval, or an endless one where there are too few blocks of text for any verdict."""
    if comparison.verdict == "too few blocks" or comparison.low is None or comparison.high is None:
        return -math.inf, math.inf
    return comparison.low, comparison.high


def measured(comparison: Comparison) -> str:
    """`-0.043 nats a token (95 % interval -0.050 to -0.036; 24,575 tokens, 1 seed)`."""
    if comparison.low is None or comparison.high is None or comparison.verdict == "too few blocks":
        spread = f"no interval: only {words.plural(comparison.blocks, 'block')} of held-out text"
    else:
        spread = f"95{words.THIN}% interval {words.interval(comparison.low, comparison.high)}"
    seeds = words.plural(len(comparison.seeds), "seed")
    tokens = f"{comparison.tokens:,} tokens"
    return f"{words.signed(comparison.difference)} nats a token ({spread}; {tokens}, {seeds})"


def wilson(hits: int, total: int) -> tuple[float, float]:
    """95 % interval of a share (Wilson 1927)."""
    z = 1.959964
    share, scale = hits / total, 1 + z * z / total
    centre = (share + z * z / (2 * total)) / scale
    half = z * math.sqrt(share * (1 - share) / total + z * z / (4 * total * total)) / scale
    return max(0.0, centre - half), min(1.0, centre + half)


def sign_test(wins: int, losses: int) -> float:
    """Two-sided exact probability of a split at least this uneven if both sides were equally likely."""
    total = wins + losses
    tail: float = sum(math.comb(total, k) for k in range(min(wins, losses) + 1)) / 2**total
    return min(1.0, 2 * tail)
