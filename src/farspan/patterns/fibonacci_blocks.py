"""Fibonacci distances between blocks of tokens, so that attention runs in whole tiles."""

from __future__ import annotations

import math

import torch

from farspan.patterns.arguments import at_least, positive
from farspan.patterns.card import Card
from farspan.patterns.fibonacci import base
from farspan.support import LARGEST, Blocks

CARD = Card(
    "both",
    "block",
    "fixed",
    "fixed",
    "all heads",
    False,
    "farspan; after Depth-Staggered Fibonacci Spacing, arXiv 2606.28560, section 3",
)


def fibonacci_blocks(
    window: int, block: int, length: int, queries: int | None = None, alpha: float = 1.0, rungs: int = 15
) -> Blocks:
    """`fibonacci` with every distance rounded to a multiple of `block` and filled to whole tiles of `block` x `block`.

    A query in block i of the sequence reads the keys of block i - m (up to itself, for m = 0) for every m that is a
    `round(alpha * f / block)`, half to even, and for m = 0, 1, ... until its nearest `window` keys are among them.

    Why: tensor cores multiply tiles. A slash alone crosses one pair in every row of a tile, so `block` squared products
    serve `block` pairs; a slash widened to `block` distances still leaves half of the two tiles it crosses. Here every
    product computed is a pair read, and all queries of a block load the same keys. The price is `block` keys per rung
    in place of one, and that rungs closer than half a block merge.

    Returns blocks `[1, 1, ceil(queries / block), n]` for the last `queries` (all by default) of `length` tokens; where
    these do not begin at a block, the blocks of queries are smaller.

    Raises:
        TypeError, ValueError: `window`, `block` or `length` < 1, `queries` or `rungs` < 0, `queries` > `length`, or
            `alpha` <= 0.
    """
    window, block, length = at_least("window", window, 1), at_least("block", block, 1), at_least("length", length, 1)
    queries = length if queries is None else at_least("queries", queries, 0)
    if queries > length:
        raise ValueError(f"queries must be at most length = {length}, got {queries}")
    alpha, numbers = positive("alpha", alpha), base(rungs)
    if numbers and numbers[-1] > LARGEST / alpha:
        raise ValueError(f"alpha times the longest rung must stay below 2**31, got {alpha:g} * {float(numbers[-1]):g}")
    near = range(-(-(window - 1) // block) + 1)
    steps = sorted({*near, *(round(alpha * f / block) for f in numbers)})
    first = length - queries
    block_q = math.gcd(block, first)
    row = torch.arange(first, length, block_q)[:, None] // block
    return Blocks((row - torch.tensor(steps)).clamp_min(-1)[None, None], block_q, block)
