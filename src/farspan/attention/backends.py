"""Which backends this process can run, and for the others why not."""

from __future__ import annotations

BACKENDS = ("reference", "torch", "cpu", "triton")

_MISSING = {
    "cpu": "the C++ kernels are not part of this version; use backend='torch'",
    "triton": "the Triton kernels are not part of this version; use backend='torch'",
}


def available() -> dict[str, str | None]:
    """Every backend by name, with None where it runs here or else the reason why it does not."""
    return {name: _MISSING.get(name) for name in BACKENDS}


def choose(backend: str | None) -> str:
    """The backend that `attention(backend=...)` runs: the one named, or the fastest available for None.

    Raises:
        ValueError: the name is unknown, or the backend named does not run here (nothing falls back silently).
    """
    if backend is None:
        return "torch"
    if backend not in BACKENDS:
        raise ValueError(f"backend must be None or one of {', '.join(BACKENDS)}, got {backend!r}")
    reason = _MISSING.get(backend)
    if reason is not None:
        raise ValueError(f"backend {backend!r} does not run here: {reason}")
    return backend
