"""The paper's claims about language models, and the controls it lacks (static-patterns.md A6, A7)."""

from __future__ import annotations

from farspan.studies.report.claims.book import Book
from farspan.studies.report.claims.early_tokens import gain_is_early_tokens
from farspan.studies.report.claims.movement import learned_stays
from farspan.studies.report.claims.verdicts import TIE, Claim, is_above, is_below, is_equal, is_no_lower
from farspan.studies.report.compare import Comparer
from farspan.studies.report.kinds import FAMILY_NAMES, Kind
from farspan.studies.report.results import Study
from farspan.studies.report.rows import MATCHED, Row
from farspan.studies.report.words import share

_FIBONACCI, _POWERS, _WINDOW, _DENSE = (Kind(name) for name in ("fibonacci", "powers", "window", "dense"))
_FIXED, _STAGGER = Kind("fibonacci", "fixed"), Kind("fibonacci", "stagger")
_COPRIME, _LEARNED = Kind("fibonacci", "coprime"), Kind("fibonacci", "learned")

_AT_TRAINING_LENGTH = "Compared at the training length, non-overlapping windows, on identical tokens. "
_BETTER = _AT_TRAINING_LENGTH + "Shows if the whole interval of the difference is below zero."
_EQUAL_PAIRS = f" Pairs count as equal within {share(MATCHED)}."
_BEYOND = (
    "Tokens with at least a training length of context in the longest non-overlapping windows, against the same "
    "tokens in sliding windows of the training length. "
)


def language_claims(study: Study, rows: list[Row], comparer: Comparer) -> list[Claim]:
    """Every claim, in the order a reader meets them."""
    book = Book(study, rows, comparer)
    return [
        _stagger_beats_fixed(book, "fibonacci"),
        _stagger_beats_fixed(book, "powers"),
        _stagger_equals_coprime(book),
        learned_stays(book),
        _learned_no_better(book),
        _bases_at_equal_window(book),
        _bases_at_equal_pairs(book),
        _beats_window(book),
        _dense_collapses(book),
        _sparse_holds(book),
        gain_is_early_tokens(book),
    ]


def _stagger_beats_fixed(book: Book, base: str) -> Claim:
    stagger, fixed = Kind(base, "stagger"), Kind(base, "fixed")
    return Claim(
        f"stagger-beats-fixed-{base}",
        f"Staggering alpha over depth beats a fixed alpha ({FAMILY_NAMES[base]})",
        _BETTER,
        book.judge(book.same_window(stagger, fixed), is_below) or book.missing(stagger, fixed),
    )


def _stagger_equals_coprime(book: Book) -> Claim:
    return Claim(
        "stagger-equals-coprime",
        "The order of the alphas does not matter: coprime equals the linear stagger",
        f"{_AT_TRAINING_LENGTH}Shows if the whole interval lies within {TIE} nats of zero, about 1 % of perplexity; "
        "does not show if the difference is larger and its interval excludes zero.",
        book.judge(book.same_window(_COPRIME, _STAGGER), is_equal) or book.missing(_COPRIME, _STAGGER),
    )


def _learned_no_better(book: Book) -> Claim:
    return Claim(
        "learned-no-better",
        "Learning alpha is no better than staggering it",
        f"{_AT_TRAINING_LENGTH}Shows if the interval rules out that learning is better by {TIE} nats or more, and "
        "does not show if all of it says that learning is better. A learned rung reads two keys while it trains.",
        book.judge(book.same_window(_LEARNED, _STAGGER), is_no_lower) or book.missing(_LEARNED, _STAGGER),
    )


def _bases_at_equal_window(book: Book) -> Claim:
    kinds = [(Kind("fibonacci", name), Kind("powers", name)) for name in ("fixed", "stagger")]
    pairs = [pair for ours, theirs in kinds for pair in book.same_window(ours, theirs)]
    return Claim(
        "bases-equal-window",
        "Fibonacci spacing beats powers of two at the same window",
        f"{_BETTER} The two bases need not read the same number of keys at one window; see the next claim.",
        book.judge(pairs, is_below) or book.missing(*(one for both in kinds for one in both)),
    )


def _bases_at_equal_pairs(book: Book) -> Claim:
    pairs = book.same_pairs(_FIBONACCI, _POWERS, same_schedule=True)
    return Claim(
        "bases-equal-pairs",
        "Fibonacci spacing beats powers of two at the same number of pairs",
        _BETTER + _EQUAL_PAIRS,
        book.judge(pairs, is_below) or book.no_match(_FIBONACCI, _POWERS),
    )


def _beats_window(book: Book) -> Claim:
    pairs = book.same_pairs(_STAGGER, _WINDOW, same_schedule=False)
    return Claim(
        "beats-window",
        "Staggered Fibonacci spacing beats a plain sliding window with the same number of pairs",
        _BETTER + _EQUAL_PAIRS,
        book.judge(pairs, is_below) or book.no_match(_STAGGER, _WINDOW),
    )


def _dense_collapses(book: Book) -> Claim:
    return Claim(
        "dense-collapses",
        "Dense attention collapses beyond its training length",
        f"{_BEYOND}Shows if the whole interval is above a rise of 10 % of perplexity.",
        book.beyond(book.find(_DENSE), is_above) or book.missing(_DENSE),
    )


def _sparse_holds(book: Book) -> Claim:
    sparse = [row for row in book.rows if row.family in ("fibonacci", "powers", "window")]
    return Claim(
        "sparse-holds",
        "The sparse patterns do not collapse beyond their training length",
        f"{_BEYOND}Shows if the whole interval is below a rise of 10 % of perplexity, for every sparse model.",
        book.beyond(sparse, is_below) or book.missing(_STAGGER),
        universal=True,
    )
