"""Longformer (static-patterns.md, B4)."""

from __future__ import annotations

import pytest

from farspan import Lines
from farspan.patterns import longformer, longformer_depth
from farspan.patterns.rules import build, over_depth


def plan(layers, heads=8, bottom=32, top=512, **more):
    rule = {"pattern": "longformer_depth", "bottom": bottom, "top": top, **more}
    return [build(one, 64) for one in over_depth(rule, layers, heads)]


def gap(support):
    """Keys left out between two that the last head reads."""
    return support.slash_table[0, -1, 1].item() - 1


@pytest.mark.parametrize(
    ("layers", "gaps"),
    [
        (12, [0] * 6 + [1, 1, 2, 2, 3, 3]),
        (30, [0] * 15 + [1] * 5 + [2] * 5 + [3] * 5),
        (6, [0, 0, 0, 1, 2, 3]),
        (1, [0]),
        (2, [0, 1]),
        (5, [0, 0, 0, 1, 2]),
    ],
)
def test_the_gaps_of_table_12(layers, gaps):
    assert [gap(layer) for layer in plan(layers)] == gaps


def test_windows_rise_by_equal_factors():
    windows = [layer.slash_table.shape[-1] for layer in plan(5)]
    assert windows == [32, 64, 128, 256, 512]


def test_windows_can_fall():
    """The paper's ablation: worse than rising."""
    assert [layer.slash_table.shape[-1] for layer in plan(5, bottom=512, top=32)] == [512, 256, 128, 64, 32]


def test_two_heads_are_dilated():
    support = plan(12)[8]
    width = support.slash_table.shape[-1]
    plain, dilated = tuple(range(width)), tuple(range(0, 3 * width, 3))
    assert support.slashes == (plain,) * 6 + (dilated,) * 2


@pytest.mark.parametrize(("heads", "dilated", "expected"), [(1, 2, 1), (2, 2, 2), (4, 3, 3), (4, 0, 0), (4, 9, 4)])
def test_no_more_heads_are_dilated_than_there_are(heads, dilated, expected):
    support = longformer(4, heads, 2, dilated)
    assert (support.slash_table[0].expand(heads, -1)[:, 1] == 2).sum() == expected


def test_heads_share_their_keys_where_nothing_is_dilated():
    assert longformer(5, 8) == Lines(range(5))


def test_global_tokens_are_read_by_all_and_read_all():
    mask = longformer(2, 4, global_tokens=3).mask(10, 10)
    assert mask[:, :3].sum(0).tolist() == [10, 9, 8]
    assert mask[:3].sum(1).tolist() == [1, 2, 3]


def test_a_layer_is_one_of_the_layers():
    with pytest.raises(ValueError, match=r"^layer must be below layers = 12, got 12"):
        longformer_depth(32, 512, 12, 12, 8)
