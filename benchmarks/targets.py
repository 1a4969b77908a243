"""The targets of the CPU kernel as data: which figure, how it is shown, what it should be."""

from __future__ import annotations

from dataclasses import dataclass

from contenders import COLUMNS

Figures = dict[str, float]


@dataclass(frozen=True)
class Target:
    """`key` names a figure; met if the figure is at least (or at most) `bound`."""

    key: str
    bound: float
    unit: str = "x"
    at_least: bool = True

    def met(self, figures: Figures) -> bool | None:
        value = figures.get(self.key)
        if value is None:
            return None
        return value >= self.bound if self.at_least else value <= self.bound

    def show(self, value: float) -> str:
        if self.unit == "%":
            return f"{100 * value:.1f} %"
        number = f"{value:.0f}" if abs(value) >= 100 else f"{value:.3g}"
        return f"{number}x" if self.unit == "x" else f"{number} {self.unit}"

    def wanted(self) -> str:
        return f"{'≥' if self.at_least else '≤'} {self.show(self.bound)}"


@dataclass(frozen=True)
class Row:
    """A line of the table: for each column the targets, which its cell shows one after another."""

    title: str
    cells: tuple[tuple[Target, ...], ...]


def _row(title: str, keys: tuple[str, ...], bounds: tuple[tuple[float, ...], ...], unit: str = "x") -> Row:
    cells = []
    for column, column_bounds in zip(COLUMNS, bounds, strict=True):
        names = [key.format(column=column.name) for key in keys]
        cells.append(tuple(Target(key, bound, unit) for key, bound in zip(names, column_bounds, strict=True)))
    return Row(title, tuple(cells))


def headline(lengths: tuple[int, int, int]) -> list[Row]:
    middle = lengths[1]
    three = " / ".join(map(str, lengths))
    return [
        _row(
            f"forward, share of FMA peak on useful pairs, T = {middle}",
            (f"forward_share/{{column}}/{middle}",),
            ((0.70,), (0.50,), (0.56,)),
            "%",
        ),
        _row(
            f"backward alone, share of FMA peak, T = {middle}",
            (f"backward_share/{{column}}/{middle}",),
            ((0.65,), (0.42,), (0.54,)),
            "%",
        ),
        _row(
            f"forward against dense SDPA, T = {three}",
            tuple(f"forward_vs_dense/{{column}}/{length}" for length in lengths),
            ((11, 32, 80), (20, 58, 195), (9, 24, 65)),
        ),
        _row(
            f"forward + backward against dense SDPA, T = {three}",
            tuple(f"training_vs_dense/{{column}}/{length}" for length in lengths),
            ((11, 31, 108), (30, 56, 165), (9, 24, 85)),
        ),
        _row(
            f"forward against the best FlexAttention block, T = {middle}",
            (f"forward_vs_flex/{{column}}/{middle}",),
            ((12,), (23,), (9,)),
        ),
        _row(
            f"two threads against one: forward / backward, T = {middle}",
            (f"threads_forward/{{column}}/{middle}", f"threads_backward/{{column}}/{middle}"),
            ((1.85, 1.85),) * 3,
        ),
    ]


def further(lengths: tuple[int, int, int], growth: tuple[int, int], memory: int, cache: int) -> list[Row]:
    """Rows with one cell each."""
    rows = [
        (
            f"views of [B,T,H,D] against contiguous, {kind}, T = {length} (three columns)",
            [Target(f"strides_{key}/{column.name}/{length}", 1.15, at_least=False) for column in COLUMNS],
        )
        for kind, key in (("forward", "forward"), ("forward + backward", "training"))
        for length in lengths[1:]
    ]
    rows += [
        (
            f"time at T = {growth[1]} over T = {growth[0]}, {kind} (three columns)",
            [Target(f"growth_{key}/{column.name}", 17.5, at_least=False) for column in COLUMNS],
        )
        for kind, key in (
            ("forward", "forward"),
            ("forward + backward", "training"),
            ("kernel only, forward", "kernel_forward"),
            ("kernel only, backward", "kernel_backward"),
        )
    ]
    rows += [
        (
            f"memory beyond the results, {kind}, one thread, T = {memory}, Hkv = 2 / 8",
            [Target(f"memory_{key}/{kv_heads}", 1.0, "MiB", at_least=False) for kv_heads in (2, 8)],
        )
        for kind, key in (("forward", "forward"), ("forward + backward", "training"))
    ]
    rows += [
        ("call less its kernel, T = 16, no_grad", [Target("overhead/no_grad", 15, "us", at_least=False)]),
        (
            "call less its kernel, T = 16, forward with autograd",
            [Target("overhead/autograd", 70, "us", at_least=False)],
        ),
        (
            f"decode, window 64 + fib, cache {cache}, kernel only, Hkv = 2 / 8",
            [Target(f"decode_kernel/{kv_heads}/64/{cache}", 15, "us", at_least=False) for kv_heads in (2, 8)],
        ),
        (
            f"decode, window 64 + fib, cache {cache}, whole call, Hkv = 2 / 8",
            [Target(f"decode_call/{kv_heads}/64/{cache}", 45, "us", at_least=False) for kv_heads in (2, 8)],
        ),
        (
            "decode, fixed reach: long cache over short cache, whole call, Hkv = 2 / 8",
            [Target(f"decode_constant/{kv_heads}", 1.15, at_least=False) for kv_heads in (2, 8)],
        ),
        (
            f"bf16 against fp32, forward, T = {lengths[1]} (three columns)",
            [Target(f"bf16_speed/{column.name}", 0.9) for column in COLUMNS],
        ),
        (
            "bf16 error against fp64, in output roundings beyond what fp32 costs (three columns)",
            [Target(f"bf16_error/{column.name}", 1.0, "roundings", at_least=False) for column in COLUMNS],
        ),
    ]
    return [Row(title, (tuple(cells),)) for title, cells in rows]
