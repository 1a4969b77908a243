"""Readers of the places where a corpus can live. Each yields `(id, row)`; a row maps field to value."""

from __future__ import annotations

import gzip
import hashlib
import importlib
import json
import os
import re
import sysconfig
import zlib
from collections.abc import Iterable, Iterator, Mapping, Sequence
from functools import cache
from pathlib import Path
from types import ModuleType
from typing import Any

Row = tuple[str, Mapping[str, Any]]

EXTENSIONS = (".txt", ".jsonl", ".jsonl.gz", ".parquet")

# Some installs lack tests, idlelib and lib2to3, so we leave them out. encodings, pydoc_data, _sysconfigdata
# are generated; the tables of encodings are so alike that a split by file would put one on both sides.
_STDLIB_SKIPPED = {
    *("site-packages", "dist-packages", "test", "tests", "idle_test", "__pycache__"),
    *("idlelib", "lib2to3", "encodings", "pydoc_data"),
}


def stdlib_files() -> list[tuple[str, Path]]:
    """The standard library's own `.py` files in UTF-8, as `(relative posix path, path)`.

    Sorted by the SHA-256 of the relative path rather than by the path, so that the first n tokens are a
    fair sample of the whole and not the modules that begin with an underscore or an a.

    Raises:
        ValueError: This Python has no library folder with sources in it (a zipped or stripped install).
    """
    root = Path(sysconfig.get_paths()["stdlib"])
    found = []
    for folder, folders, names in os.walk(root):
        folders[:] = [name for name in folders if name not in _STDLIB_SKIPPED]
        for name in names:
            path = Path(folder, name)
            if name.endswith(".py") and not name.startswith("_sysconfigdata") and _is_utf8(path):
                found.append((path.relative_to(root).as_posix(), path))
    if not found:
        raise ValueError(f"corpus 'python-stdlib' found no Python source files under {root}; name another corpus")
    return sorted(found, key=lambda item: hashlib.sha256(item[0].encode()).digest())


def local_files(path: Path) -> list[tuple[str, Path]]:
    """The files of a corpus on disk, as `(name, path)`: `path` itself, or all with known extensions below it.

    Raises:
        ValueError: Nothing is there, or nothing with one of the extensions that can be read.
    """
    expected = ", ".join(EXTENSIONS)
    if path.is_file():
        if not path.name.endswith(EXTENSIONS):
            raise ValueError(f"corpus path {path} should end in one of {expected}")
        return [(path.name, path)]
    if not path.is_dir():
        raise ValueError(f"corpus path {path} does not exist")
    files = (file for file in path.rglob("*") if file.name.endswith(EXTENSIONS) and file.is_file())
    found = sorted((file.relative_to(path).as_posix(), file) for file in files)
    if not found:
        raise ValueError(f"corpus folder {path} holds no file that ends in one of {expected}")
    return found


def read_local(name: str, path: Path, fields: Sequence[str]) -> Iterator[Row]:
    """Rows of one file: all of a `.txt` as the field `text`, a line of a `.jsonl`, a row of a `.parquet`."""
    if path.name.endswith(".parquet"):
        yield from _read_parquet(name, path, fields)
    elif path.name.endswith((".jsonl", ".jsonl.gz")):
        yield from _read_jsonl(name, path)
    else:
        yield name, {"text": read_text(path)}


def read_text(path: Path) -> str:
    """The text of a file exactly as it lies there: UTF-8, newlines untouched."""
    try:
        return path.read_bytes().decode("utf-8")
    except UnicodeDecodeError as error:
        raise ValueError(f"{path} is not UTF-8 text ({error.reason} at byte {error.start})") from None


def read_hub(hub: str, configs: Sequence[str | None], split: str, revision: str, streaming: bool) -> Iterator[Row]:
    """Rows of a Hugging Face dataset at the commit `revision`, its configurations one after the other."""
    datasets = _optional("datasets", f"hub dataset {hub!r}")
    for config in configs:
        try:
            rows = datasets.load_dataset(hub, config, split=split, revision=revision, streaming=streaming)
        except (OSError, ValueError) as error:
            raise ValueError(
                f"hub dataset {hub!r}, config {config!r}, split {split!r} cannot be opened: {error}"
            ) from error
        for number, row in enumerate(rows):
            yield f"{hub}/{config or 'default'}/{split}:{number}", row


@cache
def hub_commit(hub: str, revision: str | None) -> str:
    """The commit at which a hub dataset's `revision` (default: its main branch) stands now.

    Asks the hub, unless `revision` is a commit.
    """
    if revision is not None and re.fullmatch(r"[0-9a-f]{40}", revision):
        return revision
    from huggingface_hub import HfApi

    try:
        commit = HfApi().dataset_info(hub, revision=revision).sha
    except Exception as error:
        raise ValueError(
            f"the hub was not able to say which commit dataset {hub!r} is at ({error}); "
            "check its name and the connection, or give the 40-digit commit as revision"
        ) from error
    if commit is None:
        raise ValueError(f"the hub knows no commit for dataset {hub!r}; give the 40-digit commit as revision")
    return commit


def _read_jsonl(name: str, path: Path) -> Iterator[Row]:
    number = 0
    try:
        with gzip.open(path, "rb") if path.name.endswith(".gz") else open(path, "rb") as lines:
            for number, line in enumerate(lines, start=1):
                if line.isspace():
                    continue
                row = json.loads(line.decode("utf-8"))
                if not isinstance(row, dict):
                    raise ValueError(f"expected an object, got {type(row).__name__}")
                yield f"{name}:{number}", row
    except (ValueError, EOFError, gzip.BadGzipFile, zlib.error) as error:
        raise ValueError(f"{path}, line {number}: not a JSON object a line in UTF-8 ({error})") from error


def _read_parquet(name: str, path: Path, fields: Sequence[str]) -> Iterator[Row]:
    parquet, pyarrow = _optional("pyarrow.parquet", str(path)), _optional("pyarrow", str(path))
    try:
        with parquet.ParquetFile(path) as table:
            present = table.schema_arrow.names
            if missing := [field for field in fields if field not in present]:
                raise ValueError(no_field(name, missing[0], present))
            number = 0
            for batch in table.iter_batches(batch_size=256, columns=list(fields)):
                for row in batch.to_pylist():
                    yield f"{name}:{number}", row
                    number += 1
    except pyarrow.ArrowInvalid as error:
        raise ValueError(f"{path} is not a parquet file ({error})") from error


def no_field(where: str, field: str, present: Iterable[str]) -> str:
    """The sentence for a row without a field that was asked for."""
    return f"{where} has no field {field!r}, only {', '.join(sorted(present))}; name its fields in template"


def _optional(module: str, wanted_by: str) -> ModuleType:
    try:
        return importlib.import_module(module)
    except ImportError as error:
        raise ImportError(f"reading {wanted_by} needs {module}: pip install 'farspan[data]' ({error})") from error


def _is_utf8(path: Path) -> bool:
    try:
        read_text(path)
    except (OSError, ValueError):
        return False
    return True
