"""Multi-scale window attention (static-patterns.md, B7)."""

from __future__ import annotations

import pytest

from farspan.patterns import mswa
from farspan.patterns.rules import build, over_depth


def windows(over, window=64, layers=8, heads=8):
    """`[layers][heads]` widths."""
    rules = over_depth({"pattern": "mswa", "window": window, "over": over}, layers, heads)
    supports = [build(rule, 16) for rule in rules]
    return [(support.slash_table[0] >= 0).sum(1).expand(heads).tolist() for support in supports]


def test_over_heads():
    assert windows("heads") == [[16, 16, 32, 32, 64, 64, 128, 128]] * 8


def test_over_layers():
    assert windows("layers") == [[w] * 8 for w in (16, 16, 32, 32, 64, 64, 128, 128)]


def test_over_both_the_factors_multiply():
    quarter = [[4, 8, 16, 32], [8, 16, 32, 64], [16, 32, 64, 128], [32, 64, 128, 256]]
    assert windows("both", layers=4, heads=4) == quarter


@pytest.mark.parametrize(("over", "share"), [("heads", 15 / 16), ("layers", 15 / 16), ("both", 225 / 256)])
def test_the_budget_beside_a_uniform_window(over, share):
    """B7: (15/16) squared is 0.879, the paper's 7/8."""
    total = sum(map(sum, windows(over)))
    assert total / (64 * 64) == share


def test_a_window_is_never_empty():
    assert windows("both", window=1, layers=4, heads=4)[0] == [1, 1, 1, 1]


@pytest.mark.parametrize("over", ["heads", "both"])
def test_heads_that_have_no_quarters_are_refused(over):
    with pytest.raises(ValueError, match=r"^heads must be a multiple of 4 .* got 6"):
        mswa(64, 0, 4, 6, over)


def test_over_layers_alone_any_number_of_heads_will_do():
    assert mswa(64, 3, 4, 6, "layers").slashes == tuple(range(128))


def test_a_layer_is_one_of_the_layers():
    with pytest.raises(ValueError, match=r"^layer must be below layers = 4, got 4"):
        mswa(64, 4, 4, 4)
