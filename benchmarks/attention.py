"""Speed, memory and accuracy of `farspan.attention` on this CPU, beside dense SDPA and what else PyTorch offers.

    python benchmarks/attention.py                 everything; takes several minutes and wants a quiet machine
    python benchmarks/attention.py --check         says of each target whether it is met
    python benchmarks/attention.py --only decode   one section

Correctness comes first, in the same process: outputs and gradients against fp64. Where that gate is red, no speed is
printed and the exit status is 1. Contenders take turns in one process; ratios are medians over rounds of the ratio
within a round. B = 1, H = 8, D = 64, fp32 and one thread, unless a table says otherwise.
"""

from __future__ import annotations

import argparse
import json
import os
import sys
import time
from pathlib import Path
from typing import Any

import torch
from rich.console import Console
from rich.table import Table

import gate
import targets
import timing
from contenders import COLUMNS
from farspan.attention import backends
from sections import QUICK, SECTIONS, Session, Sizes


def show_targets(session: Session, judged: bool) -> list[dict[str, Any]]:
    """Prints the tables of targets beside the figures; returns every target as data."""
    sizes = session.sizes
    titles = [column.title for column in COLUMNS]
    words = "measured (wanted)" if judged else "measured; the lengths are too short to judge"
    parts = (
        (f"Targets, one thread unless said: {words}", titles, targets.headline(sizes.lengths)),
        (
            f"Further targets: {words}",
            [""],
            targets.further(sizes.lengths, sizes.growth, sizes.memory, sizes.caches[1]),
        ),
    )
    verdicts = []
    for title, heads, rows in parts:
        table = Table(box=None, pad_edge=False, padding=(0, 2, 0, 0))
        table.add_column("")
        for head in heads:
            table.add_column(head)
        for row in rows:
            found = [target for cell in row.cells for target in cell]
            verdicts += [
                {
                    "target": row.title,
                    "figure": target.key,
                    "measured": session.figures.get(target.key),
                    "wanted": target.wanted(),
                    "met": target.met(session.figures) if judged else None,
                }
                for target in found
            ]
            if any(target.key in session.figures for target in found):
                table.add_row(row.title, *(cell_text(cell, session.figures, judged) for cell in row.cells))
        if table.row_count:
            session.console.print(f"\n{title}", markup=False)
            session.console.print(table)
    return verdicts


def cell_text(cell: tuple[targets.Target, ...], figures: targets.Figures, judged: bool) -> str:
    values = [target.show(figures[target.key]) if target.key in figures else "-" for target in cell]
    if not judged:
        return " / ".join(values)
    wanted = [target.show(target.bound) for target in cell]
    if len(set(wanted)) == 1:
        wanted = wanted[:1]
    sign = "≥" if cell[0].at_least else "≤"
    return f"{' / '.join(values)} ({sign} {' / '.join(wanted)})"


def show_verdicts(console: Console, verdicts: list[dict[str, Any]]) -> None:
    words = {True: "met    ", False: "NOT MET"}
    console.print()
    for verdict in verdicts:
        if verdict["met"] is not None:
            console.print(
                f"{words[verdict['met']]}  {verdict['target']}  [{verdict['figure']}]:"
                f" {verdict['measured']:.4g}, wanted {verdict['wanted']}",
                markup=False,
            )
    judged = [verdict["met"] for verdict in verdicts if verdict["met"] is not None]
    console.print(
        f"{sum(judged)} of {len(judged)} targets met; {len(verdicts) - len(judged)} not measured or not judged"
    )


def write_json(path: Path, data: dict[str, Any]) -> None:
    """A reader sees the old file or the whole new one."""
    temporary = path.with_name(f".{path.name}.{os.getpid()}")
    try:
        temporary.write_text(json.dumps(data, indent=2) + "\n")
        os.replace(temporary, path)
    finally:
        temporary.unlink(missing_ok=True)


def arguments(words: list[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--backend", choices=("cpu", "torch"), default="cpu")
    parser.add_argument("--only", choices=tuple(SECTIONS), action="append", help="this section; may be repeated")
    parser.add_argument("--quick", action="store_true", help="short lengths: shows that it runs, judges no target")
    parser.add_argument("--check", action="store_true", help="say of each target whether it is met")
    parser.add_argument("--strict", action="store_true", help="with --check: exit with 1 if a target is not met")
    parser.add_argument("--json", type=Path, metavar="FILE", help="write all figures to FILE")
    return parser.parse_args(words)


def main(words: list[str] | None = None) -> int:
    options = arguments(words)
    reason = backends.available()[options.backend]
    if reason is not None:
        print(f"backend {options.backend!r} does not run here: {reason}", file=sys.stderr)
        return 2
    torch.set_num_threads(1)
    # Wide enough that no table is folded: what reads this may be a file.
    console = Console(width=max(200, Console().width), highlight=False)
    session = Session(options.backend, QUICK if options.quick else Sizes(), console)
    neighbours, began = timing.Neighbours(), time.perf_counter()
    facts = timing.machine()
    console.print(
        f"{facts['cpu']}, {facts['cores']} cores, {'/'.join(facts['instruction_sets']) or 'no C++ core'};"
        f" torch {facts['torch']} ({facts['torch_kernels']}); backend {options.backend};"
        f" load average {_number(neighbours.load)}"
    )
    with timing.progress(
        "correctness gate", len(gate.cases(session.sizes.gate, session.sizes.gate_long)), 0
    ) as advance:
        verdict = gate.check(options.backend, session.sizes.gate, session.sizes.gate_long, advance)
    console.print(verdict.line())
    data: dict[str, Any] = {"machine": facts, "backend": options.backend, "quick": options.quick}
    data["gate"] = {
        "green": verdict.green,
        "cases": verdict.cases,
        "worst": verdict.worst,
        "failures": verdict.failures,
    }
    verdicts: list[dict[str, Any]] = []
    spent: dict[str, float] = {}
    if verdict.green:
        for name in options.only or SECTIONS:
            entered = time.perf_counter()
            SECTIONS[name](session)
            spent[name] = time.perf_counter() - entered
        verdicts = show_targets(session, judged=not options.quick)
        if options.check:
            show_verdicts(console, verdicts)
    warning = neighbours.warning()
    data |= {"figures": session.figures, "sections": session.details, "targets": verdicts, "section_seconds": spent}
    data["disturbance"] = {
        "load_before": neighbours.load,
        "load_after": timing.load_average(),
        "cores_of_others": neighbours.cores(),
        "cores_stolen": neighbours.stolen(),
        "warning": warning,
    }
    console.print(
        f"\n{time.perf_counter() - began:.0f} s; load average {_number(neighbours.load)} before,"
        f" {_number(timing.load_average())} after; other processes kept {_number(neighbours.cores())} cores busy"
    )
    if warning:
        console.print(f"WARNING: {warning}")
    if options.json:
        write_json(options.json, data)
    missed = any(entry["met"] is False for entry in verdicts)
    return int(not verdict.green or (options.strict and missed))


def _number(value: float | None) -> str:
    return "unknown" if value is None else f"{value:.2f}"


if __name__ == "__main__":
    sys.exit(main())
