"""What the geometry of a pattern predicts about copying: rank correlation of accuracy with hops and path counts."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from farspan.patterns import rules
from farspan.studies.report.rows import ProbeRow

RESAMPLES = 2000
Measured = NDArray[np.float64]


@dataclass(frozen=True)
class Connections:
    """How a model's layers connect each distance 0 .. length - 1, as means over the queries that have it, `[length]`.

    A distance that no path has counts one hop more than there are layers, and a tenth of a path.
    """

    direct: Measured
    """Share of queries for which some layer reads the distance."""
    hops: Measured
    """Fewest layers that must move."""
    log_paths: Measured
    """log10 of the number of paths; where heads differ, each layer's step counts the share of heads that take it."""


@dataclass(frozen=True)
class Prediction:
    """Spearman's rho of accuracy with one property of the pattern, over arms and distances, and its 95 % interval.

    None where accuracy or the property is the same everywhere.
    """

    name: str
    cells: int
    rho: float | None
    low: float | None
    high: float | None


def connections(layers: Sequence[Mapping[str, Any]], length: int) -> Connections:
    """From the masks of static rules, one a layer, so that it holds for lines, blocks and tokens alike."""
    direct = np.zeros((length, length), dtype=bool)
    paths = np.eye(length)
    within = [np.eye(length, dtype=bool)] + [np.zeros((length, length), dtype=bool)] * len(layers)
    for rule in layers:
        mask = rules.build(rule, length).mask(length, length).numpy().reshape(-1, length, length)
        read = mask.any(0)
        direct |= read
        paths = mask.mean(0) @ paths
        step = read.astype(np.float32)
        moved = [(step @ found.astype(np.float32)) > 0 for found in within[:-1]]
        within = [within[0], *(a | b for a, b in zip(within[1:], moved, strict=True))]
    hops = np.full((length, length), len(layers) + 1.0)
    for number in reversed(range(len(within))):
        hops[within[number]] = number
    log_paths = np.log10(np.maximum(paths, 0.1))
    return Connections(*(_by_distance(matrix) for matrix in (direct, hops, log_paths)))


def _by_distance(matrix: NDArray[Any]) -> Measured:
    return np.array([np.diagonal(matrix, -distance).mean() for distance in range(len(matrix))])


def predictions(rows: Sequence[ProbeRow], *, seed: int = 0) -> list[Prediction]:
    """One a property, over the rows with static rules. The interval is over distances, of which all arms' cells are
    drawn together, since a distance may be hard for every pattern; it says nothing about other arms."""
    points = [
        (distance, accuracy, float(c.direct[distance]), -float(c.hops[distance]), float(c.log_paths[distance]))
        for row in rows
        if row.rules and all(rule.get("pattern") in rules.PATTERNS for rule in row.rules)
        for c in [connections(row.rules, row.length)]
        for distance, accuracy in row.accuracy.items()
    ]
    if not points:
        return []
    table = np.array(points)
    names = ("some layer reads it directly", "few hops", "many paths")
    draws = _draws(table[:, 0], seed)
    return [_prediction(name, table[:, 1], table[:, column], draws) for column, name in enumerate(names, start=2)]


def _draws(distances: Measured, seed: int) -> list[NDArray[np.intp]]:
    """Rows of the table for each resample: those of as many distances as there are, drawn with replacement."""
    random = np.random.default_rng(seed)
    groups = [np.flatnonzero(distances == distance) for distance in np.unique(distances)]
    return [
        np.concatenate([groups[i] for i in random.integers(len(groups), size=len(groups))]) for _ in range(RESAMPLES)
    ]


def _prediction(name: str, accuracy: Measured, value: Measured, draws: list[NDArray[np.intp]]) -> Prediction:
    rho = spearman(accuracy, value)
    if rho is None:
        return Prediction(name, len(value), None, None, None)
    drawn = [found for rows in draws if (found := spearman(accuracy[rows], value[rows])) is not None]
    low, high = np.quantile(drawn, [0.025, 0.975])
    return Prediction(name, len(value), rho, float(low), float(high))


def spearman(first: Measured, second: Measured) -> float | None:
    """Spearman's rank correlation, equal values at their mean rank; None where one side is all equal."""
    a, b = (ranks - ranks.mean() for ranks in (_ranks(first), _ranks(second)))
    scale = math.sqrt(float(a @ a) * float(b @ b))
    return float(a @ b) / scale if scale else None


def _ranks(values: Measured) -> Measured:
    _, inverse, counts = np.unique(values, return_inverse=True, return_counts=True)
    return (np.cumsum(counts) - (counts - 1) / 2)[inverse]
