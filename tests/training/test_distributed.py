"""Two processes under torchrun train what one process trains: the same batches, every token weighing the same."""

from __future__ import annotations

import json
import subprocess
import sys

import pytest
import torch
from safetensors.torch import load_file

pytestmark = pytest.mark.slow

PROGRAM = """
import sys
from pathlib import Path

import torch
from torch.utils.data import Dataset

from farspan.models import FarspanConfig, FarspanForCausalLM
from farspan.training import Recipe, train


class Windows(Dataset):
    def __len__(self):
        return 32

    def __getitem__(self, index):
        ids = torch.randint(0, 32, (12,), generator=torch.Generator().manual_seed(index))
        labels = ids.clone()
        labels[: index % 10] = -100
        return {"input_ids": ids, "labels": labels}


if __name__ == "__main__":
    torch.set_num_threads(1)
    torch.manual_seed(0)
    span = {"pattern": "adaptive_span", "max_span": 8, "ramp": 2, "init": 0.1, "coefficient": 0.01}
    rules = [{"pattern": "learned_spacing", "window": 2}, span]
    shape = dict(vocab_size=32, hidden_size=16, num_attention_heads=2, num_key_value_heads=1, num_hidden_layers=2)
    budget = dict(length=12, micro_batch=2, batch_tokens=96, tokens=96 * 4, log_every=1, save_every=2)
    # Without averaging the first moment is the last gradient; a large epsilon keeps the step proportional to it.
    recipe = Recipe(**budget, learning_rate=1e-2, warmup_steps=0, precision="fp32", beta1=0)
    stop_at = int(sys.argv[2])

    def report(line):
        if line["step"] == stop_at:
            raise SystemExit(1)

    model = FarspanForCausalLM(FarspanConfig(**shape, rules=rules))
    trained = train(model, Windows(), recipe, Path(sys.argv[1]), report=report)
    assert (trained.steps, trained.tokens) == (4, 384)
"""


def run(tmp_path, name, processes, stop_at=0):
    program = tmp_path / "program.py"
    program.write_text(PROGRAM)
    launcher = ["-m", "torch.distributed.run", "--standalone", f"--nproc_per_node={processes}"] if processes > 1 else []
    command = [sys.executable, *launcher, str(program), str(tmp_path / name), str(stop_at)]
    return subprocess.run(command, capture_output=True, text=True, timeout=600, check=False)


def state(folder):
    checkpoint = folder / "checkpoints" / "checkpoint-4"
    assert (checkpoint / "complete").exists()
    optimiser = torch.load(checkpoint / "optimizer.pt", weights_only=True)["state"]
    lines = [json.loads(line) for line in (folder / "metrics.jsonl").read_text().splitlines()]
    return load_file(checkpoint / "model.safetensors"), {n: x["exp_avg"] for n, x in optimiser.items()}, lines


def test_two_processes_train_what_one_does(tmp_path):
    """F31: labels differ in number between the processes; the step stays `batch_tokens`, not that times two."""
    for name, processes in (("one", 1), ("two", 2)):
        done = run(tmp_path, name, processes)
        assert done.returncode == 0, done.stderr[-3000:]
    one, two = state(tmp_path / "one"), state(tmp_path / "two")
    for key in ("step", "tokens", "learning_rate", "loss", "grad_norm", "alphas", "penalty"):
        assert [line[key] for line in two[2]] == [pytest.approx(line[key], rel=1e-4) for line in one[2]], key
    for a, b in ((one[0], two[0]), (one[1], two[1])):
        assert a.keys() == b.keys()
        for key in a:
            torch.testing.assert_close(b[key], a[key], atol=1e-4, rtol=0)


def test_two_processes_resume_to_the_same_bits(tmp_path):
    assert run(tmp_path, "straight", 2).returncode == 0
    # Half-written by one of them: both remove it, and neither trips over the other.
    assert run(tmp_path, "killed", 2, stop_at=3).returncode != 0
    (tmp_path / "killed" / "checkpoints" / "checkpoint-3").mkdir()
    done = run(tmp_path, "killed", 2)
    assert done.returncode == 0, done.stderr[-3000:]
    straight, killed = state(tmp_path / "straight"), state(tmp_path / "killed")
    for a, b in ((straight[0], killed[0]), (straight[1], killed[1])):
        assert all(torch.equal(a[key], b[key]) for key in a)
    assert [line["step"] for line in killed[2]] == [1, 2, 3, 4]
    assert [line["loss"] for line in killed[2]] == [line["loss"] for line in straight[2]]
