"""`farspan doctor`: what this machine can run; for what is missing, why, and how to get it.

`report()` gathers plain data and never raises: a probe that fails becomes a line that says so.
"""

from __future__ import annotations

import dataclasses
import importlib.metadata
import importlib.util
import os
import platform
from collections.abc import Callable
from typing import Any

from rich.console import Console
from rich.markup import escape
from rich.table import Table

from farspan import _cpu

USES = {
    "cpu": "C++ kernels; the default for fp32, bf16 and fp16 on a CPU",
    "torch": "plain PyTorch, every device and dtype; the default where cpu does not run",
    "reference": "the definition of correct: dense, slow, memory quadratic in the length",
}
EXTRAS = {
    "datasets": "Hugging Face datasets as training data",
    "pyarrow": "parquet files as training data",
}


@dataclasses.dataclass(frozen=True)
class Item:
    """One thing that is there or not. `why` is set where it is not, `how` where it can be got."""

    name: str
    available: bool
    detail: str = ""
    why: str = ""
    how: str = ""


@dataclasses.dataclass(frozen=True)
class Report:
    """What `farspan doctor` found. `machine` and `versions` are facts, the rest are items."""

    versions: dict[str, str]
    machine: dict[str, str]
    backends: tuple[Item, ...]
    hardware: tuple[Item, ...]
    extras: tuple[Item, ...]

    def to_dict(self) -> dict[str, Any]:
        """The report as JSON-ready data."""
        return dataclasses.asdict(self)


def report() -> Report:
    """Looks at this machine: runs no kernel, uses no network, imports nothing heavy beside torch."""
    return Report(
        versions=_versions(),
        machine=_machine(),
        backends=_backends(),
        hardware=(
            _probe("C++ core", _core),
            _probe("C++ threads", _threads),
            _probe("GPU", _gpu),
            _probe("fast bf16 on CPU", _bf16),
        ),
        extras=tuple(_extra(name, use) for name, use in EXTRAS.items()),
    )


def render(found: Report, console: Console | None = None) -> None:
    """Prints the report as tables on `console` (standard output by default)."""
    console = console or Console()
    facts = Table.grid(padding=(0, 2))
    for name, value in {**found.versions, **found.machine}.items():
        facts.add_row(f"[bold]{name}", value)
    console.print(facts)
    for title, items in (
        ("Attention backends", found.backends),
        ("Hardware", found.hardware),
        ("Optional packages", found.extras),
    ):
        table = Table.grid(padding=(0, 2))
        for item in items:
            mark = "[green]yes[/]" if item.available else "[yellow]no[/]"
            table.add_row(item.name, mark, _words(item))
        console.print(f"\n[bold]{title}")
        console.print(table)


def _words(item: Item) -> str:
    if item.available:
        return escape(item.detail)
    how = f"\n[dim]to get it:[/] {escape(item.how)}" if item.how else ""
    return escape(item.why) + how


def _probe(name: str, look: Callable[[], Item]) -> Item:
    try:
        return look()
    except Exception as error:  # a broken driver must not break the tool that would say so
        return Item(name, False, why=f"could not be examined: {type(error).__name__}: {error}")


def _version(package: str) -> str:
    try:
        return importlib.metadata.version(package)
    except importlib.metadata.PackageNotFoundError:
        return "not installed"


def _versions() -> dict[str, str]:
    packages = ("farspan", "torch", "transformers", "tokenizers", "numpy")
    return {"python": platform.python_version(), **{name: _version(name) for name in packages}}


def _machine() -> dict[str, str]:
    import torch

    return {
        "system": f"{platform.system()} {platform.machine()}",
        "cpu": f"{_cpu.cpu_name()}, {os.cpu_count()} logical cores",
        "threads": f"{torch.get_num_threads()} (torch)",
        "torch kernels": torch.backends.cpu.get_cpu_capability(),
    }


def _backends() -> tuple[Item, ...]:
    try:
        from farspan.attention import backends

        reasons = backends.available()
    except Exception as error:
        why = f"could not be examined: {type(error).__name__}: {error}"
        return (Item("attention", False, why=why),)
    return tuple(
        Item(name, True, USES.get(name, "")) if reason is None else Item(name, False, why=reason)
        for name, reason in reasons.items()
    )


def _core() -> Item:
    core, why = _cpu.load_core()
    if core is None:
        return Item("C++ core", False, why=why or "", how=_cpu.HOW_TO_GET_THE_CORE)
    build = core.build_info()
    sets = core.instruction_sets()
    used = core.kernel_instruction_set() if hasattr(core, "kernel_instruction_set") else sets[-1]
    detail = f"{build['compiler']} {build['flags']}; kernels use {used}; this CPU runs: {', '.join(sets)}"
    return Item("C++ core", True, detail)


def _threads() -> Item:
    import torch

    core, _ = _cpu.load_core()
    if core is None:
        return Item("C++ threads", False, why="there is no C++ core")
    if not all(_cpu.torch_pool()):
        why = f"torch {torch.__version__} does not lend its threads, so the C++ kernels run on one"
        return Item("C++ threads", False, why=why, how="install torch 2.10 or newer")
    return Item("C++ threads", True, f"{core.available_threads()}, torch's own (torch.set_num_threads)")


def _gpu() -> Item:
    import torch

    if torch.cuda.is_available():
        names = [torch.cuda.get_device_name(index) for index in range(torch.cuda.device_count())]
        return Item("GPU", True, ", ".join(names))
    if torch.backends.mps.is_available():
        return Item("GPU", True, "Apple GPU (mps): PyTorch backends only")
    if torch.version.cuda is None and torch.version.hip is None:
        return Item("GPU", False, why="this PyTorch is a CPU build", how="install a CUDA or ROCm build of torch")
    return Item("GPU", False, why="PyTorch sees no GPU")


def _bf16() -> Item:
    if _cpu.bf16_is_fast():
        return Item("fast bf16 on CPU", True, "this CPU has bf16 instructions")
    why = "this CPU has no bf16 instructions (or does not tell), so fp32 is the faster choice on it"
    return Item("fast bf16 on CPU", False, why=why)


def _extra(name: str, use: str) -> Item:
    if importlib.util.find_spec(name) is not None:
        return Item(name, True, f"{_version(name)}: {use}")
    return Item(name, False, why=f"not installed: {use}", how="pip install 'farspan[data]'")
