"""A run that is killed and called again ends with the bits of one that was not (F32)."""

from __future__ import annotations

import gc
import json
import multiprocessing
import os
import pkgutil
import random
import runpy
import signal
import time

import pytest
import torch
from safetensors.torch import load_file

from farspan.models import FarspanForCausalLM
from farspan.training import checkpoints, train

# One program for the test process and for the processes it kills.
PROGRAM = """
import torch
from torch.utils.data import Dataset
from farspan.models import FarspanConfig, FarspanForCausalLM
from farspan.training import Recipe

RULES = [
    {"pattern": "learned_spacing", "window": 2},
    {"pattern": "adaptive_span", "max_span": 8, "ramp": 2, "init": 0.1, "coefficient": 0.01},
    {"pattern": "dcls", "window": 2, "positions": [3.0, 5.0], "reach": 8, "width": 2.0},
    {"pattern": "bigbird", "block": 2, "heads": 2},
]

def model():
    torch.manual_seed(0)
    shape = dict(vocab_size=32, hidden_size=16, num_attention_heads=2, num_key_value_heads=1, num_hidden_layers=4)
    return FarspanForCausalLM(FarspanConfig(**shape, rules=RULES))

def recipe(steps, save_every, log_every=1):
    budget = dict(length=12, micro_batch=2, batch_tokens=48, tokens=48 * steps)
    rate = dict(learning_rate=1e-2, warmup_steps=2, precision="fp32")
    return Recipe(**budget, **rate, log_every=log_every, save_every=save_every)

class Windows(Dataset):
    def __init__(self, count):
        self.count, self.asked = count, []

    def __len__(self):
        return self.count

    def __getitem__(self, index):
        self.asked.append(index)
        ids = torch.randint(0, 32, (12,), generator=torch.Generator().manual_seed(index))
        return {"input_ids": ids, "labels": ids}
"""
defined: dict = {}
exec(PROGRAM, defined)
model, recipe, Windows = (defined[name] for name in ("model", "recipe", "Windows"))


@pytest.fixture(autouse=True)
def _quick(monkeypatch):
    """Without what takes most of the time: fsync, which guards against a loss of power that nothing here simulates, and
    the walk over all that was ever imported when accelerate collects garbage before a training."""
    monkeypatch.setattr(os, "fsync", lambda descriptor: None)
    gc.freeze()
    yield
    gc.unfreeze()


class Killed(BaseException):
    """Goes through everything that catches `Exception`, as a signal would."""


def kill_at(step):
    def report(line):
        if line["step"] == step:
            raise Killed

    return report


def state(folder):
    """All that a finished run leaves: weights and optimiser of its last checkpoint, and its metrics without times."""
    step, newest = checkpoints.newest(folder / "checkpoints")
    optimiser = torch.load(newest / "optimizer.pt", weights_only=True)
    moments = {(n, key): value for n, entry in optimiser["state"].items() for key, value in entry.items()}
    scheduler = torch.load(newest / "scheduler.pt", weights_only=True)["_last_lr"]
    lines = [json.loads(line) for line in (folder / "metrics.jsonl").read_text().splitlines()]
    timeless = [{k: v for k, v in line.items() if k not in ("seconds", "tokens_per_second")} for line in lines]
    return step, load_file(newest / "model.safetensors"), moments, scheduler, timeless


def assert_same_run(folder, expected):
    step, weights, moments, scheduler, lines = state(folder)
    assert (step, scheduler, lines) == (expected[0], expected[3], expected[4])
    for actual, wanted in ((weights, expected[1]), (moments, expected[2])):
        assert actual.keys() == wanted.keys()
        for key, value in actual.items():
            assert torch.equal(value, wanted[key]), key


STEPS = 10


@pytest.fixture(scope="module")
def straight(tmp_path_factory):
    """A run nobody killed, and its model."""
    folder = tmp_path_factory.mktemp("straight")
    trained = model()
    train(trained, Windows(4 * STEPS), recipe(STEPS, save_every=3), folder)
    return state(folder), trained


@pytest.mark.parametrize(
    "kills",
    [[1], [4], [10], [3, 6, 9], [5, 5, 5]],
    ids=lambda kills: "killed at " + ", ".join(map(str, kills)),
)
def test_a_killed_run_ends_with_the_same_bits(tmp_path, straight, kills):
    """Weights, optimiser, learning rate, losses, alphas; no line of metrics lost or doubled; no batch twice."""
    done = 0
    for kill in [*kills, None]:
        windows, again = Windows(4 * STEPS), model()
        if kill is None:
            train(again, windows, recipe(STEPS, save_every=3), tmp_path)
        else:
            with pytest.raises(Killed):
                train(again, windows, recipe(STEPS, save_every=3), tmp_path, report=kill_at(kill))
        # Batches follow one another from the checkpoint on (the loader is one ahead of the step).
        assert windows.asked == [*range(4 * done, 4 * done + len(windows.asked))]
        done = max((step for step in range(3, (kill or 1), 3)), default=0)
    expected, trained = straight
    assert_same_run(tmp_path, expected)
    for name, value in again.state_dict().items():
        assert torch.equal(value, trained.state_dict()[name]), name


@pytest.mark.parametrize("log_every", [2, 5], ids=lambda n: f"a line every {n} steps")
def test_losses_are_averaged_over_the_same_steps_after_a_resume(tmp_path, log_every):
    chosen = recipe(13, save_every=10 if log_every == 5 else 4, log_every=log_every)
    train(model(), Windows(52), chosen, tmp_path / "straight")
    with pytest.raises(Killed):
        train(model(), Windows(52), chosen, tmp_path / "killed", report=kill_at(13 // log_every * log_every))
    train(model(), Windows(52), chosen, tmp_path / "killed")
    assert_same_run(tmp_path / "killed", state(tmp_path / "straight"))


MOMENTS = (
    "transformers.Trainer._save_optimizer_and_scheduler",
    "transformers.Trainer._save_rng_state",
    "transformers.trainer.rotate_checkpoints",
    "farspan.training.checkpoints.mark_complete",
)


@pytest.mark.parametrize("moment", MOMENTS, ids=lambda moment: moment.rpartition(".")[2])
def test_a_checkpoint_that_a_kill_cut_short_is_removed(tmp_path, straight, monkeypatch, moment):
    """The previous checkpoint still counts, and nothing of the half-written one is taken up."""
    original, calls, second = pkgutil.resolve_name(moment), [], tmp_path / "checkpoints" / "checkpoint-6"

    def killed_the_second_time(*arguments, **more):
        calls.append(moment)
        if len(calls) == 2:
            raise Killed
        return original(*arguments, **more)

    with monkeypatch.context() as patch:
        patch.setattr(moment, killed_the_second_time)
        with pytest.raises(Killed):
            train(model(), Windows(4 * STEPS), recipe(STEPS, save_every=3), tmp_path)
    assert second.exists()
    assert not (second / "complete").exists()
    resumed = []
    report = lambda line: resumed.append((line["step"], second.exists()))  # noqa: E731
    train(model(), Windows(4 * STEPS), recipe(STEPS, save_every=3), tmp_path, report=report)
    assert resumed[:2] == [(4, False), (5, False)]
    assert_same_run(tmp_path, straight[0])


@pytest.mark.parametrize("torso", ['{"step": 8, "lo', "\x00\x00\x00"], ids=["cut", "zeros"])
def test_a_line_of_metrics_that_a_kill_cut_short_is_written_again(tmp_path, straight, torso):
    with pytest.raises(Killed):
        train(model(), Windows(4 * STEPS), recipe(STEPS, save_every=3), tmp_path, report=kill_at(8))
    with (tmp_path / "metrics.jsonl").open("a") as file:
        file.write(torso)
    train(model(), Windows(4 * STEPS), recipe(STEPS, save_every=3), tmp_path)
    assert_same_run(tmp_path, straight[0])


@pytest.mark.parametrize("count", [16, 64], ids=["no window left", "windows left"])
def test_calling_a_finished_run_again_changes_nothing(tmp_path, count):
    chosen = recipe(4, save_every=2)
    first = model()
    trained = train(first, Windows(count), chosen, tmp_path)
    files = {path: (path.read_bytes(), path.stat().st_mtime_ns) for path in tmp_path.rglob("*") if path.is_file()}
    windows, again = Windows(count), model()
    assert train(again, windows, chosen, tmp_path) == trained
    assert windows.asked == []
    for name, value in again.state_dict().items():
        assert torch.equal(value, first.state_dict()[name]), name
    for path, (content, modified) in files.items():
        assert path.read_bytes() == content, path
        assert path.name == "metrics.jsonl" or path.stat().st_mtime_ns == modified, path
    assert {path for path in tmp_path.rglob("*") if path.is_file()} == files.keys()


def test_seconds_add_up_over_resumes(tmp_path):
    with pytest.raises(Killed):
        train(model(), Windows(16), recipe(4, save_every=2), tmp_path, report=kill_at(3))
    trained = train(model(), Windows(16), recipe(4, save_every=2), tmp_path)
    lines = [json.loads(line) for line in (tmp_path / "metrics.jsonl").read_text().splitlines()]
    assert trained.seconds == sum(line["seconds"] for line in lines)
    assert all(line["seconds"] > 0 for line in lines)


def test_a_saved_checkpoint_loads_whole(tmp_path):
    """F32: no key of a checkpoint is missing or unexpected."""
    train(model(), Windows(12), recipe(3, save_every=3), tmp_path)
    path = tmp_path / "checkpoints" / "checkpoint-3"
    _, info = FarspanForCausalLM.from_pretrained(path, output_loading_info=True)
    assert not any(info.values()), info


def run(folder, steps, kills=0, chance=None):
    """Runs the program in `folder` until it has finished; kills it `kills` times, a random moment after a new line."""
    context = multiprocessing.get_context("forkserver")
    context.set_forkserver_preload(["farspan.models", "farspan.training"])
    folder.mkdir()
    program = folder / "program.py"
    program.write_text(
        PROGRAM
        + f"""
from pathlib import Path
from farspan.training import train

torch.set_num_threads(1)
train(model(), Windows({4 * steps}), recipe({steps}, save_every=4), Path(__file__).parent)
"""
    )
    log, died = folder / "metrics.jsonl", 0
    while True:
        seen = log.stat().st_mtime_ns if log.exists() else 0
        process = context.Process(target=runpy.run_path, args=(str(program),), daemon=True)
        process.start()
        if died < kills:
            while process.is_alive() and not (log.exists() and log.stat().st_size and log.stat().st_mtime_ns > seen):
                time.sleep(0.001)
            time.sleep(chance.uniform(0, 0.2))
            process.kill()
        process.join()
        if process.exitcode == 0:
            return died
        assert process.exitcode == -signal.SIGKILL
        died += 1


@pytest.mark.parametrize(
    ("steps", "kills"), [(24, 3), pytest.param(160, 40, marks=pytest.mark.slow)], ids=["3 kills", "40 kills"]
)
def test_kill_9_at_random_moments_changes_no_bit(tmp_path, steps, kills):
    """The processes are real and so is the signal; it may fall into a step, a checkpoint, a line or the start."""
    run(tmp_path / "straight", steps)
    died = run(tmp_path / "killed", steps, kills, random.Random(steps))
    assert died >= 2
    expected = state(tmp_path / "straight")
    assert [line["step"] for line in expected[-1]] == [*range(1, steps + 1)]
    assert_same_run(tmp_path / "killed", expected)
