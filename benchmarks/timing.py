"""Timing on a shared machine: contenders take turns in one process, and ratios are taken within a round."""

from __future__ import annotations

import os
import statistics
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn

from farspan import _cpu

# A contender's turn lasts at least this long, so that a fast one is not judged by one call.
TURN = 0.04
MOST_CALLS = 400
# A first call as long as this is no worse than the next ones, and too dear to throw away as a warm-up.
LONG = 2.0
# Share of one core that other processes may use before the figures deserve a warning.
DISTURBED = 0.1


@dataclass(frozen=True)
class Contender:
    """`run(prepare())` is timed, without `prepare`; `enter` and `leave` are around each turn."""

    run: Callable[[Any], Any]
    prepare: Callable[[], Any] = lambda: None
    enter: Callable[[], Any] = lambda: None
    leave: Callable[[], Any] = lambda: None


@dataclass(frozen=True)
class Turns:
    """Seconds of every call: `calls[contender][round]` is a list."""

    calls: dict[str, list[list[float]]]

    def __contains__(self, name: str) -> bool:
        return name in self.calls

    def rounds(self, name: str) -> list[float]:
        """The median call of each round."""
        return [statistics.median(calls) for calls in self.calls[name]]

    def median(self, name: str) -> float:
        return statistics.median(self.rounds(name))

    def best(self, name: str) -> float:
        return min(min(calls) for calls in self.calls[name])

    def ratio(self, slow: str, fast: str) -> float:
        """How many times longer `slow` takes than `fast`: the median of the ratios within a round."""
        pairs = zip(self.rounds(slow), self.rounds(fast), strict=True)
        return statistics.median(a / b for a, b in pairs)

    def seconds(self) -> dict[str, float]:
        return {name: self.median(name) for name in self.calls}


def call(contender: Contender) -> float:
    prepared = contender.prepare()
    began = time.perf_counter()
    result = contender.run(prepared)
    spent = time.perf_counter() - began
    del result, prepared
    return spent


def interleave(contenders: dict[str, Contender], rounds: int, advance: Callable[[], None] = lambda: None) -> Turns:
    """Each round gives every contender one turn; who starts moves on by one from round to round."""
    names = list(contenders)
    calls: dict[str, list[list[float]]] = {name: [] for name in names}
    repeats = {}
    for name in names:
        contenders[name].enter()
        first = call(contenders[name])
        if first >= LONG:
            calls[name].append([first])
            repeats[name] = 1
        else:
            repeats[name] = min(MOST_CALLS, max(1, round(TURN / call(contenders[name]))))
        contenders[name].leave()
        advance()
    for number in range(rounds):
        shift = number % len(names)
        for name in names[shift:] + names[:shift]:
            if len(calls[name]) <= number:
                contenders[name].enter()
                calls[name].append([call(contenders[name]) for _ in range(repeats[name])])
                contenders[name].leave()
            advance()
    return Turns(calls)


@contextmanager
def progress(title: str, contenders: int, rounds: int) -> Iterator[Callable[[], None]]:
    """A bar on standard error; yields what moves it on. It draws only when told to, never while a call is timed."""
    console = Console(stderr=True)
    columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeElapsedColumn())
    bar = Progress(
        *columns, console=console, auto_refresh=False, transient=True, disable=not console.is_terminal, expand=False
    )
    with bar:
        task = bar.add_task(title, total=contenders * (rounds + 1))

        def advance() -> None:
            bar.advance(task)
            bar.refresh()

        yield advance


@contextmanager
def threads(number: int) -> Iterator[None]:
    before = torch.get_num_threads()
    torch.set_num_threads(number)
    try:
        yield
    finally:
        torch.set_num_threads(before)


class Neighbours:
    """What other processes and the hypervisor took of this machine since the start of the benchmark."""

    def __init__(self) -> None:
        self.load = load_average()
        self._busy, self._stolen, self._own = *_jiffies(), _own_seconds()
        self._began = time.perf_counter()

    def cores(self) -> float | None:
        """Mean number of cores that others kept busy, or None where the system does not tell."""
        if self._busy is None:
            return None
        busy, _ = _jiffies()
        tick = os.sysconf("SC_CLK_TCK")
        others = (busy - self._busy) / tick - (_own_seconds() - self._own)
        return max(0.0, others / (time.perf_counter() - self._began))

    def stolen(self) -> float | None:
        """Mean number of cores that the hypervisor gave to someone else."""
        if self._stolen is None:
            return None
        return (_jiffies()[1] - self._stolen) / os.sysconf("SC_CLK_TCK") / (time.perf_counter() - self._began)

    def warning(self) -> str | None:
        cores, stolen, before = self.cores(), self.stolen(), self.load
        if cores is not None and cores > DISTURBED:
            return f"other processes kept {cores:.2f} cores busy during this run: the figures are disturbed"
        if stolen is not None and stolen > DISTURBED:
            return f"the hypervisor took {stolen:.2f} cores during this run: the figures are disturbed"
        if cores is None and before is not None and before > 0.5:
            return f"the load average before the run was {before:.2f}: the figures may be disturbed"
        return None


def load_average() -> float | None:
    return os.getloadavg()[0] if hasattr(os, "getloadavg") else None


def _jiffies() -> tuple[int, int] | tuple[None, None]:
    """Ticks that all cores spent at work, and ticks stolen by the hypervisor, since the machine started."""
    try:
        fields = [int(word) for word in Path("/proc/stat").read_text().split("\n", 1)[0].split()[1:]]
        user, nice, system, _idle, _iowait, irq, softirq, steal = fields[:8]
    except (OSError, ValueError):
        return None, None
    return user + nice + system + irq + softirq, steal


def _own_seconds() -> float:
    spent = os.times()
    return spent.user + spent.system + spent.children_user + spent.children_system


def machine() -> dict[str, Any]:
    core, _ = _cpu.load_core()
    return {
        "cpu": _cpu.cpu_name(),
        "cores": os.cpu_count(),
        "instruction_sets": core.instruction_sets() if core is not None else [],
        "torch": torch.__version__,
        "torch_kernels": torch.backends.cpu.get_cpu_capability(),
        "threads": torch.get_num_threads(),
    }
