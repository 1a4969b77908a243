"""The table of a copy probe."""

from __future__ import annotations

from farspan.studies.report import words
from farspan.studies.report.rows import ProbeRow
from farspan.studies.report.tables.table import Column, Entry, Table

SOLVED = 0.9
TITLES = {"shift-copy": "Copying from a distance", "marked-copy": "Copying from two marked distances at once"}


def probe_table(rows: list[ProbeRow], task: str) -> Table:
    """One row a label and depth: accuracy at every distance, starred where some layer reads it directly."""
    distances = sorted({d for row in rows for d in row.accuracy})
    columns = [
        Column("model", number=False),
        Column("layers"),
        Column(f"above {SOLVED}"),
        *(Column(f"{d:,}", "accuracy at distance") for d in distances),
    ]
    body = [
        [
            Entry(row.label),
            Entry(str(row.depth)),
            Entry(f"{len(row.solved(SOLVED))} of {len(row.accuracy)}"),
            *(_accuracy(row, d) for d in distances),
        ]
        for row in rows
    ]
    chance = next((row.chance for row in rows if row.chance is not None), None)
    notes = [
        "A dot marks a distance that some layer reads directly; patterns of blocks and tokens, where the position "
        f"decides, have none. Bold is above {SOLVED}."
    ]
    if chance is not None:
        notes.append(f"Chance is {chance:.3f}.")
    return Table(task, TITLES[task], columns, body, notes)


def _accuracy(row: ProbeRow, distance: int) -> Entry:
    value = row.accuracy.get(distance)
    if value is None:
        return Entry(words.MISSING)
    dot = f"{words.THIN}\N{BULLET}" if row.reads(distance) else ""
    return Entry(f"{value:.2f}{dot}", strong=value > SOLVED)
