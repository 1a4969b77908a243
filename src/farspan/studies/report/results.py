"""Reading a study folder: what was planned, what each cell left behind, and in which state it is.

Reads only; a cell that did not finish is kept with its state and the reason, never dropped.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import numpy as np

from farspan.evaluation.length_curve import scored_from_arrays
from farspan.evaluation.windows import Scored

STATES = ("finished", "unfinished", "failed", "not started")
"""Unfinished: running now, or killed; only the process itself could tell."""
PROBES = ("shift-copy", "marked-copy")
_REQUIRED = {
    "language": (
        "parameters",
        "train_tokens",
        "train_length",
        "train_tokens_per_second",
        "layers",
        "cost",
        "perplexity",
    ),
    "shift-copy": ("depth", "distance", "accuracy", "layers"),
    "marked-copy": ("depth", "distances", "accuracies", "layers"),
}


@dataclass(frozen=True, eq=False)
class Cell:
    """One planned cell. `state` is one of `STATES`; `detail` says more in a few words.

    `result` is empty unless finished.
    """

    id: str
    label: str
    group: Mapping[str, Any]
    seed: int
    task: str
    folder: Path
    state: str
    detail: str = ""
    result: Mapping[str, Any] = field(default_factory=dict, repr=False)

    @property
    def finished(self) -> bool:
        return self.state == "finished"

    def metrics(self) -> list[dict[str, Any]]:
        """The logged steps, oldest first; a last line that is still being written is left out."""
        path = self.folder / "metrics.jsonl"
        if not path.is_file():
            return []
        records = []
        for line in path.read_text(encoding="utf-8", errors="replace").splitlines():
            try:
                record = json.loads(line)
            except json.JSONDecodeError:
                continue
            if isinstance(record, dict) and {"tokens", "loss"} <= record.keys():
                records.append(record)
        return records

    def provenance(self) -> dict[str, Any]:
        value = _json(self.folder / "provenance.json")
        return value if isinstance(value, dict) else {}

    def config(self) -> dict[str, Any]:
        value = _json(self.folder / "config.json")
        return value if isinstance(value, dict) else {}

    def scored(self, protocol: str, length: int) -> Scored | None:
        """Per-token losses of one protocol and length, or None where the cell has none."""
        path = self.folder / "nll.npz"
        if not path.is_file():
            return None
        with np.load(path, allow_pickle=False) as arrays:
            if f"{protocol}_{length}_nll" not in arrays:
                return None
            return scored_from_arrays(arrays, protocol, length)


@dataclass(frozen=True)
class Study:
    """A study folder as read. `unplanned` are cell folders on disk that the plan does not name."""

    folder: Path
    name: str
    title: str
    description: str
    recipe: Mapping[str, Any]
    sha256: str
    cells: tuple[Cell, ...]
    unplanned: tuple[str, ...]

    def of_task(self, *tasks: str) -> list[Cell]:
        return [cell for cell in self.cells if cell.task in tasks]


def read_study(study_dir: Path) -> Study:
    """The study in `study_dir`.

    Raises `ValueError` with one sentence if the folder or its `study.json` is missing or unreadable, or if no
    cell has finished.
    """
    plan_path = study_dir / "study.json"
    if not plan_path.is_file():
        raise ValueError(f"study_dir: expected a folder with study.json, got {str(study_dir)!r}")
    plan = _json(plan_path)
    if not isinstance(plan, dict) or not isinstance(plan.get("cells"), list):
        raise ValueError(f"study_dir: {str(plan_path)!r} is not a study plan (a JSON object with a list 'cells')")
    cells = tuple(_read_cell(entry, study_dir / "cells") for entry in plan["cells"])
    states = [cell.state for cell in cells]
    if "finished" not in states:
        counts = ", ".join(f"{states.count(s)} {s}" for s in STATES if s in states)
        raise ValueError(
            f"study_dir: {str(study_dir)!r} has no finished cell to report on ({counts or 'no cell planned'})"
        )
    planned = {cell.id for cell in cells}
    on_disk = (study_dir / "cells").iterdir()
    name = str(plan.get("name") or study_dir.name)
    return Study(
        folder=study_dir,
        name=name,
        title=_plain(plan.get("title") or name),
        description=_plain(plan.get("description") or ""),
        recipe=plan.get("recipe") or {},
        sha256=str(plan.get("study_sha256", "")),
        cells=cells,
        unplanned=tuple(sorted(p.name for p in on_disk if p.is_dir() and p.name not in planned)),
    )


def _read_cell(entry: Mapping[str, Any], cells_dir: Path) -> Cell:
    folder = cells_dir / str(entry["id"])
    state, detail, result = _state(folder, str(entry.get("task", "language")))
    return Cell(
        id=str(entry["id"]),
        label=_plain(entry.get("label") or entry["id"]),
        group=entry.get("group") or {},
        seed=int(entry.get("seed") or 0),
        task=str(entry.get("task", "language")),
        folder=folder,
        state=state,
        detail=_plain(detail),
        result=result,
    )


def _state(folder: Path, task: str) -> tuple[str, str, Mapping[str, Any]]:
    """State, detail and result; `result.json` decides, then `error.txt`, then `status.json`."""
    if (folder / "result.json").is_file():
        result = _json(folder / "result.json")
        if not isinstance(result, dict):
            return "failed", "result.json is not readable", {}
        missing = [key for key in _REQUIRED.get(task, ()) if key not in result]
        if missing:
            return "failed", f"result.json lacks {', '.join(missing)}", {}
        return "finished", "", result
    status = _json(folder / "status.json")
    status = status if isinstance(status, dict) else {}
    if (folder / "error.txt").is_file():
        lines = (folder / "error.txt").read_text(encoding="utf-8", errors="replace").strip().splitlines()
        return "failed", lines[-1] if lines else "error.txt is empty", {}
    if status.get("state") == "failed":
        return "failed", "no error.txt", {}
    if status:
        done = f"{status.get('phase', 'training')}, step {status.get('step', '?')} of {status.get('steps', '?')}"
        return "unfinished", f"{done}, last heard of at {_utc(status.get('updated'))}", {}
    return "not started", "", {}


def _json(path: Path) -> Any:
    """The file's JSON value, or None where there is no readable one."""
    try:
        return json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return None


def _utc(seconds: Any) -> str:
    if not isinstance(seconds, (int, float)):
        return "an unknown time"
    return datetime.fromtimestamp(seconds, tz=UTC).strftime("%Y-%m-%d %H:%M UTC")


def _plain(text: Any) -> str:
    """One line without control characters, which neither SVG nor a table can carry."""
    return "".join(ch if ch.isprintable() else " " for ch in str(text)).strip()
