"""Files and folders are whole or absent."""

from __future__ import annotations

import threading
import time
from pathlib import Path

import pytest

from farspan.data import files


@pytest.mark.parametrize("data", [b"\x00\xff\r\n", "två\r\nlines\n"], ids=["bytes", "text"])
def test_write_atomic_writes_exactly_what_it_was_given(tmp_path: Path, data: bytes | str) -> None:
    path = tmp_path / "missing folder" / "file"
    files.write_atomic(path, data)
    assert path.read_bytes() == (data.encode() if isinstance(data, str) else data)
    assert list(path.parent.iterdir()) == [path]


@pytest.mark.parametrize("failing", ["fsync", "replace"])
def test_failed_write_keeps_the_old_file_and_no_other(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, failing: str
) -> None:
    path = tmp_path / "file"
    files.write_atomic(path, "old")

    def disk_full(*_: object) -> None:
        raise OSError("no space left")

    monkeypatch.setattr(files.os, failing, disk_full)
    with pytest.raises(OSError, match="no space"):
        files.write_atomic(path, "new")
    assert path.read_text() == "old"
    assert list(tmp_path.iterdir()) == [path]


def test_json_with_nan_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="JSON"):
        files.write_json_atomic(tmp_path / "file", {"loss": float("nan")})
    assert not list(tmp_path.iterdir())


def test_failed_build_leaves_no_folder_and_can_be_repeated(tmp_path: Path) -> None:
    def fail(scratch: Path) -> None:
        (scratch / "half").write_text("written")
        raise RuntimeError("killed")

    with pytest.raises(RuntimeError, match="killed"):
        files.build_once(tmp_path / "folder", fail)
    assert not [path for path in tmp_path.iterdir() if path.is_dir()]
    built = files.build_once(tmp_path / "folder", lambda scratch: (scratch / "whole").touch())
    assert [path.name for path in built.iterdir()] == ["whole"]


def test_left_overs_of_a_killed_build_are_removed(tmp_path: Path) -> None:
    left_over = tmp_path / ".folder.1234.tmp"
    left_over.mkdir()
    (left_over / "half").touch()
    other = tmp_path / ".folder2.1234.tmp"
    other.mkdir()
    files.build_once(tmp_path / "folder", lambda scratch: None)
    assert not left_over.exists()
    assert other.exists()


def test_of_many_callers_at_once_one_builds(tmp_path: Path) -> None:
    builds = []

    def build(scratch: Path) -> None:
        builds.append(scratch)
        time.sleep(0.1)
        (scratch / "whole").touch()

    seen: list[bool] = []

    def call() -> None:
        seen.append((files.build_once(tmp_path / "folder", build) / "whole").exists())

    threads = [threading.Thread(target=call) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert seen == [True] * 4
    assert len(builds) == 1


def test_cache_folder_follows_the_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HOME", "/home/someone")
    monkeypatch.delenv("FARSPAN_CACHE", raising=False)
    monkeypatch.delenv("XDG_CACHE_HOME", raising=False)
    assert files.cache_folder() == Path("/home/someone/.cache/farspan")
    monkeypatch.setenv("XDG_CACHE_HOME", "/xdg")
    assert files.cache_folder() == Path("/xdg/farspan")
    monkeypatch.setenv("FARSPAN_CACHE", "~/own")
    assert files.cache_folder() == Path("/home/someone/own")
