"""S2-Attention's local-stride pattern (static-patterns.md, B15)."""

from __future__ import annotations

import pytest
import torch

from farspan.patterns import s2_attention


def test_the_example_of_the_authors():
    """Block 64, local 32, stride 8, eight heads: head h reads every block j with j + h a multiple of 8."""
    support = s2_attention(4096, heads=8)
    for head in range(8):
        far = [block for block in range(64) if (block + head) % 8 == 0 and block < 32]
        assert support.index[0, head, -1].tolist()[: len(far) + 32] == [*far, *range(32, 64)]


def test_heads_together_read_everything():
    mask = s2_attention(512, block=8, local_blocks=2, stride=8, heads=8).mask(512, 512)
    assert torch.equal(mask.any(0), torch.ones(512, 512, dtype=torch.bool).tril())
    assert not mask[:7].any(0)[511, 8:16].any()


def test_a_key_once_left_is_not_read_again():
    """Shards are absolute: column by column, True only ever turns to False."""
    for mask in s2_attention(256, block=8, local_blocks=3, stride=4, heads=4).mask(256, 256):
        read = mask.float() + torch.ones(256, 256).triu(1)
        assert (read[1:] <= read[:-1]).all()


def test_query_heads_of_a_group_share_what_they_read():
    grouped = s2_attention(512, block=8, local_blocks=2, heads=8, kv_heads=2)
    assert grouped.heads == 2
    assert grouped.fits(8, 2)
    assert torch.equal(grouped.index[:, 1], s2_attention(512, block=8, local_blocks=2, heads=8).index[:, 1])


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        ({"heads": 4, "kv_heads": 3}, "kv_heads must divide heads = 4, got 3"),
        ({"heads": 4, "kv_heads": 0}, "kv_heads must be an integer >= 1, got 0"),
        ({"heads": 4, "kv_heads": 2, "dense_heads": 3}, "dense_heads must be at most the 2 key heads, got 3"),
    ],
    ids=["kv_heads", "no kv_heads", "dense_heads"],
)
def test_heads_that_do_not_fit_are_refused(arguments, words):
    with pytest.raises(ValueError, match=f"^{words}"):
        s2_attention(64, **arguments)
