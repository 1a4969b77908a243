"""LongNet's dilated attention: several segment sizes, each thinned out by its own ratio, and mixed."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import torch

from farspan.patterns.arguments import all_at_least, at_least, one_of
from farspan.patterns.card import Card
from farspan.patterns.query_rows import query_rows
from farspan.support import Tokens

CARD = Card("both", "token", "fixed", "fixed", "per head", False, "LongNet, arXiv 2307.02486, sections 2.2 and 2.3")
OFFSETS = ("modulo", "group")


def longnet(
    segments: Sequence[int],
    ratios: Sequence[int],
    length: int,
    queries: int | None = None,
    heads: int = 1,
    offsets: str = "modulo",
) -> Tokens:
    """For every pair (w, r) of `segments` and `ratios`: cut the sequence into segments of w tokens, keep in each the
    tokens s, s + r, s + 2 r, ... for queries and keys alike, and attend within a segment.

    The offset s differs by head. "modulo" is the paper's, h % r; "group" is that of the authors' code, in which
    neighbouring heads share an offset: h // ceil(heads / r). A query that no pair keeps reads nothing; with a ratio of
    1 among them there is none.

    This is no plain mask. LongNet runs attention for each pair apart and adds the outputs, weighted by their softmax
    denominators: sum_p (Z_p / sum_q Z_q) O_p, with O_p = sum_j exp(score_j) v_j / Z_p. The Z_p cancel, and what remains
    is one softmax in which a key kept by m pairs stands m times, or, as m exp(x) = exp(x + log m), once with log m
    added to its score. That is the support returned: the union of the keys, with a `bias` of log m (fp64). The
    gradient is that of the mixture. (The authors' code holds the weights Z_p constant in its backward pass.)

    Returns tokens `[1, heads, queries, n]`, n at most the sum of all w / r.

    Raises:
        TypeError, ValueError: `length` or `heads`, a segment or a ratio < 1, `queries` < 0 or > `length`, `ratios` does
            not have one entry for each of `segments`, or `offsets` is unknown.
    """
    segments, ratios = all_at_least("segments", segments, 1), all_at_least("ratios", ratios, 1)
    if len(ratios) != len(segments):
        raise ValueError(f"ratios must have one entry for each of the {len(segments)} segments, got {len(ratios)}")
    heads, offsets = at_least("heads", heads, 1), one_of("offsets", offsets, OFFSETS)
    position, block_q = query_rows(length, queries)
    head = np.arange(heads)
    shifts = [head % r if offsets == "modulo" else head // -(-heads // r) for r in ratios]
    pairs = list(zip(segments, ratios, shifts, strict=True))
    steps = [np.arange(0, min(w, length), r) for w, r, _ in pairs]
    index = np.full((heads, len(position), sum(len(step) for step in steps)), -1, np.int32)
    bias = np.zeros(index.shape)
    column = 0
    for number, (w, r, shift) in enumerate(pairs):
        # Of every head, the queries that the pair keeps, and what it lists for them: [kept, n].
        of_head, row = np.nonzero(position % w % r == shift[:, None])
        query = position[row, None].astype(np.int32)
        key = query - query % w + shift[of_head, None].astype(np.int32) + steps[number].astype(np.int32)
        times = np.zeros(key.shape, np.int32)
        listed = key <= query
        for other, (w2, r2, shift2) in enumerate(pairs):
            theirs = shift2[of_head, None]
            same = (query % w2 % r2 == theirs) & (key >= query - query % w2) & (key % w2 % r2 == theirs)
            times += same
            if other < number:
                listed &= ~same
        columns = slice(column, column + key.shape[1])
        index[of_head, row, columns] = np.where(listed, key, -1)
        bias[of_head, row, columns] = np.log(np.maximum(times, 1))
        column = columns.stop
    return Tokens(torch.from_numpy(index)[None], block_q, torch.from_numpy(bias)[None])
