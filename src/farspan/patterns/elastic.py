"""Elastic Sparse Attention: windows at the bottom, stretched with depth until the top layer spans the whole prefix."""

from __future__ import annotations

import numpy as np
import torch
from numpy.typing import NDArray

from farspan.patterns.arguments import at_least, layer_below
from farspan.patterns.card import Card
from farspan.patterns.query_rows import query_rows
from farspan.support import Tokens

CARD = Card(
    "both",
    "token",
    "fixed",
    "fixed",
    "per head",
    False,
    "Elastic Sparse Attention (2025), doi 10.5281/zenodo.15871900, theory note",
)


def elastic(
    keys: int, length: int, queries: int | None = None, layer: int = 0, layers: int = 1, heads: int = 1
) -> Tokens:
    """Every query reads `keys` keys, spread evenly over a span that grows with depth.

    With a = layer / (layers - 1), the query at position i spans its last `keys (1 - a) + (i + 1) a` keys, from key s:
    the nearest `keys` in the first layer, all in the last. Its n-th key is `s + round(n (i + 1 - s) / keys)`. That is
    head 0; the last head reads, for each n, the key right before the (n + 1)-th, so its last one is the query's own;
    heads between are interpolated and rounded. A query with fewer than `keys` keys reads them all. Distances depend on
    the query, so these are not lines.

    Rounds half to even, as the author's code does, which however computes in fp32 and so may be one key off where the
    exact number is near a half.

    Returns tokens `[1, heads, queries, keys]`.

    Raises:
        TypeError, ValueError: `keys`, `length`, `layers` or `heads` < 1, `layer` or `queries` < 0, `layer` >= `layers`,
            or `queries` > `length`.
    """
    keys, heads = at_least("keys", keys, 1), at_least("heads", heads, 1)
    layer, layers = layer_below(layer, layers)
    position, block_q = query_rows(length, queries)
    depth, last_head = max(layers - 1, 1), max(heads - 1, 1)
    stop = np.maximum(position + 1, keys)
    start = _rounded((stop - keys) * (depth - layer), depth)
    steps = start[:, None] + _rounded(np.arange(keys + 1) * (stop - start)[:, None], keys)
    head = np.arange(heads)[:, None, None]
    index = _rounded(steps[:, :-1] * (last_head - head) + (steps[:, 1:] - 1) * head, last_head)
    return Tokens(torch.from_numpy(np.where(index <= position[:, None], index, -1))[None], block_q)


def _rounded(numerator: NDArray[np.int64], denominator: int) -> NDArray[np.int64]:
    """Half to even, exactly: a quotient below 2**31 that is no half stays clear of it in fp64."""
    return np.rint(numerator / denominator).astype(np.int64)
