"""Extra memory of one call in a fresh process: `python benchmarks/memory.py cpu 65536 2 forward` prints bytes.

Printed are two numbers: by how much the peak of resident memory exceeds what was resident before the call, and how
much of that the caller asked for (outputs, log-sum-exp, and in a backward the gradients).
"""

from __future__ import annotations

import ctypes
import re
import subprocess
import sys
from pathlib import Path

import torch

import contenders
from farspan import attention

STATUS = Path("/proc/self/status")


def resident(field: str) -> int:
    """Bytes: VmRSS is what is resident now, VmHWM the most since it was last reset."""
    found = re.search(rf"{field}:\s+(\d+) kB", STATUS.read_text())
    assert found is not None
    return 1024 * int(found[1])


def measure(backend: str, length: int, kv_heads: int, kind: str) -> tuple[int, int]:
    def run(q_len: int) -> int:
        q, k, v = contenders.qkv(q_len, kv_heads, grad=kind == "training")
        lines = contenders.window_and_fibonacci(64, q_len)
        given = contenders.random_like(q)
        # What the generation of the inputs freed must not serve the call.
        ctypes.CDLL(None).malloc_trim(0)
        Path("/proc/self/clear_refs").write_text("5")
        before = resident("VmRSS")
        out, lse = attention(q, k, v, lines, return_lse=True, backend=backend)
        kept = [out, lse]
        if kind == "training":
            kept += torch.autograd.grad(out, (q, k, v), given)
        asked = sum(x.numel() * x.element_size() for x in kept)
        return resident("VmHWM") - before, asked

    with torch.set_grad_enabled(kind == "training"):
        run(512)  # the code, the thread pool and the autograd engine are in memory after this
        return run(length)


def in_fresh_process(backend: str, length: int, kv_heads: int, kind: str, threads: int) -> tuple[int, int] | None:
    """`(growth, asked)` in bytes, or None where the system does not tell."""
    if not (sys.platform == "linux" and STATUS.exists()):
        return None
    command = [sys.executable, __file__, backend, str(length), str(kv_heads), kind, str(threads)]
    run = subprocess.run(command, capture_output=True, text=True)
    if run.returncode:
        raise RuntimeError(f"the memory benchmark failed: {run.stderr.strip().splitlines()[-1]}")
    growth, asked = run.stdout.split()
    return int(growth), int(asked)


if __name__ == "__main__":
    torch.set_num_threads(int(sys.argv[5]) if len(sys.argv) > 5 else 1)
    print(*measure(sys.argv[1], int(sys.argv[2]), int(sys.argv[3]), sys.argv[4]))
