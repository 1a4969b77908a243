"""Gradients at every head size, large scores, and narrow dtypes (F13). Tolerances come from fp64, none is invented."""

from __future__ import annotations

import pytest
import torch

from attention_probes import (
    PATTERNS,
    Results,
    assert_same,
    backends,
    differentiate,
    fast_backends,
    needs_core,
    random_qkv,
    run,
    start_of,
    tolerance,
    widest,
)
from farspan import Lines, attention, patterns
from farspan.attention import torch_lines

pytestmark = pytest.mark.usefixtures("poisoned_memory")

DTYPES = {"fp32": torch.float32, "bf16": torch.bfloat16, "fp16": torch.float16}
HEAD_SIZES = [1, 3, 8, 13, 16, 24, 40, 64, 80, 96, 100, 128, 256]


@fast_backends
@pytest.mark.parametrize("name", PATTERNS)
@pytest.mark.parametrize("length", [1, 17, 129])
@pytest.mark.parametrize("head_dim", HEAD_SIZES)
def test_gradients_are_those_of_dense_autograd(backend, name, length, head_dim):
    q, k, v = random_qkv(q_len=length, head_dim=head_dim)
    assert_same(run(backend, q, k, v, PATTERNS[name]), run("reference", q, k, v, PATTERNS[name]))


def assert_as_good_as_the_reference(backend, inputs, support: Lines, **options) -> None:
    """The fast path strays from fp64 by at most twice what the reference does in the same dtype.

    Where the reference happens to be exact (a single key), the roundings of one sum of D products and of the result
    are allowed, relative to the largest number.
    """
    exact = run("reference", *(x.double() for x in inputs), support, **options)
    plain = run("reference", *inputs, support, **options)
    fast = run(backend, *inputs, support, **options)
    for name, truth, allowed, got in zip(Results._fields, exact, plain, fast, strict=True):
        assert got.dtype == allowed.dtype
        assert torch.equal(got.isinf(), truth.isinf()), name
        read = truth.isfinite()
        assert got[read].isfinite().all(), name
        if read.any():
            rounding = torch.finfo(got.dtype).eps + inputs[0].shape[-1] * torch.finfo(torch.float32).eps
            error = (got[read].double() - truth[read]).abs().max()
            bound = 2 * (allowed[read].double() - truth[read]).abs().max()
            assert error <= bound + rounding * truth[read].abs().max(), name


@fast_backends
@pytest.mark.parametrize("name", PATTERNS)
@pytest.mark.parametrize("factor", [1, 3, 100])
@pytest.mark.parametrize("dtype", DTYPES)
def test_large_scores_stay_finite_and_right(backend, name, factor, dtype):
    """q and k a hundred times too large: finite, and no further from fp64 than the reference in that dtype."""
    q, k, v = random_qkv(heads=4, kv_heads=2, q_len=129, head_dim=64, dtype=DTYPES[dtype])
    assert_as_good_as_the_reference(backend, (q * factor, k * factor, v), PATTERNS[name])


@fast_backends
@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("head_dim", [8, 40, 128])
def test_narrow_dtypes_accumulate_wide(backend, monkeypatch, dtype, head_dim):
    """Packed documents, groups, a long window, many chunks: the sums of many terms."""
    monkeypatch.setattr(torch_lines, "_CHUNK", 8)
    inputs = random_qkv(heads=4, kv_heads=2, q_len=300, head_dim=head_dim, dtype=DTYPES[dtype])
    support = Lines([*range(200), 250], verticals=[0, 1])
    assert_as_good_as_the_reference(backend, inputs, support, start=start_of(40, 260))


@backends
@pytest.mark.parametrize("dtype", [*DTYPES.values(), torch.float64], ids=[*DTYPES, "fp64"])
def test_outputs_keep_the_dtype_and_lse_is_wide(backend, dtype):
    if dtype == torch.float64 and dtype != widest(backend):
        pytest.skip("this backend takes no fp64")
    q, k, v = random_qkv(q_len=9, dtype=dtype)
    out, lse = attention(q, k, v, Lines([0, 1]), return_lse=True, backend=backend)
    assert (out.dtype, lse.dtype) == (dtype, torch.float64 if dtype == torch.float64 else torch.float32)


@pytest.mark.parametrize(
    ("backend", "backward_too"),
    # The reference leaves its backward to autograd, which PyTorch asks to be called outside autocast.
    [
        ("reference", False),
        ("torch", False),
        ("torch", True),
        pytest.param("cpu", False, marks=needs_core),
        pytest.param("cpu", True, marks=needs_core),
    ],
    ids=["reference", "torch", "torch, backward too", "cpu", "cpu, backward too"],
)
@pytest.mark.parametrize("name", PATTERNS)
@pytest.mark.parametrize("dtype", DTYPES)
def test_autocast_changes_no_bit(backend, backward_too, name, dtype):
    """Scores, softmax and lse stay in fp32, and so do gradients, where matrix products would run in bf16."""
    inputs = random_qkv(heads=4, kv_heads=2, q_len=150, dtype=DTYPES[dtype])

    def forward(q, k, v):
        with torch.autocast("cpu", torch.bfloat16):
            return attention(q, k, v, PATTERNS[name], return_lse=True, backend=backend)

    with torch.autocast("cpu", torch.bfloat16, enabled=backward_too):
        found = differentiate(forward, *inputs)
    assert found.lse.dtype == torch.float32
    for field, a, b in zip(Results._fields, found, run(backend, *inputs, PATTERNS[name]), strict=True):
        assert a.dtype == b.dtype, field
        assert torch.equal(a, b), field


@backends
@pytest.mark.parametrize("score", [-1e4, 1e4, -60.0, 0.0])
def test_equal_scores_of_any_size_are_a_mean(backend, score):
    """F07: real keys with very low scores must not lose to anything that is not a key."""
    q = torch.tensor([score, 0.0]).expand(1, 1, 150, 2)
    k = torch.tensor([1.0, 0.0]).expand(1, 1, 150, 2)
    out = attention(q, k, torch.ones(1, 1, 150, 1), patterns.fibonacci(4), scale=1.0, backend=backend)
    torch.testing.assert_close(out, torch.ones_like(out), atol=1e-6, rtol=0)


@backends
@pytest.mark.parametrize("scale", [0.0, -0.5, 3, 1e-3])
def test_the_scale_multiplies_the_scores(backend, scale):
    q, k, v = random_qkv(q_len=70, head_dim=4, dtype=widest(backend))
    scaled = attention(q * scale, k, v, PATTERNS["slashes and verticals"], scale=1.0, backend="reference")
    out = attention(q, k, v, PATTERNS["slashes and verticals"], scale=scale, backend=backend)
    torch.testing.assert_close(out, scaled, atol=tolerance(q.dtype), rtol=0)


@backends
def test_a_query_without_keys_sends_no_gradient(backend):
    """F03: not even from the gradient of its lse."""
    leaves = [x.requires_grad_() for x in random_qkv(q_len=60, dtype=torch.float32)]
    out, lse = attention(*leaves, Lines([50, 55]), return_lse=True, backend=backend)
    grads = torch.autograd.grad((out, lse), leaves, (torch.ones_like(out), torch.ones_like(lse)))
    assert not grads[0][:, :, :50].any()
    assert grads[0][:, :, 55:].any()
    assert not grads[1][:, :, 10:].any()
    assert not grads[2][:, :, 10:].any()
    assert (grads[2][:, :, :10] != 0).all()
