"""The table of a language study: every model at every length, beside its budget."""

from __future__ import annotations

from collections.abc import Sequence

from farspan.studies.report import words
from farspan.studies.report.compare import Comparer
from farspan.studies.report.rows import MATCHED, Row, evaluated_lengths, reference_row
from farspan.studies.report.tables import entries
from farspan.studies.report.tables.standings import mark, ranks
from farspan.studies.report.tables.table import Column, Entry, Table

_PERPLEXITY = "perplexity, non-overlapping windows"
_BEYOND = "beyond training length"
_DIFFERENCE = "difference in nats"


def headline_table(rows: list[Row], comparer: Comparer) -> Table:
    """One row a label: its budget, its perplexity at every length, its tail, and paired differences."""
    train, lengths = rows[0].train_length, evaluated_lengths(rows)
    longest, base = lengths[-1], train if train in lengths else lengths[0]
    lowest = {n: comparer.best(rows, "disjoint", n) for n in lengths}
    rank = ranks(comparer.places(rows, "disjoint", base))
    leader = lowest[base]
    best = next((row for row in rows if leader and row.label == leader.labels[0]), None)
    dense = next((row for row in rows if row.family == "dense"), None)
    reference = reference_row(rows)
    columns = [
        Column("model", number=False),
        Column("rank"),
        *(Column(words.multiple(n, train), _PERPLEXITY) for n in lengths),
        Column("change", _PERPLEXITY),
        Column(f"at {train:,}", "pairs a token"),
        Column("matched", "pairs a token", number=False),
        Column("perplexity", _BEYOND),
        Column("change", _BEYOND),
        Column("to the best", _DIFFERENCE),
        Column("to dense", _DIFFERENCE),
        Column("seeds"),
        Column(f"at {longest:,}", "pairs"),
        Column(f"at {train:,}", "attention FLOPs a token"),
        Column(f"at {longest:,}", "attention FLOPs a token"),
        Column("parameters"),
        Column("tokens/s", "training"),
    ]
    body = []
    for row in rows:
        nll = {n: row.nll("disjoint", n) for n in lengths}
        marked = {n: mark(row, nll[n], lowest[n]) for n in lengths}
        marked[base] = Entry(marked[base].text, _spread(row, base), marked[base].strong)
        body.append(
            [
                Entry(row.label),
                Entry(rank.get(row.label, words.MISSING)),
                *marked.values(),
                Entry(words.change(words.minus(nll[longest], nll[base]))),
                Entry(words.keys(row.pairs())),
                entries.budget(row, reference),
                Entry(words.perplexity(row.nll("disjoint", longest, "beyond_nll"))),
                entries.beyond(row, comparer),
                entries.difference(row, best, comparer, base, "best"),
                entries.difference(row, dense, comparer, base, "dense"),
                Entry(str(len(row.seeds))),
                Entry(words.keys(row.pairs(longest))),
                Entry(words.count(row.cost("attention_flops_per_token", train))),
                Entry(words.count(row.cost("attention_flops_per_token", longest))),
                Entry(words.count(row.mean("parameters"))),
                Entry(words.integer(row.mean("train_tokens_per_second"))),
            ]
        )
    notes = _notes(rows, reference, best, base, longest)
    return Table("headline", "Every model, every length", columns, body, notes)


def _notes(rows: Sequence[Row], reference: Row | None, best: Row | None, base: int, longest: int) -> list[str]:
    train = rows[0].train_length
    several = any(len(row.seeds) > 1 for row in rows)
    notes = [
        f"Perplexity is the exponential of the loss averaged over held-out tokens{' and seeds' if several else ''}. "
        f"Bold is the lowest and those that tie with it ({words.APPROX}): their paired interval to it holds zero. "
        f"Ranks are at {base:,} tokens; those that tie share theirs: '4=' is one of several in fourth place.",
        words.PAIRS,
    ]
    if several:
        notes.append(f"The range under the perplexity at {base:,} tokens is that of the seeds.")
    notes.append(
        f"'Beyond training length' takes only tokens with at least {train:,} tokens of context, in windows of "
        f"{longest:,}; its change is against the same tokens read from within the training length (sliding windows)."
    )
    if best is not None:
        notes.append(
            f"Differences are at {base:,} tokens; below zero is better than the model named ({words.name(best.label)} "
            f"is the best), {words.APPROX} is a tie."
        )
    if reference is not None:
        notes.append(
            f"Pairs count as matched within {words.share(MATCHED)} of {words.name(reference.label)} at the training "
            "length; where they are not, a difference in perplexity may be the budget's."
        )
    if len({len(row.seeds) for row in rows}) > 1:
        notes.append("Models have unequal numbers of seeds; paired differences use the seeds that both have.")
    return notes


def _spread(row: Row, length: int) -> str:
    values = row.nlls("disjoint", length)
    return f"{words.perplexity(min(values))} to {words.perplexity(max(values))}" if len(values) > 1 else ""
