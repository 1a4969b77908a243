"""Blocks that never see one another, and the bridge (static-patterns.md, B17)."""

from __future__ import annotations

import torch

from farspan.patterns import block_local


def layers_to(mask, query, key, most):
    """How many layers carry the key to the query; 0 where `most` do not."""
    reached = torch.zeros(len(mask), dtype=torch.float64)
    reached[query] = 1
    for layer in range(1, most + 1):
        reached = ((reached @ mask.double()) > 0).double()
        if reached[key]:
            return layer
    return 0


def test_neighbours_across_a_boundary_stay_apart_at_every_depth():
    mask = block_local(16, 64).mask(64, 64)
    assert layers_to(mask, 15, 14, 64) == 1
    assert layers_to(mask, 16, 15, 64) == 0


def test_a_bridge_of_one_key_connects_them():
    mask = block_local(16, 64, bridge=1).mask(64, 64)
    assert layers_to(mask, 16, 15, 64) == 1
    assert layers_to(mask, 31, 15, 64) == 1
    assert layers_to(mask, 16, 14, 64) == 2
    assert layers_to(mask, 63, 0, 64) == 4


def test_a_bridge_may_be_longer_than_a_block():
    keys = block_local(8, 64, bridge=20).mask(64, 64)[40].nonzero().flatten().tolist()
    assert keys == list(range(20, 41))


def test_tiles_are_as_large_as_the_bridge_allows():
    assert [block_local(16, 64, bridge=bridge).block_k for bridge in (0, 1, 6, 8, 32)] == [16, 1, 2, 8, 16]
