"""What each model costs."""

from __future__ import annotations

from farspan.studies.report import words
from farspan.studies.report.rows import Row, evaluated_lengths
from farspan.studies.report.tables.table import Column, Entry, Table


def cost_table(rows: list[Row]) -> Table:
    """Counted FLOPs beside measured times."""
    train, longest = rows[0].train_length, evaluated_lengths(rows)[-1]
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
    note = (
        "FLOPs are counted for the forward pass of all layers. Times were taken on the machine named under "
        "Provenance, which may have been shared."
    )
    return Table("cost", "What each model costs", columns, body, [note])
