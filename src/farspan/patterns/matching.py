"""Controls: another family at the cost or the reach of a given pattern (the comparisons the Fibonacci paper lacks)."""

from __future__ import annotations

from typing import Any, Literal

import torch

from farspan.patterns.arguments import at_least
from farspan.patterns.coverage.distances import distances, nearest_run
from farspan.patterns.powers import powers
from farspan.patterns.rules import build
from farspan.support import Lines, Support

Measure = Literal["pairs", "reach", "flops"]
Family = Literal["sliding_window", "powers", "random"]


def match(
    pattern: Support,
    by: Measure,
    family: Family,
    *,
    length: int,
    alpha: float = 1.0,
    reach: int = 1024,
    seed: int = 0,
    layer: int = 0,
) -> Support:
    """The member of `family` with as many pairs, or as long a reach, as `pattern` has at `length` tokens.

    The control is shared by all heads; where those of the pattern differ, it has their mean number of pairs.

    * By pairs, the number of keys is solved for: the result differs by at most half a key per query. For the powers,
      `alpha` and `reach` are those of `patterns.powers` and the window gives way; the random pattern keeps the nearest
      keys that all queries of all heads of `pattern` read, and draws the others with `seed` and `layer`.
    * By FLOPs is by pairs: attention over any support costs the same for each of its pairs (`Support.cost`).
    * By reach, the longest distance that any query reads, the powers keep the nearest keys as above and are stretched
      until their largest rung equals it; a sliding window of equal reach is simply that long. Keys that every query
      reads (verticals) have no distance and do not count.

    Raises:
        ValueError: `by` or `family` is unknown, no member has that many pairs, random keys are asked for by reach, or
            the pattern reads nothing or differs by batch row.
    """
    spec = match_spec(pattern, by, family, length=length, alpha=alpha, reach=reach, seed=seed, layer=layer)
    return build(spec, length)


def match_spec(
    pattern: Support,
    by: Measure,
    family: Family,
    *,
    length: int,
    alpha: float = 1.0,
    reach: int = 1024,
    seed: int = 0,
    layer: int = 0,
) -> dict[str, Any]:
    """Like `match`, but returns the pattern found as a rule that a model config can hold."""
    if by not in ("pairs", "reach", "flops"):
        raise ValueError(f"by must be 'pairs', 'reach' or 'flops', got {by!r}")
    if family not in ("sliding_window", "powers", "random"):
        raise ValueError(f"family must be 'sliding_window', 'powers' or 'random', got {family!r}")
    if pattern.batch > 1:
        raise ValueError(f"pattern must be the same for all batch rows, got {pattern.batch} of them")
    target = _pairs(pattern, at_least("length", length, 1))
    if not target:
        raise ValueError(f"pattern must read at least one key at length {length}, got none")
    if by == "reach":
        return _of_reach(pattern, family, length)
    if family == "powers":
        window = _solved(target, family, length, powers(1, alpha, reach).slash_table.flatten().tolist())
        return {"pattern": "powers", "window": window, "alpha": alpha, "reach": reach}
    keys = _solved(target, family, length, [])
    if family == "sliding_window":
        return {"pattern": "sliding_window", "window": keys}
    window = min(max(nearest_run(pattern, length), 1), keys)
    return {"pattern": "random", "window": window, "keys": keys, "seed": seed, "layer": layer}


def _of_reach(pattern: Support, family: Family, length: int) -> dict[str, Any]:
    read = distances(pattern, length)
    if not len(read):
        raise ValueError(f"pattern must read at least one distance at length {length}, got verticals alone")
    longest = int(read[-1])
    if family == "random":
        raise ValueError("family must be 'sliding_window' or 'powers' by reach: random keys are drawn from everywhere")
    if family == "sliding_window":
        return {"pattern": "sliding_window", "window": longest + 1}
    if longest == 0:
        return {"pattern": "powers", "window": 1, "alpha": 1.0, "reach": 1}
    largest = 2 ** (longest.bit_length() - 1)
    window = max(nearest_run(pattern, length), 1)
    return {"pattern": "powers", "window": window, "alpha": longest / largest, "reach": largest + 1}


def _solved(target: float, family: Family, length: int, rungs: list[int]) -> int:
    """The window that, with these rungs beyond it, has about `target` pairs."""

    def pairs(window: int) -> float:
        return _pairs(Lines([*range(window), *(rung for rung in rungs if rung >= window)]), length)

    low, high = 1, length
    while low < high:
        middle = (low + high) // 2
        low, high = (middle + 1, high) if pairs(middle) < target else (low, middle)
    window = min((w for w in (low - 1, low) if w >= 1), key=lambda w: abs(pairs(w) - target))
    if 2 * abs(pairs(window) - target) > length:
        raise ValueError(
            f"no {family} has {target:g} pairs at length {length}: the nearest, window {window}, has {pairs(window):g}"
        )
    return window


def _pairs(support: Support, length: int) -> float:
    """Mean over heads."""
    return torch.as_tensor(support.pairs(length, length), dtype=torch.float64).mean().item()
