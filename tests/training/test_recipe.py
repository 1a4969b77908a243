"""The recipe: the paper's by default, refused in words where it does not add up; the precision a machine is fast at."""

from __future__ import annotations

import pytest
import torch
from pydantic import ValidationError

from farspan import _cpu
from farspan.training import Recipe, precision_here


def test_by_default_it_is_the_paper():
    recipe = Recipe()
    assert (recipe.length, recipe.batch_tokens, recipe.steps) == (1024, 32_768, 13_000)
    assert recipe.tokens == recipe.steps * recipe.batch_tokens == 425_984_000
    assert (recipe.beta1, recipe.beta2, recipe.weight_decay, recipe.clip) == (0.9, 0.95, 0.1, 1.0)
    assert (recipe.learning_rate, recipe.warmup, recipe.min_learning_rate) == (3e-4, 300, 0.1)
    assert recipe.windows == 416_000


@pytest.mark.parametrize(
    ("steps", "given", "warmup"), [(13_000, None, 300), (200, None, 20), (7, None, 0), (200, 0, 0)]
)
def test_a_short_run_warms_up_for_a_tenth_of_its_steps(steps, given, warmup):
    assert Recipe(tokens=32_768 * steps, warmup_steps=given).warmup == warmup


def test_a_budget_buys_whole_batches():
    recipe = Recipe(length=16, micro_batch=2, batch_tokens=64, tokens=64 * 5 + 63, warmup_steps=0)
    assert (recipe.steps, recipe.windows) == (5, 20)


SMALL = dict(length=16, micro_batch=2, batch_tokens=64, tokens=640, warmup_steps=3, log_every=2, save_every=4)
REFUSED = {
    "batch": (dict(batch_tokens=80), r"batch_tokens must be a multiple of length \* micro_batch = 32, got 80"),
    "budget": (dict(tokens=63), "tokens must be at least batch_tokens = 64, got 63"),
    "warm-up": (dict(warmup_steps=10), "warmup_steps must be below the number of steps, 10, got 10"),
    "checkpoints": (dict(save_every=5), "save_every must be a multiple of log_every = 2, got 5"),
    "unknown": (dict(optimizer="sgd"), "optimizer"),
    "length": (dict(length=1), "length"),
    "rate": (dict(learning_rate=0), "learning_rate"),
    "end of the cosine": (dict(min_learning_rate=1.5), "min_learning_rate"),
    "beta": (dict(beta2=1), "beta2"),
    "decay": (dict(weight_decay=-0.1), "weight_decay"),
    "clip": (dict(clip=0), "clip"),
    "precision": (dict(precision="fp16"), "precision"),
    "seconds": (dict(seconds=60), "seconds"),
}


@pytest.mark.parametrize(("change", "words"), REFUSED.values(), ids=REFUSED)
def test_what_does_not_add_up_is_refused_by_name(change, words):
    Recipe(**SMALL)
    with pytest.raises(ValidationError, match=words):
        Recipe(**{**SMALL, **change})


def test_it_does_not_change_once_made():
    with pytest.raises(ValidationError, match="frozen"):
        Recipe().length = 5


MACHINES = {
    "GPU": (dict(gpu=True, gpu_bf16=True), ("bf16", "the GPU multiplies bf16")),
    "old GPU": (dict(gpu=True, cpu_bf16=True), ("fp32", "the GPU has no bf16 units")),
    "new CPU": (dict(cpu_bf16=True), ("bf16", "the CPU has bf16 instructions")),
    "CPU": ({}, ("fp32", "the CPU has no bf16 instructions")),
}


@pytest.mark.parametrize(("machine", "expected"), MACHINES.values(), ids=MACHINES)
def test_auto_takes_bf16_where_it_is_fast_and_says_why(monkeypatch, machine, expected):
    for target, name, key in (
        (torch.cuda, "is_available", "gpu"),
        (torch.cuda, "is_bf16_supported", "gpu_bf16"),
        (_cpu, "bf16_is_fast", "cpu_bf16"),
    ):
        monkeypatch.setattr(target, name, lambda key=key, **_: machine.get(key, False))
    assert precision_here("auto") == expected
    assert precision_here("bf16") == ("bf16", "asked for")
    assert precision_here("fp32") == ("fp32", "asked for")


def test_on_this_machine_it_says_so():
    precision, reason = precision_here("auto")
    assert precision in ("fp32", "bf16")
    assert ("no bf16" in reason) == (precision == "fp32")
