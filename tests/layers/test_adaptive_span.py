"""AdaptiveSpan: what section 2.2 of arXiv 1905.07799 and its authors' code say beside the formula."""

from __future__ import annotations

import math

import pytest
import torch

from attention_probes import random_qkv
from farspan import Lines, attention, patterns
from farspan.layers import AdaptiveSpan


def span(*shares, **more):
    layer = AdaptiveSpan(len(shares), **{"max_span": 64, **more}).double()
    layer.share.data.copy_(torch.tensor(shares, dtype=torch.float64))
    return layer


def weights_of(layer, length):
    """READOUT of cases.md: all scores equal, so the last row shows the shares of the keys, nearest first."""
    q = torch.zeros(1, layer.heads, length, 1).double()
    value = torch.eye(length).double()[None, None]
    return layer(q, q[:, :1], value)[0, :, -1].flip(-1)


def test_it_starts_at_a_ramp_from_the_query_itself():
    """z = 0: a key at distance x counts 1 - x / 32."""
    expected = (1 - torch.arange(50).double() / 32).clamp_min(0)
    layer = AdaptiveSpan(2, 1024).double()
    torch.testing.assert_close(weights_of(layer, 50), (expected / expected.sum()).expand(2, -1), atol=1e-15, rtol=0)


def test_heads_have_spans_of_their_own():
    weights = weights_of(span(0.25, 0.5, ramp=8), 64)
    assert [int(row.count_nonzero()) for row in weights] == [16 + 8, 32 + 8]
    assert [int((row == row[0]).sum()) for row in weights] == [17, 33]


@pytest.mark.parametrize("share", [0.0, 0.25], ids=["at 0", "at a whole span"])
def test_a_whole_span_has_the_gradient_of_a_longer_one(share):
    """At z = 0 a shorter one does not exist, and a gradient of 0 would never let a head begin to look back."""
    q, k, v = random_qkv(heads=1, q_len=70)

    def loss(z):
        return (span(z)(q, k, v) * v).sum()

    layer = span(share)
    (grad,) = torch.autograd.grad((layer(q, k, v) * v).sum(), layer.share)
    difference = (loss(share + 1e-6) - loss(share)) / 1e-6
    assert grad.item() == pytest.approx(difference.item(), rel=1e-4)
    assert abs(grad.item()) > 1e-3


def test_one_is_a_window_of_the_whole_span():
    q, k, v = random_qkv(heads=2, q_len=60)
    assert torch.equal(span(1.0, 1.0)(q, k, v), attention(q, k, v, Lines(range(60))))


def test_the_penalty_is_the_coefficient_times_the_mean_span():
    layer = span(0.5, 0.25, coefficient=1e-3)
    penalty = layer.penalty()
    assert penalty.item() == pytest.approx(1e-3 * 64 * 0.375)
    (grad,) = torch.autograd.grad(penalty, layer.share)
    assert grad.tolist() == pytest.approx([1e-3 * 64 / 2] * 2)


def test_after_a_step_shares_are_back_in_their_range():
    layer = span(-0.2, 0.4, 1.3)
    layer.after_step(0.5)
    assert layer.share.tolist() == pytest.approx([0.0, 0.4, 1.0])


def test_frozen_reads_what_counts_by_half_or_more():
    layer = span(0.0, 0.37, 1.0, ramp=8)
    weights = weights_of(layer, 90)
    windows = [int((row >= row[0] / 2).sum()) for row in weights]
    assert layer.freeze() == Lines([range(window) for window in windows])
    assert windows == [0 + 4 + 1, math.floor(0.37 * 64 + 4) + 1, 64 + 4 + 1]
    assert (
        span(0.5, 0.5, ramp=8).freeze().mask(40, 40).equal(patterns.sliding_window(37).mask(40, 40).expand(2, -1, -1))
    )


def test_a_head_learns_the_span_of_its_task():
    """The target is the mean of the last 40 keys: longer and shorter spans are worse, and the span ends there."""
    torch.manual_seed(0)
    layer = AdaptiveSpan(1, 128, ramp=8, coefficient=0)
    optimiser = torch.optim.Adam(layer.parameters(), lr=0.02)
    for _ in range(150):
        v = torch.randn(4, 1, 200, 16)
        q = torch.zeros_like(v)
        target = attention(q, q, v, patterns.sliding_window(40))
        optimiser.zero_grad()
        (layer(q, q, v) - target)[:, :, 150:].square().mean().backward()
        optimiser.step()
        layer.after_step(0)
    assert layer.spans.item() + 4 == pytest.approx(39.5, abs=1.5)


@pytest.mark.parametrize(
    ("arguments", "error", "words"),
    [
        (dict(heads=0), ValueError, "heads must be an integer >= 1, got 0"),
        (dict(max_span=0), ValueError, "max_span must be an integer >= 1, got 0"),
        (dict(ramp=0.5), TypeError, "ramp must be an integer >= 1, got 0.5"),
        (dict(init=1.5), ValueError, r"init must lie in 0\.\.1, got 1.5"),
        (dict(init="0"), TypeError, r"init must be a number in 0\.\.1, got '0'"),
        (dict(coefficient=-1.0), ValueError, "coefficient must lie in .* got -1.0"),
        (dict(coefficient=math.nan), ValueError, "coefficient must lie in .* got nan"),
    ],
    ids=lambda value: str(value) if isinstance(value, dict) else "",
)
def test_wrong_arguments_are_refused_by_name(arguments, error, words):
    with pytest.raises(error, match=words):
        AdaptiveSpan(**{"heads": 2, "max_span": 64, **arguments})
