"""LEAK (cases.md): what stands at position j changes nothing, not one bit, at positions before it (F05)."""

from __future__ import annotations

import contextlib

import pytest
import torch

from attention_probes import BACKENDS, PATTERNS, random_qkv
from farspan import Lines, attention

pytestmark = pytest.mark.usefixtures("poisoned_memory")

SUPPORTS = {**PATTERNS, "full": Lines(range(300)), "more than full": Lines(range(300), verticals=range(300))}


WAYS = {
    "plain": {},
    "no grad": {"grad": False},
    "below a block": {"length": 6},
    "below a block, batch": {"length": 6, "batch": 3},
    "batch": {"batch": 3},
    "autocast": {"autocast": True},
    "start": {"with_start": True},
    "everything": {"batch": 3, "autocast": True, "with_start": True},
}


@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize("way", WAYS.values(), ids=WAYS)
def test_the_future_changes_no_bit(backend, way):
    check_leak(backend, **way)


def check_leak(backend, length=150, batch=1, grad=True, autocast=False, with_start=False):
    q, k, v = random_qkv(batch=batch, q_len=length, dtype=torch.float32)
    start = torch.randint(0, 3, (batch, length)) if with_start else None
    for x in (q, k, v):
        x.requires_grad_(grad)
    context = torch.autocast("cpu", torch.bfloat16) if autocast else contextlib.nullcontext()
    with context:
        for name, support in SUPPORTS.items():
            before = attention(q, k, v, support, start=start, return_lse=True, backend=backend)
            for j in (1, length // 2, length - 1):
                q_, k_, v_ = (x.detach().clone() for x in (q, k, v))
                for x in (q_, k_, v_):
                    x[..., j:, :] = 1e3 * torch.randn_like(x[..., j:, :])
                    x.requires_grad_(grad)
                after = attention(q_, k_, v_, support, start=start, return_lse=True, backend=backend)
                for a, b in zip(before, after, strict=True):
                    assert torch.equal(a[:, :, :j], b[:, :, :j]), name


@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize("name", SUPPORTS)
def test_the_past_sends_no_gradient_to_the_future(backend, name):
    leaves = [x.requires_grad_() for x in random_qkv(q_len=150, dtype=torch.float32)]
    out, lse = attention(*leaves, SUPPORTS[name], return_lse=True, backend=backend)
    for j in (1, 75, 149):
        seen = out[:, :, :j].square().sum() + lse[:, :, :j].masked_fill(lse[:, :, :j].isinf(), 0).sum()
        for grad in torch.autograd.grad(seen, leaves, retain_graph=True):
            assert not grad[:, :, j:].any()


@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize("name", SUPPORTS)
def test_what_start_hides_changes_no_bit(backend, name):
    """F04: padding may hold anything."""
    q, k, v = random_qkv(batch=2, q_len=150, dtype=torch.float32)
    start = torch.tensor([[70], [20]]).expand(2, 150)
    before = attention(q, k, v, SUPPORTS[name], start=start, backend=backend)
    for x in (q, k, v):
        x[0, :, :70] = 1e3
        x[1, :, :20] = -1e3
    after = attention(q, k, v, SUPPORTS[name], start=start, backend=backend)
    assert torch.equal(before, after)
