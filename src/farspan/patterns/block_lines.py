"""Distances between blocks of tokens: what `Lines` are for tokens, in whole tiles."""

from __future__ import annotations

import math
from collections.abc import Sequence

import torch

from farspan.patterns.arguments import all_at_least, at_least
from farspan.patterns.card import Card
from farspan.support import Blocks

CARD = Card(
    "both", "block", "fixed", "fixed", "all heads", False, "farspan; what `farspan pattern design --tiles` finds"
)


def block_lines(distances: Sequence[int], block: int, length: int, queries: int | None = None) -> Blocks:
    """A query in block i of the sequence reads every key of block i - m, up to itself, for each m of `distances`.

    Returns blocks `[1, 1, ceil(queries / block), n]` for the last `queries` (all by default) of `length` tokens; where
    these do not begin at a block, the blocks of queries are smaller.

    Raises:
        TypeError, ValueError: `distances` is empty or one is < 0, `block` or `length` < 1, or `queries` < 0 or >
            `length`.
    """
    steps = sorted(set(all_at_least("distances", distances, 0)))
    block, length = at_least("block", block, 1), at_least("length", length, 1)
    queries = length if queries is None else at_least("queries", queries, 0)
    if queries > length:
        raise ValueError(f"queries must be at most length = {length}, got {queries}")
    first = length - queries
    block_q = math.gcd(block, first)
    row = torch.arange(first, length, block_q)[:, None] // block
    return Blocks((row - torch.tensor(steps)).clamp_min(-1)[None, None], block_q, block)
