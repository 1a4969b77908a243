"""How many layers, and how many steps, connect each distance.

A position's information moves by the distances that layers read, and the residual stream carries it where no layer
moves it: distance 0 is free in every layer. A distance is *connected* by layers 1 .. l if it is a sum of one distance
(or 0) of each. All positions on such a path lie between its two ends, so the answer is the same for every pair of
positions at that distance. Verticals are left out; they only help keys at or before the last of them.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from farspan.patterns.coverage.sums import Array, runs_of, spread

NEVER = np.iinfo(np.uint32).max
"""Stands in the arrays of this module for a distance that is not connected."""


def layers_needed(sets: Sequence[Array], length: int) -> Array:
    """The smallest l for which the bottom l layers, in the order given, connect each distance.

    Args:
        sets: one sorted integer array of distances per layer, bottom to top.
        length: number of distances, `0 .. length - 1`.

    Returns uint32 `[length]`: 0 for distance 0, `NEVER` where the whole stack does not connect it.
    """
    out = np.full(length, NEVER, np.uint32)
    out[0] = 0
    reached = out == 0
    for layer, numbers in enumerate(sets, 1):
        grown = reached | spread(reached, runs_of(numbers[numbers > 0]), np.logical_or, False)
        out[grown & ~reached] = layer
        reached = grown
        if reached.all():
            break
    return out


def steps_needed(sets: Sequence[Array], length: int) -> Array:
    """The smallest number of layers of the stack that must move information to connect each distance.

    Every layer is used at most once; the others pass it on unmoved. The order of the layers does not matter.

    Returns uint32 `[length]`, `NEVER` where the stack does not connect the distance.
    """
    steps = np.full(length, NEVER, np.uint32)
    steps[0] = 0
    for numbers in sets:
        best = spread(steps, runs_of(numbers[numbers > 0]), np.minimum, NEVER)
        best[best < NEVER] += 1
        steps = np.minimum(steps, best)
    return steps


def hops(numbers: Array, length: int) -> Array:
    """The smallest number of steps that add up to each distance, each step any of `numbers`, any number of times.

    This is the hop count of the literature: the depth at which a stack of layers that each read all of `numbers`
    connects the distance. `NEVER` marks what no depth connects.

    Returns uint32 `[length]`.
    """
    steps = numbers[(numbers > 0) & (numbers < length)]
    out = np.full(length, NEVER, np.uint32)
    out[0] = 0
    if not len(steps):
        return out
    runs = runs_of(steps)
    shifts = sum(2 * (last - first + 1).bit_length() for first, last in runs)
    frontier, hop, left = np.zeros(1, np.int64), 0, length - 1
    while len(frontier) and left:
        hop += 1
        low, high = int(frontier[0]), int(min(frontier[-1] + steps[-1], length - 1))
        # Picking single numbers out of an array costs about a hundred times as much as moving along it.
        if 100 * len(frontier) * len(steps) <= shifts * (high - low + 1):
            found = np.sort((frontier[:, None] + steps).ravel())
            found = found[found < length]
            found = found[np.diff(found, prepend=-1) > 0]
        else:
            local = np.zeros(high - low + 1, bool)
            local[frontier - low] = True
            found = np.flatnonzero(spread(local, runs, np.logical_or, False)) + low
        frontier = found[out[found] == NEVER]
        out[frontier] = hop
        left -= len(frontier)
    return out
