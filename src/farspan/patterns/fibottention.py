"""Fibottention: every head reads along a Fibonacci sequence of its own, a row of the Wythoff array."""

from __future__ import annotations

import math
import random

from farspan.patterns.arguments import at_least, flag
from farspan.patterns.card import Card
from farspan.support import Lines

CARD = Card(
    "both",
    "slash",
    "fixed",
    "fixed",
    "per head",
    False,
    "Fibottention, arXiv 2406.19391, section 3, and its authors' fibottention.py",
)


def fibottention(
    widest: int,
    layer: int,
    heads: int,
    narrowest: int = 5,
    modified: bool = False,
    window: int = 1,
    shuffle: bool = True,
) -> Lines:
    """The nearest `window` keys, and a row of `wythoff` for each head: slashes `[heads, n]`.

    The paper's attention looks both ways and stretches to a third of the (image's) tokens. This is its causal form:
    keys behind the query only, the query's own included, which the plain pattern lacks (`window = 0` leaves it out
    again: then the first queries of a head read nothing), and a reach that does not depend on the length. Which head
    gets which row is shuffled in each layer by Python's generator seeded with `layer`, as in the authors' code.

    Raises:
        TypeError, ValueError: `heads` or `narrowest` < 1, `widest` < `narrowest`, `layer` or `window` < 0, or
            `modified` or `shuffle` is not a boolean.
    """
    layer, window = at_least("layer", layer, 0), at_least("window", window, 0)
    rows = wythoff(heads, widest, narrowest, modified)
    if flag("shuffle", shuffle):
        random.Random(layer).shuffle(rows)
    return Lines([[*range(window), *row] for row in rows])


def wythoff(heads: int, widest: int, narrowest: int = 5, modified: bool = False) -> list[list[int]]:
    """The distances of each head, from the first row of the Wythoff array on: 1, 2, 3, 5, ..., then 4, 7, 11, ...

    Head i = 1 .. heads starts with a = floor(floor(i phi) phi) and b = floor(floor(i phi) phi^2); every further term is
    the sum of two. It keeps what is at most its width, which rises from `narrowest` to `widest` over the heads. Every
    distance belongs to one row, so no two heads share any. `modified` puts two terms before each row (2 a - b and
    b - a: distances 0 and 1 for the first); rows then overlap.

    Raises:
        TypeError, ValueError: `heads` or `narrowest` < 1, `widest` < `narrowest` or `modified` is not a boolean.
    """
    heads, narrowest = at_least("heads", heads, 1), at_least("narrowest", narrowest, 1)
    widest, modified = at_least("widest", widest, narrowest), flag("modified", modified)
    rows = []
    for i in range(1, heads + 1):
        a = _times_phi(_times_phi(i))
        b = a + _times_phi(i)
        width = narrowest + (widest - narrowest) * (i - 1) // max(heads - 1, 1)
        row = [2 * a - b, b - a, a, b] if modified else [a, b]
        while row[-1] <= width:
            row.append(row[-2] + row[-1])
        rows.append([d for d in row if d <= width])
    return rows


def _times_phi(i: int) -> int:
    """floor(i * phi) without rounding errors."""
    return (i + math.isqrt(5 * i * i)) // 2
