"""What runs in another process to look at the C++ core there: a module, so that a spawned process can import it."""

from __future__ import annotations

import torch

from farspan import _cpu


def threads_and_runs(_: object = None) -> tuple[int, list[int]]:
    """Threads that a kernel may use where torch has two, and how often each of three workers runs."""
    core, why = _cpu.load_core()
    assert core is not None, why
    torch.set_num_threads(2)
    runs, _ = core.parallel_self_test(3)
    return core.available_threads(), runs
