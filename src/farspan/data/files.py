"""Writing files and folders so that they are either whole or absent, and hashing them."""

from __future__ import annotations

import hashlib
import json
import os
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any
from uuid import uuid4

from filelock import FileLock


def write_atomic(path: str | Path, data: bytes | str) -> None:
    """Write `data` so that `path` holds either the old or all the new bytes, whenever the process is killed.

    Text is written as UTF-8, newlines untouched. Missing parent folders are made. A killed process leaves at
    most a hidden `.NAME.*.tmp` beside the file.
    """
    path = Path(path)
    path.parent.mkdir(parents=True, exist_ok=True)
    scratch = _scratch(path)
    try:
        with open(scratch, "xb") as file:
            file.write(data.encode("utf-8") if isinstance(data, str) else data)
            file.flush()
            os.fsync(file.fileno())
        os.replace(scratch, path)
    except BaseException:
        scratch.unlink(missing_ok=True)
        raise
    _sync(path.parent)


def write_json_atomic(path: str | Path, value: Any) -> None:
    """Write `value` as indented JSON in one atomic step. NaN and infinity are refused with `ValueError`."""
    write_atomic(path, json.dumps(value, indent=2, ensure_ascii=False, allow_nan=False) + "\n")


def build_once(folder: str | Path, build: Callable[[Path], None]) -> Path:
    """Return `folder`, filling it first with `build(empty scratch folder)` if it does not exist.

    The scratch folder is renamed into place only when `build` has returned and its files are on disk, so an
    existing `folder` is always complete, whatever was killed and when. Of several processes that ask at
    once one builds, behind a lock that the operating system drops with its holder; the others wait and find
    the result.
    """
    folder = Path(folder)
    if folder.exists():
        return folder
    folder.parent.mkdir(parents=True, exist_ok=True)
    with FileLock(folder.parent / f".{folder.name}.lock"):
        if folder.exists():
            return folder
        # The lock is ours, so what lies here was left by a process that was killed.
        for left_over in folder.parent.glob(f".{folder.name}.*.tmp"):
            shutil.rmtree(left_over, ignore_errors=True)
        scratch = _scratch(folder)
        scratch.mkdir()
        try:
            build(scratch)
            for path in [*scratch.rglob("*"), scratch]:
                _sync(path)
            os.rename(scratch, folder)
        except BaseException:
            shutil.rmtree(scratch, ignore_errors=True)
            raise
        _sync(folder.parent)
    return folder


def sha256_file(path: str | Path) -> str:
    """SHA-256 of a file's bytes, in hex."""
    with open(path, "rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def sha256_json(value: Any) -> str:
    """SHA-256, in hex, of `value` as compact JSON with sorted keys, equal in any process."""
    text = json.dumps(value, sort_keys=True, separators=(",", ":"), allow_nan=False)
    return hashlib.sha256(text.encode("ascii")).hexdigest()


def cache_folder() -> Path:
    """The usual cache: `$FARSPAN_CACHE`, else `$XDG_CACHE_HOME/farspan`, else `~/.cache/farspan`."""
    if own := os.environ.get("FARSPAN_CACHE"):
        return Path(own).expanduser()
    return Path(os.environ.get("XDG_CACHE_HOME") or "~/.cache").expanduser() / "farspan"


def _scratch(path: Path) -> Path:
    return path.with_name(f".{path.name}.{uuid4().hex}.tmp")


def _sync(path: Path) -> None:
    if path.is_dir() and os.name != "posix":  # Windows cannot open a folder to flush it
        return
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
