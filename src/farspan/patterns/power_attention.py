"""PowerAttention: the nearest blocks, the first block, and the blocks at powers of two."""

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
    "all heads",
    False,
    "PowerAttention, arXiv 2503.03588, section 3 and algorithm 1",
)


def power_attention(
    length: int, queries: int | None = None, block: int = 256, window_blocks: int = 5, sink_blocks: int = 1
) -> Blocks:
    """A query in block i reads the keys of block i - m, up to itself, for m < `window_blocks` and m = 1, 2, 4, 8, ...,
    and those of the first `sink_blocks`.

    The defaults are the paper's: at 32,768 tokens the last block reads five near blocks, those 8, 16, 32 and 64
    further back, and the first. Powers below the window are inside it. Any distance of d bits, counted in blocks, is
    reached in d layers, and a query reads about log2(length / block) blocks.

    Returns blocks `[1, 1, rows, n]`, a row for each block of queries.

    Raises:
        TypeError, ValueError: `length`, `block` or `window_blocks` < 1, `sink_blocks` or `queries` < 0, or `queries` >
            `length`.
    """
    block, window = at_least("block", block, 1), at_least("window_blocks", window_blocks, 1)
    sinks = at_least("sink_blocks", sink_blocks, 0)
    rows, block_q = query_rows(length, queries, block)
    row = rows[:, None] // block
    farthest = (length - 1) // block
    steps = [*range(min(window, farthest + 1)), *(2**e for e in range(farthest.bit_length()))]
    first = np.arange(min(sinks, farthest + 1))
    blocks = np.concatenate([row - np.array(steps), np.where(first <= row, first, -1)], axis=-1)
    return Blocks(torch.from_numpy(np.maximum(blocks, -1))[None, None], block_q, block)
