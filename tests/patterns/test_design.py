"""Designed schedules: the scores are those of their definitions, the search finds what enumeration finds, and it beats
the paper's schedule on its own objective."""

from __future__ import annotations

import itertools
import math
from collections import Counter

import numpy as np
import pytest
import torch

from farspan.patterns import fibonacci, rules, schedules
from farspan.patterns.design import _Search, design
from farspan.patterns.design_controls import compared, mean_pairs
from farspan.patterns.objectives import FAR, coverage_score, hops_to, log_paths, octaves, paths_to, score

SMALL = [(0, 1, 4), (0, 2, 9), (0, 1, 5)]
"""A schedule small enough to list its paths."""


def paths() -> list[tuple[int, ...]]:
    return list(itertools.product(*SMALL))


def test_hops_are_the_fewest_layers_that_move() -> None:
    hops = hops_to(SMALL, 20)
    for distance in range(21):
        moved = [sum(step > 0 for step in path) for path in paths() if sum(path) == distance]
        assert hops[distance] == (min(moved) if moved else FAR)


def test_path_shares_count_every_path_once() -> None:
    counts = Counter(map(sum, paths()))
    share = paths_to(SMALL, 20)
    assert [round(s * len(paths())) for s in share] == [counts[d] for d in range(21)]
    assert 10 ** log_paths(SMALL) == pytest.approx(len(paths()))


def test_hops_and_paths_go_on_from_other_layers() -> None:
    assert np.array_equal(hops_to(SMALL[2:], 20, hops_to(SMALL[:2], 20)), hops_to(SMALL, 20))
    assert np.array_equal(paths_to(SMALL[2:], 20, paths_to(SMALL[:2], 20)), paths_to(SMALL, 20))


def test_scores_by_hand() -> None:
    layers = [(0, 1, 2, 5), (0, 1, 2, 8)]  # window 3; octaves 3, 4-7, 8-10
    assert octaves(3, 10) == [(3, 4), (4, 8), (8, 11)]
    assert coverage_score(layers, 3, 10) == pytest.approx(
        (0 + math.log(2) / math.log(5) + math.log(2) / math.log(4)) / 3
    )
    # One layer moves for 1, 2, 5 and 8, two for 3, 4, 6, 7, 9 and 10.
    assert score("hops", layers, 3, 10) == pytest.approx(-(2 + 16 / 10))
    # Paths: 3 as 1+2, 2+1; of 4-7 the least has one, as 4 = 2+2; of 8-10, as 9 = 1+8, 10 = 2+8, 8 = 0+8 alone.
    assert score("paths", layers, 3, 10) == pytest.approx(math.log10(2) / 3)


def test_a_distance_out_of_reach_costs_one_hop_more_than_all_layers() -> None:
    assert score("hops", [(0, 1), (0, 1)], 1, 3) == pytest.approx(-(3 + (1 + 2 + 3) / 3))
    assert score("paths", [(0, 1), (0, 1)], 1, 3) == pytest.approx((math.log10(2) - 1.0) / 2)


@pytest.mark.parametrize("objective", ["hops", "paths"])
def test_annealing_finds_what_enumeration_finds(objective: str) -> None:
    exact = design(2, 4, 16, objective, window=2)  # type: ignore[arg-type]
    assert exact.method == "enumerated"
    search = _Search(2, 2, 2, 16, objective)  # type: ignore[arg-type]
    worst = [(2, 3)] * 2
    assert search.score(worst) < exact.score
    assert search.score(search.annealed(worst, 5000, 1, None)) == pytest.approx(exact.score)


def test_the_optimum_of_coverage_is_that_of_enumeration() -> None:
    search = _Search(2, 2, 2, 12, "coverage")
    assert search.score(search.covering()) == pytest.approx(search.score(search.best(search.all())))


def test_a_design_is_a_function_of_its_arguments() -> None:
    first, again, other = (design(4, 8, 200, "hops", seed=seed, steps=2000) for seed in (0, 0, 1))
    assert first == again
    assert first.distances != other.distances
    assert first.method == "annealed"


@pytest.mark.parametrize("objective", ["hops", "coverage", "paths"])
@pytest.mark.parametrize("tile", [1, 4])
def test_every_layer_spends_its_budget_within_the_reach(objective: str, tile: int) -> None:
    found = design(5, 9, 300, objective, window=3, tile=tile, steps=500)  # type: ignore[arg-type]
    assert found.reach == 300 // tile
    for layer in found.distances:
        assert layer[:3] == (0, 1, 2)
        assert len(set(layer)) == 9
        assert max(layer) <= found.reach


def test_a_move_changes_at_most_one_rung_and_never_doubles_one() -> None:
    search, random, rungs = _Search(1, 5, 2, 12, "hops"), np.random.default_rng(0), (2, 3, 5, 8, 12)
    for _ in range(300):
        moved = search._moved(rungs, random)
        assert len(set(moved)) == 5
        assert len(set(moved) - set(rungs)) <= 1
        assert 2 <= min(moved) <= max(moved) <= 12
        rungs = moved


@pytest.mark.parametrize(("objective", "keys"), [("hops", 23), ("coverage", 22), ("paths", 20)])
def test_it_beats_the_stagger_of_the_paper_at_equal_pairs(objective: str, keys: int) -> None:
    reach = 1023
    stagger = [fibonacci(13, alpha).slash_table.flatten().tolist() for alpha in schedules.stagger(16)]
    paper = [[distance for distance in layer if distance <= reach] for layer in stagger]
    found = design(16, keys, reach, objective, window=11, steps=3000)  # type: ignore[arg-type]
    spent, allowed = mean_pairs(found.distances, reach), mean_pairs(paper, reach)
    assert allowed - 1 < spent <= allowed
    assert found.score > score(objective, paper, 11, reach)  # type: ignore[arg-type]


@pytest.mark.parametrize("tile", [1, 4])
def test_the_rules_read_the_distances_of_the_design(tile: int) -> None:
    found = design(3, 5, 60, "coverage", tile=tile)
    for rule, distances in zip(found.rules(), found.distances, strict=True):
        mask = rules.build(rule, 61).mask(61, 61)
        t = torch.arange(61)
        apart = t[:, None] // tile - t // tile
        expected = torch.isin(apart, torch.tensor(distances)) & (t[:, None] >= t)
        assert torch.equal(mask.reshape(61, 61), expected)
        last = rules.build(rule, 61, queries=7).mask(7, 61)
        assert torch.equal(last.reshape(7, 61), expected[-7:])


def test_controls_have_the_pairs_of_the_design() -> None:
    rows = compared(design(16, 24, 1023, "coverage"))
    assert [row.name for row in rows] == ["designed", "fib stagger", "fib coprime", "fib fixed", "powers stagger"]
    assert all(abs(row.pairs - rows[0].pairs) < 0.5 for row in rows)
    assert rows[0].scores["coverage"] == max(row.scores["coverage"] for row in rows)


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"layers": 0}, "layers must be an integer >= 1, got 0"),
        ({"layers": 254}, "layers must be below 254, got 254"),
        ({"keys": 1}, "keys must be an integer >= 2, got 1"),
        ({"window": 8}, "keys must lie above the window, 8"),
        ({"keys": 101}, "at most at the reach, 100 tokens, got 101"),
        ({"tile": 50}, "at most at the reach, 2 tiles of 50, got 8"),
        ({"objective": "speed"}, "objective must be one of hops, coverage, paths, got 'speed'"),
        ({"steps": -1}, "steps must be an integer >= 0, got -1"),
    ],
    ids=lambda value: value if isinstance(value, str) else "",
)
def test_wrong_arguments_are_refused_by_name(change: dict[str, object], words: str) -> None:
    arguments: dict[str, object] = {"layers": 2, "keys": 8, "reach": 100, "objective": "hops"}
    with pytest.raises(ValueError, match=words):
        design(**(arguments | change))  # type: ignore[arg-type]
