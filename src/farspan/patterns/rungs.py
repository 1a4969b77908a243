"""A dense window plus a stretched base sequence: what the Fibonacci and powers patterns share."""

from __future__ import annotations

from collections.abc import Sequence

from farspan.patterns.arguments import at_least, positives
from farspan.support import LARGEST, Lines


def window_and_rungs(window: int, alpha: float | Sequence[float], base: Sequence[int], sinks: int = 0) -> Lines:
    """Distances `0 .. window - 1`, every `round(alpha * f)` beyond them, and the first `sinks` keys.

    Several alphas are one for each head. Rounds half to even, as Python does and the paper's code relies on (0.5 * 5
    gives 2). Rungs inside the window drop out and equal ones collapse, so the number of keys differs between values of
    `alpha`.
    """
    window, alphas, sinks = at_least("window", window, 1), positives("alpha", alpha), at_least("sinks", sinks, 0)
    heads = [[*range(window), *(rung for rung in _rungs(one, base) if rung >= window)] for one in alphas]
    return Lines(heads, range(sinks))


def _rungs(alpha: float, base: Sequence[int]) -> list[int]:
    for f in base:
        if f > LARGEST / alpha:
            raise ValueError(f"alpha times the longest rung must stay below 2**31, got {alpha:g} * {float(f):g}")
    return [round(alpha * f) for f in base]
