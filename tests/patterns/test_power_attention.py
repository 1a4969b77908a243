"""PowerAttention (static-patterns.md, B2)."""

from __future__ import annotations

import pytest
import torch

from farspan.patterns import power_attention


def test_the_last_block_at_32k_reads_ten_blocks():
    """Five near ones, those 8, 16, 32 and 64 back, and the first."""
    support = power_attention(32768)
    assert support.index[0, 0, -1].tolist() == [0, 63, 95, 111, 119, 123, 124, 125, 126, 127]
    assert (support.block_q, support.block_k) == (256, 256)


@pytest.mark.parametrize(("blocks", "hops"), [(128, 6), (512, 8)])
def test_layers_to_connect_all_blocks(blocks, hops):
    """32K tokens and 128K tokens in blocks of 256; the window and the powers alone."""
    step = power_attention(blocks, block=1, sink_blocks=0).mask(blocks, blocks).float()
    causal = torch.ones(blocks, blocks).tril()
    reached = [step]
    while not torch.equal(reached[-1], causal):
        reached.append(((reached[-1] @ step) > 0).float())
    assert len(reached) <= hops
    assert len(reached) > hops - 3


def test_a_distance_is_reached_in_as_many_layers_as_it_has_bits():
    step = power_attention(256, block=1, window_blocks=1, sink_blocks=0).mask(256, 256).double()
    reached = torch.eye(256, dtype=torch.float64)
    for bits in range(1, 9):
        reached = ((reached @ step) > 0).double()
        assert reached[255, 256 - 2**bits :].all()
