"""The tables of a language study."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from farspan.evaluation.bootstrap import Comparison
from farspan.studies.report import words
from farspan.studies.report.compare import Comparer, NotComparable
from farspan.studies.report.rows import MATCHED, Row, matched, reference_row
from farspan.studies.report.tables.table import Column, Entry, Table


@dataclass(frozen=True)
class Standings:
    """Ranks with ties of all rows, for one protocol and length."""

    rank: dict[str, str]
    best: frozenset[str]
    """Labels that share the first rank."""
    leader: str | None

    def mark(self, row: Row, nll: float | None) -> Entry:
        """The perplexity; the best is bold, and those that tie with it carry the sign for 'about equal'."""
        text = words.perplexity(nll)
        if row.label == self.leader:
            return Entry(text, strong=True)
        return Entry(f"{words.APPROX}{words.THIN}{text}", strong=True) if row.label in self.best else Entry(text)


def standings(rows: Sequence[Row], comparer: Comparer, protocol: str, length: int) -> Standings:
    places = comparer.places(rows, protocol, length)
    rank = {label: f"{p.number}{'=' if len(p.labels) > 1 else ''}" for p in places for label in p.labels}
    best = places[0].labels if places else ()
    return Standings(rank, frozenset(best), best[0] if best else None)


def headline_table(rows: list[Row], comparer: Comparer) -> Table:
    """One row a label: its budget, its perplexity at every length, its tail, and paired differences."""
    train, lengths = rows[0].train_length, _lengths(rows)
    longest = lengths[-1]
    by_length = {n: standings(rows, comparer, "disjoint", n) for n in lengths}
    best = _row(rows, by_length[train].leader if train in by_length else None)
    dense = next((row for row in rows if row.family == "dense"), None)
    reference = reference_row(rows)
    seeds = max(len(row.seeds) for row in rows)
    columns = [
        Column("model", number=False),
        Column("rank", "at training length"),
        Column(f"at {train:,}", "pairs a token"),
        Column(f"at {longest:,}", "pairs a token"),
        Column("matched", "pairs a token", number=False),
        Column("FLOPs a token", "attention"),
        Column("parameters"),
        *(Column(words.multiple(n, train), "perplexity, non-overlapping windows") for n in lengths),
        Column("change", "perplexity, non-overlapping windows"),
        Column("perplexity", "beyond training length"),
        Column("change", "beyond training length"),
        Column("to the best", "difference in nats, 95 % interval"),
        Column("to dense", "difference in nats, 95 % interval"),
        Column("seeds"),
        Column("tokens/s", "training"),
    ]
    body = []
    for row in rows:
        nll = {n: row.nll("disjoint", n) for n in lengths}
        spread = _spread(row, train) if seeds > 1 else ""
        body.append(
            [
                Entry(row.label),
                Entry(by_length[train].rank.get(row.label, words.MISSING) if train in by_length else words.MISSING),
                Entry(words.keys(row.pairs())),
                Entry(words.keys(row.pairs(longest))),
                Entry(budget_note(row, reference)),
                Entry(words.count(row.cost("attention_flops_per_token", train))),
                Entry(words.count(row.mean("parameters"))),
                *(_with_small(by_length[n].mark(row, nll[n]), spread if n == train else "") for n in lengths),
                Entry(words.change(_minus(nll[longest], nll.get(train)))),
                Entry(words.perplexity(row.nll("disjoint", longest, "beyond_nll"))),
                _beyond(row, comparer),
                _difference(row, best, comparer, "best"),
                _difference(row, dense, comparer, "dense"),
                Entry(str(len(row.seeds))),
                Entry(words.integer(row.mean("train_tokens_per_second"))),
            ]
        )
    return Table("headline", "Every model, every length", columns, body, _notes(rows, reference, best, train, longest))


def sliding_table(rows: list[Row], comparer: Comparer) -> Table | None:
    """Perplexity under the sliding protocol, or None if no row has it."""
    lengths = [n for n in _lengths(rows) if any(row.nll("sliding", n) is not None for row in rows)]
    if not lengths:
        return None
    train = rows[0].train_length
    by_length = {n: standings(rows, comparer, "sliding", n) for n in lengths}
    columns = [
        Column("model", number=False),
        *(Column(words.multiple(n, train), "perplexity, sliding windows") for n in lengths),
        Column("change", "perplexity, sliding windows"),
    ]
    body = []
    for row in rows:
        nll = {n: row.nll("sliding", n) for n in lengths}
        body.append(
            [
                Entry(row.label),
                *(by_length[n].mark(row, nll[n]) for n in lengths),
                Entry(words.change(_minus(nll[lengths[-1]], nll[lengths[0]]))),
            ]
        )
    context = [_context(rows, protocol, n) for protocol in ("sliding", "disjoint") for n in lengths]
    half = len(lengths)
    notes = [
        f"Windows start every half length, so every token but the first few keeps at least half a window of context. Mean context "
        f"in tokens at {_list(lengths)}: {_list(context[:half])} sliding, {_list(context[half:])} non-overlapping.",
        "Both protocols score the same held-out tokens once each. Bold is the lowest; the sign for 'about equal' marks a tie with it.",
    ]
    return Table("sliding", "The same with sliding windows", columns, body, notes)


def cost_table(rows: list[Row]) -> Table:
    """What each row costs."""
    train, longest = rows[0].train_length, _lengths(rows)[-1]
    columns = [
        Column("model", number=False),
        Column(f"at {train:,}", "attention FLOPs a token"),
        Column(f"at {longest:,}", "attention FLOPs a token"),
        Column("training tokens"),
        Column("tokens/s", "training"),
        Column("seconds", "training"),
        Column("seconds", "evaluation"),
        Column("peak memory, MB"),
        Column("threads"),
    ]
    body = [
        [
            Entry(row.label),
            Entry(words.count(row.cost("attention_flops_per_token", train))),
            Entry(words.count(row.cost("attention_flops_per_token", longest))),
            Entry(words.joined([words.count(n) for n in row.train_tokens])),
            Entry(words.integer(row.mean("train_tokens_per_second"))),
            Entry(words.integer(row.mean("train_seconds"))),
            Entry(words.integer(row.mean("eval_seconds"))),
            Entry(words.integer(row.mean("peak_memory_mb"))),
            Entry(words.integer(row.mean("threads"))),
        ]
        for row in rows
    ]
    note = "Forward pass, all layers. Times were taken on the machine named under Provenance, which may have been shared."
    return Table("cost", "What each model costs", columns, body, [note])


def budget_note(row: Row, reference: Row | None) -> str:
    """Whether a row reads as many keys as the reference row, in words."""
    if reference is None or row.pairs() is None or not reference.pairs():
        return words.MISSING
    if row is reference:
        return "reference"
    ratio = f"{(row.pairs() or 0) / (reference.pairs() or 1):.2f}{words.TIMES}"
    return f"yes, {ratio}" if matched(row.pairs(), reference.pairs()) else f"not matched, {ratio}"


def _notes(rows: list[Row], reference: Row | None, best: Row | None, train: int, longest: int) -> list[str]:
    notes = [
        f"Perplexity is the exponential of the loss averaged over held-out tokens{' and seeds' if len(rows[0].seeds) > 1 else ''}; "
        "bold is the lowest, the sign for 'about equal' marks those whose paired interval to it holds zero, and equal ranks "
        "('1=') are such ties.",
        f"'Beyond training length' takes only tokens with at least {train:,} tokens of context, in windows of {longest:,}; its change is "
        "against the same tokens read from within the training length (sliding windows).",
    ]
    if best is not None:
        notes.append(
            f"Differences are at the training length; below zero is better than the row named ({best.label} is the best). "
            "A tie is an interval that holds zero."
        )
    if reference is not None:
        notes.append(
            f"Pairs count as matched within {MATCHED:.0%} of {reference.label} at the training length; where they are not, a "
            "difference in perplexity may be the budget's."
        )
    budgets = {n for row in rows for n in row.train_tokens}
    if len(budgets) > 1:
        notes.append(
            f"Training budgets differ ({words.joined([f'{n:,}' for n in sorted(budgets)])} tokens): perplexities across them do not compare."
        )
    if len({len(row.seeds) for row in rows}) > 1:
        notes.append("Rows have unequal numbers of seeds; paired differences use the seeds that both have.")
    return notes


def _difference(row: Row, other: Row | None, comparer: Comparer, name: str) -> Entry:
    if other is None:
        return Entry(words.MISSING)
    if row is other:
        return Entry(name)
    try:
        comparison = comparer.between(row, other, "disjoint", row.train_length)
    except NotComparable:
        return Entry("not comparable")
    return interval_entry(comparison)


def _beyond(row: Row, comparer: Comparer) -> Entry:
    try:
        shift = comparer.beyond(row)
    except NotComparable:
        return Entry(words.MISSING)
    low, high = (None if edge is None else words.change(edge) for edge in (shift.low, shift.high))
    return Entry(words.change(shift.difference), f"{low} to {high}" if low and high else "no interval")


def interval_entry(comparison: Comparison) -> Entry:
    """A difference with its interval below it, marked where it is a tie."""
    sign = f"{words.APPROX}{words.THIN}" if comparison.verdict == "tie" else ""
    text = sign + words.signed(comparison.difference)
    if comparison.low is None or comparison.high is None or comparison.verdict == "too few blocks":
        return Entry(text, "too little text")
    return Entry(text, words.interval(comparison.low, comparison.high))


def _spread(row: Row, length: int) -> str:
    values = row.nlls("disjoint", length)
    if len(values) < 2:
        return "1 seed"
    return f"{words.perplexity(min(values))} to {words.perplexity(max(values))}"


def _with_small(entry: Entry, small: str) -> Entry:
    return Entry(entry.text, small, entry.strong)


def _lengths(rows: Sequence[Row]) -> list[int]:
    lengths = sorted({n for row in rows for n in row.lengths})
    return lengths or [rows[0].train_length]


def _row(rows: Sequence[Row], label: str | None) -> Row | None:
    return next((row for row in rows if row.label == label), None)


def _minus(a: float | None, b: float | None) -> float | None:
    return None if a is None or b is None else a - b


def _context(rows: Sequence[Row], protocol: str, length: int) -> str:
    for row in rows:
        for entry in row.entries(protocol, length):
            return words.integer(entry.get("mean_context"))
    return words.MISSING


def _list(values: Sequence[object]) -> str:
    return ", ".join(f"{v:,}" if isinstance(v, int) else str(v) for v in values)
