"""The files of a run: lines of metrics that a kill cuts short, checkpoints that a kill leaves half-written."""

from __future__ import annotations

import pytest

from farspan.training import checkpoints, metrics


def lines(*steps):
    return [{"step": step, "loss": step / 3} for step in steps]


def test_appended_lines_come_back_in_order(tmp_path):
    path = tmp_path / "metrics.jsonl"
    assert metrics.read(path) == []
    for line in lines(1, 2, 3):
        metrics.append(path, line)
    assert metrics.read(path) == lines(1, 2, 3)


@pytest.mark.parametrize("cut", [1, 5, 18], ids=lambda cut: f"{cut} bytes left")
def test_a_last_line_cut_short_is_no_line(tmp_path, cut):
    path = tmp_path / "metrics.jsonl"
    for line in lines(1, 2, 3):
        metrics.append(path, line)
    text = path.read_text()
    start_of_last = text.rindex("{")
    path.write_text(text[: start_of_last + cut])
    assert metrics.read(path) == lines(1, 2)
    # All of its bytes but the newline: the line was never finished either.
    path.write_text(text[:-1])
    assert metrics.read(path) == lines(1, 2)
    # The next line does not grow on the torso.
    metrics.keep_until(path, 2)
    metrics.append(path, lines(3)[0])
    assert metrics.read(path) == lines(1, 2, 3)


@pytest.mark.parametrize("step", [0, 2, 3, 9])
def test_keeping_until_a_step_drops_what_will_be_written_again(tmp_path, step):
    path = tmp_path / "metrics.jsonl"
    for line in lines(1, 2, 3):
        metrics.append(path, line)
    metrics.keep_until(path, step)
    assert metrics.read(path) == lines(*[s for s in (1, 2, 3) if s <= step])


def test_keeping_makes_the_file_where_there_is_none(tmp_path):
    metrics.keep_until(tmp_path / "run" / "metrics.jsonl", 0)
    assert metrics.read(tmp_path / "run" / "metrics.jsonl") == []


def checkpoint(folder, step, complete=True):
    path = folder / f"checkpoint-{step}"
    path.mkdir(parents=True)
    (path / "model.safetensors").write_bytes(b"weights")
    if complete:
        checkpoints.mark_complete(folder, step)
    return path


def test_the_newest_is_the_one_with_the_largest_step(tmp_path):
    for step in (9, 10, 8):
        checkpoint(tmp_path, step)
    assert checkpoints.newest(tmp_path) == (10, tmp_path / "checkpoint-10")
    assert len([*tmp_path.iterdir()]) == 3


def test_a_half_written_one_is_passed_over_and_removed(tmp_path):
    checkpoint(tmp_path, 4)
    checkpoint(tmp_path, 6, complete=False)
    (tmp_path / "checkpoint-8").mkdir()
    assert checkpoints.newest(tmp_path) == (4, tmp_path / "checkpoint-4")
    assert [path.name for path in tmp_path.iterdir()] == ["checkpoint-4"]


@pytest.mark.parametrize("existing", [True, False], ids=["empty folder", "no folder"])
def test_a_run_without_a_complete_one_starts_at_the_beginning(tmp_path, existing):
    if existing:
        checkpoint(tmp_path, 2, complete=False)
    assert checkpoints.newest(tmp_path / "checkpoints" if not existing else tmp_path) is None
    assert [*tmp_path.iterdir()] == []
