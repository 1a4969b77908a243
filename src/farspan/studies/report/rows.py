"""What tables and figures are made of: cells that differ only in their seed, taken together as one row."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from statistics import fmean
from typing import Any

from farspan.studies.report.kinds import Kind, family, kind, order
from farspan.studies.report.results import Cell, Study

MATCHED = 0.05
"""Two rows count as equal in pairs if they differ by at most this share: half a key in a budget of ten."""


def _group(cells: Iterable[Cell], *keys: str) -> dict[tuple[Any, ...], list[Cell]]:
    groups: dict[tuple[Any, ...], list[Cell]] = {}
    for cell in cells:
        groups.setdefault((cell.label, *(cell.result[k] for k in keys)), []).append(cell)
    return groups


@dataclass(frozen=True, eq=False)
class Row:
    """The finished language cells of one label, by seed."""

    label: str
    kind: Kind
    window: int | None
    cells: tuple[Cell, ...]

    @property
    def family(self) -> str:
        return self.kind.family

    @property
    def schedule(self) -> str:
        return self.kind.schedule

    @property
    def first(self) -> Mapping[str, Any]:
        return self.cells[0].result

    @property
    def seeds(self) -> list[int]:
        return [cell.seed for cell in self.cells]

    @property
    def train_length(self) -> int:
        return int(self.first["train_length"])

    @property
    def train_tokens(self) -> list[int]:
        """Training tokens, one entry a distinct budget."""
        return sorted({int(cell.result["train_tokens"]) for cell in self.cells})

    @cached_property
    def lengths(self) -> list[int]:
        """Evaluation lengths that every seed has, for the non-overlapping protocol."""
        common = set.intersection(*({int(n) for n in c.result["perplexity"].get("disjoint", {})} for c in self.cells))
        return sorted(common)

    @property
    def longest(self) -> int | None:
        return self.lengths[-1] if self.lengths else None

    def mean(self, key: str) -> float | None:
        values = [cell.result[key] for cell in self.cells if cell.result.get(key) is not None]
        return fmean(values) if values else None

    def cost(self, key: str, length: int | None) -> float | None:
        """`pairs_per_token` or `attention_flops_per_token` at an evaluation length."""
        values = [cell.result["cost"].get(key, {}).get(str(length)) for cell in self.cells]
        known = [v for v in values if v is not None]
        return fmean(known) if known else None

    def pairs(self, length: int | None = None) -> float | None:
        """Mean pairs per token, at the training length unless another is given."""
        return self.cost("pairs_per_token", length or self.train_length)

    def entries(self, protocol: str, length: int | None) -> list[Mapping[str, Any]]:
        """The perplexity entries of each seed that has one."""
        found = [cell.result["perplexity"].get(protocol, {}).get(str(length)) for cell in self.cells]
        return [entry for entry in found if entry]

    def nll(self, protocol: str, length: int | None, key: str = "nll") -> float | None:
        """Mean loss in nats over seeds (`key="beyond_nll"`: of tokens beyond the training length)."""
        values = [e[key] for e in self.entries(protocol, length) if e.get(key) is not None]
        return fmean(values) if values else None

    def nlls(self, protocol: str, length: int | None) -> list[float]:
        return [e["nll"] for e in self.entries(protocol, length) if e.get("nll") is not None]


@dataclass(frozen=True)
class ProbeRow:
    """The finished copy-task cells of one label and depth: accuracy by distance, mean over seeds."""

    label: str
    kind: Kind
    depth: int
    task: str
    accuracy: Mapping[int, float]
    direct: frozenset[int] | None
    """Distances that some layer reads directly; None where every distance is (dense), and none where the position of
    the query decides them, so that no distance is read by all."""
    chance: float | None
    rules: Sequence[Mapping[str, Any]] = ()
    """One a layer, bottom to top, as the cell's config has them; none where it has none."""
    length: int = 0
    """Tokens of a sequence."""

    def reads(self, distance: int) -> bool:
        return self.direct is None or distance in self.direct

    def solved(self, threshold: float = 0.9) -> list[int]:
        return [d for d, accuracy in self.accuracy.items() if accuracy > threshold]


def language_rows(study: Study) -> list[Row]:
    """One row a label, by family and schedule, then in the order of the plan."""
    finished = [cell for cell in study.of_task("language") if cell.finished]
    rows = [
        Row(
            label=label,
            kind=kind(cells[0].group),
            window=cells[0].group.get("window"),
            cells=tuple(sorted(cells, key=lambda c: c.seed)),
        )
        for (label,), cells in _group(finished).items()
    ]
    return sorted(rows, key=lambda row: order(row.kind))


def probe_rows(study: Study, task: str) -> list[ProbeRow]:
    """One row a label and depth, by depth, family and schedule, then in the order of the plan."""
    finished = [cell for cell in study.of_task(task) if cell.finished]
    rows = []
    for (label, depth), cells in _group(finished, "depth").items():
        values: dict[int, list[float]] = {}
        for cell in cells:
            for distance, accuracy in _accuracies(cell.result):
                values.setdefault(distance, []).append(accuracy)
        layers, config = cells[0].result["layers"], cells[0].config()
        dense = any(family(str(layer.get("pattern", ""))) == "dense" for layer in layers)
        rows.append(
            ProbeRow(
                label=label,
                kind=kind(cells[0].group),
                depth=int(depth),
                task=task,
                accuracy={d: fmean(v) for d, v in sorted(values.items())},
                direct=None if dense else _direct(layers),
                chance=cells[0].result.get("chance"),
                rules=config.get("rules") or (),
                length=int((config.get("recipe") or {}).get("length", 0)),
            )
        )
    return sorted(rows, key=lambda row: (row.depth, order(row.kind)))


def _direct(layers: Sequence[Mapping[str, Any]]) -> frozenset[int]:
    listed = [layer["slashes"] for layer in layers]
    return frozenset(distance for layer in listed for distance in layer) if all(listed) else frozenset()


def _accuracies(result: Mapping[str, Any]) -> list[tuple[int, float]]:
    if result["task"] == "shift-copy":
        return [(int(result["distance"]), float(result["accuracy"]))]
    return [(int(d), float(a)) for d, a in zip(result["distances"], result["accuracies"], strict=True)]


def matched(a: float | None, b: float | None) -> bool:
    """Whether two pair counts are equal within `MATCHED`."""
    return a is not None and b is not None and b > 0 and abs(a / b - 1) <= MATCHED


def reference_row(rows: list[Row]) -> Row | None:
    """The row whose budget others are measured against: a staggered Fibonacci, else the first sparse one."""
    sparse = [row for row in rows if row.family != "dense"]
    staggered = [row for row in sparse if row.kind == Kind("fibonacci", "stagger")]
    return next(iter(staggered or sparse), None)


def evaluated_lengths(rows: list[Row]) -> list[int]:
    """Evaluation lengths of any row, the training length if there is none."""
    return sorted({n for row in rows for n in row.lengths}) or [rows[0].train_length]
