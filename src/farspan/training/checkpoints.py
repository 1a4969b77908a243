"""Which checkpoint of a run to resume from: the newest that was written to its end."""

from __future__ import annotations

import shutil
from pathlib import Path

from farspan.data.files import write_atomic

_DONE = "complete"


def mark_complete(folder: Path, step: int) -> None:
    """Says that the checkpoint of `step` is whole; called when its last file is on disk."""
    write_atomic(folder / f"checkpoint-{step}" / _DONE, "")


def newest(folder: Path) -> tuple[int, Path] | None:
    """Step and path of the newest complete checkpoint, or None. Removes what a kill left half-written."""
    complete = None
    for path in sorted(folder.glob("checkpoint-*"), key=_step):
        if (path / _DONE).exists():
            complete = _step(path), path
        else:
            # Errors are ignored since the other processes of a distributed run remove it too.
            shutil.rmtree(path, ignore_errors=True)
    return complete


def _step(path: Path) -> int:
    return int(path.name.rpartition("-")[2])
