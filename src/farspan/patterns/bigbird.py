"""BigBird, read causally: near blocks, the first blocks, and a few random ones."""

from __future__ import annotations

import numpy as np
import torch

from farspan.patterns.arguments import at_least
from farspan.patterns.card import Card
from farspan.patterns.draws import distinct
from farspan.patterns.query_rows import query_rows
from farspan.support import Blocks

CARD = Card("both", "block", "fixed", "fixed", "per head", False, "BigBird, arXiv 2007.14062, section 2")


def bigbird(
    length: int,
    queries: int | None = None,
    block: int = 64,
    window_blocks: int = 3,
    global_blocks: int = 2,
    random_blocks: int = 3,
    seed: int = 0,
    layer: int = 0,
    heads: int = 1,
) -> Blocks:
    """A query reads the nearest `window_blocks` blocks (up to itself), the first `global_blocks`, and `random_blocks`
    of those between, drawn once for each head, layer and block of queries.

    The defaults have the keys of the paper's ITC base model: block 64, window 3, global 2, random 3. The paper's
    attention looks both ways, so three things differ. Its window is the block before, the query's own and the next;
    here it is the own and those before. Its global blocks are the first and the last, which read and are read by all:
    nobody may read the last ahead of time, and that it reads everything would hold for other queries in a longer
    sequence, so here all are at the beginning (where they know only themselves: two steps no longer connect any pair).
    Its code takes the random blocks of a long sequence from the first `2 random_blocks + 5` blocks, and from a
    generator whose draws depend on the length; here they come from all blocks between the others, and a query reads the
    same ones in a longer sequence.

    Returns blocks `[1, heads, rows, n]`, a row for each block of queries.

    Raises:
        TypeError, ValueError: `length`, `block`, `window_blocks` or `heads` < 1, `global_blocks`, `random_blocks`,
            `seed`, `layer` or `queries` < 0, or `queries` > `length`.
    """
    block, window = at_least("block", block, 1), at_least("window_blocks", window_blocks, 1)
    globals_, randoms = at_least("global_blocks", global_blocks, 0), at_least("random_blocks", random_blocks, 0)
    seed, layer, heads = at_least("seed", seed, 0, 2**63), at_least("layer", layer, 0), at_least("heads", heads, 1)
    rows, block_q = query_rows(length, queries, block)
    row = np.broadcast_to(rows // block, (heads, len(rows)))
    between = row - window + 1 - globals_
    first = np.arange(min(globals_, length))
    drawn = distinct(between, randoms, seed, layer, np.arange(heads)[:, None], row)
    blocks = np.concatenate(
        [
            row[..., None] - np.arange(min(window, length)),
            np.where(first <= row[..., None], first, -1),
            np.where(drawn < 0, -1, drawn + globals_),
        ],
        axis=-1,
    )
    return Blocks(torch.from_numpy(np.maximum(blocks, -1))[None], block_q, block)
