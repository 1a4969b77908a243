"""Controls: another family at the cost or the reach of a given pattern (the comparisons the Fibonacci paper lacks)."""

from __future__ import annotations

from typing import Any, Literal

from farspan.patterns.arguments import at_least
from farspan.patterns.powers import powers
from farspan.patterns.window import sliding_window
from farspan.support import Lines

Measure = Literal["pairs", "reach"]
Family = Literal["sliding_window", "powers"]


def match(pattern: Lines, by: Measure, family: Family, *, length: int, alpha: float = 1.0, reach: int = 1024) -> Lines:
    """The member of `family` with as many pairs, or as long a reach, as `pattern` has at `length` tokens.

    By pairs the window is solved for, so the result differs by less than half a key per query. For the powers,
    `alpha` and `reach` are those of `patterns.powers`. By reach, the powers keep the window of `pattern` and are
    stretched until the largest rung equals the pattern's; a sliding window of equal reach is simply that long.

    Raises:
        ValueError: `by` or `family` is unknown, the pattern differs by head or has verticals, or no window fits.
    """
    spec = match_spec(pattern, by, family, length=length, alpha=alpha, reach=reach)
    if family == "sliding_window":
        return sliding_window(spec["window"])
    return powers(spec["window"], spec["alpha"], spec["reach"])


def match_spec(
    pattern: Lines, by: Measure, family: Family, *, length: int, alpha: float = 1.0, reach: int = 1024
) -> dict[str, Any]:
    """Like `match`, but returns the arguments of the pattern found, as a rule that a model config can hold."""
    if by not in ("pairs", "reach"):
        raise ValueError(f"by must be 'pairs' or 'reach', got {by!r}")
    if family not in ("sliding_window", "powers"):
        raise ValueError(f"family must be 'sliding_window' or 'powers', got {family!r}")
    if pattern.heads > 1 or pattern.batch > 1 or len(pattern.verticals):
        raise ValueError("pattern must be slashes shared by all heads, got lines that differ by head or verticals")
    at_least("length", length, 1)
    slashes = [d for d in pattern.slash_table.flatten().tolist() if d < length]
    if not slashes:
        raise ValueError(f"pattern must read at least one key at length {length}, got none")
    if by == "reach":
        if family == "sliding_window":
            return {"pattern": "sliding_window", "window": slashes[-1] + 1}
        window = next(w for w in range(len(slashes) + 1) if w == len(slashes) or slashes[w] != w)
        if slashes[-1] == 0:
            return {"pattern": "powers", "window": 1, "alpha": 1.0, "reach": 1}
        exponent = slashes[-1].bit_length() - 1
        return {
            "pattern": "powers",
            "window": max(window, 1),
            "alpha": slashes[-1] / 2**exponent,
            "reach": 2**exponent + 1,
        }
    rungs = [] if family == "sliding_window" else powers(1, alpha, reach).slash_table.flatten().tolist()

    def pairs(window: int) -> int:
        return int(Lines([*range(window), *(r for r in rungs if r >= window)]).pairs(length, length))

    target = int(pattern.pairs(length, length))

    low, high = 1, length
    while low < high:
        middle = (low + high) // 2
        low, high = (middle + 1, high) if pairs(middle) < target else (low, middle)
    window = min((w for w in (low - 1, low) if w >= 1), key=lambda w: abs(pairs(w) - target))
    if 2 * abs(pairs(window) - target) > length:
        raise ValueError(
            f"no {family} has {target} pairs at length {length}: the nearest, window {window}, has {pairs(window)}"
        )
    if family == "sliding_window":
        return {"pattern": "sliding_window", "window": window}
    return {"pattern": "powers", "window": window, "alpha": alpha, "reach": reach}
