"""What a schedule of distances is worth: three exact scores that `design` maximises.

A schedule is one set of distances a layer. A path of distance d takes one distance from the set of every layer, d in
sum; its hops are the layers that moved. Both count the whole depth, so the order of the layers does not matter.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Sequence
from typing import Literal

import numpy as np
from numpy.typing import NDArray

from farspan.patterns.coverage.sums import runs_of, spread

Objective = Literal["hops", "coverage", "paths"]
Schedule = Sequence[Sequence[int]]
"""For each layer its distances, 0 included, in tokens or in tiles."""

FAR = 255
"""Hops of a distance that no path leads to."""


def hops_to(layers: Schedule, reach: int, start: NDArray[np.uint8] | None = None) -> NDArray[np.uint8]:
    """uint8 `[reach + 1]`: `coverage.steps_needed` of the distances 0 .. reach, `FAR` where no path leads.

    `start` goes on from the hops of other layers, which is what makes a search over one layer fast.
    """
    hops = np.full(reach + 1, FAR, dtype=np.uint8) if start is None else start
    if start is None:
        hops[0] = 0
    for layer in layers:
        moved = np.minimum(hops, np.uint8(FAR - 1)) + np.uint8(1)
        hops = np.minimum(hops, spread(moved, runs_of(np.asarray(layer)), np.minimum, FAR))
    return hops


def paths_to(layers: Schedule, reach: int, start: NDArray[np.float64] | None = None) -> NDArray[np.float64]:
    """float64 `[reach + 1]`: `coverage.path_counts` of the distances 0 .. reach as shares of all paths.

    `start` goes on from the shares of other layers.
    """
    share = np.zeros(reach + 1) if start is None else start
    if start is None:
        share[0] = 1.0
    for layer in layers:
        share = spread(share, runs_of(np.asarray(layer)), np.add, 0.0) / len(layer)
    return share


def score(objective: Objective, layers: Schedule, window: int, reach: int) -> float:
    """The score of a schedule over the distances up to `reach`; more is better.

    hops: largest plus mean hops over 1 .. reach, negated; an unreachable distance counts one hop more than all layers.
    coverage: how well the layers together read the distances beyond the window directly, 0 to 1, see `coverage_score`.
    paths: mean over the octaves beyond the window of log10 of the path count to the octave's least connected distance.
    """
    if objective == "coverage":
        return coverage_score(layers, window, reach)
    if objective == "hops":
        return hops_score(hops_to(layers, reach), len(layers))
    return paths_score(paths_to(layers, reach), log_paths(layers), window)


def hops_score(hops: NDArray[np.uint8], layers: int) -> float:
    """The score of `hops_to`'s result."""
    counted = np.minimum(hops[1:], layers + 1)
    return -float(counted.max() + counted.mean())


def paths_score(share: NDArray[np.float64], total: float, window: int) -> float:
    """The score of `paths_to`'s result; `total` is that of `log_paths`. No path counts as a tenth of one."""
    worst = [share[low:high].min() for low, high in octaves(window, len(share) - 1)]
    return sum(max(math.log10(least) + total, -1.0) if least > 0 else -1.0 for least in worst) / len(worst)


def coverage_score(layers: Schedule, window: int, reach: int) -> float:
    """Mean over the octaves beyond the window of log(1 + distances some layer reads) / log(1 + distances there are).

    Each octave counts alike, and within one every further distance counts less: a schedule that reads one octave whole
    leaves all others to sums over layers, which training rarely finds (static-patterns.md A6).
    """
    read = np.unique(np.concatenate([np.asarray(layer, dtype=np.int64) for layer in layers]))
    shares = [
        math.log1p(int(np.count_nonzero((read >= low) & (read < high)))) / math.log1p(high - low)
        for low, high in octaves(window, reach)
    ]
    return sum(shares) / len(shares)


def octaves(window: int, reach: int) -> list[tuple[int, int]]:
    """The distances window .. reach cut at the powers of two, as (first, one past the last)."""
    cuts = [window, *(2**e for e in range(reach.bit_length()) if window < 2**e <= reach), reach + 1]
    return list(itertools.pairwise(cuts))


def log_paths(layers: Schedule) -> float:
    """log10 of the number of all paths."""
    return sum(math.log10(len(layer)) for layer in layers)
