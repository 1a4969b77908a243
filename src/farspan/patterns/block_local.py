"""Blocks that never see one another, and the bridge that repairs them."""

from __future__ import annotations

import math

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
    "Locality Does Not Imply Reachability, arXiv 2606.02680 (the bridge here is farspan's form of it)",
)


def block_local(block: int, length: int, queries: int | None = None, bridge: int = 0) -> Blocks:
    """Every query reads the keys of its own block of `block` tokens, up to itself, and `bridge` keys before the block.

    Without a bridge this is the trap of the paper: two neighbours on either side of a boundary stay disconnected in
    every layer, however many there are, since no query ever reads beyond its block. `bridge` adds causal edges, from
    all queries of a block to the last `bridge` keys before it, and information then moves one block a layer. (Its
    reach depends on the place in the block: the first query of a block reads `bridge + 1` keys.)

    Returns blocks of gcd(block, bridge) keys, `[1, 1, rows, n]`, a row for each block of queries.

    Raises:
        TypeError, ValueError: `block` or `length` < 1, `bridge` or `queries` < 0, or `queries` > `length`.
    """
    block, bridge = at_least("block", block, 1), at_least("bridge", bridge, 0)
    rows, block_q = query_rows(length, queries, block)
    block_k = math.gcd(block, bridge)
    first = rows // block * block
    keys = first[:, None] + np.arange(-bridge, block, block_k)
    return Blocks(torch.from_numpy(np.maximum(keys // block_k, -1))[None, None], block_q, block_k)
