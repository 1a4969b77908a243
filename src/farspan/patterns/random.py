"""Random keys beside a window: the control that any designed pattern should beat."""

from __future__ import annotations

import numpy as np
import torch

from farspan.patterns.arguments import at_least
from farspan.patterns.card import Card
from farspan.patterns.draws import distinct
from farspan.patterns.query_rows import query_rows
from farspan.support import Tokens

CARD = Card(
    "both",
    "token",
    "fixed",
    "fixed",
    "all heads",
    False,
    "farspan; random attention is a part of BigBird, arXiv 2007.14062, section 2",
)


def random(window: int, keys: int, length: int, queries: int | None = None, seed: int = 0, layer: int = 0) -> Tokens:
    """Every query reads `keys` keys: the nearest `window`, itself included, and others drawn from all before those.

    Every query that has `keys` keys reads exactly so many, and one with fewer reads them all: the pairs are those of a
    sliding window of `keys`. Queries and layers draw independently, heads share; a query reads the same keys in a
    longer sequence.

    Returns tokens `[1, 1, queries, keys]`.

    Raises:
        TypeError, ValueError: `window` or `length` < 1, `keys` < `window`, `seed`, `layer` or `queries` < 0, or
            `queries` > `length`.
    """
    window, seed, layer = at_least("window", window, 1), at_least("seed", seed, 0, 2**63), at_least("layer", layer, 0)
    keys = at_least("keys", keys, window)
    position, block_q = query_rows(length, queries)
    near = np.maximum(position[:, None] - np.arange(min(window, length)), -1)
    far = distinct(position - window + 1, min(keys - window, length), seed, layer, position)
    return Tokens(torch.from_numpy(np.concatenate([near, far], axis=-1))[None, None], block_q)
