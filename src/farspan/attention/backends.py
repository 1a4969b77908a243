"""Which backends this process can run, for which tensors, and for the others why not."""

from __future__ import annotations

from torch import Tensor

from farspan import _cpu
from farspan.attention import cpu_lines
from farspan.support import Support

BACKENDS = ("reference", "torch", "cpu", "triton")
_MISSING = {"triton": "the Triton kernels are not part of this version; use backend='torch'"}


def available() -> dict[str, str | None]:
    """Every backend by name, with None where it runs here or else the reason why it does not."""
    return dict.fromkeys(BACKENDS) | _MISSING | {"cpu": _cpu.load_core()[1]}


def choose(backend: str | None, q: Tensor, support: Support) -> str:
    """The backend that `attention(backend=...)` runs for this: the one named, or the fastest for None.

    Raises:
        ValueError: the name is unknown, or the backend named does not run here, or not such a support on tensors like
            `q` (nothing falls back silently).
    """
    if backend is None:
        return "torch" if cpu_lines.refusal(q, support) else "cpu"
    if backend not in BACKENDS:
        raise ValueError(f"backend must be None or one of {', '.join(BACKENDS)}, got {backend!r}")
    # Not `available()`: under `torch.compile` the core cannot be loaded.
    reason = cpu_lines.refusal(q, support) if backend == "cpu" else _MISSING.get(backend)
    if reason is not None:
        raise ValueError(f"backend {backend!r} does not run here: {reason}")
    return backend
