"""LongNet's dilated attention: a mixture that is one softmax with a bias (static-patterns.md, B3)."""

from __future__ import annotations

import pytest
import torch

from farspan import Tokens, attention
from farspan.patterns import longnet

LENGTH, HEADS, SIZE = 200, 4, 8
CONFIGS = [
    pytest.param([16, 64, 128], [1, 2, 4], "modulo", id="modulo"),
    pytest.param([16, 64, 128], [1, 2, 4], "group", id="group"),
    pytest.param([10, 25, 300], [3, 4, 6], "modulo", id="segments no multiples, uncovered queries"),
    pytest.param([32, 32], [1, 1], "modulo", id="everything twice"),
]


def offset(head, ratio, offsets):
    return head % ratio if offsets == "modulo" else head // -(-HEADS // ratio)


def mixture(q, k, v, segments, ratios, offsets):
    """Attention of each pair apart, gathered and scattered as in the paper, weighted by softmax denominators."""
    numerator, denominator = torch.zeros_like(q), torch.zeros_like(q[..., :1])
    for w, r in zip(segments, ratios, strict=True):
        for head in range(HEADS):
            for begin in range(0, LENGTH, w):
                rows = torch.arange(begin + offset(head, r, offsets), min(begin + w, LENGTH), r)
                scores = q[head, rows] @ k[head, rows].T / SIZE**0.5
                scores = scores.masked_fill(torch.ones_like(scores).triu(1) > 0, -torch.inf)
                z = scores.exp().sum(-1, keepdim=True)
                out = scores.softmax(-1) @ v[head, rows]
                numerator = numerator.index_put((torch.tensor(head), rows), z * out, accumulate=True)
                denominator = denominator.index_put((torch.tensor(head), rows), z, accumulate=True)
    return numerator / denominator.masked_fill(denominator == 0, 1.0)


def inputs():
    generator = torch.Generator().manual_seed(0)
    return [torch.randn(HEADS, LENGTH, SIZE, dtype=torch.float64, generator=generator) for _ in range(4)]


@pytest.mark.parametrize("backend", ["reference", "torch"])
@pytest.mark.parametrize(("segments", "ratios", "offsets"), CONFIGS)
def test_the_support_is_the_mixture_outputs_and_gradients(segments, ratios, offsets, backend):
    *qkv, weight = inputs()
    support = longnet(segments, ratios, LENGTH, heads=HEADS, offsets=offsets)
    results = []
    for attend in (
        lambda *qkv: mixture(*qkv, segments, ratios, offsets),
        lambda *qkv: attention(*(x[None] for x in qkv), support, backend=backend)[0],
    ):
        leaves = [x.clone().requires_grad_() for x in qkv]
        out = attend(*leaves)
        results.append([out.detach(), *torch.autograd.grad((out * weight).sum(), leaves)])
    for expected, found in zip(*results, strict=True):
        torch.testing.assert_close(found, expected, rtol=0, atol=1e-12)


def test_a_plain_mask_is_another_attention():
    """Near keys, in both segments, weigh double."""
    q, k, v, _ = (x[None] for x in inputs())
    support = longnet([16, 64], [1, 1], LENGTH, heads=HEADS)
    plain = attention(q, k, v, Tokens(support.index))
    assert (plain[0] - mixture(q[0], k[0], v[0], [16, 64], [1, 1], "modulo")).abs().max() > 0.1


def test_the_bias_counts_by_hand():
    """Query 14 of head 0: 8..14 by (8, 1); 0, 2, .., 14 by (16, 2)."""
    support = longnet([8, 16], [1, 2], 16)
    assert support.index[0, 0, 14].tolist() == [0, 2, 4, 6, 8, 9, 10, 11, 12, 13, 14]
    assert support.bias[0, 0, 14].exp().round().tolist() == [1, 1, 1, 1, 2, 1, 2, 1, 2, 1, 2]


@pytest.mark.parametrize(("queries", "length"), [(1, 200), (40, 200), (48, 64)])
def test_the_last_queries_have_the_bias_that_they_have_among_all(queries, length):
    everything = longnet([16, 64], [1, 2], length, heads=2)
    last = longnet([16, 64], [1, 2], length, queries, heads=2)
    width = last.index.shape[-1]
    assert torch.equal(last.bias, everything.bias[:, :, length - queries :, :width])


def test_groups_of_heads_share_an_offset_in_the_authors_code():
    """Eight heads and ratio 2: the first four begin at 0. Three heads are padded to four."""
    for heads, starts in ((8, [0, 0, 0, 0, 1, 1, 1, 1]), (3, [0, 0, 1])):
        mask = longnet([16], [2], 16, heads=heads, offsets="group").mask(16, 16)
        assert [row.any(-1).nonzero()[0].item() for row in mask] == starts


def test_segments_and_ratios_come_in_pairs():
    with pytest.raises(ValueError, match=r"^ratios must have one entry for each of the 2 segments, got 1"):
        longnet([8, 16], [1], 64)
