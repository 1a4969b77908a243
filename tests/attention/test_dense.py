"""`dense_attention`, the yardstick, keeps the conventions of `attention`: it is the support that lists every key."""

from __future__ import annotations

import pytest
import torch

from attention_probes import differentiate, random_qkv, start_of
from farspan import Lines, attention
from farspan.attention import dense_attention

pytestmark = pytest.mark.usefixtures("poisoned_memory")

START = {
    "no start": lambda batch, q_len: None,
    "left padding": lambda batch, q_len: torch.arange(batch)[:, None].expand(batch, q_len) * 3,
    "documents": lambda batch, q_len: start_of(1, q_len)[:, :q_len].expand(batch, q_len),
    "rows that read nothing": lambda batch, q_len: torch.full((batch, q_len), 10**6),
}
LENGTHS = [(1, 1), (7, 7), (129, 129), (1, 9), (4, 9), (9, 4), (1, 0), (3, 0), (0, 3), (0, 0)]


def both_ways(q, k, v, **options):
    every_key = Lines(range(max(1, k.shape[2])))
    zero = q.new_zeros(q.shape[:3])
    return (
        differentiate(lambda *x: (dense_attention(*x, **options), zero.requires_grad_()), q, k, v),
        differentiate(lambda *x: (attention(*x, every_key, backend="reference", **options), zero), q, k, v),
    )


@pytest.mark.parametrize("start", START.values(), ids=START)
@pytest.mark.parametrize(("q_len", "k_len"), LENGTHS, ids=[f"{q} queries {k} keys" for q, k in LENGTHS])
def test_dense_is_attention_over_every_key(q_len, k_len, start):
    q, k, v = random_qkv(batch=2, heads=4, kv_heads=2, q_len=q_len, k_len=k_len, value_dim=5)
    for dense, expected in zip(*both_ways(q, k, v, start=start(2, q_len)), strict=True):
        torch.testing.assert_close(dense, expected, atol=1e-12, rtol=0)


@pytest.mark.parametrize("kv_heads", [1, 2, 4])
@pytest.mark.parametrize("scale", [None, 0.3])
@pytest.mark.parametrize("q_len", [20, 5], ids=["without a mask", "with a mask"])
def test_groups_and_scale(kv_heads, scale, q_len):
    q, k, v = random_qkv(heads=4, kv_heads=kv_heads, q_len=q_len, k_len=20)
    for dense, expected in zip(*both_ways(q, k, v, scale=scale), strict=True):
        torch.testing.assert_close(dense, expected, atol=1e-12, rtol=0)


def test_query_heads_read_their_group_in_order():
    """F11."""
    v = torch.tensor([1.0, 2.0]).reshape(1, 2, 1, 1)
    out = dense_attention(torch.zeros(1, 4, 1, 2), torch.zeros(1, 2, 1, 2), v)
    assert out.flatten().tolist() == [1, 1, 2, 2]


def test_queries_without_keys_give_zeros_and_a_finite_gradient():
    """F03."""
    leaves = [x.requires_grad_() for x in random_qkv(q_len=5, k_len=2, dtype=torch.float32)]
    out = dense_attention(*leaves)
    assert not out[:, :, :3].any()
    for grad in torch.autograd.grad(out.sum(), leaves):
        assert grad.isfinite().all()


@pytest.mark.parametrize("q_len", [1, 3, 6])
def test_the_future_changes_no_bit(q_len):
    """F05; a single query must not see beyond the last key either."""
    q, k, v = random_qkv(q_len=q_len, k_len=6, dtype=torch.float32)
    before = dense_attention(q, k, v)
    k[:, :, -1], v[:, :, -1] = 1e3, 1e3
    after = dense_attention(q, k, v)
    assert torch.equal(before[:, :, :-1], after[:, :, :-1])
    assert not torch.equal(before[:, :, -1], after[:, :, -1])


@pytest.mark.parametrize("q_len", [20, 5], ids=["without a mask", "with a mask"])
def test_autocast_changes_no_bit(q_len):
    """The yardstick is as precise as what it is held against."""
    q, k, v = random_qkv(heads=4, kv_heads=2, q_len=q_len, k_len=20, dtype=torch.float32)
    expected = dense_attention(q, k, v)
    with torch.autocast("cpu", torch.bfloat16):
        assert torch.equal(dense_attention(q, k, v), expected)
