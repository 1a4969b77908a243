"""The sliding window: every query reads the nearest keys."""

from __future__ import annotations

from farspan.patterns.arguments import at_least
from farspan.patterns.card import Card
from farspan.support import Lines

CARD = Card("both", "window", "fixed", "fixed", "all heads", False, "Longformer, arXiv 2004.05150, section 3")


def sliding_window(window: int) -> Lines:
    """Every query reads the nearest `window` keys, itself included: `window = 1` reads only itself.

    Raises:
        TypeError, ValueError: `window` is not an integer >= 1.
    """
    return Lines(range(at_least("window", window, 1)))
