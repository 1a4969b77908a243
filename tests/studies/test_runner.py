"""Running a study: killed anywhere it goes on to the same result, a failing cell stops nothing, finished ones stay."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import numpy as np
import pytest
from filelock import FileLock
from rich.console import Console

from farspan.studies.runner import run_study, states
from farspan.studies.schema import Study, load

STUDY = """
title = "Tiny"
seeds = [1]
threads = 1
[language.model]
hidden_size = 16
layers = 2
heads = 2
kv_heads = 1
[language.data]
corpus = "{corpus}"
vocab_size = 300
heldout_fraction = 0.3
[language.recipe]
length = 16
tokens = 1920
batch_tokens = 64
micro_batch = 4
warmup_steps = 2
log_every = 2
save_every = 4
[language.evaluation]
tokens = 257
multiples = [1, 2]
[[language.arms]]
label = "fib"
rule = {{ pattern = "fibonacci", window = 3, schedule = "stagger" }}
[[language.arms]]
label = "learned"
rule = {{ pattern = "learned_spacing", window = 3, rungs = 4 }}
[copy]
distances = [3]
marked = [[2, 5]]
[copy.model]
hidden_size = 16
layers = 1
heads = 2
kv_heads = 1
[copy.recipe]
length = 16
tokens = 640
batch_tokens = 64
micro_batch = 4
log_every = 2
save_every = 4
[[copy.arms]]
label = "dense"
rule = {{ pattern = "dense" }}
"""


@pytest.fixture(scope="module")
def corpus(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Twelve documents of words in a random order, in a folder."""
    folder = tmp_path_factory.mktemp("corpus")
    rng = np.random.default_rng(0)
    words = ["the", "quick", "brown", "fox", "jumps", "over", "lazy", "dogs", "while", "seven", "wizards", "brew"]
    for number in range(12):
        (folder / f"{number}.txt").write_text(" ".join(rng.choice(words, 400)))
    return folder


@pytest.fixture(scope="module", autouse=True)
def _cache(tmp_path_factory: pytest.TempPathFactory) -> None:
    os.environ["FARSPAN_CACHE"] = str(tmp_path_factory.mktemp("cache"))


def write(folder: Path, corpus: Path, **changes: str) -> Path:
    text = STUDY.format(corpus=corpus.as_posix())
    for old, new in changes.items():
        text = text.replace(f"{old} =", f"{new} =")
    path = folder / "tiny.toml"
    path.write_text(text)
    return path


def run(study: Study, root: Path, **options: object) -> dict[str, str]:
    found = run_study(study, root, jobs=2, console=Console(quiet=True), **options)  # type: ignore[arg-type]
    return {state.cell.id: state.state for state in found}


def results(root: Path) -> dict[str, object]:
    """What decides a result; times and memory differ between runs."""
    kept = {}
    for path in sorted(root.glob("tiny/cells/*/result.json")):
        result = json.loads(path.read_text())
        weights = json.loads((path.parent / "provenance.json").read_text())["weights_sha256"]
        lines = [json.loads(line) for line in (path.parent / "metrics.jsonl").read_text().splitlines()]
        kept[path.parent.name] = (
            weights,
            [(line["step"], line["loss"], line["learning_rate"]) for line in lines],
            {key: value for key, value in result.items() if "seconds" not in key and "per_second" not in key}
            | {"peak_memory_mb": None},
        )
    return kept


@pytest.fixture(scope="module")
def finished(tmp_path_factory: pytest.TempPathFactory, corpus: Path) -> Path:
    """The root of the tiny study, run without interruption."""
    root = tmp_path_factory.mktemp("runs")
    assert set(run(load(write(root, corpus)), root).values()) == {"finished"}
    return root


def test_every_cell_leaves_what_the_report_reads(finished: Path) -> None:
    cells = sorted(path.name for path in (finished / "tiny" / "cells").iterdir())
    assert cells == ["copy-dense-d3-seed1", "fib-seed1", "learned-seed1", "marked-dense-d2-5-seed1"]
    for cell in cells:
        names = {path.name for path in (finished / "tiny" / "cells" / cell).iterdir()}
        assert {"config.json", "provenance.json", "metrics.jsonl", "model", "result.json", "status.json"} <= names
        assert ("nll.npz" in names) == (not cell.startswith(("copy", "marked")))


def test_language_cells_score_the_same_tokens_and_start_from_the_same_weights(finished: Path) -> None:
    folders = [finished / "tiny" / "cells" / name for name in ("fib-seed1", "learned-seed1")]
    arrays = [np.load(folder / "nll.npz", allow_pickle=False) for folder in folders]
    for name in arrays[0].files:
        assert len(arrays[0][name]) == len(arrays[1][name]) == 256
    provenance = [json.loads((folder / "provenance.json").read_text()) for folder in folders]
    for key in ("corpus_sha256", "tokenizer_sha256"):
        assert provenance[0][key] == provenance[1][key]
    assert provenance[0]["weights_sha256"] != provenance[1]["weights_sha256"]


def test_a_second_run_touches_no_finished_cell(finished: Path, corpus: Path) -> None:
    files = [path for path in (finished / "tiny" / "cells").rglob("*") if path.is_file()]
    before = {path: path.stat().st_mtime_ns for path in files}
    assert set(run(load(finished / "tiny.toml"), finished).values()) == {"finished"}
    assert {path: path.stat().st_mtime_ns for path in files} == before


def test_other_settings_under_the_same_name_are_refused(finished: Path, corpus: Path, tmp_path: Path) -> None:
    changed = tmp_path / "tiny.toml"
    changed.write_text((finished / "tiny.toml").read_text().replace("tokens = 1920", "tokens = 1280"))
    with pytest.raises(ValueError, match=r"study\.json was written with other settings"):
        run(load(changed), finished)


def test_status_reads_and_starts_nothing(tmp_path: Path, corpus: Path) -> None:
    study = load(write(tmp_path, corpus))
    assert {state.state for state in states(study, tmp_path / "nowhere")} == {"waiting"}
    assert not (tmp_path / "nowhere").exists()


def test_a_failing_cell_stops_nothing_and_is_retried_only_if_asked(tmp_path: Path, corpus: Path) -> None:
    path = write(tmp_path, corpus)
    path.write_text(path.read_text().replace('label = "learned"', 'label = "bad"'))
    study = load(path)
    bad = tmp_path / "tiny" / "cells" / "bad-seed1"
    bad.mkdir(parents=True)
    (bad / "config.json").write_text("{}")  # settings of another study: this cell refuses to run
    found = run(study, tmp_path)
    assert found.pop("bad-seed1") == "failed"
    assert set(found.values()) == {"finished"}
    assert "other settings" in (bad / "error.txt").read_text()
    (bad / "config.json").unlink()
    assert run(study, tmp_path)["bad-seed1"] == "failed"
    assert run(study, tmp_path, retry_failed=True)["bad-seed1"] == "finished"
    assert not (bad / "error.txt").exists()


def test_a_cell_that_another_process_runs_is_left_to_it(finished: Path, tmp_path: Path, corpus: Path) -> None:
    study = load(write(tmp_path, corpus))
    held = tmp_path / "tiny" / "cells" / "fib-seed1"
    held.mkdir(parents=True)
    with FileLock(held / ".lock"):
        found = run(study, tmp_path)
    assert found.pop("fib-seed1") == "running"
    assert set(found.values()) == {"finished"}
    assert not (held / "config.json").exists()


def progress(root: Path) -> int:
    """Counts what cells have left so far: lines of metrics and files, so that kills fall into every phase."""
    files = list(root.glob("tiny/cells/**/*"))
    return len(files) + sum(path.read_bytes().count(b"\n") for path in files if path.name == "metrics.jsonl")


@pytest.mark.slow
def test_killed_at_any_moment_it_goes_on_to_the_same_result(finished: Path, tmp_path: Path, corpus: Path) -> None:
    path = write(tmp_path, corpus)
    command = [sys.executable, "-m", "farspan", "study", "run", str(path), "--runs", str(tmp_path), "--jobs", "2"]
    for wanted in (2, 5, 9, 14, 20):
        process = subprocess.Popen(command, stdout=subprocess.DEVNULL, start_new_session=True)
        before = progress(tmp_path)
        while process.poll() is None and progress(tmp_path) < before + wanted:
            time.sleep(0.01)
        os.killpg(process.pid, signal.SIGKILL)
        process.wait()
        time.sleep(0.5)
    assert set(run(load(path), tmp_path).values()) == {"finished"}
    assert results(tmp_path) == results(finished)


def test_text_that_cannot_be_had_leaves_nothing_behind(tmp_path: Path, corpus: Path) -> None:
    path = write(tmp_path, corpus)
    path.write_text(path.read_text().replace(corpus.as_posix(), "/nonexistent"))
    with pytest.raises(ValueError, match="nonexistent"):
        run(load(path), tmp_path)
    assert not (tmp_path / "tiny").exists()
