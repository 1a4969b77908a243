"""The fixed pattern of the Sparse Transformer (static-patterns.md, B6)."""

from __future__ import annotations

import pytest
import torch

from farspan.patterns import sparse_fixed


def read(support, head, query, length):
    mask = support.mask(length, length)
    return (mask[head] if mask.ndim == 3 else mask)[query].nonzero().flatten().tolist()


def test_what_a_query_reads_in_the_papers_setting():
    """L = 128 and c = 8: the query at 300 is in the third block, which begins at 256."""
    merged = sparse_fixed(128, 512, summary=8, form="merged")
    assert read(merged, 0, 300, 512) == [*range(120, 128), *range(248, 256), *range(256, 301)]
    assert merged.block_k == 8


def test_heads_count_their_summaries_backwards_from_the_end_of_the_block():
    """L = 128 and c = 32: the four sub-blocks of the authors' example, one a head, over and over."""
    support = sparse_fixed(128, 256, summary=32, form="heads", heads=6)
    own = list(range(128, 201))
    for head, begin in enumerate([96, 64, 32, 0, 96, 64]):
        assert read(support, head, 200, 256) == [*range(begin, begin + 32), *own]


@pytest.mark.parametrize("form", ["merged", "heads"])
def test_two_steps_connect_any_pair(form):
    mask = sparse_fixed(16, 100, summary=4, form=form, heads=4).mask(100, 100).double()
    union = (mask if mask.ndim == 2 else mask.amax(0)) > 0
    twice = (union.double() @ union.double()) > 0
    assert torch.equal(twice, torch.ones(100, 100, dtype=torch.bool).tril())


def test_interleaved_layers_connect_any_pair_in_two_steps():
    summaries, own = (sparse_fixed(16, 96, summary=4, layer=layer).mask(96, 96).double() for layer in (1, 0))
    earlier = torch.arange(96)[:, None] // 16 > torch.arange(96) // 16
    assert ((summaries @ own) > 0)[earlier].all()


def test_the_summaries_must_fit_into_the_block():
    with pytest.raises(ValueError, match=r"^summary must fit into a block of stride = 16 tokens 1 times, got 17"):
        sparse_fixed(16, 64, summary=17)
    with pytest.raises(ValueError, match=r"^summary must fit into a block of stride = 16 tokens 4 times, got 5"):
        sparse_fixed(16, 64, summary=5, form="heads")
