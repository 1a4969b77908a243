"""The table of the sliding protocol."""

from __future__ import annotations

from collections.abc import Sequence

from farspan.studies.report import words
from farspan.studies.report.compare import Comparer
from farspan.studies.report.rows import Row, evaluated_lengths
from farspan.studies.report.tables.standings import mark
from farspan.studies.report.tables.table import Column, Entry, Table

_PERPLEXITY = "perplexity, sliding windows"


def sliding_table(rows: list[Row], comparer: Comparer) -> Table | None:
    """Perplexity under the sliding protocol, or None if no row has it."""
    lengths = [n for n in evaluated_lengths(rows) if any(row.nll("sliding", n) is not None for row in rows)]
    if not lengths:
        return None
    train = rows[0].train_length
    lowest = {n: comparer.best(rows, "sliding", n) for n in lengths}
    columns = [
        Column("model", number=False),
        *(Column(words.multiple(n, train), _PERPLEXITY) for n in lengths),
        Column("change", _PERPLEXITY),
    ]
    body = []
    for row in rows:
        nll = {n: row.nll("sliding", n) for n in lengths}
        marked = [mark(row, nll[n], lowest[n]) for n in lengths]
        change = Entry(words.change(words.minus(nll[lengths[-1]], nll[lengths[0]])))
        body.append([Entry(row.label), *marked, change])
    sliding, disjoint = (
        ", ".join(_context(rows, protocol, n) for n in lengths) for protocol in ("sliding", "disjoint")
    )
    notes = [
        "Windows start every half length, so every token but the first few keeps at least half a window of context. "
        f"Mean context in tokens at {', '.join(f'{n:,}' for n in lengths)}: {sliding} sliding; {disjoint} "
        "non-overlapping.",
        "Both protocols score the same held-out tokens, once each. Bold is the lowest and those that tie with it "
        f"({words.APPROX}).",
    ]
    return Table("sliding", "The same with sliding windows", columns, body, notes)


def _context(rows: Sequence[Row], protocol: str, length: int) -> str:
    entries = [entry for row in rows for entry in row.entries(protocol, length)]
    return words.integer(entries[0].get("mean_context")) if entries else words.MISSING
