"""What is measured, a section at a time. Each stores its figures under the keys that `targets.py` names."""

from __future__ import annotations

import itertools
import statistics
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch
from rich.console import Console
from rich.table import Table
from torch import Tensor

import contenders
import gate
import memory
import roofline
import timing
from contenders import COLUMNS, HEAD_DIM, HEADS, Column
from farspan import Lines, _cpu, attention, patterns
from timing import Contender, Turns

Tensors = tuple[Tensor, Tensor, Tensor]
Function = Callable[[Tensor, Tensor, Tensor], Tensor]


@dataclass(frozen=True)
class Sizes:
    lengths: tuple[int, int, int] = (1024, 4096, 16384)
    rounds: tuple[int, int, int] = (9, 5, 2)
    growth: tuple[int, int] = (4096, 65536)
    memory: int = 65536
    caches: tuple[int, int] = (4096, 65536)
    exact: int = 1024  # longest T x T in fp64
    gate: tuple[tuple[int, int], ...] = gate.SHORT
    gate_long: tuple[int, ...] = (4096, 16384)
    flex_blocks: tuple[int, ...] = contenders.FLEX_BLOCKS


QUICK = Sizes(
    lengths=(128, 256, 512),
    rounds=(3, 3, 3),
    growth=(256, 1024),
    memory=2048,
    caches=(256, 1024),
    exact=256,
    gate=gate.SHORT[:4],
    gate_long=(512,),
    flex_blocks=(64,),
)


@dataclass
class Session:
    backend: str
    sizes: Sizes
    console: Console
    core: Any = field(default_factory=lambda: _cpu.load_core()[0])
    figures: dict[str, float] = field(default_factory=dict)
    details: dict[str, list[dict[str, Any]]] = field(default_factory=dict)

    def measure(self, title: str, entries: dict[str, Contender], rounds: int) -> Turns:
        with timing.progress(title, len(entries), rounds) as advance:
            return timing.interleave(entries, rounds, advance)

    def ours(self, lines: Lines) -> Function:
        return lambda q, k, v: contenders.ours(q, k, v, lines, self.backend)

    def table(self, section: str, title: str, rows: Sequence[dict[str, Any]]) -> None:
        """Prints the rows and keeps them as data."""
        self.details.setdefault(section, []).extend(rows)
        table = Table(box=None, pad_edge=False, padding=(0, 2, 0, 0))
        for name in rows[0]:
            table.add_column(name, justify="left" if isinstance(rows[0][name], str) else "right")
        for row in rows:
            table.add_row(*(_cell(value) for value in row.values()))
        self.console.print(f"\n{title}", markup=False)
        self.console.print(table)


def _cell(value: Any) -> str:
    if value is None:
        return "-"
    if isinstance(value, float):
        return f"{value:.3g}" if abs(value) < 100 else f"{value:.0f}"
    return str(value)


# --- contenders of one call


def forward(function: Function, tensors: Tensors) -> Contender:
    """Without gradients for the whole turn, as in a decoding loop: the switch is not timed."""
    q, k, v = (x.detach() for x in tensors)
    return without_gradients(lambda: function(q, k, v))


def without_gradients(run: Callable[[], Any]) -> Contender:
    return Contender(
        lambda _: run(),
        enter=lambda: torch.set_grad_enabled(False),
        leave=lambda: torch.set_grad_enabled(True),
    )


def training(function: Function, tensors: Tensors, given: Tensor) -> Contender:
    """Forward and backward of a loss whose gradient is random."""
    leaves = [x.detach().requires_grad_() for x in tensors]
    return Contender(lambda _: torch.autograd.grad(function(*leaves), leaves, given))


def backward(function: Function, tensors: Tensors, given: Tensor) -> Contender:
    """The backward alone: the graph is built before the clock starts."""
    leaves = [x.detach().requires_grad_() for x in tensors]
    return Contender(lambda out: torch.autograd.grad(out, leaves, given), prepare=lambda: function(*leaves))


def same(name: str, actual: Tensor, expected: Tensor) -> None:
    """A contender that computes something else proves nothing by its speed."""
    worst = float((actual - expected).abs().max())
    if not worst <= 1e-4:  # fp32 sums in another order; a wrong pair shows as 1e-2 and more
        raise RuntimeError(f"{name} computes something else than farspan: its outputs differ by {worst:.2e}")


# --- sections


def headline(session: Session) -> None:
    """Forward and training beside dense SDPA, and shares of the FMA peak."""
    rows, peaks = [], []
    for length, rounds in zip(session.sizes.lengths, session.sizes.rounds, strict=True):
        inputs = {kv_heads: contenders.qkv(length, kv_heads) for kv_heads in (2, 8)}
        given = contenders.random_like(inputs[2][0])
        functions: dict[str, tuple[Function, int]] = {f"dense SDPA Hkv={n}": (contenders.dense, n) for n in inputs} | {
            column.name: (session.ours(column.lines(length)), column.kv_heads) for column in COLUMNS
        }
        entries: dict[str, Contender] = {}
        for name, (function, kv_heads) in functions.items():
            entries[f"forward {name}"] = forward(function, inputs[kv_heads])
            if name in {column.name for column in COLUMNS}:
                entries[f"backward {name}"] = backward(function, inputs[kv_heads], given)
        if session.core is not None:
            entries["peak"] = Contender(lambda _: peaks.append(session.core.fma_peak(0.02)))
        turns = session.measure(f"forward and backward, T = {length}", entries, rounds)
        entries = {name: training(f, inputs[kv_heads], given) for name, (f, kv_heads) in functions.items()}
        # One round of dense training at 16384 takes most of a minute, long enough to even out what disturbs it.
        both = session.measure(f"training, T = {length}", entries, min(rounds, 1 if length > 8192 else rounds))
        peak = 1e9 * statistics.median(peaks) if peaks else None
        for n in inputs:
            name = f"dense SDPA Hkv={n}"
            flops = 2 * HEADS * HEAD_DIM * length * (length + 1)
            rows.append(
                {
                    "T": length,
                    "contender": name,
                    "forward ms": 1e3 * turns.median(f"forward {name}"),
                    "GFLOP/s": flops / turns.median(f"forward {name}") / 1e9,
                    "of peak %": 100 * flops / turns.median(f"forward {name}") / peak if peak else None,
                    "best call %": 100 * flops / turns.best(f"forward {name}") / peak if peak else None,
                    "x dense": 1.0,
                    "backward ms": None,
                    "of peak % ": None,
                    "best call % ": None,
                    "fwd+bwd ms": 1e3 * both.median(name),
                    "x dense ": 1.0,
                }
            )
        for column in COLUMNS:
            name, against = column.name, f"dense SDPA Hkv={column.kv_heads}"
            cost = column.lines(length).cost(length, length, heads=HEADS, kv_heads=column.kv_heads, head_dim=HEAD_DIM)
            forward_rate = cost.forward_flops / turns.median(f"forward {name}")
            backward_rate = cost.backward_flops / turns.median(f"backward {name}")
            figures = {
                "forward_seconds": turns.median(f"forward {name}"),
                "forward_vs_dense": turns.ratio(f"forward {against}", f"forward {name}"),
                "training_vs_dense": both.ratio(against, name),
            }
            if peak:
                figures |= {"forward_share": forward_rate / peak, "backward_share": backward_rate / peak}
            session.figures |= {f"{key}/{name}/{length}": value for key, value in figures.items()}
            rows.append(
                {
                    "T": length,
                    "contender": f"farspan {session.backend}, {column.title}",
                    "forward ms": 1e3 * turns.median(f"forward {name}"),
                    "GFLOP/s": forward_rate / 1e9,
                    "of peak %": 100 * forward_rate / peak if peak else None,
                    "best call %": 100 * cost.forward_flops / turns.best(f"forward {name}") / peak if peak else None,
                    "x dense": figures["forward_vs_dense"],
                    "backward ms": 1e3 * turns.median(f"backward {name}"),
                    "of peak % ": 100 * backward_rate / peak if peak else None,
                    "best call % ": 100 * cost.backward_flops / turns.best(f"backward {name}") / peak if peak else None,
                    "fwd+bwd ms": 1e3 * both.median(name),
                    "x dense ": figures["training_vs_dense"],
                }
            )
    if peaks:
        session.figures["fma_peak"] = statistics.median(peaks)
    peak_words = f"; FMA peak {statistics.median(peaks):.1f} GFLOP/s" if peaks else ""
    session.table("headline", f"Beside dense SDPA, one thread, useful pairs only{peak_words}", rows)


def flex(session: Session) -> None:
    """Forward beside FlexAttention at its best block size; it has no backward on a CPU."""
    length, rounds = session.sizes.lengths[1], session.sizes.rounds[1]
    entries: dict[str, Contender] = {}
    blocks = session.sizes.flex_blocks
    compiled = contenders.compiled_flex()
    with timing.progress("compiling FlexAttention", len(COLUMNS) * len(blocks), 0) as advance, torch.no_grad():
        for column in COLUMNS:
            q, k, v = contenders.qkv(length, column.kv_heads)
            ours = session.ours(column.lines(length))
            entries[column.name] = forward(ours, (q, k, v))
            for block in blocks:
                mask = contenders.block_mask(column.lines(length), length, block)

                def run(q: Tensor, k: Tensor, v: Tensor, mask: Any = mask) -> Tensor:
                    return compiled(q, k, v, block_mask=mask, enable_gqa=q.shape[1] != k.shape[1])

                same(f"FlexAttention, {column.title}, block {block}", run(q, k, v), ours(q, k, v))
                entries[f"{column.name} {block}"] = forward(run, (q, k, v))
                advance()
    turns = session.measure(f"FlexAttention, T = {length}", entries, rounds)
    rows = []
    for column in COLUMNS:
        best = min(blocks, key=lambda block: turns.median(f"{column.name} {block}"))
        ratio = turns.ratio(f"{column.name} {best}", column.name)
        session.figures[f"forward_vs_flex/{column.name}/{length}"] = ratio
        times = {f"block {block} ms": 1e3 * turns.median(f"{column.name} {block}") for block in blocks}
        rows.append(
            {"pattern": column.title, "farspan ms": 1e3 * turns.median(column.name), **times, "x best block": ratio}
        )
    session.table("flex", f"FlexAttention, compiled, forward, T = {length}, one thread", rows)


def others(session: Session) -> None:
    """Gather, boolean mask and the torch backend, forward and training."""
    rows = []
    for length in session.sizes.lengths[:2]:
        forwards: dict[str, Contender] = {}
        trainings: dict[str, Contender] = {}
        for column in COLUMNS:
            lines, tensors = column.lines(length), contenders.qkv(length, column.kv_heads)
            given = contenders.random_like(tensors[0])
            mask = lines.mask(length, length)
            functions: dict[str, Function] = {
                "farspan": session.ours(lines),
                "torch backend": lambda q, k, v, lines=lines: contenders.ours(q, k, v, lines, "torch"),
                "boolean mask": lambda q, k, v, mask=mask: contenders.masked(q, k, v, mask),
                "gather": contenders.Gather(lines, length, column.kv_heads),
            }
            for name, function in functions.items():
                with torch.no_grad():
                    same(f"{name}, {column.title}", function(*tensors), functions["farspan"](*tensors))
                forwards[f"{column.name} {name}"] = forward(function, tensors)
                # The gather keeps all of its copies for the backward: 0.7 GB and more at 4096.
                if name != "gather" or length == session.sizes.lengths[0]:
                    trainings[f"{column.name} {name}"] = training(function, tensors, given)
        turns = session.measure(f"other ways, forward, T = {length}", forwards, 3)
        both = session.measure(f"other ways, training, T = {length}", trainings, 2)
        for column, name in itertools.product(COLUMNS, functions):
            key, base = f"{column.name} {name}", f"{column.name} farspan"
            rows.append(
                {
                    "T": length,
                    "pattern": column.title,
                    "contender": name if name != "farspan" else f"farspan {session.backend}",
                    "forward ms": 1e3 * turns.median(key),
                    "x farspan": turns.ratio(key, base),
                    "fwd+bwd ms": 1e3 * both.median(key) if key in both else None,
                    "x farspan ": both.ratio(key, base) if key in both else None,
                }
            )
    session.table("others", "Other ways to compute the same, one thread", rows)


def threads(session: Session) -> None:
    """Two threads against one."""
    length, rows = session.sizes.lengths[1], []
    kinds = {"forward": forward, "backward": backward}
    entries: dict[str, Contender] = {}

    def on(number: int, contender: Contender) -> Contender:
        def enter() -> None:
            torch.set_num_threads(number)
            contender.enter()
            timing.call(contender)  # the pool of threads is changed outside the clock

        return Contender(contender.run, contender.prepare, enter, contender.leave)

    for column in COLUMNS:
        tensors = contenders.qkv(length, column.kv_heads)
        function = session.ours(column.lines(length))
        made = {
            "forward": forward(function, tensors),
            "backward": backward(function, tensors, contenders.random_like(tensors[0])),
        }
        for kind, number in itertools.product(kinds, (1, 2)):
            entries[f"{column.name} {kind} {number}"] = on(number, made[kind])
    with timing.threads(1):
        turns = session.measure(f"threads, T = {length}", entries, 9)
    for column in COLUMNS:
        row: dict[str, Any] = {"pattern": column.title}
        for kind in kinds:
            one, two = f"{column.name} {kind} 1", f"{column.name} {kind} 2"
            session.figures[f"threads_{kind}/{column.name}/{length}"] = turns.ratio(one, two)
            row |= {
                f"{kind} 1 thread ms": 1e3 * turns.median(one),
                f"{kind} 2 threads ms": 1e3 * turns.median(two),
                f"{kind} x": turns.ratio(one, two),
            }
        rows.append(row)
    session.table("threads", f"Two threads against one, T = {length}", rows)


def strides(session: Session) -> None:
    """Views of [B, T, H, D], as projections in a model give them, against contiguous tensors."""
    rows = []
    for length in session.sizes.lengths[1:]:
        for column in COLUMNS:
            function = session.ours(column.lines(length))
            entries: dict[str, Contender] = {}
            for layout in (False, True):
                tensors = contenders.qkv(length, column.kv_heads, strided=layout)
                given = contenders.random_like(tensors[0])
                if layout:
                    given = given.transpose(1, 2).contiguous().transpose(1, 2)
                entries[f"forward {layout}"] = forward(function, tensors)
                entries[f"training {layout}"] = training(function, tensors, given)
            turns = session.measure(f"strides, {column.name}, T = {length}", entries, 5)
            row: dict[str, Any] = {"T": length, "pattern": column.title}
            for kind in ("forward", "training"):
                ratio = turns.ratio(f"{kind} True", f"{kind} False")
                session.figures[f"strides_{kind}/{column.name}/{length}"] = ratio
                row |= {
                    f"{kind} contiguous ms": 1e3 * turns.median(f"{kind} False"),
                    f"{kind} views ms": 1e3 * turns.median(f"{kind} True"),
                    f"{kind} x": ratio,
                }
            rows.append(row)
    session.table("strides", "Views of [B,T,H,D] against contiguous tensors, one thread", rows)


def growth(session: Session) -> None:
    """Time by length, beside the number of pairs: whole calls, whose results the system must find memory for, and the
    kernels into memory that is there."""
    rows = []
    for column in COLUMNS:
        entries: dict[str, Contender] = {}
        for length in session.sizes.growth:
            lines, tensors = column.lines(length), contenders.qkv(length, column.kv_heads)
            grad = contenders.random_like(tensors[0])
            entries[f"forward {length}"] = forward(session.ours(lines), tensors)
            entries[f"training {length}"] = training(session.ours(lines), tensors, grad)
            only = contenders.kernel_only(*tensors, lines, session.backend)
            back = contenders.kernel_only_backward(*tensors, grad, lines, session.backend)
            entries[f"kernel_forward {length}"] = without_gradients(only)
            entries[f"kernel_backward {length}"] = without_gradients(back)
        turns = session.measure(f"growth, {column.name}", entries, 3)
        short, long = session.sizes.growth
        pairs = column.lines(long).pairs(long, long) / column.lines(short).pairs(short, short)
        row: dict[str, Any] = {"pattern": column.title, "length x": long / short, "pairs x": pairs}
        for kind in ("forward", "training", "kernel_forward", "kernel_backward"):
            ratio = turns.ratio(f"{kind} {long}", f"{kind} {short}")
            session.figures[f"growth_{kind}/{column.name}"] = ratio
            name = kind.replace("_", " ")
            row |= {f"{name} T={long} ms": 1e3 * turns.median(f"{kind} {long}"), f"{name} x": ratio}
        rows.append(row)
    session.table("growth", f"Growth with length, from T={session.sizes.growth[0]}, one thread", rows)


def extra_memory(session: Session) -> None:
    """Peak resident memory of one call in a fresh process, beyond its results."""
    length, rows = session.sizes.memory, []
    cases = list(itertools.product(("forward", "training"), (2, 8)))
    with timing.progress(f"memory, T = {length}", len(cases), 0) as advance:
        for kind, kv_heads in cases:
            found = memory.in_fresh_process(session.backend, length, kv_heads, kind, 1)
            advance()
            if found is None:
                session.console.print("memory: this system does not tell the peak of a process")
                return
            extra = (found[0] - found[1]) / 2**20
            session.figures[f"memory_{kind}/{kv_heads}"] = extra
            rows.append(
                {
                    "call": kind,
                    "Hkv": kv_heads,
                    "peak growth MiB": found[0] / 2**20,
                    "results MiB": found[1] / 2**20,
                    "beyond MiB": extra,
                }
            )
    session.table("memory", f"Memory of one call in a fresh process, window 64 + fib, T = {length}, one thread", rows)


def overhead(session: Session) -> None:
    """Calls so small that what is around the kernel is what is measured."""
    tensors = contenders.qkv(16, 1, heads=2, head_dim=16)
    lines = patterns.sliding_window(4)
    given = contenders.random_like(tensors[0])
    leaves = [x.detach().requires_grad_() for x in tensors]
    entries: dict[str, Contender] = {}
    for name, function in {"farspan": session.ours(lines), "dense SDPA": contenders.dense}.items():
        entries[f"{name}, no_grad"] = forward(function, tensors)
        entries[f"{name}, forward with autograd"] = Contender(lambda _, function=function: function(*leaves))
        entries[f"{name}, forward + backward"] = training(function, tensors, given)
    entries["farspan, kernel only"] = without_gradients(contenders.kernel_only(*tensors, lines, session.backend))
    turns = session.measure("call overhead", entries, 9)
    kernel = turns.median("farspan, kernel only")
    session.figures["overhead/no_grad"] = 1e6 * (turns.median("farspan, no_grad") - kernel)
    session.figures["overhead/autograd"] = 1e6 * (turns.median("farspan, forward with autograd") - kernel)
    rows = [{"call": name, "min us": 1e6 * turns.best(name), "median us": 1e6 * turns.median(name)} for name in entries]
    session.table("overhead", "Whole calls at B=1, H=2, Hkv=1, T=16, D=16, window 4, one thread", rows)


def decode(session: Session) -> None:
    """One query against a cache of keys."""
    rows = []
    for kv_heads in (2, 8):
        entries: dict[str, Contender] = {}
        for cache in session.sizes.caches:
            q, k, v = contenders.qkv(1, kv_heads, k_len=cache)
            entries[f"dense {cache}"] = forward(contenders.dense, (q, k, v))
            cases = {str(window): contenders.window_and_fibonacci(window, cache) for window in (16, 64, 128)}
            for name, lines in {**cases, "paper": contenders.PAPER}.items():
                key = f"{name} {cache}"
                selected = contenders.SelectedKeys(lines, cache)
                same(f"index_select, {key}", selected(q, k, v), session.ours(lines)(q, k, v))
                entries[f"call {key}"] = forward(session.ours(lines), (q, k, v))
                entries[f"selected {key}"] = forward(selected, (q, k, v))
                entries[f"kernel {key}"] = without_gradients(contenders.kernel_only(q, k, v, lines, session.backend))
        turns = session.measure(f"decode, Hkv = {kv_heads}", entries, 5)
        short, long = session.sizes.caches
        session.figures[f"decode_constant/{kv_heads}"] = turns.ratio(f"call paper {long}", f"call paper {short}")
        for cache, name in itertools.product(session.sizes.caches, [*cases, "paper"]):
            key = f"{name} {cache}"
            session.figures[f"decode_call/{kv_heads}/{name}/{cache}"] = 1e6 * turns.median(f"call {key}")
            kernel = 1e6 * turns.median(f"kernel {key}") if f"kernel {key}" in turns else None
            if kernel is not None:
                session.figures[f"decode_kernel/{kv_heads}/{name}/{cache}"] = kernel
            rows.append(
                {
                    "cache": cache,
                    "Hkv": kv_heads,
                    "pattern": "the paper's" if name == "paper" else f"window {name} + fib",
                    "kernel us": kernel,
                    "call us": 1e6 * turns.median(f"call {key}"),
                    "index_select us": 1e6 * turns.median(f"selected {key}"),
                    "dense us": 1e6 * turns.median(f"dense {cache}"),
                    "dense x": turns.ratio(f"dense {cache}", f"call {key}"),
                }
            )
    session.table("decode", "Decode, one query, warm, one thread (medians)", rows)


def bf16(session: Session) -> None:
    """bf16 inputs against fp32 ones, and what bf16 costs in accuracy."""
    length, rows = session.sizes.lengths[1], []
    entries: dict[str, Contender] = {}
    for column, dtype in itertools.product(COLUMNS, (torch.float32, torch.bfloat16)):
        tensors = contenders.qkv(length, column.kv_heads, dtype=dtype)
        entries[f"{column.name} {dtype}"] = forward(session.ours(column.lines(length)), tensors)
    turns = session.measure(f"bf16, T = {length}", entries, 7)
    for column in COLUMNS:
        wide, narrow = f"{column.name} torch.float32", f"{column.name} torch.bfloat16"
        speed, error = turns.ratio(wide, narrow), _roundings(session, column)
        session.figures |= {f"bf16_speed/{column.name}": speed, f"bf16_error/{column.name}": error}
        rows.append(
            {
                "pattern": column.title,
                "fp32 ms": 1e3 * turns.median(wide),
                "bf16 ms": 1e3 * turns.median(narrow),
                "fp32 / bf16": speed,
                "error, roundings": error,
            }
        )
    session.table("bf16", f"bf16 against fp32, forward, T = {length}, one thread", rows)


def _roundings(session: Session, column: Column) -> float:
    """Largest error of a bf16 output in units of its rounding (half a spacing), beyond the error of dense fp32."""
    length = session.sizes.exact
    q, k, v = contenders.qkv(length, column.kv_heads, dtype=torch.bfloat16)
    lines = column.lines(length)
    with torch.no_grad():
        exact = attention(q.double(), k.double(), v.double(), lines, backend="reference")
        plain = attention(q.float(), k.float(), v.float(), lines, backend="reference")
        actual = session.ours(lines)(q, k, v)
    arithmetic = (plain.double() - exact).abs().max()
    _, exponent = torch.frexp(exact)
    rounding = torch.ldexp(torch.ones_like(exact), exponent - 9)  # 8 significant bits: spacing 2 ** (exponent - 8)
    return float((((actual.double() - exact).abs() - arithmetic) / rounding).max())


def counted(session: Session) -> None:
    """Where the limits of this machine lie for each headline case, by counting."""
    if session.core is None:
        session.console.print("roofline: needs the C++ core to measure this machine's limits")
        return
    lengths, rows = (session.sizes.lengths[1], session.sizes.growth[1]), []
    peak, bandwidth = roofline.limits(session.core)
    for length in lengths:
        entries = {
            column.name: forward(session.ours(column.lines(length)), contenders.qkv(length, column.kv_heads))
            for column in COLUMNS
            if f"forward_seconds/{column.name}/{length}" not in session.figures
        }
        turns = session.measure(f"roofline, T = {length}", entries, 3) if entries else None
        for column in COLUMNS:
            count = roofline.count(column.lines(length), length, HEADS, column.kv_heads, HEAD_DIM)
            limit = roofline.limit(count, peak, bandwidth)
            key = f"forward_seconds/{column.name}/{length}"
            seconds = session.figures[key] if turns is None else turns.median(column.name)
            rows.append(
                {
                    "T": length,
                    "pattern": column.title,
                    "GFLOP": count.flops / 1e9,
                    "exp M": count.pairs / 1e6,
                    **{f"{level} MB": loads / 1e6 for level, loads in count.loads.items()},
                    "at peak ms": 1e3 * limit.at_peak,
                    "overlapped ms": 1e3 * limit.overlapped,
                    "serial ms": 1e3 * limit.serial,
                    "measured ms": 1e3 * seconds,
                    "of peak %": 100 * limit.at_peak / seconds,
                    "of serial %": 100 * limit.serial / seconds,
                }
            )
    words = ", ".join(f"{name} {value / 1e9:.0f}" for name, value in bandwidth.items())
    session.figures |= {"fma_peak": peak / 1e9} | {f"bandwidth/{n}": b / 1e9 for n, b in bandwidth.items()}
    session.table(
        "roofline",
        f"Counted roofline of the forward, one core: {peak / 1e9:.1f} GFLOP/s; loads in GB/s: {words}",
        rows,
    )


SECTIONS: dict[str, Callable[[Session], None]] = {
    "headline": headline,
    "roofline": counted,
    "flex": flex,
    "others": others,
    "threads": threads,
    "strides": strides,
    "growth": growth,
    "memory": extra_memory,
    "overhead": overhead,
    "decode": decode,
    "bf16": bf16,
}
