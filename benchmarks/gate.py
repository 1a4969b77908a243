"""The correctness gate: no speed is printed of a backend whose results are wrong.

The exact result is attention in fp64. What a plain dense masked softmax loses against it in the dtype measured is what
that dtype costs; a backend may lose up to `FACTOR` times as much. No tolerance is chosen by hand.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import NamedTuple

import torch
from torch import Tensor

import contenders
from contenders import COLUMNS, Column
from farspan import Lines, attention

FACTOR = 4.0
# (queries, keys): odd lengths, lengths below a window, single and few queries against a cache.
SHORT = ((1, 1), (17, 17), (257, 257), (1, 257), (63, 63), (1000, 1000), (5, 1000))
Lengths = tuple[tuple[int, int], ...]
NAMES = ("out", "lse", "grad_q", "grad_k", "grad_v")


class Error(NamedTuple):
    """Largest error of one tensor against fp64: the backend's, and that of a plain softmax in the same dtype."""

    name: str
    actual: float
    plain: float


@dataclass
class Gate:
    cases: int = 0
    worst: dict[str, float] = field(default_factory=dict)
    failures: list[str] = field(default_factory=list)

    @property
    def green(self) -> bool:
        return self.cases > 0 and not self.failures

    def line(self) -> str:
        if not self.green:
            more = f" (and {len(self.failures) - 1} more)" if len(self.failures) > 1 else ""
            return f"correctness gate: RED, so no speed is printed. {self.failures[0]}{more}"
        figures = ", ".join(f"{name} {value:.2f}" for name, value in self.worst.items())
        return (
            f"correctness gate: green, {self.cases} cases. Largest error against fp64, in errors of a dense masked"
            f" softmax in the same dtype (bound {FACTOR:g}): {figures}"
        )

    def judge(self, cases: list[tuple[str, list[Error]]]) -> None:
        """Cases that share a pattern and a dtype. Their largest plain error is the yardstick of each of them: the error
        of a few numbers alone may be nothing by luck."""
        plain = {name: max(e.plain for _, errors in cases for e in errors if e.name == name) for name in NAMES}
        for case, errors in cases:
            self.cases += 1
            for name, error, _ in errors:
                ratio = error / plain[name] if plain[name] else float("inf")
                self.worst[name] = max(self.worst.get(name, 0.0), ratio)
                if not ratio <= FACTOR:  # NaN fails as well
                    self.failures.append(
                        f"{case}: {name} is off by {error:.2e}, {ratio:.1f} times the {plain[name]:.2e}"
                        f" of a plain softmax (bound {FACTOR:g})"
                    )


def _error(actual: Tensor, exact: Tensor) -> float:
    difference = (actual.double() - exact).abs()
    return float("inf") if difference.isnan().any() else float(difference.max())


def cases(short: Lengths, long: tuple[int, ...]) -> list[tuple[Column, int, int, torch.dtype, bool, str]]:
    """(column, queries, keys, dtype, strided, backend that gives the exact and the plain result)."""
    found = []
    for column in COLUMNS:
        for dtype in (torch.float32, torch.bfloat16):
            found += [(column, q_len, k_len, dtype, False, "reference") for q_len, k_len in short]
            found.append((column, 257, 257, dtype, True, "reference"))
        # Beyond what a T x T tensor in fp64 allows, the torch backend in fp64 is exact enough, and linear in T.
        found += [(column, length, length, torch.float32, False, "torch") for length in long]
    return found


def check(backend: str, short: Lengths, long: tuple[int, ...], advance: Callable[[], None] = lambda: None) -> Gate:
    gate = Gate()
    families: dict[tuple, list[tuple[str, list[Error]]]] = {}
    for column, q_len, k_len, dtype, strided, plain in cases(short, long):
        q, k, v = contenders.qkv(q_len, column.kv_heads, k_len=k_len, dtype=dtype, strided=strided)
        lines = column.lines(k_len)
        given = None
        if q_len == k_len > 1:  # a single pair has no gradient for q and k but rounding noise
            # Rounded to the dtype measured, so that the exact run differentiates the same loss.
            given = [contenders.random_like(q), contenders.random_like(q[..., 0].float(), seed=2)]
        exact = _results(q.double(), k.double(), v.double(), lines, plain, given)
        ours = _results(q, k, v, lines, backend, given)
        theirs = _results(q, k, v, lines, plain, given)
        errors = [
            Error(name, _error(a, e), _error(p, e)) for name, a, p, e in zip(NAMES, ours, theirs, exact, strict=False)
        ]
        layout = ", strided" if strided else ""
        case = f"{column.title}, Tq={q_len}, Tk={k_len}, {dtype}{layout}"
        families.setdefault((column.name, dtype, plain), []).append((case, errors))
        advance()
    for family in families.values():
        gate.judge(family)
    return gate


def _results(q: Tensor, k: Tensor, v: Tensor, lines: Lines, backend: str, given: list[Tensor] | None) -> list[Tensor]:
    """out and lse, and with `given` gradients of both those of q, k and v."""
    leaves = [x.detach().requires_grad_(given is not None) for x in (q, k, v)]
    results = attention(*leaves, lines, return_lse=True, backend=backend)
    if given is None:
        return list(results)
    given = [g.to(r.dtype) for g, r in zip(given, results, strict=True)]
    return [r.detach() for r in results] + list(torch.autograd.grad(results, leaves, given))
