"""What runs in another process to look at the C++ core there: a module, so that a spawned process can import it."""

from __future__ import annotations

import torch
from torch import Tensor

from farspan import Lines, _cpu


def threads_and_runs(_: object = None) -> tuple[int, list[int]]:
    """Threads that a kernel may use where torch has two, and how often each of three workers runs."""
    core, why = _cpu.load_core()
    assert core is not None, why
    torch.set_num_threads(2)
    runs, _ = core.parallel_self_test(3)
    return core.available_threads(), runs


def lines_and_gradients(_: object = None) -> list[Tensor]:
    """Output, log-sum-exp and gradients of a call that is large enough to be shared out to threads.

    By the operators alone: PyTorch refuses autograd in a child whose parent has used it.
    """
    torch.set_num_threads(2)
    generator = torch.Generator().manual_seed(0)
    q, k, v, grad = (torch.randn(1, heads, 2000, 32, generator=generator) for heads in (4, 2, 2, 4))
    support = Lines([*range(40), 100, 700], verticals=[0])
    tables = (support.slash_table, support.vertical_table, None, None, 0.2, "cpu")
    out, lse = torch.ops.farspan.lines(q, k, v, *tables)
    return [out, lse, *torch.ops.farspan.lines_backward(grad, None, q, k, v, lse, *tables)]
