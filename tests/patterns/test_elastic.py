"""Elastic Sparse Attention (static-patterns.md, B16)."""

from __future__ import annotations

import pytest
import torch

from farspan.patterns import elastic, sliding_window


@pytest.mark.parametrize(
    ("layer", "first", "last"),
    [
        (0, [12, 13, 14, 15], [12, 13, 14, 15]),
        # Span 4 / 2 + 16 / 2 = 10, from key 6, spacing 2.5: 6 + round(0, 2.5, 5, 7.5, 10), half to even.
        (1, [6, 8, 11, 14], [7, 10, 13, 15]),
        (2, [0, 4, 8, 12], [3, 7, 11, 15]),
    ],
)
def test_four_keys_of_sixteen_by_hand(layer, first, last):
    support = elastic(4, 16, layer=layer, layers=3, heads=2)
    assert support.index[0, :, 15].tolist() == [first, last]


@pytest.mark.parametrize("layer", range(5))
def test_every_query_reads_its_number_of_keys(layer):
    counts = elastic(6, 200, layer=layer, layers=5, heads=3).mask(200, 200).sum(-1)
    assert torch.equal(counts, torch.arange(1, 201).clamp_max(6).expand(3, 200))


def test_the_first_layer_is_a_window_and_a_single_layer_too():
    for layers in (1, 7):
        window = sliding_window(9).mask(64, 64).expand(2, 64, 64)
        assert torch.equal(elastic(9, 64, layers=layers, heads=2).mask(64, 64), window)


def test_the_last_head_reads_the_query_itself_and_the_first_the_start_of_the_span():
    mask = elastic(8, 128, layer=3, layers=4, heads=4).mask(128, 128)
    assert mask[-1].diagonal().all()
    assert mask[0, :, 0].all()


def test_large_positions_are_exact():
    """Compared with integers: a position beyond what fp32 counts to."""
    length, keys = 2**25 + 4, 1000
    index = elastic(keys, length, 1, layer=1, layers=2).index[0, 0, 0].tolist()
    assert index == [round_half_to_even(n * length, keys) for n in range(keys)]


def round_half_to_even(a, b):
    whole, rest = divmod(a, b)
    return whole + (2 * rest > b or (2 * rest == b and whole % 2 == 1))


def test_a_layer_above_the_last_is_refused():
    with pytest.raises(ValueError, match=r"^layer must be below layers = 4, got 4"):
        elastic(8, 64, layer=4, layers=4)
