"""S2-Attention, local-stride: near blocks, and for each head another shard of the far ones."""

from __future__ import annotations

import numpy as np
import torch

from farspan.patterns.arguments import at_least
from farspan.patterns.card import Card
from farspan.patterns.query_rows import query_rows
from farspan.support import Blocks

CARD = Card(
    "both",
    "block",
    "fixed",
    "fixed",
    "per key head",
    False,
    "S2-Attention, arXiv 2407.17678, section 3, and the authors' kernels",
)


def s2_attention(
    length: int,
    queries: int | None = None,
    block: int = 64,
    local_blocks: int = 32,
    stride: int = 8,
    heads: int = 1,
    kv_heads: int | None = None,
    offset: int = 0,
    dense_heads: int = 0,
) -> Blocks:
    """A query in block i reads the keys, up to itself, of the nearest `local_blocks` blocks and of every block j with
    `(j + h * step + offset) % stride == 0`, where h is its key head and step is `stride // heads`, at least 1.

    Blocks are counted from the first token, not from the query: a far block that a head does not read once is not read
    by it again, so its keys may be dropped. Heads read different shards, and together everything where there are at
    least `stride` of them. All query heads of a group read the same keys; the last `dense_heads` key heads read all.
    The defaults are an example of the authors' (phi-3-small has the same form).

    Returns blocks `[1, kv_heads, rows, n]` (kv_heads = `heads` by default), a row for each block of queries; n grows
    with length / (block * stride).

    Raises:
        TypeError, ValueError: `length`, `block`, `local_blocks`, `stride`, `heads` or `kv_heads` < 1, `offset`,
            `dense_heads` or `queries` < 0, `queries` > `length`, `kv_heads` does not divide `heads`, or `dense_heads` >
            `kv_heads`.
    """
    block, local = at_least("block", block, 1), at_least("local_blocks", local_blocks, 1)
    stride, heads, offset = at_least("stride", stride, 1), at_least("heads", heads, 1), at_least("offset", offset, 0)
    kv_heads = heads if kv_heads is None else at_least("kv_heads", kv_heads, 1)
    if heads % kv_heads:
        raise ValueError(f"kv_heads must divide heads = {heads}, got {kv_heads}")
    if at_least("dense_heads", dense_heads, 0) > kv_heads:
        raise ValueError(f"dense_heads must be at most the {kv_heads} key heads, got {dense_heads}")
    rows, block_q = query_rows(length, queries, block)
    row = rows[:, None] // block
    count = -(-length // block)
    local = min(local, count)
    head = np.arange(kv_heads)[:, None]
    far = -(head * max(1, stride // heads) + offset) % stride + np.arange(0, count, stride)
    if dense_heads:
        sharded = np.full((kv_heads, count), count)
        sharded[:, : far.shape[1]] = far
        far = np.where(head < kv_heads - dense_heads, sharded, np.arange(count))
    near = np.broadcast_to(row - np.arange(local), (kv_heads, len(row), local))
    blocks = np.concatenate([np.maximum(near, -1), np.where(far[:, None] <= row, far[:, None], -1)], axis=-1)
    return Blocks(torch.from_numpy(blocks)[None], block_q, block)
