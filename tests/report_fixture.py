"""Writes a synthetic study folder in exactly the format of a real one, with effects that a test can set.

`python tests/studies/report_fixture.py FOLDER [mini|probe|seeds|partial|paper|both]` writes one to look at.
"""

from __future__ import annotations

import hashlib
import json
import sys
from collections.abc import Sequence
from dataclasses import dataclass, field
from itertools import pairwise
from pathlib import Path

import numpy as np

BASES = {
    "fibonacci": (1, 2, 3, 5, 8, 13, 21, 34, 55, 89, 144, 233, 377, 610, 987),
    "powers": tuple(2**i for i in range(11)),
}
VOCABULARY, WIDTH = 2048, 128


@dataclass
class Kind:
    """A rule as a study file writes it (`group`) and the window its layers really have."""

    group: dict
    window: int = 0

    @property
    def base(self) -> str:
        pattern = self.group["pattern"]
        return {"learned_spacing": "fibonacci", "powers_grown": "powers"}.get(pattern, pattern)

    @property
    def schedule(self) -> str:
        learned = self.group["pattern"] == "learned_spacing"
        return "learned" if learned else self.group.get("schedule", "fixed")


DENSE = Kind({"pattern": "dense"})


def fib(schedule: str, window: int = 9) -> Kind:
    if schedule == "learned":
        return Kind({"pattern": "learned_spacing", "window": window, "rungs": 12}, window)
    group = {"pattern": "fibonacci", "window": window, "rungs": 12}
    return Kind(group if schedule == "fixed" else {**group, "schedule": schedule}, window)


def powers(schedule: str, window: int = 9) -> Kind:
    return Kind({"pattern": "powers_grown", "window": window, "schedule": schedule}, window)


def matched(pattern: str, window: int) -> Kind:
    """A control whose window was found by matching pairs, and is therefore not in its rule."""
    group = {"pattern": pattern, "match": "fib stagger", "by": "pairs"}
    return Kind(group if pattern == "sliding_window" else {**group, "schedule": "stagger"}, window)


@dataclass
class LanguageCell:
    """One language cell to invent. Nats: `offset` from the base loss, `collapse` beyond the training length,
    `later` gained from context beyond it. `drift` is how far a learned alpha moves."""

    label: str
    kind: Kind
    offset: float
    collapse: float = 0.0
    drift: float = 0.008
    seed: int = 42
    train_tokens: int = 409_600
    speed: float = 8000.0
    state: str = "finished"
    later: float = 0.0

    task = "language"

    @property
    def id(self) -> str:
        return f"{_slug(self.label)}-seed{self.seed}"


@dataclass
class ProbeCell:
    """One shift-copy cell, or a marked-copy one where there are two distances."""

    label: str
    kind: Kind
    depth: int
    distances: tuple[int, ...]
    accuracies: tuple[float, ...]
    seed: int = 42
    state: str = "finished"

    @property
    def task(self) -> str:
        return "marked-copy" if len(self.distances) > 1 else "shift-copy"

    @property
    def id(self) -> str:
        what = "marked" if len(self.distances) > 1 else "copy"
        return f"{what}-{_slug(self.label)}-{self.depth}-d{'-'.join(map(str, self.distances))}-seed{self.seed}"


@dataclass
class Shape:
    """Sizes of the invented study."""

    tokens: int = 16_385
    train_length: int = 256
    multiples: tuple[int, ...] = (1, 2, 4, 8)
    layers: int = 8
    steps: int = 147
    recipe: dict = field(default_factory=lambda: {"language": {"recipe": {"learning_rate": 2e-3, "length": 256}}})

    @property
    def lengths(self) -> tuple[int, ...]:
        return tuple(self.train_length * m for m in self.multiples)


def mini_cells(seeds: Sequence[int] = (42,)) -> list[LanguageCell]:
    """The cells of `mini` with the effects of the second trial in the issue."""
    rows = [
        ("fib learned", fib("learned"), 0.086, 0.004, 3120),
        ("dense", DENSE, 0.105, 0.075, 9100),
        ("fib fixed", fib("fixed"), 0.09, 0.004, 8010),
        ("fib stagger", fib("stagger"), 0.047, 0.004, 7950),
        ("fib coprime", fib("coprime"), 0.049, 0.012, 7890),
        ("powers fixed", powers("fixed"), 0.001, 0.010, 8240),
        ("powers stagger", powers("stagger"), 0.0, 0.004, 8190),
        ("powers stagger, equal pairs", matched("powers", 11), -0.004, 0.004, 8020),
        ("window, equal pairs", matched("sliding_window", 14), 0.075, 0.005, 8700),
    ]
    return [
        LanguageCell(label, kind, offset + 0.002 * i, collapse, seed=seed, speed=speed)
        for i, seed in enumerate(seeds)
        for label, kind, offset, collapse, speed in rows
    ]


def partial_cells() -> list[LanguageCell]:
    """`mini` with one cell failed, one under way and one not begun."""
    cells = mini_cells()
    for cell, state in zip(cells[5:8], ("failed", "running", "not started"), strict=True):
        cell.state = state
    return cells


def paper_cells() -> list[LanguageCell]:
    """The 21 models of the paper and a dense one, with its order of results."""
    cells = [LanguageCell("dense", DENSE, -0.2, 0.16)]
    offsets = {"fixed": 0.04, "learned": 0.03, "stagger": 0.0, "coprime": 0.001}
    for window in (7, 9, 11, 13):
        gain = -0.006 * (window - 7) / 2
        cells += [
            LanguageCell(f"fib {schedule} W={window - 1}", fib(schedule, window), offset + gain, 0.002)
            for schedule, offset in offsets.items()
        ]
        cells.append(LanguageCell(f"powers stagger W={window - 1}", powers("stagger", window), 0.025 + gain, 0.002))
    cells.append(LanguageCell("powers fixed W=8", powers("fixed"), 0.05, 0.02))
    return cells


def probe_cells(depths: Sequence[int] = (2, 4)) -> list[ProbeCell]:
    """Shift-copy over eight distances, solved where some layer reads them, and one marked pair a depth."""
    rng = np.random.default_rng(3)
    arms = {
        "dense": DENSE,
        "fib fixed": fib("fixed"),
        "fib stagger": fib("stagger"),
        "powers fixed": powers("fixed"),
    }
    cells = []
    for depth in depths:
        for label, kind in arms.items():
            direct = {d for layer in layers(kind, depth, 1024) for d in layer["slashes"]}
            for distance in (64, 128, 200, 233, 256, 300, 377, 512):
                sums = kind.schedule == "stagger" and distance % 100 == 0
                solved = kind is DENSE or distance in direct or sums
                accuracy = round(float(rng.uniform(0.95, 1.0) if solved else rng.uniform(0.02, 0.3)), 4)
                cells.append(ProbeCell(label, kind, depth, (distance,), (accuracy,)))
        cells.append(ProbeCell("fib stagger", arms["fib stagger"], depth, (200, 350), (0.97, 0.08)))
    return cells


def write_study(folder: Path, cells: Sequence[LanguageCell | ProbeCell], shape: Shape | None = None) -> Path:
    """Writes `folder` (study.json and cells/*/) and returns it."""
    shape = shape or Shape()
    folder.mkdir(parents=True, exist_ok=True)
    _json(
        folder / "study.json",
        {
            "name": folder.name,
            "title": "Which spacing, at which depth? The Fibonacci study in miniature",
            "description": "Small language models that differ only in which keys each layer reads, trained on the "
            "same batches in the same order and tested beyond their training length.",
            "cells": [
                {
                    "id": c.id,
                    "label": c.label,
                    "group": c.kind.group,
                    "seed": c.seed,
                    "task": c.task,
                }
                for c in cells
            ],
            "recipe": shape.recipe,
            "study_sha256": "3f2a" * 16,
        },
    )
    for cell in cells:
        if cell.state != "not started":
            _write_cell(folder / "cells" / cell.id, cell, shape)
    return folder


def _write_cell(folder: Path, cell: LanguageCell | ProbeCell, shape: Shape) -> None:
    folder.mkdir(parents=True, exist_ok=True)
    _json(
        folder / "config.json",
        {"id": cell.id, "label": cell.label, "group": cell.kind.group, "seed": cell.seed},
    )
    _json(
        folder / "provenance.json",
        {
            "study_sha256": "3f2a" * 16,
            "pattern_sha256": _digest(cell.kind.group),
            "corpus_sha256": "ab12" * 16,
            "tokenizer_sha256": "cd34" * 16,
            "python": "3.11.7",
            "torch": "2.13.0+cpu",
            "transformers": "5.24.0",
            "farspan": "0.1.0",
            "machine": "x86_64, 2 cores",
            "seed": cell.seed,
        },
    )
    steps_done = shape.steps if cell.state == "finished" else shape.steps // 3
    if isinstance(cell, LanguageCell):
        _metrics(folder / "metrics.jsonl", cell, shape, steps_done)
    _json(
        folder / "status.json",
        {
            "state": cell.state,
            "step": steps_done,
            "steps": shape.steps,
            "phase": "evaluating" if cell.state == "finished" else "training",
            "updated": 1_790_000_000,
        },
    )
    if cell.state == "failed":
        (folder / "error.txt").write_text(
            'Traceback (most recent call last):\n  File "train.py"\nValueError: loss is NaN at step 49\n'
        )
    if cell.state != "finished":
        return
    if isinstance(cell, ProbeCell):
        _json(folder / "result.json", _probe_result(cell))
    else:
        _language_result(folder, cell, shape)


def _metrics(path: Path, cell: LanguageCell, shape: Shape, steps: int) -> None:
    rng = np.random.default_rng(_digest_int(cell.label, cell.seed))
    lines = []
    for step in range(1, steps + 1, 2):
        done = step / shape.steps
        loss = 5.15 + cell.offset + 2.5 * np.exp(-9 * done) + rng.normal(0, 0.03)
        record = {
            "step": step,
            "tokens": int(cell.train_tokens * done),
            "loss": float(loss),
            "learning_rate": 1e-3 * (1 - 0.9 * done),
            "grad_norm": 0.9,
            "tokens_per_second": cell.speed,
        }
        if cell.kind.schedule == "learned":
            record["alphas"] = [1.0 + cell.drift * done * (-1) ** i for i in range(shape.layers)]
        lines.append(json.dumps(record))
    path.write_text("\n".join(lines) + "\n")


def _language_result(folder: Path, cell: LanguageCell, shape: Shape) -> None:
    longest = shape.lengths[-1]
    reads = layers(cell.kind, shape.layers, longest, cell.drift)
    arrays: dict[str, np.ndarray] = {}
    perplexity: dict[str, dict] = {"disjoint": {}, "sliding": {}}
    for length in shape.lengths:
        for protocol, stride in (("disjoint", length - 1), ("sliding", length // 2)):
            context = contexts(shape.tokens, length, stride)
            nll = _token_losses(cell, context, shape)
            arrays[f"{protocol}_{length}_nll"] = nll
            arrays[f"{protocol}_{length}_context"] = context
            perplexity[protocol][str(length)] = _summary(nll, context, shape.train_length)
            if protocol == "sliding":
                perplexity[protocol][str(length)]["stride"] = stride
    np.savez(folder / "nll.npz", **arrays)
    context, nll = arrays[f"disjoint_{longest}_context"], arrays[f"disjoint_{longest}_nll"]
    edges = [0, *(2**i for i in range(int(np.log2(longest)) + 1))]
    bins = [nll[(context >= a) & (context < b)] for a, b in pairwise(edges)]
    pairs = {str(n): _pairs(reads, n) for n in shape.lengths}
    alphas = [layer["alpha"] for layer in reads]
    _json(
        folder / "result.json",
        {
            "cell": cell.id,
            "label": cell.label,
            "group": cell.kind.group,
            "seed": cell.seed,
            "task": "language",
            "parameters": 1_331_328 + (shape.layers if cell.kind.schedule == "learned" else 0),
            "train_tokens": cell.train_tokens,
            "train_seconds": cell.train_tokens / cell.speed,
            "train_tokens_per_second": cell.speed,
            "eval_seconds": 9.5,
            "peak_memory_mb": 812.0,
            "threads": 2,
            "train_length": shape.train_length,
            "layers": reads,
            "cost": {
                "pairs_per_token": pairs,
                "attention_flops_per_token": {n: 4 * WIDTH * p * shape.layers for n, p in pairs.items()},
            },
            "alphas": {"initial": [1.0] * shape.layers, "final": alphas} if cell.kind.schedule == "learned" else None,
            "perplexity": perplexity,
            "position_bins": {
                "edges": edges,
                "nll": [float(b.mean()) if b.size else None for b in bins],
                "tokens": [int(b.size) for b in bins],
            },
        },
    )


def contexts(tokens: int, length: int, stride: int) -> np.ndarray:
    """Context of tokens 1..tokens-1 under windows `[begin, begin+length)` every `stride` tokens."""
    context = np.zeros(tokens, np.int32)
    scored = 1
    begin = 0
    while scored < tokens:
        end = min(begin + length, tokens)
        context[scored:end] = np.arange(scored, end) - begin
        scored, begin = end, begin + stride
    return context[1:]


def _token_losses(cell: LanguageCell, context: np.ndarray, shape: Shape) -> np.ndarray:
    """Token difficulty + early-token curse + the cell's effect + its own noise: pairs up like real models."""
    common = np.random.default_rng(7)
    difficulty = (
        common.gamma(2.0, 1.5, shape.tokens - 1)
        + np.repeat(common.normal(0, 0.3, shape.tokens // 64 + 1), 64)[: shape.tokens - 1]
    )
    own = np.random.default_rng(_digest_int(cell.label, cell.seed)).normal(0, 0.25, shape.tokens - 1)
    early = 1.1 / np.sqrt(np.minimum(context, shape.train_length // 2))
    grows = np.clip(np.log2(context / 8), 0, 3) / 3
    beyond = np.clip(np.log2(context / shape.train_length), 0, 1.5)
    nll = 2.0 + difficulty + early + cell.offset * grows + (4 * cell.collapse - cell.later) * beyond + own * 0.4
    return np.maximum(nll, 0.001).astype(np.float32)


def _summary(nll: np.ndarray, context: np.ndarray, train_length: int) -> dict:
    beyond = nll[context >= train_length].astype(np.float64)
    mean = float(nll.mean(dtype=np.float64))
    return {
        "ppl": float(np.exp(mean)),
        "nll": mean,
        "tokens": int(nll.size),
        "mean_context": float(context.mean()),
        "beyond_nll": float(beyond.mean()) if beyond.size else None,
        "beyond_tokens": int(beyond.size),
    }


def layers(kind: Kind, depth: int, length: int, drift: float = 0.0) -> list[dict]:
    """The `layers` of a result, built as the patterns build them."""
    pattern = kind.group["pattern"]
    if pattern == "dense":
        return [{"pattern": pattern, "alpha": None, "slashes": []}] * depth
    if pattern == "sliding_window":
        return [{"pattern": pattern, "alpha": None, "slashes": list(range(kind.window))}] * depth
    ramp = [0.5 + i / max(depth - 1, 1) for i in range(depth)]
    alphas = {
        "fixed": [1.0] * depth,
        "stagger": ramp,
        "coprime": [ramp[(3 * i) % depth] for i in range(depth)],
        "learned": [1.0 + drift * (-1) ** i for i in range(depth)],
    }[kind.schedule]
    described = []
    for alpha in alphas:
        rungs = {round(alpha * f) for f in BASES[kind.base]}
        reads = {*range(kind.window), *(r for r in rungs if kind.window <= r < length)}
        written = None if "schedule" not in kind.group and kind.schedule == "fixed" else alpha
        described.append({"pattern": pattern, "alpha": written, "slashes": sorted(reads)})
    return described


def _pairs(reads: list[dict], length: int) -> float:
    """Mean over layers of causal pairs per token in a window of `length`."""
    per_layer = [
        (length + 1) / 2
        if layer["pattern"] == "dense"
        else sum(length - d for d in layer["slashes"] if d < length) / length
        for layer in reads
    ]
    return float(np.mean(per_layer))


def _probe_result(cell: ProbeCell) -> dict:
    result = {
        "cell": cell.id,
        "label": cell.label,
        "group": cell.kind.group,
        "seed": cell.seed,
        "task": cell.task,
        "depth": cell.depth,
        "chance": 1 / 64,
        "steps": 300,
        "layers": layers(cell.kind, cell.depth, 1024),
        "train_seconds": 21.0,
    }
    if cell.task == "marked-copy":
        return {**result, "distances": list(cell.distances), "accuracies": list(cell.accuracies)}
    return {**result, "distance": cell.distances[0], "accuracy": cell.accuracies[0]}


def _slug(label: str) -> str:
    return "".join(c if c.isalnum() else "-" for c in label.lower())


def _digest(*parts: object) -> str:
    return hashlib.sha256(repr(parts).encode()).hexdigest()


def _digest_int(*parts: object) -> int:
    return int(_digest(*parts)[:8], 16)


def _json(path: Path, value: object) -> None:
    path.write_text(json.dumps(value, indent=1))


if __name__ == "__main__":
    kinds = {
        "mini": mini_cells,
        "probe": probe_cells,
        "seeds": lambda: mini_cells((42, 43, 44)),
        "partial": partial_cells,
        "paper": paper_cells,
        "both": lambda: [*mini_cells(), *probe_cells()],
    }
    write_study(Path(sys.argv[1]), kinds[sys.argv[2] if len(sys.argv) > 2 else "mini"]())
