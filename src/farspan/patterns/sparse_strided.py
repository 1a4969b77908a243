"""The strided pattern of the Sparse Transformer: a local band, and every key at a multiple of the stride."""

from __future__ import annotations

from farspan.patterns.arguments import at_least, one_of
from farspan.patterns.card import Card
from farspan.support import Lines

CARD = Card(
    "both",
    "slash",
    "fixed",
    "fixed",
    "all heads or per head",
    False,
    "Sparse Transformer, arXiv 1904.10509, sections 4.3 and 5.1",
)
FORMS = ("interleaved", "merged", "heads")


def sparse_strided(stride: int, length: int, form: str = "interleaved", layer: int = 0, heads: int = 1) -> Lines:
    """The band of distances `0 .. stride`, and the column of distances `0, stride, 2 stride, ...` below `length`.

    Two steps connect any pair; with a stride near the square root of `length` a query reads about 2 sqrt(length) keys.
    The paper has three ways to use the two parts: "interleaved", the band in even layers and the column in odd ones;
    "merged", both in every layer; "heads", the band in even heads and the column in odd ones, `[heads, n]`. (The
    authors' code has a band of `stride` keys, one less than the paper's, which differs unless merged.)

    Raises:
        TypeError, ValueError: `stride`, `length` or `heads` < 1, `layer` < 0, or `form` is unknown.
    """
    stride, length, heads = at_least("stride", stride, 1), at_least("length", length, 1), at_least("heads", heads, 1)
    layer, form = at_least("layer", layer, 0), one_of("form", form, FORMS)
    parts = range(min(stride + 1, length)), range(0, length, stride)
    if form == "merged":
        return Lines([*parts[0], *parts[1]])
    if form == "interleaved":
        return Lines(parts[layer % 2])
    return Lines([parts[head % 2] for head in range(heads)])
