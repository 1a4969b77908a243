"""`attention` refuses what does not fit, in one sentence that names the argument, and runs nothing else instead."""

from __future__ import annotations

import importlib

import pytest
import torch

import farspan
from attention_probes import BACKENDS, needs_core, random_qkv, widest
from farspan import Lines, attention
from farspan.attention import backends

GOOD = {
    "q": torch.zeros(2, 4, 5, 8),
    "k": torch.zeros(2, 2, 7, 8),
    "v": torch.zeros(2, 2, 7, 3),
    "support": Lines([0, 1]),
}

WRONG = [
    ("q", torch.zeros(4, 5, 8), ValueError, r"\[B, H, Tq, D\], got \[4, 5, 8\]"),
    ("k", torch.zeros(2, 7, 8), ValueError, r"\[B, Hkv, Tk, D\], got \[2, 7, 8\]"),
    ("v", torch.zeros(3), ValueError, r"\[B, Hkv, Tk, Dv\], got \[3\]"),
    ("q", [[1.0]], TypeError, "tensor .* got list"),
    ("k", None, TypeError, "tensor .* got NoneType"),
    ("v", 1.0, TypeError, "tensor .* got float"),
    ("q", torch.zeros(2, 4, 5, 8, dtype=torch.int64), TypeError, "floating point, got torch.int64"),
    ("k", torch.zeros(2, 2, 7, 8, dtype=torch.bool), TypeError, "floating point, got torch.bool"),
    (
        "k",
        torch.zeros(2, 2, 7, 8, dtype=torch.float64),
        ValueError,
        "dtype and device of q, torch.float32 .* got torch.float64",
    ),
    (
        "v",
        torch.zeros(2, 2, 7, 3, dtype=torch.bfloat16),
        ValueError,
        "dtype and device of q, torch.float32 .* got torch.bfloat16",
    ),
    ("k", torch.zeros(2, 2, 7, 8, device="meta"), ValueError, "dtype and device of q, .*cpu, got .*meta"),
    ("k", torch.zeros(3, 2, 7, 8), ValueError, r"\[2, Hkv, Tk, 8\] to fit q, got \[3, 2, 7, 8\]"),
    ("k", torch.zeros(2, 2, 7, 9), ValueError, r"\[2, Hkv, Tk, 8\] to fit q, got \[2, 2, 7, 9\]"),
    ("v", torch.zeros(1, 2, 7, 3), ValueError, r"\[2, 2, 7, Dv\] to fit k, got \[1, 2, 7, 3\]"),
    ("v", torch.zeros(2, 1, 7, 3), ValueError, r"\[2, 2, 7, Dv\] to fit k, got \[2, 1, 7, 3\]"),
    ("v", torch.zeros(2, 2, 6, 3), ValueError, r"\[2, 2, 7, Dv\] to fit k, got \[2, 2, 6, 3\]"),
    ("q", torch.zeros(2, 3, 5, 8), ValueError, "got 3 query heads and 2 key heads"),
    ("q", torch.zeros(2, 0, 5, 8), ValueError, "got 0 query heads and 2 key heads"),
    ("support", [0, 1], TypeError, "Lines, Blocks or Tokens, got list"),
    ("support", Lines([[0], [1], [2]]), ValueError, "1 or 4 heads to fit q, got 3"),
    ("support", Lines([[0], [1]]), ValueError, "1 or 4 heads to fit q, got 2"),
    ("support", Lines(torch.zeros(3, 1, 1, dtype=torch.int64)), ValueError, "1 or 2 batch rows to fit q, got 3"),
    ("scale", "0.5", TypeError, "number or None, got '0.5'"),
    ("scale", True, TypeError, "number or None, got True"),
    ("scale", torch.tensor(0.5), TypeError, "number or None, got tensor"),
    ("start", [[0] * 5] * 2, TypeError, "int32 or int64 tensor, got list"),
    ("start", torch.zeros(2, 5), TypeError, "int32 or int64 tensor, got torch.float32"),
    ("start", torch.zeros(2, 5, dtype=torch.bool), TypeError, "int32 or int64 tensor, got torch.bool"),
    ("start", torch.zeros(2, dtype=torch.int64), ValueError, r"\[2, 5\], got \[2\]"),
    ("start", torch.zeros(2, 7, dtype=torch.int64), ValueError, r"\[2, 5\], got \[2, 7\]"),
    ("start", torch.zeros(1, 5, dtype=torch.int64), ValueError, r"\[2, 5\], got \[1, 5\]"),
    ("start", torch.zeros(2, 5, dtype=torch.int64, device="meta"), ValueError, "q's device cpu, got meta"),
    ("backend", "cuda", ValueError, "one of reference, torch, cpu, triton, got 'cuda'"),
    ("backend", "", ValueError, "one of reference, torch, cpu, triton, got ''"),
]


def shown(value) -> str:
    if isinstance(value, torch.Tensor):
        return f"{list(value.shape)} {str(value.dtype).removeprefix('torch.')} {value.device}"
    return repr(value)


@pytest.mark.parametrize(
    ("argument", "value", "error", "words"),
    WRONG,
    ids=[f"{argument} = {shown(value)}" for argument, value, *_ in WRONG],
)
def test_what_does_not_fit_is_refused_by_name(argument, value, error, words):
    attention(**GOOD)
    with pytest.raises(error, match=f"^{argument} must .*{words}") as raised:
        attention(**{**GOOD, argument: value})
    assert "\n" not in str(raised.value)


def test_a_head_size_of_zero_is_refused():
    with pytest.raises(ValueError, match=r"^q must have a head size of at least 1"):
        attention(torch.zeros(1, 1, 2, 0), torch.zeros(1, 1, 2, 0), torch.zeros(1, 1, 2, 3), Lines([0]))


def test_a_key_head_count_of_zero_is_refused():
    with pytest.raises(ValueError, match=r"^q must .* 1 query heads and 0 key heads"):
        attention(torch.zeros(1, 1, 2, 3), torch.zeros(1, 0, 2, 3), torch.zeros(1, 0, 2, 3), Lines([0]))


def test_options_are_keywords():
    with pytest.raises(TypeError, match="positional"):
        attention(*GOOD.values(), 0.5)


# Backends: the one asked for, or an error that says why not


def test_every_backend_runs_or_says_why_not():
    """F02."""
    assert list(backends.available()) == list(backends.BACKENDS) == ["reference", "torch", "cpu", "triton"]
    q, k, v = random_qkv(q_len=5, dtype=torch.float32)
    for name, reason in backends.available().items():
        if reason is None:
            assert attention(q, k, v, Lines([0]), backend=name).shape == q.shape
        else:
            with pytest.raises(ValueError, match=f"^backend '{name}' does not run here: ") as raised:
                attention(q, k, v, Lines([0]), backend=name)
            assert reason in str(raised.value)


def which_ran(monkeypatch, backend, dtype) -> list[str]:
    ran = []
    package = importlib.import_module("farspan.attention")  # by attribute it is the function
    places = {
        "reference": (package, "reference_attention"),
        "torch": (package.op.torch_lines, "forward"),
        "cpu": (package.op.cpu_lines, "forward"),
    }
    for name, (module, function) in places.items():
        plain = getattr(module, function)
        monkeypatch.setattr(module, function, lambda *x, name=name, plain=plain: ran.append(name) or plain(*x))
    attention(*random_qkv(q_len=5, dtype=dtype), Lines([0]), backend=backend)
    return ran


@pytest.mark.parametrize("name", BACKENDS)
def test_the_backend_named_is_the_one_that_runs(monkeypatch, name):
    assert which_ran(monkeypatch, name, widest(name)) == [name]


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16, torch.float64], ids=str)
def test_without_a_name_the_fastest_that_takes_the_dtype_runs(monkeypatch, dtype):
    fast = dtype != torch.float64 and backends.available()["cpu"] is None
    assert which_ran(monkeypatch, None, dtype) == ["cpu" if fast else "torch"]


@needs_core
def test_the_kernels_refuse_fp64_and_name_who_takes_it():
    with pytest.raises(ValueError, match=r"^backend 'cpu' does not run here: .*q is torch.float64.*'torch'"):
        attention(*random_qkv(q_len=5), Lines([0]), backend="cpu")


def test_lse_comes_only_when_asked_for():
    assert isinstance(attention(**GOOD), torch.Tensor)
    out, lse = attention(**GOOD, return_lse=True)
    assert (out.shape, lse.shape) == ((2, 4, 5, 3), (2, 4, 5))


def test_the_public_name_is_the_function():
    """The package `farspan.attention` and the function share a name."""
    assert farspan.attention is attention
    assert callable(farspan.attention)
