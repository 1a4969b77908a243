"""Block bootstrap: how far a mean over one held-out text may be from the mean over all such text.

Neighbouring tokens are not independent (they share a document, and a window's start), so whole blocks of the
stream are resampled, never tokens. A block is at least as long as the longest evaluation length, so that a
window rarely spans more than two, and at least 2048 tokens, about a document: larger blocks cost certainty,
smaller claim too much.

Intervals are 95 % percentile intervals with tails widened from normal to Student's t with `blocks - 1`
degrees of freedom, without which they are too narrow for few blocks (Hesterberg, "What Teachers Should Know
About the Bootstrap", The American Statistician 69:4, 2015, "expanded percentile").
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from statistics import NormalDist

import numpy as np
from numpy.typing import NDArray

from farspan.evaluation.windows import Scored

SHORTEST_BLOCK = 2048
_RESAMPLED_AT_ONCE = 2**22


@dataclass(frozen=True)
class Interval:
    """Mean in nats, 95 % interval and standard error over held-out text; None where there is one block."""

    mean: float
    low: float | None
    high: float | None
    error: float | None
    tokens: int
    blocks: int


def mean_interval(scored: Scored, *, block_length: int | None = None, resamples: int = 2000, seed: int = 0) -> Interval:
    """95 % interval of one model's mean loss. Models must not be compared by it: `compare` is far sharper."""
    blocks = block_starts(len(scored), resolve_block_length([scored], block_length))
    return bootstrap(scored.nll, np.ones(len(scored), dtype=bool), blocks, resamples, seed)


def bootstrap(
    values: NDArray[np.floating],
    counted: NDArray[np.bool_],
    blocks: NDArray[np.int64],
    resamples: int,
    seed: int,
) -> Interval:
    """Mean of those values `[n]` that are counted (bool `[n]`); `blocks` holds the first index of each block.

    Blocks without a counted value say nothing and are left out, also of the number of blocks.
    """
    if resamples < 100:
        raise ValueError(f"resamples must be at least 100, got {resamples}")
    sums = np.add.reduceat(np.where(counted, values, 0).astype(np.float64), blocks)
    counts = np.add.reduceat(counted.astype(np.int64), blocks)
    sums, counts = sums[counts > 0], counts[counts > 0]
    mean = float(sums.sum() / counts.sum())
    number, tokens = len(counts), int(counts.sum())
    if number < 2:
        return Interval(mean, None, None, None, tokens, number)
    random = np.random.default_rng(seed)
    step = max(1, _RESAMPLED_AT_ONCE // number)
    means = []
    for begin in range(0, resamples, step):
        drawn = random.integers(number, size=(min(step, resamples - begin), number))
        means.append(sums[drawn].sum(axis=1) / counts[drawn].sum(axis=1))
    drawn_means = np.concatenate(means)
    inflation = math.sqrt(number / (number - 1))
    tail = NormalDist().cdf(-inflation * t_quantile(number - 1))
    low, high = np.quantile(drawn_means, [tail, 1 - tail])
    error = float(drawn_means.std()) * inflation
    return Interval(mean, float(low), float(high), error, tokens, number)


def t_quantile(freedom: float) -> float:
    """The 97.5 % quantile of Student's t, to 1e-3; fewer than ten degrees of freedom are rounded down."""
    exact = (12.7062, 4.3027, 3.1824, 2.7764, 2.5706, 2.4469, 2.3646, 2.3060, 2.2622)
    if freedom < 1:
        raise ValueError(f"freedom must be at least 1, got {freedom}")
    if freedom < len(exact) + 1:
        return exact[int(freedom) - 1]
    # Abramowitz and Stegun 26.7.5.
    z = NormalDist().inv_cdf(0.975)
    return (
        z
        + (z**3 + z) / (4 * freedom)
        + (5 * z**5 + 16 * z**3 + 3 * z) / (96 * freedom**2)
        + (3 * z**7 + 19 * z**5 + 17 * z**3 - 15 * z) / (384 * freedom**3)
    )


def resolve_block_length(models: Sequence[Scored], block_length: int | None) -> int:
    """Tokens in a block; by default the longest evaluation length, at least `SHORTEST_BLOCK`."""
    longest = max(scored.length for scored in models)
    if block_length is None:
        return max(longest, SHORTEST_BLOCK)
    if block_length < longest:
        raise ValueError(f"block_length must be at least the evaluation length ({longest}), got {block_length}")
    return block_length


def block_starts(n: int, block_length: int) -> NDArray[np.int64]:
    """First index of each of `n // block_length` blocks (at least one), equal in size to within a token."""
    number = max(1, n // block_length)
    return np.arange(number, dtype=np.int64) * n // number
