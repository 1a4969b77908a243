"""The fixed pattern of the Sparse Transformer: the query's own block, and the summary columns that end each block."""

from __future__ import annotations

import math

import numpy as np
import torch

from farspan.patterns.arguments import at_least, one_of
from farspan.patterns.card import Card
from farspan.patterns.query_rows import query_rows
from farspan.support import Blocks

CARD = Card(
    "both",
    "block",
    "fixed",
    "fixed",
    "all heads or per head",
    False,
    "Sparse Transformer, arXiv 1904.10509, sections 4.3 and 5.1",
)
FORMS = ("interleaved", "merged", "heads")


def sparse_fixed(
    stride: int,
    length: int,
    queries: int | None = None,
    summary: int = 8,
    form: str = "interleaved",
    layer: int = 0,
    heads: int = 1,
    subblocks: int = 4,
) -> Blocks:
    """The keys of the query's own block of `stride` tokens, and the last `summary` keys of every block.

    What a block knows is gathered by its last tokens, which all later queries read: two steps connect any pair. The
    paper has strides of 128 and 256 with `summary` 8, 16 or 32, and three ways to use the two parts: "interleaved", own
    block in even layers and summaries in odd ones; "merged", both in every layer; "heads", own block in every head, and
    in head h the summary `h % subblocks` places of `summary` keys before the one that ends the block, as in the
    authors' code. In the odd layers of "interleaved" the queries ahead of the first summary read nothing.

    Returns blocks of gcd(stride, summary) keys, `[1, heads, rows, n]` for "heads" and else `[1, 1, rows, n]`, a row for
    each block of queries; n grows with length / stride.

    Raises:
        TypeError, ValueError: `stride`, `length`, `summary`, `heads` or `subblocks` < 1, `layer` or `queries` < 0,
            `queries` > `length`, `form` is unknown, or the summaries do not fit into a block.
    """
    stride, summary, heads = at_least("stride", stride, 1), at_least("summary", summary, 1), at_least("heads", heads, 1)
    layer, form, subblocks = (
        at_least("layer", layer, 0),
        one_of("form", form, FORMS),
        at_least("subblocks", subblocks, 1),
    )
    places = subblocks if form == "heads" else 1
    if places * summary > stride:
        raise ValueError(f"summary must fit into a block of stride = {stride} tokens {places} times, got {summary}")
    rows, block_q = query_rows(length, queries, stride)
    block_k = math.gcd(stride, summary)
    first = rows // stride * stride
    own = first[None, :, None] + np.arange(0, stride, block_k)
    place = np.arange(heads if form == "heads" else 1) % places
    begin = stride - (place + 1) * summary
    columns = np.arange(0, length, stride)[:, None] + np.arange(0, summary, block_k)
    keys = begin[:, None, None] + columns.reshape(1, 1, -1)
    keys = np.where(keys < first[:, None] + stride, keys, -1)
    if form == "interleaved":
        keys = keys if layer % 2 else own
    else:
        keys = np.concatenate([np.broadcast_to(own, (len(place), *own.shape[1:])), keys], axis=-1)
    return Blocks(torch.from_numpy(keys // block_k)[None], block_q, block_k)
