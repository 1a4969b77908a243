"""Searching a schedule: for each layer, which distances to read beyond the window under a budget of keys per query.

What a schedule is worth is one of the scores of `objectives`. Coverage has an exact optimum. Hops and paths are
enumerated where there are few schedules; beyond, simulated annealing (Kirkpatrick, Gelatt and Vecchi, Science 220,
1983) starts from the best alpha schedule found on a grid and moves single rungs. The order of the layers changes no
score, so the result is ordered as in arXiv 2606.28560, with the longer rungs in the upper layers.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Any, get_args

import numpy as np

from farspan.patterns import objectives, schedules
from farspan.patterns.arguments import at_least
from farspan.patterns.fibonacci import base as fibonacci_numbers
from farspan.patterns.objectives import Objective, Schedule

ENUMERATED = 20_000
"""The most schedules that are enumerated."""
_VISIT = 32
"""Moves tried in one layer before the search goes on to the next: what the others contribute is computed once."""

Rungs = tuple[int, ...]
Progress = Callable[[int, int], None]


@dataclass(frozen=True)
class Design:
    """A schedule and what it was searched for. Distances, `keys`, `window` and `reach` count tiles of `tile` tokens."""

    distances: tuple[Rungs, ...]
    objective: Objective
    score: float
    keys: int
    window: int
    reach: int
    tile: int
    seed: int
    method: str

    def rules(self) -> list[dict[str, Any]]:
        """One rule per layer, bottom to top, as configs and study files hold them."""
        if self.tile == 1:
            return [{"pattern": "lines", "slashes": list(layer)} for layer in self.distances]
        return [{"pattern": "block_lines", "distances": list(layer), "block": self.tile} for layer in self.distances]


def design(
    layers: int,
    keys: int,
    reach: int,
    objective: Objective,
    *,
    window: int | None = None,
    tile: int = 1,
    seed: int = 0,
    steps: int = 100_000,
    progress: Progress | None = None,
) -> Design:
    """The best schedule found: `keys` distances in each of `layers`, of which the nearest `window` are dense.

    Args:
        reach: the distance in tokens up to which the objective counts; no rung is longer.
        window: half of `keys` by default, about the share it has in the paper's best model.
        tile: tokens in a tile; above 1 a query reads whole tiles, and `keys` and `window` count tiles.
        steps: moves that the annealing tries; the same seed and steps give the same schedule.
        progress: called with (moves tried, moves to try).

    Raises:
        TypeError, ValueError: an argument is out of range, or the budget leaves no rung or more rungs than distances.
    """
    layers, keys, tile = at_least("layers", layers, 1), at_least("keys", keys, 2), at_least("tile", tile, 1)
    steps = at_least("steps", steps, 0)
    if layers >= objectives.FAR - 1:
        raise ValueError(f"layers must be below {objectives.FAR - 1}, got {layers}")
    if objective not in get_args(Objective):
        raise ValueError(f"objective must be one of {', '.join(get_args(Objective))}, got {objective!r}")
    window = max(1, keys // 2) if window is None else at_least("window", window, 1)
    far = -(-at_least("reach", reach, 1) // tile)
    if not window < keys <= far:
        unit = "tokens" if tile == 1 else f"tiles of {tile}"
        raise ValueError(
            f"keys must lie above the window, {window}, and at most at the reach, {far} {unit}, got {keys}"
        )
    search = _Search(layers, keys - window, window, far, objective)
    if objective == "coverage":
        found, method = search.covering(), "exact"
    elif search.count <= ENUMERATED:
        found, method = search.best(search.all(), progress), "enumerated"
    else:
        found, method = search.annealed(search.best(search.alpha_schedules()), steps, seed, progress), "annealed"
    found.sort(key=lambda rungs: (sum(map(math.log, rungs)), rungs))
    whole = tuple((*range(window), *rungs) for rungs in found)
    return Design(whole, objective, search.score(found), keys, window, far, tile, seed, method)


@dataclass(frozen=True)
class _Search:
    """A schedule here is a list of the rungs of each layer, ascending; the window goes without saying."""

    layers: int
    rungs: int
    window: int
    reach: int
    objective: Objective

    def score(self, found: Iterable[Rungs]) -> float:
        return objectives.score(self.objective, self.whole(found), self.window, self.reach)

    def whole(self, found: Iterable[Rungs]) -> Schedule:
        return [[*range(self.window), *rungs] for rungs in found]

    @property
    def count(self) -> int:
        """Schedules there are, the order of layers aside."""
        sets = math.comb(self.reach - self.window + 1, self.rungs)
        return math.comb(sets + self.layers - 1, self.layers)

    def all(self) -> Iterable[list[Rungs]]:
        sets = itertools.combinations(range(self.window, self.reach + 1), self.rungs)
        return map(list, itertools.combinations_with_replacement(sets, self.layers))

    def best(self, candidates: Iterable[list[Rungs]], progress: Progress | None = None) -> list[Rungs]:
        best, top = [], -math.inf
        for number, candidate in enumerate(candidates):
            score = self.score(candidate)
            if score > top:
                best, top = candidate, score
            if progress is not None and number % _VISIT == 0:
                progress(number, self.count)
        return best

    def alpha_schedules(self) -> Iterable[list[Rungs]]:
        """Bases stretched over depth: Fibonacci, powers and the ladder of as many rungs as the budget has, over a grid
        of ranges."""
        ratio = (self.reach / self.window) ** (1 / self.rungs)
        bases: list[list[float]] = [
            [float(f) for f in fibonacci_numbers(60) if f <= 4 * self.reach],
            [2.0**e for e in range((4 * self.reach).bit_length())],
            [self.window * ratio**k for k in range(self.rungs)],
        ]
        ranges = [(0.5, 1.5), (0.5, 1.0), (1.0, 2.0), (0.25, 1.0), (1.0, ratio), (1.0, 1.0)]
        for base, (low, high) in itertools.product(bases, ranges):
            alphas = schedules.stagger(self.layers, low, high)
            yield [self._filled({round(alpha * f) for f in base}) for alpha in alphas]

    def _filled(self, wanted: set[int]) -> Rungs:
        """Those of `wanted` beyond the window, thinned or filled up to the budget so that the ladder stays even."""
        rungs = sorted(d for d in wanted if self.window <= d <= self.reach)
        while len(rungs) > self.rungs:
            ends = [self.window - 1, *rungs, self.reach + 1]
            rungs.pop(min(range(len(rungs)), key=lambda i: ends[i + 2] / max(ends[i], 1)))
        while len(rungs) < self.rungs:
            ends = [self.window - 1, *rungs, self.reach + 1]
            gaps = [(high / max(low, 1), low, high) for low, high in itertools.pairwise(ends) if high > low + 1]
            _, low, high = max(gaps)
            rungs = sorted([*rungs, min(max(round(math.sqrt(max(low, 1) * high)), low + 1), high - 1)])
        return tuple(rungs)

    def covering(self) -> list[Rungs]:
        """The optimum of coverage: the budget is dealt to the octaves one distance at a time, each where it adds most,
        which is exact since what a further one adds only falls. Octaves are read evenly, layers get every n-th."""
        octaves = objectives.octaves(self.window, self.reach)
        sizes = [high - low for low, high in octaves]
        counts = [0] * len(sizes)
        for _ in range(min(self.layers * self.rungs, sum(sizes))):
            gains = [
                math.log((2 + n) / (1 + n)) / math.log1p(size) if n < size else -1.0
                for n, size in zip(counts, sizes, strict=True)
            ]
            counts[gains.index(max(gains))] += 1
        read = [
            low + (2 * k + 1) * (high - low) // (2 * n)
            for (low, high), n in zip(octaves, counts, strict=True)
            for k in range(n)
        ]
        return [self._filled(set(read[layer :: self.layers])) for layer in range(self.layers)]

    def annealed(self, found: list[Rungs], steps: int, seed: int, progress: Progress | None) -> list[Rungs]:
        """Moves single rungs, near or far, and takes a loss of score with a probability that falls to nothing."""
        random = np.random.default_rng(seed)
        found, now = list(found), self.score(found)
        best, top = list(found), now
        losses: list[float] = []
        for done in range(0, steps, _VISIT):
            layer = int(random.integers(self.layers))
            score_with = self._given(found[:layer] + found[layer + 1 :])
            for step in range(done, min(done + _VISIT, steps)):
                moved = self._moved(found[layer], random)
                score = score_with(moved)
                if score < now and len(losses) < 100:
                    losses.append(now - score)
                heat = 0.3 * float(np.median(losses)) * (1 - step / steps) ** 3 if losses else 0.0
                if score >= now or (heat > 0 and random.random() < math.exp((score - now) / heat)):
                    found[layer], now = moved, score
                    if now > top:
                        best, top = list(found), now
            if progress is not None:
                progress(min(done + _VISIT, steps), steps)
        return best

    def _moved(self, rungs: Rungs, random: np.random.Generator) -> Rungs:
        """The rungs with one of them elsewhere: half the time anywhere on a logarithmic axis, else nearby."""
        at = int(random.integers(len(rungs)))
        if random.random() < 0.5:
            new = self.window * math.exp(random.random() * math.log((self.reach + 1) / self.window))
        else:
            new = rungs[at] * math.exp(0.1 * random.standard_normal()) + random.integers(-1, 2)
        new = min(max(int(new), self.window), self.reach)
        return rungs if new in rungs else tuple(sorted((*rungs[:at], *rungs[at + 1 :], new)))

    def _given(self, others: list[Rungs]) -> Callable[[Rungs], float]:
        """The score as a function of one layer's rungs, the other layers fixed."""
        if self.objective == "hops":
            hops = objectives.hops_to(self.whole(others), self.reach)
            return lambda rungs: objectives.hops_score(
                objectives.hops_to(self.whole([rungs]), self.reach, hops), self.layers
            )
        shares = objectives.paths_to(self.whole(others), self.reach)
        total = self.layers * math.log10(self.window + self.rungs)
        return lambda rungs: objectives.paths_score(
            objectives.paths_to(self.whole([rungs]), self.reach, shares), total, self.window
        )
