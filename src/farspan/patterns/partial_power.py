"""Power-based partial attention: distances thin out as a power of themselves, between a window and full attention."""

from __future__ import annotations

import math
from collections.abc import Iterator

from farspan.patterns.arguments import at_least, positive
from farspan.patterns.card import Card
from farspan.support import Lines

CARD = Card(
    "both",
    "slash",
    "fixed",
    "fixed",
    "all heads",
    False,
    "Power-based Partial Attention, arXiv 2601.17334, section 2",
)


def partial_power(exponent: float, length: int, window: int = 64) -> Lines:
    """The nearest `window` keys, and the distances below `length` at which floor(distance ** exponent) makes a step.

    About `length ** exponent` keys per query, shared by all heads: exponent 1 is full attention. The paper's models
    have 0.625, 0.75 and more.

    Raises:
        TypeError, ValueError: `exponent` is not a number in 0.01..1, or `length` or `window` < 1.
    """
    exponent, length = positive("exponent", exponent), at_least("length", length, 1)
    if not 0.01 <= exponent <= 1:
        raise ValueError(f"exponent must lie in 0.01..1, got {exponent:g}")
    return Lines([*range(at_least("window", window, 1)), *_steps(exponent, length)])


def _steps(exponent: float, length: int) -> Iterator[int]:
    """The smallest integers below `length` whose power reaches 1, 2, 3, ..."""
    for step in range(1, length):
        distance = math.ceil(step ** (1 / exponent))
        # The root is rounded: the powers themselves decide.
        while (distance - 1) ** exponent >= step:
            distance -= 1
        while distance**exponent < step:
            distance += 1
        if distance >= length:
            return
        yield distance
