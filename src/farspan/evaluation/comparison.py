"""Is the difference between two models more than chance? Compared token by token on identical tokens.

What makes a text hard then cancels. One pair of models gets the block bootstrap of `bootstrap.py`. With
several training seeds the difference is the mean over pairs of equal seed. Its squared standard error is the
variance of the seeds' differences over their number (training noise) plus the bootstrap variance of the
seed-averaged difference (noise of the held-out text); the interval is +- t times the error, degrees of
freedom after Welch and Satterthwaite. The two parts overlap a little, so it errs towards a tie. One seed says
nothing about training noise.

Below 8 blocks no verdict is given. Each interval stands alone: nothing is corrected for making many
comparisons.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Literal

import numpy as np
from numpy.typing import NDArray

from farspan.evaluation.bootstrap import block_starts, bootstrap, resolve_block_length, t_quantile
from farspan.evaluation.perplexity import bin_edges
from farspan.evaluation.windows import Scored

Verdict = Literal["a better", "b better", "tie", "too few blocks"]
Arm = Scored | Mapping[int, Scored]
"""One trained model, or the models of several training seeds, keyed by seed."""

FEWEST_BLOCKS = 8


@dataclass(frozen=True)
class Comparison:
    """`difference` is the loss of a minus that of b, nats a token: negative when a is better.

    low, high: 95 % interval, None from a single block. seeds: those paired; per_seed: their differences. The
    interval includes training noise only with two seeds or more. verdict: "tie" if the interval holds 0.
    """

    difference: float
    low: float | None
    high: float | None
    verdict: Verdict
    tokens: int
    blocks: int
    seeds: tuple[int, ...]
    per_seed: tuple[float, ...]


@dataclass(frozen=True)
class BinComparison:
    """Comparison over tokens with context in `[begin, end)`; None where there is no such token."""

    begin: int
    end: int
    comparison: Comparison | None


@dataclass(frozen=True)
class Standing:
    """One model of a ranking: its mean loss over seeds, and the comparison of it (a) with the best (b)."""

    name: str
    nll: float
    ties_with_best: bool
    against_best: Comparison | None


def compare(
    a: Arm,
    b: Arm,
    *,
    min_context: int = 0,
    block_length: int | None = None,
    resamples: int = 2000,
    seed: int = 0,
) -> Comparison:
    """Mean loss of a minus b over the tokens whose context is at least `min_context`.

    With `min_context=train_length` only tokens beyond the training length count. Arms of several seeds are
    paired on the seeds they share. block_length: tokens, by default the longest evaluation length, at least
    2048. Raises ValueError unless both were scored on the same tokens (and, where context selects, with the
    same context).
    """
    pairs = _pairs(a, b)
    first = next(iter(pairs.values()))[0]
    if min_context > 0:
        _check_same_context(pairs)
    counted = first.context >= min_context
    if not counted.any():
        raise ValueError(
            f"min_context must leave tokens to compare; the longest context is {first.context.max()}, got {min_context}"
        )
    return _compare(pairs, counted, block_length, resamples, seed)


def compare_bins(
    a: Arm,
    b: Arm,
    edges: Sequence[int] | None = None,
    *,
    block_length: int | None = None,
    resamples: int = 2000,
    seed: int = 0,
) -> list[BinComparison]:
    """`compare` within bins of context `[edge, next edge)`: 0, 1, 2, 4, 8, ... unless given.

    Only blocks that hold tokens of a bin count as its blocks: under the sliding protocol short contexts occur
    at the very start of the stream alone, and get no verdict.
    """
    pairs = _pairs(a, b)
    _check_same_context(pairs)
    context = next(iter(pairs.values()))[0].context
    if edges is None:
        edges = bin_edges(int(context.max()))
    bins = []
    for begin, end in pairwise(edges):
        counted = (context >= begin) & (context < end)
        comparison = _compare(pairs, counted, block_length, resamples, seed) if counted.any() else None
        bins.append(BinComparison(int(begin), int(end), comparison))
    return bins


def rank(
    arms: Mapping[str, Arm],
    *,
    min_context: int = 0,
    block_length: int | None = None,
    resamples: int = 2000,
    seed: int = 0,
) -> list[Standing]:
    """Models by rising mean loss, each compared with the first, over the training seeds that all share."""
    if not arms:
        raise ValueError("arms must hold at least one model, got none")
    by_seed = {name: _by_seed(arm) for name, arm in arms.items()}
    shared = set.intersection(*(set(seeds) for seeds in by_seed.values()))
    if not shared:
        raise ValueError(f"arms must share at least one seed, got {[sorted(s) for s in by_seed.values()]}")
    means: dict[str, float] = {}
    for name, seeds in by_seed.items():
        by_seed[name] = {number: seeds[number] for number in sorted(shared)}
        losses = [s.nll[s.context >= min_context].mean(dtype=np.float64) for s in by_seed[name].values()]
        means[name] = float(np.mean(losses))
    order = sorted(means, key=lambda name: means[name])
    best = order[0]
    standings = [Standing(best, means[best], True, None)]
    for name in order[1:]:
        against = compare(
            by_seed[name],
            by_seed[best],
            min_context=min_context,
            block_length=block_length,
            resamples=resamples,
            seed=seed,
        )
        standings.append(Standing(name, means[name], against.verdict == "tie", against))
    return standings


def _compare(
    pairs: Mapping[int, tuple[Scored, Scored]],
    counted: NDArray[np.bool_],
    block_length: int | None,
    resamples: int,
    seed: int,
) -> Comparison:
    models = [model for pair in pairs.values() for model in pair]
    blocks = block_starts(len(counted), resolve_block_length(models, block_length))
    gaps = np.stack([a.nll.astype(np.float64) - b.nll for a, b in pairs.values()])
    sample = bootstrap(gaps.mean(axis=0), counted, blocks, resamples, seed)
    per_seed = gaps[:, counted].mean(axis=1)
    low, high = sample.low, sample.high
    if len(pairs) > 1 and sample.error is not None:
        training = float(per_seed.var(ddof=1)) / len(pairs)
        text = sample.error**2
        spread = training**2 / (len(pairs) - 1) + text**2 / (sample.blocks - 1)
        reach = 0.0
        if spread > 0:
            reach = t_quantile(max(1.0, (training + text) ** 2 / spread)) * math.sqrt(training + text)
        low, high = sample.mean - reach, sample.mean + reach
    verdict: Verdict
    if sample.blocks < FEWEST_BLOCKS or low is None or high is None:
        verdict = "too few blocks"
    elif high < 0:
        verdict = "a better"
    elif low > 0:
        verdict = "b better"
    else:
        verdict = "tie"
    return Comparison(
        sample.mean, low, high, verdict, sample.tokens, sample.blocks, tuple(pairs), tuple(per_seed.tolist())
    )


def _by_seed(arm: Arm) -> dict[int, Scored]:
    return {0: arm} if isinstance(arm, Scored) else dict(arm)


def _pairs(a: Arm, b: Arm) -> dict[int, tuple[Scored, Scored]]:
    left, right = _by_seed(a), _by_seed(b)
    shared = sorted(left.keys() & right.keys())
    if not shared:
        raise ValueError(f"a and b must share at least one seed, got {sorted(left)} and {sorted(right)}")
    pairs = {number: (left[number], right[number]) for number in shared}
    position = left[shared[0]].position
    for number, pair in pairs.items():
        for name, scored in zip("ab", pair, strict=True):
            if not np.array_equal(scored.position, position):
                raise ValueError(
                    f"a and b must be scored on the same tokens, got {len(position)} and "
                    f"{len(scored)} tokens at different positions ({name}, seed {number})"
                )
            if not np.isfinite(scored.nll).all():
                raise ValueError(f"nll must be finite, got {scored.nll[~np.isfinite(scored.nll)][0]} in {name}")
    return pairs


def _check_same_context(pairs: Mapping[int, tuple[Scored, Scored]]) -> None:
    context = next(iter(pairs.values()))[0].context
    if not all(np.array_equal(scored.context, context) for pair in pairs.values() for scored in pair):
        raise ValueError("a and b must be scored with the same context, got different lengths or strides")
