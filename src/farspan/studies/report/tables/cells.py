"""Tables about the cells themselves: their states, and where their numbers come from."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

from farspan.studies.report import words
from farspan.studies.report.results import Cell, Study
from farspan.studies.report.tables.table import Column, Entry, Table


def state_table(study: Study) -> Table:
    """Every planned cell with its state; nothing that is missing is left out."""
    columns = [
        Column("cell", number=False),
        Column("model", number=False),
        Column("task", number=False),
        Column("seed"),
        Column("state", number=False),
        Column("detail", number=False),
    ]
    body = [
        [
            Entry(c.id),
            Entry(c.label),
            Entry(c.task),
            Entry(str(c.seed)),
            Entry(c.state, strong=not c.finished),
            Entry(c.detail),
        ]
        for c in study.cells
    ]
    notes = []
    if study.unplanned:
        notes.append(f"On disk but not in the plan, and not read: {words.joined(study.unplanned)}.")
    return Table("cells", "State of every cell", columns, body, notes)


def provenance_tables(study: Study) -> list[Table]:
    """What all cells share, then what differs from cell to cell, then the recipe."""
    cells = [cell for cell in study.cells if cell.finished]
    records = {cell.id: {k: _text(v) for k, v in _flat(cell.provenance()).items()} for cell in cells}
    keys = list(dict.fromkeys(key for record in records.values() for key in record))
    shared = [key for key in keys if len({record.get(key, words.MISSING) for record in records.values()}) == 1]
    differing = [key for key in keys if key not in shared]
    first = next(iter(records.values()), {})
    recorded = [[Entry("study_sha256"), Entry(study.sha256 or words.MISSING)]]
    recorded += [[Entry(key), Entry(first[key])] for key in shared if key != "study_sha256"]
    tables = [
        _pairs("provenance", "The same for every finished cell", recorded),
        _pairs("recipe", "Recipe", [[Entry(k), Entry(_text(v))] for k, v in _flat(study.recipe).items()]),
    ]
    if differing:
        columns = [Column("cell", number=False), *(Column(key, number=False) for key in differing)]
        body = [_differing(cell, records[cell.id], differing) for cell in cells]
        tables.insert(1, Table("provenance-cells", "What differs from cell to cell", columns, body))
    return tables


def _differing(cell: Cell, record: Mapping[str, str], keys: list[str]) -> list[Entry]:
    return [Entry(cell.id), *(Entry(record.get(key, words.MISSING)) for key in keys)]


def _pairs(key: str, title: str, body: list[list[Entry]]) -> Table:
    return Table(key, title, [Column("what", number=False), Column("value", number=False)], body)


def _flat(value: Mapping[str, Any], prefix: str = "") -> dict[str, Any]:
    flat: dict[str, Any] = {}
    for key, entry in value.items():
        name = f"{prefix}{key}"
        if isinstance(entry, Mapping):
            flat.update(_flat(entry, f"{name}."))
        else:
            flat[name] = entry
    return flat


def _text(value: Any) -> str:
    return value if isinstance(value, str) else json.dumps(value, ensure_ascii=False)
