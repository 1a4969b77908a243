"""DilateFormer's multi-scale dilated attention, in one causal dimension: each group of heads has a dilation."""

from __future__ import annotations

from collections.abc import Sequence

from farspan.patterns.arguments import all_at_least, at_least
from farspan.patterns.card import Card
from farspan.support import Lines

CARD = Card(
    "both",
    "slash",
    "fixed",
    "fixed",
    "per group of heads",
    False,
    "DilateFormer, arXiv 2302.01791, section 3 (there in two dimensions and both ways)",
)


def dilateformer(heads: int, window: int = 3, dilations: Sequence[int] = (1, 2, 3)) -> Lines:
    """`window` keys per query, itself and then `dilation` apart: slashes `[heads, window]`.

    The heads are split evenly over the dilations, in order. The paper uses this in its lower stages and full attention
    in the upper ones, which is a rule per layer.

    Raises:
        TypeError, ValueError: `heads` or `window` < 1, `dilations` is empty or has one < 1, or does not divide `heads`.
    """
    heads, window = at_least("heads", heads, 1), at_least("window", window, 1)
    dilations = all_at_least("dilations", dilations, 1)
    if heads % len(dilations):
        raise ValueError(f"heads must be a multiple of the number of dilations, {len(dilations)}, got {heads}")
    group = heads // len(dilations)
    return Lines([range(0, window * d, d) for d in dilations for _ in range(group)])
