"""Inputs that are views give what their contiguous copies give, forward and backward (F12)."""

from __future__ import annotations

import pytest
import torch

from attention_probes import BACKENDS, PATTERNS, Results, assert_same, differentiate
from farspan import attention

pytestmark = [
    pytest.mark.usefixtures("poisoned_memory"),
    pytest.mark.parametrize("backend", BACKENDS),
    pytest.mark.parametrize("length", [32, 33, 130]),
    pytest.mark.parametrize("name", ["fibonacci", "slashes and verticals"]),
]


def both_ways(backend, name, q, k, v) -> tuple[Results, Results]:
    def call(q, k, v):
        return attention(q, k, v, PATTERNS[name], return_lse=True, backend=backend)

    return differentiate(call, q, k, v), differentiate(call, q.contiguous(), k.contiguous(), v.contiguous())


def test_transposed_inputs(backend, length, name):
    """Stored as [B, H, D, T] and as [B, T, H, D]."""
    q = torch.randn(2, 4, 8, length).transpose(-1, -2)
    k, v = (torch.randn(2, length, 2, 8).transpose(1, 2) for _ in range(2))
    assert_same(*both_ways(backend, name, q, k, v))


def test_slices_of_one_fused_buffer(backend, length, name):
    fused = torch.randn(2, length, 3, 4, 8)
    q, k, v = (fused[:, :, part].transpose(1, 2) for part in range(3))
    assert_same(*both_ways(backend, name, q, k, v))


def test_every_second_row_feature_and_head(backend, length, name):
    q, k, v = (torch.randn(4, 8, 2 * length, 16)[::2, 1::2, ::2, 1::2] for _ in range(3))
    assert_same(*both_ways(backend, name, q, k, v))


def test_keys_expanded_over_heads_and_batch(backend, length, name):
    """The gradient of an expanded key is the sum over its copies."""
    q = torch.randn(2, 4, length, 8)
    base_k, base_v = torch.randn(1, 1, length, 8), torch.randn(1, 1, length, 8)

    def expanded(copy):
        def call(q, k, v):
            k, v = (x.expand(2, 4, length, 8) for x in (k, v))
            k, v = (k.contiguous(), v.contiguous()) if copy else (k, v)
            return attention(q, k, v, PATTERNS[name], return_lse=True, backend=backend)

        return differentiate(call, q, base_k, base_v)

    assert_same(expanded(copy=False), expanded(copy=True))


def test_an_expanded_gradient(backend, length, name):
    """`out.sum().backward()` sends a gradient of stride 0."""
    leaves = [torch.randn(1, 2, length, 8, requires_grad=True) for _ in range(3)]
    out = attention(*leaves, PATTERNS[name], backend=backend)
    flat = torch.autograd.grad(out.sum(), leaves, retain_graph=True)
    full = torch.autograd.grad(out, leaves, torch.ones_like(out))
    for a, b in zip(flat, full, strict=True):
        assert torch.equal(a, b)


def test_inputs_and_lines_stay_as_they_are(backend, length, name):
    q, k, v = (torch.randn(1, 2, length, 8) for _ in range(3))
    kept = [x.clone() for x in (q, k, v)]
    differentiate(lambda q, k, v: attention(q, k, v, PATTERNS[name], return_lse=True, backend=backend), q, k, v)
    for before, after in zip(kept, (q, k, v), strict=True):
        assert torch.equal(before, after)
