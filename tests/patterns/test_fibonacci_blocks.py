"""Fibonacci distances between blocks: whole tiles (no paper; farspan's own)."""

from __future__ import annotations

import pytest
import torch

from farspan.patterns import fibonacci, fibonacci_blocks
from farspan.patterns.rules import build

BLOCK = 16


def distances(support, length):
    """Distances in blocks that the last block of queries reads."""
    last = length // BLOCK - 1
    return sorted(last - block for block in support.index[0, 0, -1].tolist() if block >= 0)


def test_rungs_over_the_block_are_rounded():
    """At alpha 1: 89 / 16 = 5.6, 144 / 16 = 9, 233 / 16 = 14.6, 377 / 16 = 23.6, 610 / 16 = 38.1, 987 / 16 = 61.7."""
    assert distances(fibonacci_blocks(1, BLOCK, 1024), 1024) == [0, 1, 2, 3, 6, 9, 15, 24, 38, 62]
    assert distances(fibonacci_blocks(1, BLOCK, 1024, alpha=0.5), 1024) == [0, 1, 2, 3, 4, 7, 12, 19, 31]


@pytest.mark.parametrize("window", [1, 2, 16, 17, 18, 40])
def test_the_nearest_keys_are_read_by_every_query(window):
    mask = fibonacci_blocks(window, BLOCK, 200, rungs=0).mask(200, 200)
    near = torch.ones(200, 200, dtype=torch.bool).tril().triu(1 - window)
    assert torch.equal(mask & near, near)
    assert mask[:, 100].sum() < window + 2 * BLOCK


def test_every_tile_below_the_diagonal_is_whole_or_empty():
    mask = fibonacci_blocks(13, BLOCK, 320).mask(320, 320)
    tiles = mask.unflatten(0, (-1, BLOCK)).unflatten(2, (-1, BLOCK)).sum((1, 3))
    below = torch.ones(20, 20, dtype=torch.bool).tril(-1)
    assert set(tiles[below].tolist()) == {0, BLOCK * BLOCK}
    assert tiles.diagonal().tolist() == [BLOCK * (BLOCK + 1) // 2] * 20


def test_blocks_of_one_key_are_the_pattern_itself():
    for alpha in (0.5, 1.0, 1.3):
        blocks, lines = fibonacci_blocks(9, 1, 300, alpha=alpha), fibonacci(9, alpha)
        assert torch.equal(blocks.mask(300, 300), lines.mask(300, 300))


@pytest.mark.parametrize(("queries", "block_q"), [(64, 8), (200, 16), (1, 1), (40, 16), (50, 2), (0, 8)])
def test_blocks_of_queries_fit_where_the_queries_begin(queries, block_q):
    support = build({"pattern": "fibonacci_blocks", "window": 5, "block": BLOCK}, 200, queries)
    assert (support.block_q, support.block_k) == (block_q, BLOCK)


def test_no_more_queries_than_keys():
    with pytest.raises(ValueError, match=r"^queries must be at most length = 64, got 65"):
        fibonacci_blocks(5, BLOCK, 64, 65)


def test_a_rung_out_of_range_is_refused():
    with pytest.raises(ValueError, match=r"^alpha times the longest rung must stay below 2\*\*31"):
        fibonacci_blocks(5, BLOCK, 64, alpha=1e8)
