"""A dense window plus powers of two: the control of arXiv 2606.28560, in two variants that differ beyond training
length.

`powers` has a fixed reach, whatever the length it runs at. `powers_grown` is what the paper evaluated: the model is
rebuilt at the evaluation length and gains rungs that it was never trained with.
"""

from __future__ import annotations

from collections.abc import Sequence

from farspan.patterns.arguments import at_least
from farspan.patterns.card import Card
from farspan.patterns.rungs import window_and_rungs
from farspan.support import LARGEST, Lines

CARD = Card(
    "both",
    "slash",
    "fixed",
    "fixed",
    "all heads, or per head with one alpha each",
    False,
    "the log-sparse control of arXiv 2606.28560, section 4",
)


def powers(window: int, alpha: float | Sequence[float] = 1.0, reach: int = 1024, sinks: int = 0) -> Lines:
    """Distances `0 .. window - 1` and `round(alpha * p)` for the powers of two `p = 1, 2, 4, ... < reach`.

    Note that `reach = 1024` ends at 512: 1024 itself is out of reach of a sequence of 1024 tokens. One alpha for each
    head makes slashes `[heads, n]`. Every query also reads the first `sinks` keys.

    Raises:
        TypeError, ValueError: `window` or `reach` < 1, `sinks` < 0, or an `alpha` <= 0.
    """
    exponents = (at_least("reach", reach, 1, LARGEST) - 1).bit_length()
    return window_and_rungs(window, alpha, [2**e for e in range(exponents)], sinks)


def powers_grown(window: int, length: int, alpha: float | Sequence[float] = 1.0) -> Lines:
    """`powers` with the reach of the sequence it runs on: the paper's variant, rebuilt at every evaluation length.

    With alpha < 1 a query may read different keys in a longer sequence, so this rule cannot be used with a KV cache
    that grows past a power of two; `powers` can.

    Raises:
        TypeError, ValueError: `window` < 1, `length` < 1 or an `alpha` <= 0.
    """
    return powers(window, alpha, reach=at_least("length", length, 1))
