"""The metrics file of a run: one JSON object a line, never a line lost or doubled by a kill and a resume."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

from farspan.data.files import write_atomic


def read(path: Path) -> list[dict[str, Any]]:
    """The complete lines of the file; a last line that a kill cut short is not one. Empty if there is no file."""
    if not path.exists():
        return []
    lines = []
    for line in path.read_text().split("\n")[:-1]:
        lines.append(json.loads(line))
    return lines


def append(path: Path, line: dict[str, Any]) -> None:
    """Adds one line and waits until it is on disk."""
    with path.open("a") as file:
        file.write(json.dumps(line) + "\n")
        file.flush()
        os.fsync(file.fileno())


def keep_until(path: Path, step: int) -> None:
    """Drops every line after `step`: the run resumes there and will write them again."""
    kept = [line for line in read(path) if line["step"] <= step]
    write_atomic(path, "".join(json.dumps(line) + "\n" for line in kept))
