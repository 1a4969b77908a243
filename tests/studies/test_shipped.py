"""The shipped studies compare what they say they compare."""

from __future__ import annotations

from collections.abc import Iterable
from statistics import fmean

import pytest
import torch

from farspan.patterns import rules
from farspan.patterns.design import design
from farspan.studies.schema import Cell, load


def one_cell_an_arm(name: str, task: str) -> list[Cell]:
    """The first cell of every arm but dense."""
    cells = {cell.label: cell for cell in reversed(load(name).cells()) if cell.task == task and cell.label != "dense"}
    return list(reversed(cells.values()))


def pairs_per_token(cell: Cell) -> float:
    """Mean over layers, heads and tokens, at the training length."""
    length = cell.recipe.length
    supports = [rules.build(rule, length) for rule in cell.rules]
    return (
        fmean(torch.as_tensor(one.pairs(length, length), dtype=torch.double).mean().item() for one in supports) / length
    )


def distances(cells: Iterable[Cell]) -> list[set[int]]:
    """What the layers of each arm read directly, for patterns of lines."""
    return [
        {d for rule in cell.rules for d in rules.build(rule, cell.recipe.length).slash_table.flatten().tolist()}  # type: ignore[attr-defined]
        for cell in cells
    ]


@pytest.mark.parametrize("task", ["language", "shift-copy"])
def test_zoo_mini_equal_pairs(task: str) -> None:
    cells = one_cell_an_arm("zoo-mini", task)
    target = next(pairs_per_token(cell) for cell in cells if cell.label == "fib stagger")
    for cell in cells:
        apart = abs(pairs_per_token(cell) - target)
        assert (apart >= 1) == ("not equal pairs" in cell.label), cell.label


def test_zoo_mini_holds_every_static_pattern() -> None:
    used = {rule["pattern"] for cell in load("zoo-mini").cells() for rule in cell.rules}
    # Those left out: given by the user, and powers as the paper rebuilds them for every length.
    assert set(rules.PATTERNS) - used == {"lines", "block_lines", "powers_grown"}


def test_zoo_mini_trains_the_same_arms_on_both_tasks() -> None:
    assert len({(cell.label, str(cell.group)) for cell in load("zoo-mini").cells()}) == 30


def test_the_design_study_is_at_equal_pairs_in_the_end() -> None:
    cells = one_cell_an_arm("design", "shift-copy")
    target = next(pairs_per_token(cell) for cell in cells if cell.label == "fib stagger")
    assert all(abs(pairs_per_token(cell) - target) < 0.5 for cell in cells)


def test_the_distances_of_the_design_study_favour_no_arm() -> None:
    study = load("design")
    assert study.copy_ is not None
    asked = study.copy_.distances
    assert asked == [round(6 * 40 ** (k / 11)) for k in range(12)]
    cells = one_cell_an_arm("design", "shift-copy")
    hits = {cell.label: len(read & set(asked)) for cell, read in zip(cells, distances(cells), strict=True)}
    assert all(1 <= hit <= 5 for hit in hits.values()), hits


def test_the_designed_schedules_are_those_of_the_command_in_the_description() -> None:
    keys = {"hops": 14, "coverage": 12, "paths": 12}
    for cell in one_cell_an_arm("design", "shift-copy"):
        if cell.label.startswith("designed"):
            objective = cell.label.rpartition(" ")[2]
            assert f"--keys {keys[objective]}" in load("design").description
            if objective == "coverage":
                assert cell.rules == design(5, 12, 255, "coverage", window=5).rules()


def test_depth_differs_in_the_order_of_layers_alone() -> None:
    orders = {
        cell.label: [rule["alpha"] for rule in cell.rules]
        for cell in load("depth").cells()
        if cell.label != "fib fixed"
    }
    assert len(orders) == 6
    assert len({tuple(alphas) for alphas in orders.values()}) == 6
    assert len({tuple(sorted(alphas)) for alphas in orders.values()}) == 1
