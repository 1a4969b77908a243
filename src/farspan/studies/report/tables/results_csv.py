"""Every number of every planned cell, one line a cell."""

from __future__ import annotations

import csv
import io
from typing import Any

from farspan.studies.report.results import Cell, Study

_RESULT_KEYS = (
    "parameters",
    "train_length",
    "train_tokens",
    "train_seconds",
    "train_tokens_per_second",
    "eval_seconds",
    "peak_memory_mb",
    "threads",
    "depth",
    "distance",
    "accuracy",
    "chance",
    "steps",
)
_ENTRY_KEYS = ("ppl", "nll", "tokens", "mean_context", "beyond_nll", "beyond_tokens", "stride")


def results_csv(study: Study) -> str:
    """The study as CSV: the same columns for every cell, empty where a cell has no such number."""
    records = [_record(cell) for cell in study.cells]
    columns = list(dict.fromkeys(key for record in records for key in record))
    buffer = io.StringIO()
    writer = csv.DictWriter(buffer, columns, lineterminator="\n", restval="")
    writer.writeheader()
    writer.writerows(records)
    return buffer.getvalue()


def _record(cell: Cell) -> dict[str, Any]:
    record: dict[str, Any] = {
        "cell": cell.id,
        "label": cell.label,
        "task": cell.task,
        "seed": cell.seed,
        "state": cell.state,
    }
    record |= {f"group_{key}": value for key, value in cell.group.items()}
    result = cell.result
    record |= {key: result[key] for key in _RESULT_KEYS if result.get(key) is not None}
    for name, by_length in result.get("cost", {}).items():
        record |= {f"{name}_{length}": value for length, value in by_length.items()}
    for protocol, by_length in result.get("perplexity", {}).items():
        for length, entry in by_length.items():
            record |= {f"{protocol}_{length}_{k}": entry[k] for k in _ENTRY_KEYS if entry.get(k) is not None}
    for distance, accuracy in zip(result.get("distances", ()), result.get("accuracies", ()), strict=True):
        record[f"accuracy_{distance}"] = accuracy
    return record
