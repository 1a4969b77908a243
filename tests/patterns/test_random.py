"""Random keys beside a window."""

from __future__ import annotations

import pytest
import torch

from farspan import patterns
from farspan.patterns.rules import over_depth


@pytest.mark.parametrize(("window", "keys"), [(1, 1), (1, 9), (4, 9), (9, 9), (3, 500)])
def test_the_pairs_are_those_of_a_window(window, keys):
    support = patterns.random(window, keys, 300)
    assert support.pairs(300, 300) == patterns.sliding_window(keys).pairs(300, 300)
    counts = support.mask(300, 300).sum(-1)
    assert torch.equal(counts, torch.arange(1, 301).clamp_max(keys))


def test_all_earlier_keys_are_drawn_about_equally_often():
    """Eight of 92 keys, 2000 seeds: 174 times each, give or take five standard deviations of 12.6."""
    counts = sum(patterns.random(8, 16, 100, 1, seed=seed).mask(1, 100)[0].int() for seed in range(2000))
    assert (counts[92:] == 2000).all()
    assert ((counts[:92] - 2000 * 8 / 92).abs() < 5 * 12.6).all()


def test_layers_draw_independently():
    rules = over_depth({"pattern": "random", "window": 2, "keys": 6}, 3, 8)
    assert [rule["layer"] for rule in rules] == [0, 1, 2]
    first, second = patterns.random(2, 6, 500), patterns.random(2, 6, 500, layer=1)
    assert first == patterns.random(2, 6, 500)
    assert (first.mask(500, 500) & second.mask(500, 500)).sum() < 2 * 500 + 500


def test_fewer_keys_than_the_window_are_refused():
    with pytest.raises(ValueError, match=r"^keys must be an integer >= 5, got 4"):
        patterns.random(5, 4, 64)
