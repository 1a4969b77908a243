"""StreamingLLM: the first few keys, on which attention rests, and a sliding window."""

from __future__ import annotations

from farspan.patterns.arguments import at_least
from farspan.patterns.card import Card
from farspan.support import Lines

CARD = Card("both", "window", "fixed", "fixed", "all heads", False, "StreamingLLM, arXiv 2309.17453, section 3.2")


def streaming_llm(window: int, sinks: int = 4) -> Lines:
    """The nearest `window` keys, the query included, and the first `sinks` keys of the sequence, for all heads.

    The paper also numbers the positions of a cache anew when keys leave it; that is the model's matter, not the
    pattern's: here keys keep their positions.

    Raises:
        TypeError, ValueError: `window` < 1 or `sinks` < 0.
    """
    return Lines(range(at_least("window", window, 1)), range(at_least("sinks", sinks, 0)))
