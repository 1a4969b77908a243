"""Long inputs: memory linear in the length (F21), and addresses beyond 32 bits (F20)."""

from __future__ import annotations

import os
import subprocess
import sys
import textwrap
from pathlib import Path

import pytest
import torch

import farspan
from attention_probes import fast_backends, needs_core
from farspan import attention, patterns

MEASURE = """
    import sys, torch
    from farspan import Blocks, attention, patterns
    torch.set_num_threads(1)
    backend, backward, lengths = sys.argv[1], sys.argv[2] == "backward", [int(length) for length in sys.argv[3:]]

    def megabytes(field):
        return next(int(line.split()[1]) for line in open("/proc/self/status") if line.startswith(field)) / 1024

    def run(length):
        q, k, v = (torch.randn(1, 1, length, 64, requires_grad=backward) for _ in range(3))
        blocks = torch.arange(-(-length // 64))[:, None]
        support = patterns.fibonacci(window=9, alpha=1.5)
        if backend == "blocks":
            support = Blocks(torch.cat([blocks // 2, (blocks - 1).clamp_min(0), blocks], 1)[None, None], 64, 64)
        out = attention(q, k, v, support, backend="torch" if backend == "blocks" else backend)
        if backward:
            out.square().sum().backward()

    run(300)
    before = megabytes("VmRSS")
    for length in lengths:
        run(length)
        print(megabytes("VmHWM") - before)
"""
LENGTHS = (8192, 16384, 65536)


def printed_by(program: str, *arguments: object) -> list[float]:
    """The numbers that a fresh process prints, in which freed memory goes back to the system at once."""
    if not Path("/proc/self/status").exists():
        pytest.skip("peak memory of a process is read from /proc")
    environment = os.environ | {"MALLOC_TRIM_THRESHOLD_": "0", "MALLOC_MMAP_THRESHOLD_": "65536"}
    environment["PYTHONPATH"] = str(Path(farspan.__file__).parents[1])
    command = [sys.executable, "-c", textwrap.dedent(program), *map(str, arguments)]
    done = subprocess.run(command, env=environment, check=True, capture_output=True, text=True)
    return [float(number) for number in done.stdout.split()]


@pytest.fixture(
    scope="module",
    params=[
        ("torch", "forward"),
        ("torch", "backward"),
        ("blocks", "forward"),  # of the torch backend
        ("blocks", "backward"),
        pytest.param(("cpu", "forward"), marks=needs_core),
        pytest.param(("cpu", "backward"), marks=needs_core),
    ],
    ids=" ".join,
)
def growth(request) -> dict[int, float]:
    """By how many MB the peak memory of a fresh process has grown when attention has run at each length.

    Not `resource.getrusage`: on Linux its peak includes what the parent held when it started the process.
    """
    return dict(zip(LENGTHS, printed_by(MEASURE, *request.param, *LENGTHS), strict=True))


@pytest.mark.slow
def test_65536_tokens_stay_under_512_megabytes(growth):
    """F21: a T x T map of booleans alone is 4.3 GB."""
    assert growth[65536] < 512


@pytest.mark.slow
def test_memory_doubles_with_the_length(growth):
    """F21: times two, not times four."""
    assert growth[16384] < 2.5 * growth[8192]
    assert growth[65536] < 4.5 * growth[16384]


MEASURE_EXTRA = """
    import sys, torch
    from pathlib import Path
    from farspan import attention, patterns
    backward, dtype, threads = sys.argv[1] == "backward", getattr(torch, sys.argv[2]), int(sys.argv[3])
    torch.set_num_threads(threads)

    def megabytes(field):
        return next(int(line.split()[1]) for line in open("/proc/self/status") if line.startswith(field)) / 1024

    def inputs(length):
        return [torch.randn(1, heads, length, 64).to(dtype).requires_grad_(backward) for heads in (8, 2, 2, 8)]

    def run(q, k, v, grad):
        results = attention(q, k, v, patterns.fibonacci(64), return_lse=True, backend="cpu")
        return (*results, *torch.autograd.grad(results[0], (q, k, v), grad.detach())) if backward else results

    run(*inputs(1))
    tensors = inputs(65536)
    Path("/proc/self/clear_refs").write_text("5")  # the peak starts again from here
    before = megabytes("VmRSS")
    results = run(*tensors)
    print(megabytes("VmHWM") - before, sum(x.nbytes for x in results) / 2**20)
"""


@pytest.mark.slow
@needs_core
@pytest.mark.parametrize("threads", [1, 2])
@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
@pytest.mark.parametrize("direction", ["forward", "backward"])
def test_the_kernels_need_their_results_and_a_megabyte_a_thread(direction, dtype, threads):
    """At 65,536 tokens. In narrow dtypes the gradients of keys and values are summed in an fp32 copy."""
    grown, results = printed_by(MEASURE_EXTRA, direction, dtype, threads)
    copies = 2 * (2 * 65536 * 64 * 4) / 2**20 if (direction, dtype) == ("backward", "bfloat16") else 0
    noise = 1  # pages that Python touches meanwhile
    assert grown <= results + copies + threads + noise


@pytest.mark.slow
@fast_backends
def test_rows_beyond_two_to_the_31st_element_are_read_right(backend):
    """F20: the last row sits at element 2,149,548,032. Only the pages touched become resident, 0.5 GB."""
    rows, stride = 65600, 32768
    buffer = torch.empty(rows * stride, dtype=torch.bfloat16)
    x = buffer.as_strided((rows, 16), (stride, 1))
    x.copy_(torch.randn(rows, 16))
    assert (rows - 1) * stride > 2**31
    q, k, v = (x[None, None].detach().requires_grad_() for _ in range(3))
    out, lse = attention(q, k, v, patterns.sliding_window(4), return_lse=True, backend=backend)
    small = [x[-4:].clone()[None, None].requires_grad_() for _ in range(3)]
    expected, expected_lse = attention(*small, patterns.sliding_window(4), return_lse=True, backend="reference")
    torch.testing.assert_close(out[:, :, -1], expected[:, :, -1])
    torch.testing.assert_close(lse[:, :, -1], expected_lse[:, :, -1])
    grads = torch.autograd.grad(out[:, :, -1].sum(), (q, k, v))
    for grad, grad_small in zip(grads, torch.autograd.grad(expected[:, :, -1].sum(), small), strict=True):
        one_rounding = torch.finfo(torch.bfloat16).eps * grad_small.abs().max().item()
        torch.testing.assert_close(grad[:, :, -4:], grad_small, atol=one_rounding, rtol=0)
        assert not grad[:, :, :-4].any()
