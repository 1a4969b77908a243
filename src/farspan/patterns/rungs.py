"""A dense window plus a stretched base sequence: what the Fibonacci and powers patterns share."""

from __future__ import annotations

from collections.abc import Iterable

from farspan.patterns.arguments import at_least, positive
from farspan.support import LARGEST, Lines


def window_and_rungs(window: int, alpha: float, base: Iterable[int]) -> Lines:
    """Distances `0 .. window - 1` and every `round(alpha * f)` beyond them.

    Rounds half to even, as Python does and the paper's code relies on (0.5 * 5 gives 2). Rungs inside the window drop
    out and equal ones collapse, so the number of keys differs between values of `alpha`.
    """
    window, alpha = at_least("window", window, 1), positive("alpha", alpha)
    rungs = []
    for f in base:
        if f > LARGEST / alpha:
            raise ValueError(f"alpha times the longest rung must stay below 2**31, got {alpha:g} * {float(f):g}")
        rungs.append(round(alpha * f))
    return Lines([*range(window), *(rung for rung in rungs if rung >= window)])
