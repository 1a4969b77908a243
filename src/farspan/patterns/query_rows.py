"""Where the rows of a blocked pattern's index stand in the sequence."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
from numpy.typing import NDArray

from farspan.patterns.arguments import at_least
from farspan.support import LARGEST


def query_rows(length: Any, queries: Any, block: int = 1) -> tuple[NDArray[np.int64], int]:
    """Position of the first query in each index row, `[rows]`, and the number of queries in a row (the block_q).

    Blocks are counted from the first token, whatever the number of queries: the last `queries` (all by default) of
    `length` tokens may begin inside a block, and then rows are as long as keeps each of them within one block.

    Raises:
        TypeError, ValueError: `length` < 1, or `queries` < 0 or > `length`.
    """
    length = at_least("length", length, 1, LARGEST)
    queries = length if queries is None else at_least("queries", queries, 0)
    if queries > length:
        raise ValueError(f"queries must be at most length = {length}, got {queries}")
    first = length - queries
    block_q = math.gcd(block, first)
    return np.arange(first, length, block_q), block_q
