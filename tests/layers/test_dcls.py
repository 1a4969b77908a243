"""DCLS: positions that move, and how far what they feel reaches."""

from __future__ import annotations

import pytest
import torch

from attention_probes import random_qkv
from farspan import Lines, attention
from farspan.layers import DCLS


@pytest.mark.parametrize("per", ["head", "layer"])
def test_whole_positions_of_a_triangle_read_what_the_frozen_pattern_reads(per):
    q, k, v = random_qkv(batch=2, heads=4, kv_heads=2, q_len=65)
    layer = DCLS(4, 3, [5, 17, 64], reach=64, interpolation="triangle", per=per).double()
    if per == "head":
        layer.share.data[:3] += 1 / 64 * torch.tensor([1, 2, -4])
        assert layer.freeze() == Lines([[0, 1, 2, 6, 19, 60], *[[0, 1, 2, 5, 17, 64]] * 3])
    else:
        assert layer.freeze() == Lines([0, 1, 2, 5, 17, 64])
    torch.testing.assert_close(layer(q, k, v), attention(q, k, v, layer.freeze()), atol=1e-13, rtol=0)


def test_a_narrow_gaussian_at_whole_positions_nearly_reads_the_frozen_pattern():
    q, k, v = random_qkv(heads=2, q_len=65)
    layer = DCLS(2, 3, [5, 17, 64], reach=64).double()
    layer.after_step(1.0)
    assert layer.sigma == pytest.approx(0.27)
    # The two neighbours of a position count exp(-1 / (2 * 0.27 ** 2)) = 0.001 each.
    assert (layer(q, k, v) - attention(q, k, v, layer.freeze())).abs().max() < 0.03


def test_width_shrinks_geometrically_over_the_first_part_of_the_training():
    layer = DCLS(1, 3, width=8.0, final_width=0.5, anneal=0.8)
    widths = []
    for progress in (0, 0.2, 0.4, 0.6, 0.8, 0.9, 1):
        layer.after_step(progress)
        widths.append(layer.sigma)
    assert widths == pytest.approx([8, 4, 2, 1, 0.5, 0.5, 0.5], rel=1e-6)
    assert set(layer.state_dict()) == {"share", "progress"}


def test_after_a_step_positions_are_back_in_their_range_with_a_gradient():
    layer = DCLS(1, 13, [13, 200, 300], reach=300, interpolation="triangle")
    layer.share.data.copy_(torch.tensor([0.01, 0.5, 1.2]))
    layer.after_step(0.5)
    assert layer.positions.tolist() == [pytest.approx([13, 150, 300], rel=1e-6)]
    assert layer.positions.min() >= 13
    layer.positions.sum().backward()
    assert layer.share.grad.tolist() == [300.0] * 3


def trained(begin, target, steps=250, **how):
    """The position after learning to copy the key `target` back; the keys are noise, so only distance tells."""
    torch.manual_seed(0)
    layer = DCLS(1, 1, [begin], reach=64, **how)
    optimiser = torch.optim.Adam(layer.parameters(), lr=0.01)
    for step in range(steps):
        v = torch.randn(4, 1, 128, 16)
        q = torch.zeros_like(v)
        copied = attention(q, q, v, Lines([0, target]))
        optimiser.zero_grad()
        (layer(q, q, v) - copied)[:, :, 64:].square().mean().backward()
        optimiser.step()
        layer.after_step((step + 1) / steps)
    return layer


@pytest.mark.parametrize(("begin", "target"), [(30, 42), (42, 33)])
def test_an_annealed_gaussian_finds_a_key_that_a_triangle_cannot_feel(begin, target):
    """The reason for the annealing: the gradient of a triangle reaches one key, not the 9 or 12 that it would take."""
    gaussian = trained(begin, target, width=8.0)
    assert gaussian.positions.item() == pytest.approx(target, abs=0.3)
    assert gaussian.freeze() == Lines([0, target])
    triangle = trained(begin, target, interpolation="triangle")
    assert abs(triangle.positions.item() - begin) < 2
    narrow = trained(begin, target, width=0.5, final_width=0.5)
    assert abs(narrow.positions.item() - begin) < 2


def test_positions_spread_geometrically_from_the_window_to_the_reach():
    layer = DCLS(2, 4, 3, reach=1024)
    assert layer.positions.shape == (2, 3)
    ratios = layer.positions[0, 1:] / layer.positions[0, :-1]
    assert ratios.tolist() == pytest.approx([256 ** (1 / 3)] * 2, rel=1e-5)
    assert layer.positions[0, 0].item() * layer.positions[0, -1].item() == pytest.approx(4 * 1024, rel=1e-5)


@pytest.mark.parametrize(
    ("arguments", "error", "words"),
    [
        (dict(window=0), ValueError, "window must be an integer >= 1, got 0"),
        (dict(heads=0), ValueError, "heads must be an integer >= 1, got 0"),
        (dict(reach=5), ValueError, "reach must be an integer >= 6, got 5"),
        (dict(positions=0), ValueError, "positions must be an integer >= 1, got 0"),
        (dict(positions=[]), ValueError, r"positions must lie in 5\.\.64, the window and the reach, got \[\]"),
        (dict(positions=[4.0]), ValueError, r"positions must lie in 5\.\.64"),
        (dict(positions=[65]), ValueError, r"positions must lie in 5\.\.64"),
        (dict(positions="8"), TypeError, "positions must be an integer >= 1, got '8'"),
        (dict(interpolation="cubic"), ValueError, "interpolation must be one of triangle, gaussian, got 'cubic'"),
        (dict(per="token"), ValueError, "per must be one of head, layer, got 'token'"),
        (dict(width=0), ValueError, "width must be a finite number > 0, got 0"),
        (dict(width=0.1), ValueError, "final_width must be at most width, got 0.27 and 0.1"),
        (dict(anneal=0), ValueError, "anneal must be a finite number > 0, got 0"),
    ],
    ids=lambda value: str(value) if isinstance(value, dict) else "",
)
def test_wrong_arguments_are_refused_by_name(arguments, error, words):
    with pytest.raises(error, match=words):
        DCLS(**{"heads": 2, "window": 5, "reach": 64, **arguments})
