"""BigBird, read causally (static-patterns.md, B5)."""

from __future__ import annotations

import torch

from farspan.patterns import bigbird


def blocks(support, head, row):
    return [block for block in support.index[0, head, row].tolist() if block >= 0]


def test_the_defaults_have_the_keys_of_the_papers_base_model():
    """Blocks of 64, global 2, window 3, random 3: 512 keys of 4096."""
    support = bigbird(4096)
    assert (support.block_q, support.block_k) == (64, 64)
    assert all(len(blocks(support, 0, row)) == min(row + 1, 8) for row in range(64))


def test_each_row_reads_its_window_and_the_first_blocks_and_random_ones_between():
    support = bigbird(4096, heads=4)
    for head in range(4):
        for row in range(8, 64):
            fixed = {0, 1, row - 2, row - 1, row}
            listed = set(blocks(support, head, row))
            assert fixed < listed
            assert len(listed - fixed) == 3
            assert all(2 <= block < row - 2 for block in listed - fixed)


def test_random_blocks_differ_by_head_layer_and_seed_and_not_by_call():
    support = bigbird(8192, heads=2)
    assert support == bigbird(8192, heads=2)
    assert not torch.equal(support.index[0, 0], support.index[0, 1])
    assert support != bigbird(8192, heads=2, layer=1)
    assert support != bigbird(8192, heads=2, seed=1)


def test_random_blocks_come_from_the_whole_prefix():
    """The authors' plan would take them from the first eleven blocks."""
    last = {b for seed in range(200) for b in blocks(bigbird(4096, 64, seed=seed), 0, 0)}
    assert last == set(range(64))


def test_a_first_block_is_read_by_all_and_passes_nothing_on():
    """Looking both ways, it would connect any pair in two steps."""
    mask = bigbird(256, block=8, global_blocks=1, random_blocks=0).mask(256, 256)
    assert mask[torch.arange(256) >= 8, :8].all()
    twice = (mask.double() @ mask.double()) > 0
    assert torch.equal(twice[255].nonzero().flatten(), torch.tensor([*range(8), *range(216, 256)]))
