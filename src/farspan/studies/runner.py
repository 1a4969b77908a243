"""Runs the cells of a study side by side, each in a process of its own, and shows how far they are."""

from __future__ import annotations

import json
import multiprocessing as mp
import os
import signal
import threading
import time
from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial
from multiprocessing import connection
from multiprocessing.process import BaseProcess
from pathlib import Path
from typing import Any, Literal

from filelock import FileLock, Timeout
from rich.console import Console
from rich.progress import BarColumn, Progress, TaskID, TextColumn, TimeRemainingColumn
from rich.status import Status

from farspan.data.files import sha256_json
from farspan.studies.cell import prepare_data, run, write_once
from farspan.studies.schema import Cell, Study

State = Literal["finished", "failed", "running", "interrupted", "waiting"]


@dataclass(frozen=True)
class CellState:
    """Where a cell stands, read from its folder."""

    cell: Cell
    folder: Path
    state: State
    step: int
    detail: str


def state_of(cell: Cell, folder: Path) -> CellState:
    """Reads the folder of a cell; starts and changes nothing."""
    status = _read(folder / "status.json")
    step, detail = int(status.get("step", 0)), ""
    state: State
    if (folder / "result.json").exists():
        state, step = "finished", cell.recipe.steps
    elif (folder / "error.txt").exists():
        state = "failed"
        detail = (folder / "error.txt").read_text().strip().splitlines()[-1]
    elif _locked(folder):
        state = "running"
        detail = status.get("phase", "starting")
        if detail == "training" and "loss" in status:
            detail = f"loss {status['loss']:.3f}, {status['tokens_per_second']:.0f} tokens/s"
        elif detail == "evaluating" and status.get("total"):
            detail = f"evaluating {status['done'] / status['total']:.0%}"
    elif status:
        state, detail = "interrupted", "continues at the last checkpoint"
    else:
        state = "waiting"
    return CellState(cell, folder, state, step, detail)


def states(study: Study, root: Path) -> list[CellState]:
    """Every planned cell of the study in `root` and where it stands."""
    return [state_of(cell, _cell_folder(root, study, cell)) for cell in study.cells()]


def run_study(
    study: Study,
    root: Path,
    *,
    jobs: int | None = None,
    retry_failed: bool = False,
    console: Console | None = None,
) -> list[CellState]:
    """Brings every cell of the study to its result in `root / study.name`, and returns where each one stands.

    Finished cells are left untouched, interrupted ones go on from their last checkpoint, failed ones are run again only
    if `retry_failed`. A cell that fails or dies does not stop the others.

    Args:
        jobs: cells at a time; by default one on a GPU, else as many as fit the cores at `study.threads` each.

    Raises:
        ValueError: the folder holds another study of this name, or the data cannot be prepared.
    """
    console = console or Console()
    folder = root / study.name
    cells = study.cells()
    plan = {
        "name": study.name,
        "title": study.title,
        "description": study.description.strip(),
        "cells": [cell.model_dump(mode="json", include={"id", "label", "group", "seed", "task"}) for cell in cells],
        "recipe": {
            task: settings.model_dump(mode="json", exclude={"arms"})
            for task, settings in (("language", study.language), ("copy", study.copy_))
            if settings is not None
        },
        "study_sha256": sha256_json(study.model_dump(mode="json")),
    }
    if (folder / "study.json").exists():
        write_once(folder / "study.json", plan)
    todo = []
    for state in states(study, root):
        if state.state == "failed" and retry_failed:
            (state.folder / "error.txt").unlink()
        elif state.state in ("finished", "failed"):
            continue
        todo.append(state.cell)
    if todo:
        # A study whose text cannot be had leaves nothing behind, so that the mended one may have its name.
        _prepare(todo, console)
        write_once(folder / "study.json", plan)
        _run_all(study, root, todo, jobs or _jobs(study), console)
    return states(study, root)


def _jobs(study: Study) -> int:
    import torch

    if torch.cuda.is_available():
        return 1
    cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    return max(1, cores // study.threads) if study.threads else 1


def _prepare(cells: Sequence[Cell], console: Console) -> None:
    """Makes the tokens once, before the cells all ask for them."""
    for data in {cell.data.model_dump_json(): cell.data for cell in cells if cell.data is not None}.values():
        with console.status(f"preparing {data.corpus}") as shown:
            prepare_data(data, partial(_preparing, shown, data.corpus))


def _preparing(shown: Status, corpus: str, stage: str, done: int, total: int | None) -> None:
    shown.update(f"preparing {corpus}: {stage} {done:,}" + (f" of {total:,}" if total else ""))


def _run_all(study: Study, root: Path, cells: Sequence[Cell], jobs: int, console: Console) -> None:
    # Each cell gets a fresh process, so that one that dies takes nothing along; the server it is forked from has
    # imported torch once for all of them.
    context: mp.context.ForkServerContext | mp.context.SpawnContext
    if "forkserver" in mp.get_all_start_methods():
        context = mp.get_context("forkserver")
        context.set_forkserver_preload(["farspan.studies.cell"])
    else:
        context = mp.get_context("spawn")
    if not console.is_terminal:
        console.print(f"{study.name}: {len(cells)} cells, {jobs} at a time")
        console.file.flush()
    waiting = list(cells)
    running: dict[str, tuple[Cell, BaseProcess, float]] = {}
    total = sum(cell.recipe.steps for cell in cells)
    columns = (
        TextColumn("{task.description}"),
        BarColumn(bar_width=24),
        TextColumn("{task.percentage:>3.0f}%"),
        TimeRemainingColumn(),
        TextColumn("{task.fields[detail]}", style="dim"),
    )
    with Progress(*columns, console=console, refresh_per_second=2) as progress:
        overall = progress.add_task(f"{study.name}: {len(cells)} cells", total=total, detail="")
        bars: dict[str, TaskID] = {}
        done = 0
        try:
            while waiting or running:
                while waiting and len(running) < jobs:
                    cell = waiting.pop(0)
                    process = context.Process(target=_work, args=(cell, _cell_folder(root, study, cell)), daemon=True)
                    process.start()
                    running[cell.id] = (cell, process, time.monotonic())
                    bars[cell.id] = progress.add_task(f"  {cell.id}", total=cell.recipe.steps, detail="starting")
                connection.wait([process.sentinel for _, process, _ in running.values()], timeout=0.5)
                for cell, worker, began in list(running.values()):
                    state = state_of(cell, _cell_folder(root, study, cell))
                    if worker.is_alive():
                        progress.update(bars[cell.id], completed=state.step, detail=state.detail)
                        continue
                    worker.join()
                    del running[cell.id]
                    progress.remove_task(bars.pop(cell.id))
                    done += cell.recipe.steps
                    _say(progress.console, state, worker.exitcode, time.monotonic() - began)
                steps = [state_of(cell, _cell_folder(root, study, cell)).step for cell, _, _ in running.values()]
                progress.update(overall, completed=done + sum(steps))
        finally:
            for _, worker, _ in running.values():
                worker.terminate()
                worker.join()


def _say(console: Console, state: CellState, exitcode: int | None, seconds: float) -> None:
    """One line for a cell that has ended, seen at once also where the output is a file."""
    if state.state == "finished":
        console.print(f"  {state.cell.id}: finished after {seconds:.0f} s")
    elif state.state == "failed":
        console.print(f"  {state.cell.id}: failed: {state.detail}", style="red", markup=False)
    elif exitcode == _BUSY:
        console.print(f"  {state.cell.id}: left to another process that runs it", style="yellow")
    else:
        how = f"signal {signal.Signals(-exitcode).name}" if exitcode and exitcode < 0 else f"exit code {exitcode}"
        console.print(f"  {state.cell.id}: its process died ({how}); run again to continue", style="red")
    console.file.flush()


_BUSY = 75


def _work(cell: Cell, folder: Path) -> None:
    """The process of one cell. Ends with the study that started it, so that no orphan goes on writing."""
    parent = mp.parent_process()
    assert parent is not None

    def follow() -> None:
        connection.wait([parent.sentinel])
        os._exit(1)

    threading.Thread(target=follow, daemon=True).start()
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    quiet()
    folder.mkdir(parents=True, exist_ok=True)
    try:
        # Not at once: whoever asks where the cell stands takes the lock for a moment.
        with FileLock(folder / ".lock", timeout=5):
            run(cell, folder)
    except Timeout:
        raise SystemExit(_BUSY) from None
    except Exception:
        # The traceback is in error.txt, where the study, its status and its report find it.
        raise SystemExit(1) from None


def quiet() -> None:
    """Silences the libraries' own progress bars and notes: this process reports through files."""
    from transformers.utils import logging

    logging.set_verbosity_error()
    logging.disable_progress_bar()


def _locked(folder: Path) -> bool:
    if not (folder / ".lock").exists():
        return False
    try:
        with FileLock(folder / ".lock", timeout=0):
            return False
    except Timeout:
        return True


def _cell_folder(root: Path, study: Study, cell: Cell) -> Path:
    return root / study.name / "cells" / cell.id


def _read(path: Path) -> dict[str, Any]:
    try:
        content = json.loads(path.read_text())
    except (OSError, ValueError):
        return {}
    return content if isinstance(content, dict) else {}
