"""WaveNet's dilation cycle as attention: one distance per layer, doubling from layer to layer, then again from one."""

from __future__ import annotations

from farspan.patterns.arguments import at_least
from farspan.patterns.card import Card
from farspan.support import Lines

CARD = Card("both", "slash", "fixed", "fixed", "all heads", False, "WaveNet, arXiv 1609.03499, section 2.1")


def wavenet(layer: int, cycle: int = 10) -> Lines:
    """Distances 0 and `2 ** (layer % cycle)`, shared by all heads: two keys per query, as a kernel of two has taps.

    The paper repeats 1, 2, 4, ..., 512. One cycle connects every distance below `2 ** cycle`, and each by a single
    path; further cycles add their reach.

    Raises:
        TypeError, ValueError: `layer` < 0, or `cycle` < 1 or > 31.
    """
    layer, cycle = at_least("layer", layer, 0), at_least("cycle", cycle, 1)
    if cycle > 31:
        raise ValueError(f"cycle must be at most 31, so that distances stay below 2**31, got {cycle}")
    return Lines([0, 2 ** (layer % cycle)])
