"""What a designed schedule has to beat: the known schedules at as many pairs, over the same layers and reach."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from farspan.patterns import objectives, schedules
from farspan.patterns.design import Design
from farspan.patterns.fibonacci import base as fibonacci_numbers
from farspan.patterns.objectives import Objective, Schedule


@dataclass(frozen=True)
class Measures:
    """The geometry of a schedule; distances, keys and pairs count tiles where the design does."""

    name: str
    window: int
    keys: float
    """Distances a layer, the mean over layers."""
    pairs: float
    """Keys that a query reads in a sequence just long enough for the reach, the mean over queries and layers."""
    read: int
    """Different distances that some layer reads directly."""
    largest_hops: int | None
    """None if some distance is out of reach of all layers together."""
    mean_hops: float
    scores: dict[Objective, float]


def compared(design: Design) -> list[Measures]:
    """The design, and the Fibonacci and powers schedules, each with the window that brings it nearest to its pairs."""
    target = mean_pairs(design.distances, design.reach)
    layers = len(design.distances)
    fib = [f for f in fibonacci_numbers(60) if f <= design.reach * design.tile]
    powers = [2**e for e in range((design.reach * design.tile).bit_length())]
    rows = [_measures("designed", design.window, design.distances, design)]
    for name, base, alphas in (
        ("fib stagger", fib, schedules.stagger(layers)),
        ("fib coprime", fib, schedules.coprime(layers)),
        ("fib fixed", fib, schedules.fixed(layers)),
        ("powers stagger", powers, schedules.stagger(layers)),
    ):
        stretched = [{round(alpha * f / design.tile) for f in base} for alpha in alphas]
        tried: list[tuple[float, int, Schedule]] = []
        for window in range(1, design.reach + 2):
            schedule: Schedule = [
                sorted({*range(window), *(r for r in rungs if r <= design.reach)}) for rungs in stretched
            ]
            pairs = mean_pairs(schedule, design.reach)
            tried.append((abs(pairs - target), -window, schedule))
            if pairs >= target:
                break
        _, negative, nearest = min(tried, key=lambda one: one[:2])
        rows.append(_measures(name, -negative, nearest, design))
    return rows


def mean_pairs(layers: Schedule, reach: int) -> float:
    """Pairs per query and layer in a sequence of `reach` + 1 tokens or tiles."""
    return sum(1 - distance / (reach + 1) for layer in layers for distance in layer) / len(layers)


def _measures(name: str, window: int, layers: Schedule, design: Design) -> Measures:
    hops = objectives.hops_to(layers, design.reach)[1:]
    reached = hops[hops < objectives.FAR]
    return Measures(
        name,
        window,
        sum(map(len, layers)) / len(layers),
        mean_pairs(layers, design.reach),
        len({distance for layer in layers for distance in layer}),
        int(hops.max()) if len(reached) == len(hops) else None,
        float(reached.mean()),
        {one: objectives.score(one, layers, design.window, design.reach) for one in _OBJECTIVES},
    )


_OBJECTIVES: Sequence[Objective] = ("hops", "coverage", "paths")
