"""A dense window plus Fibonacci distances, stretched by alpha (arXiv 2606.28560)."""

from __future__ import annotations

from collections.abc import Sequence

from farspan.patterns.arguments import at_least
from farspan.patterns.card import Card
from farspan.patterns.rungs import window_and_rungs
from farspan.support import Lines

CARD = Card(
    "both",
    "slash",
    "fixed",
    "fixed",
    "all heads, or per head with one alpha each",
    False,
    "Depth-Staggered Fibonacci Spacing, arXiv 2606.28560, section 3",
)


def base(rungs: int) -> list[int]:
    """The first `rungs` Fibonacci numbers without the doubled 1: 1, 2, 3, 5, 8, ..."""
    numbers = [1, 2]
    while len(numbers) < at_least("rungs", rungs, 0, 1000):
        numbers.append(numbers[-1] + numbers[-2])
    return numbers[:rungs]


def fibonacci(window: int, alpha: float | Sequence[float] = 1.0, rungs: int = 15, sinks: int = 0) -> Lines:
    """Distances `0 .. window - 1` and `round(alpha * f)` for the first `rungs` Fibonacci numbers f.

    The paper's W is `window - 1`; its models have `rungs = 15` (up to 987 alpha) and one alpha for all heads. One alpha
    for each head makes slashes `[heads, n]`. Every query also reads the first `sinks` keys; the paper has none. The
    pattern is the same at every length: a rung longer than the sequence adds nothing until the sequence is long enough.

    Raises:
        TypeError, ValueError: `window` < 1, `rungs` or `sinks` < 0, or an `alpha` <= 0.
    """
    return window_and_rungs(window, alpha, base(rungs), sinks)
