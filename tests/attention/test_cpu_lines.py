"""The C++ kernels over `Lines`: what the shared tests do not reach of their plans, dtypes, memory and threads."""

from __future__ import annotations

import sys
import threading
import time
from pathlib import Path

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor
from torch.autograd import forward_ad

from attention_probes import (
    PATTERNS,
    ROUNDINGS,
    Results,
    assert_same,
    core,
    differentiate,
    needs_core,
    random_qkv,
    run,
    start_of,
    tolerance,
)
from farspan import Lines, _cpu, attention, patterns
from farspan.attention import cpu_lines

pytestmark = [needs_core, pytest.mark.usefixtures("poisoned_memory")]

names = pytest.mark.parametrize("name", PATTERNS)
DTYPES = {"fp32": torch.float32, "bf16": torch.bfloat16, "fp16": torch.float16}
dtypes = pytest.mark.parametrize("dtype", DTYPES.values(), ids=DTYPES)


@pytest.fixture(autouse=True)
def torch_threads():
    before = torch.get_num_threads()
    yield
    torch.set_num_threads(before)


def exact(q: Tensor, k: Tensor, v: Tensor, support: Lines, backend: str = "reference", **options) -> Results:
    """The same inputs, and the same gradients of the outputs, in fp64."""
    narrow = q.dtype

    def call(q, k, v):
        return attention(q, k, v, support, return_lse=True, backend=backend, **options)

    return differentiate(call, q.double(), k.double(), v.double(), narrow=narrow)


def assert_rounded_once(actual: Results, expected: Results) -> None:
    """Within the rounding of the result to its own dtype, on top of what sums in fp32 may lose.

    A rounding is half a unit in the last place of the number, or half the smallest subnormal.
    """
    fp32 = torch.finfo(torch.float32).eps
    for name, a, b in zip(Results._fields, actual, expected, strict=True):
        own = torch.finfo(a.dtype)
        assert torch.equal(a.isneginf(), b.isneginf()), name
        a, b = (x.double().masked_fill(b.isneginf(), 0) for x in (a, b))
        noise = ROUNDINGS * fp32 * max(1.0, b.abs().max().item()) if b.numel() else 0.0
        allowed = noise + own.eps / 2 * (b.abs() + noise).clamp_min(own.smallest_normal)
        error = (a - b).abs()
        assert (error <= allowed).all(), f"{name}: {(error / allowed).max():.2f} times what is allowed"


def assert_equal(actual: Results, expected: Results) -> None:
    """Not one bit apart."""
    for name, a, b in zip(Results._fields, actual, expected, strict=True):
        assert torch.equal(a, b), name


# Shapes


@names
@pytest.mark.parametrize("length", [63, 1000])
@pytest.mark.parametrize(("head_dim", "value_dim"), [(16, 40), (13, 8), (64, 1), (1, 100)], ids=str)
def test_values_may_be_wider_or_narrower_than_keys(name, length, head_dim, value_dim):
    inputs = random_qkv(q_len=length, head_dim=head_dim, value_dim=value_dim, dtype=torch.float32)
    assert_same(run("cpu", *inputs, PATTERNS[name]), exact(*inputs, PATTERNS[name]))


def test_values_may_have_no_columns():
    """The gradient of lse still reaches queries and keys."""
    inputs = random_qkv(q_len=70, value_dim=0, dtype=torch.float32)
    assert_same(run("cpu", *inputs, PATTERNS["fibonacci"]), exact(*inputs, PATTERNS["fibonacci"]))


@names
@pytest.mark.parametrize("group", [1, 2, 3, 4, 5, 8, 16, 17, 33])
@pytest.mark.parametrize("kv_heads", [1, 2])
def test_any_number_of_query_heads_shares_a_key_head(name, group, kv_heads):
    inputs = random_qkv(batch=2, heads=group * kv_heads, kv_heads=kv_heads, q_len=63, dtype=torch.float32)
    assert_same(run("cpu", *inputs, PATTERNS[name]), exact(*inputs, PATTERNS[name]))


# Plans: how lines are cut into bands, single distances and groups of verticals. One wider than 256 is cut in several
# bands, and more than 128 single distances or 256 verticals are read in several steps.

PLANS = {
    "a window of 257": Lines(range(257)),
    "a window of 1000": Lines(range(1000)),
    "a window that starts far away": Lines(range(300, 900)),
    "a window with holes": Lines(d for d in range(400) if d % 3 and d % 7),
    "two windows that almost touch": Lines([*range(256), *range(258, 514)]),
    "every second distance": Lines(range(0, 4096, 2)),
    "140 single distances": Lines(range(0, 2100, 15)),
    "300 single distances and a window": Lines([*range(70), *range(100, 3000, 9)]),
    "300 verticals": Lines([], verticals=range(0, 1500, 5)),
    "300 verticals and a window": Lines(range(300), verticals=range(0, 900, 3)),
    "everything at once": Lines([*range(280), *range(300, 2900, 13)], verticals=[*range(270), 999, 1500]),
}
plans = pytest.mark.parametrize("support", PLANS.values(), ids=PLANS)


@plans
@pytest.mark.parametrize("group", [1, 3, 4])
def test_plans_of_several_steps_are_exact(support, group):
    """fp64 by the torch path here, itself held to the reference: its memory grows with T and not with its square."""
    inputs = random_qkv(heads=group, q_len=1400, head_dim=16, value_dim=24, dtype=torch.float32)
    assert_same(run("cpu", *inputs, support), exact(*inputs, support, backend="torch"))


@plans
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=["fp32", "bf16"])
def test_long_plans_of_several_steps_are_exact(support, dtype):
    inputs = random_qkv(heads=2, q_len=3000, head_dim=24, dtype=dtype)
    start = start_of(50, 2950)
    found = run("cpu", *inputs, support, start=start)
    assert_rounded_once(found, exact(*inputs, support, backend="torch", start=start))


@plans
@pytest.mark.parametrize("heads", [1, 4])
def test_plans_read_every_key_once(support, heads):
    """READOUT with keys 300 at a time: equal scores, so each output is 1 / (number of keys) where it is read."""
    length = 1100
    q, k = torch.zeros(1, heads, length, 1), torch.zeros(1, 1, length, 1)
    mask = support.mask(length, length)
    expected = mask / mask.sum(-1, keepdim=True).clamp_min(1)
    for first in range(0, length, 300):
        v = torch.eye(length)[None, None, :, first : first + 300]
        weights = attention(q, k, v, support, backend="cpu")
        assert torch.equal(weights != 0, mask[..., first : first + 300].expand_as(weights))
        torch.testing.assert_close(weights, expected[..., first : first + 300].expand_as(weights), atol=1e-6, rtol=0)


# Any call


LAYOUTS = {
    "contiguous": lambda x: x,
    "tokens before heads": lambda x: x.transpose(1, 2).contiguous().transpose(1, 2),
    "features before tokens": lambda x: x.transpose(2, 3).contiguous().transpose(2, 3),
    "a slice of fused rows": lambda x: torch.cat([x, x, x], 3)[..., x.shape[3] : 2 * x.shape[3]],
    "every second row": lambda x: x.repeat_interleave(2, 2)[:, :, ::2],
    "one head for all": lambda x: x[:, :1].expand_as(x),
    "one batch row for all": lambda x: x[:1].expand_as(x),
    "one token for all": lambda x: x[:, :, :1].expand_as(x),
    "one feature for all": lambda x: x[..., :1].expand_as(x),
}
layouts = st.sampled_from(list(LAYOUTS))


@st.composite
def calls(draw):
    """Inputs of some layout and dtype, lines (shared, per head or per batch row), start and scale."""
    batch, kv_heads, group = draw(st.integers(1, 3)), draw(st.integers(1, 3)), draw(st.integers(1, 6))
    heads, q_len, k_len = kv_heads * group, draw(st.integers(1, 70)), draw(st.integers(0, 90))
    inputs = random_qkv(
        batch=batch,
        heads=heads,
        kv_heads=kv_heads,
        q_len=q_len,
        k_len=k_len,
        head_dim=draw(st.integers(1, 40)),
        value_dim=draw(st.integers(1, 40)),
        dtype=draw(st.sampled_from(list(DTYPES.values()))),
        seed=draw(st.integers(0, 9)),
    )
    windows = st.builds(lambda lo, n: list(range(lo, lo + n)), st.integers(0, 50), st.integers(0, 40))
    lines = st.builds(lambda a, b: a + b, windows, st.lists(st.integers(0, 95), max_size=6))

    def one_side():
        kind = draw(st.sampled_from(["shared", "per head", "per row"]))
        if kind == "shared":
            return draw(lines)
        if kind == "per head":
            return draw(st.lists(lines, min_size=heads, max_size=heads))
        table = torch.full((batch, draw(st.sampled_from([1, heads])), 46), -1)
        for row in table.flatten(0, 1):
            line = draw(lines)
            row[: len(line)] = torch.tensor(line)
        return table

    support = Lines(one_side(), one_side())
    positions = st.lists(st.integers(-1, k_len + 1), min_size=q_len, max_size=q_len)
    start = draw(st.none() | st.lists(positions, min_size=batch, max_size=batch))
    scale = draw(st.sampled_from([None, 0.3, 0.0, -0.7]))
    return [LAYOUTS[draw(layouts)](x) for x in inputs], support, None if start is None else torch.tensor(start), scale


@settings(max_examples=150)
@given(call=calls())
def test_any_call_is_exact(call):
    inputs, support, start, scale = call
    found = run("cpu", *inputs, support, start=start, scale=scale)
    assert_rounded_once(found, exact(*inputs, support, start=start, scale=scale))


# Narrow dtypes and extreme numbers


@names
@dtypes
@pytest.mark.parametrize("head_dim", [8, 13, 64])
def test_results_are_rounded_once(name, dtype, head_dim):
    inputs = random_qkv(heads=4, kv_heads=2, q_len=300, head_dim=head_dim, dtype=dtype)
    assert_rounded_once(run("cpu", *inputs, PATTERNS[name]), exact(*inputs, PATTERNS[name]))


@names
@pytest.mark.parametrize("size", [2.0**-24, 2.0**-16, 2.0**-14, 6e-5], ids=str)
def test_subnormal_halves_are_numbers_like_others(name, size):
    """Multiples of 2^-24, read and written."""
    q, k, v = random_qkv(q_len=100, head_dim=13, dtype=torch.float16)
    v = (v.float() * size).half()
    assert ((v != 0) & (v.abs() < torch.finfo(torch.float16).smallest_normal)).any()
    assert_rounded_once(run("cpu", q, k, v, PATTERNS[name]), exact(q, k, v, PATTERNS[name]))


@names
@dtypes
def test_the_largest_numbers_do_not_overflow(name, dtype):
    """An output is a mean of values, and the mean of the largest is the largest."""
    largest = torch.finfo(dtype).max if dtype == torch.float16 else 1e30
    q, k, _ = random_qkv(q_len=150, head_dim=13, dtype=dtype)
    v = torch.full_like(k, largest)
    out, lse = attention(q, k, v, PATTERNS[name], return_lse=True, backend="cpu")
    read = lse.isfinite()
    torch.testing.assert_close(out[read], torch.full_like(out[read], largest))
    assert not out[~read].any()


@names
@pytest.mark.parametrize("factor", [1e3, 1e4, 1e5])
def test_a_softmax_of_huge_scores_picks_the_largest(name, factor):
    """Scores up to 1e11, whose differences are far above 1: all weight is on one key."""
    q, k, v = random_qkv(heads=4, kv_heads=2, q_len=129, head_dim=64, dtype=torch.float32)
    out, lse = attention(q * factor, k * factor, v, PATTERNS[name], return_lse=True, backend="cpu")
    expected, expected_lse = attention(
        *(x.double() for x in (q * factor, k * factor, v)), PATTERNS[name], return_lse=True, backend="reference"
    )
    torch.testing.assert_close(out.double(), expected, atol=tolerance(out.dtype), rtol=0)
    largest = expected_lse[expected_lse.isfinite()].abs().max().item()
    torch.testing.assert_close(lse.double(), expected_lse, atol=tolerance(lse.dtype) * largest, rtol=0)


@pytest.mark.parametrize("scale", [float("nan"), float("inf"), float("-inf")], ids=str)
def test_a_scale_that_is_not_finite_is_refused(scale):
    q, k, v = random_qkv(q_len=9, dtype=torch.float32)
    with pytest.raises(ValueError, match=r"^scale must be finite and below 2\*\*127, got "):
        attention(q, k, v, Lines([0, 1]), scale=scale)


def test_a_huge_scale_means_what_it_says():
    q, k, v = random_qkv(q_len=9, dtype=torch.float32)
    outs = [attention(q, k, v, Lines([0, 1]), scale=1e30, backend=backend) for backend in ("cpu", "reference")]
    torch.testing.assert_close(*outs)


# Workspaces: what a thread keeps from call to call must not be read


def test_what_an_earlier_call_left_in_the_workspace_is_not_read():
    torch.set_num_threads(1)
    sizes = [(1, 200, 64), (5, 33, 13), (4, 129, 8), (17, 50, 24), (1, 7, 100), (2, 300, 40)]
    supports = [*PATTERNS.values(), PLANS["everything at once"]]

    def everything(order):
        for heads, length, dim in order:
            for support in supports:
                for dtype in DTYPES.values():
                    inputs = random_qkv(heads=heads, q_len=length, head_dim=dim, value_dim=dim + 1, dtype=dtype)
                    core.poison_workspace(float("nan"))
                    found = run("cpu", *inputs, support)
                    assert not any(x.isnan().any() for x in found)
                    yield (heads, length, dim, id(support), dtype), found

    # The first round leaves a workspace as large as the largest call needs.
    first = dict(everything(sizes))
    for key, found in everything(sizes[::-1]):
        assert_equal(found, first[key])


# Decode, and what is not read


@names
@pytest.mark.parametrize("k_len", [64, 257, 3000])
@pytest.mark.parametrize("q_len", [1, 2, 5, 11, 12])
@pytest.mark.parametrize("heads", [1, 4])
def test_a_few_queries_on_a_cache_are_the_last_rows(name, k_len, q_len, heads):
    q, k, v = random_qkv(batch=2, heads=heads, q_len=k_len, dtype=torch.float32)
    whole = attention(q, k, v, PATTERNS[name], return_lse=True, backend="cpu")
    last = attention(q[:, :, -q_len:], k, v, PATTERNS[name], return_lse=True, backend="cpu")
    for a, b in zip(last, whole, strict=True):
        torch.testing.assert_close(a, b[:, :, -q_len:], atol=1e-5, rtol=0)


@names
@dtypes
@pytest.mark.parametrize(("q_len", "heads"), [(1, 1), (1, 8), (2, 4), (5, 2), (11, 1)], ids=str)
def test_a_decode_step_touches_only_the_keys_that_it_reads(name, dtype, q_len, heads):
    """Guaranteed for fewer than 12 queries of a key head: keys and values that no query reads may hold anything.

    With more queries a key within a window of distances is computed with, and masked, where only its neighbours are
    read. A vertical counts as read by every query of the call.
    """
    q, k, v = random_qkv(heads=heads, q_len=q_len, k_len=700, head_dim=24, dtype=dtype)
    expected = attention(q, k, v, PATTERNS[name], return_lse=True, backend="cpu")
    unread = ~PATTERNS[name].mask(q_len, 700).reshape(-1, 700).any(0)
    k[:, :, unread] = v[:, :, unread] = torch.nan
    for a, b in zip(attention(q, k, v, PATTERNS[name], return_lse=True, backend="cpu"), expected, strict=True):
        assert torch.equal(a, b)


@dtypes
@pytest.mark.parametrize("q_len", [1, 40, 150])
@pytest.mark.parametrize("support", [patterns.fibonacci(20), Lines(range(300))], ids=["fibonacci", "wide"])
def test_left_padding_is_not_touched(support, dtype, q_len):
    """Guaranteed for slashes: keys and values before the first `start` of a batch row may hold anything.

    A vertical is computed with, and masked, where `start` hides it.
    """
    q, k, v = random_qkv(batch=2, heads=4, kv_heads=2, q_len=q_len, k_len=150, head_dim=24, dtype=dtype)
    padding = (17, 61)
    start = torch.tensor(padding)[:, None].expand(2, q_len)
    expected = run("cpu", q, k, v, support, start=start)
    for b, n in enumerate(padding):
        k[b, :, :n] = v[b, :, :n] = torch.nan
    assert_equal(run("cpu", q, k, v, support, start=start), expected)


def test_head_and_batch_strides_pass_32_bits():
    """F20: elements beyond 2^32, of which a few pages become resident."""
    far = 2**31 + 24
    buffer = torch.UntypedStorage(2 * (3 * far + 64 * 16))
    x = torch.empty(0, dtype=torch.bfloat16).set_(buffer, 0, (2, 2, 64, 16), (2 * far, far, 16, 1))
    x.copy_(torch.randn(x.shape))
    for support in (PATTERNS["fibonacci"], PATTERNS["slashes and verticals"]):
        assert_equal(run("cpu", x, x, x, support), run("cpu", *(x.contiguous(),) * 3, support))


# Threads. Work is shared out from 4 million products up.

LARGE = {
    "one stream": {"batch": 1, "heads": 4, "kv_heads": 1},
    "two streams": {"batch": 1, "heads": 4, "kv_heads": 2},
    "three streams": {"batch": 3, "heads": 4, "kv_heads": 1},
    "six streams": {"batch": 3, "heads": 4, "kv_heads": 2},
}
WIDE = {
    "fibonacci": patterns.fibonacci(32),
    "everything": PLANS["everything at once"],
    "lines per head": Lines([[*range(40)], [0, 200, 300], [*range(0, 600, 11)], [*range(40)]], verticals=[0, 5]),
}


def in_threads(threads: int, *arguments, **options) -> Results:
    torch.set_num_threads(threads)
    return run("cpu", *arguments, **options)


large = pytest.mark.parametrize("shape", LARGE.values(), ids=LARGE)
wide = pytest.mark.parametrize("support", WIDE.values(), ids=WIDE)
two_dtypes = pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=["fp32", "bf16"])


@large
@wide
@two_dtypes
def test_bits_depend_neither_on_the_number_of_threads_nor_on_luck(shape, support, dtype):
    inputs = random_qkv(**shape, q_len=900, head_dim=32, dtype=dtype)
    one = in_threads(1, *inputs, support)
    for threads in (2, 2, 2, 3):
        assert_equal(in_threads(threads, *inputs, support), one)


@wide
@two_dtypes
@pytest.mark.parametrize("threads", [1, 2])
def test_bits_do_not_depend_on_batch_mates(support, dtype, threads):
    torch.set_num_threads(threads)
    inputs = random_qkv(batch=3, heads=4, kv_heads=2, q_len=300, head_dim=32, dtype=dtype)

    def with_gradients_of_ones(rows):
        leaves = [x[rows].detach().requires_grad_() for x in inputs]
        results = attention(*leaves, support, return_lse=True, backend="cpu")
        return Results(*results, *torch.autograd.grad(results, leaves, [torch.ones_like(x) for x in results]))

    together = with_gradients_of_ones(slice(None))
    for row in range(3):
        rows = slice(row, row + 1)
        assert_equal(with_gradients_of_ones(rows), Results(*(x[rows] for x in together)))


def nanoseconds_on_cpu(task: Path) -> int:
    return int((task / "schedstat").read_text().split()[0])


@pytest.mark.skipif(not Path("/proc/self/schedstat").exists(), reason="the time of a thread is read from /proc")
@pytest.mark.skipif(not all(_cpu.torch_pool()), reason="this torch does not lend its threads")
@pytest.mark.parametrize("kv_heads", [1, 2])
def test_a_second_thread_does_part_of_the_work(kv_heads):
    """Also where there is one key head: its blocks of queries are shared out, in the backward too."""
    torch.use_deterministic_algorithms(False)  # torch poisons memory in two threads too
    q, k, v = random_qkv(heads=4, kv_heads=kv_heads, q_len=4000, head_dim=64, dtype=torch.float32)
    support = patterns.fibonacci(64)
    tables = (support.slash_table, support.vertical_table, None, None, 0.1, "cpu")
    torch.set_num_threads(2)
    out, lse = torch.ops.farspan.lines(q, k, v, *tables)
    others = [task for task in Path("/proc/self/task").iterdir() if int(task.name) != threading.get_native_id()]

    def share(call) -> float:
        """Of the others in the time of all threads."""
        time.sleep(0.05)  # threads of torch that have nothing to do go on spinning for a while
        before, mine = sum(map(nanoseconds_on_cpu, others)), time.thread_time_ns()
        call()
        theirs, mine = sum(map(nanoseconds_on_cpu, others)) - before, time.thread_time_ns() - mine
        return theirs / (theirs + mine)

    # A busy machine may leave the second thread waiting.
    calls = {
        "forward": lambda: torch.ops.farspan.lines(q, k, v, *tables),
        "backward": lambda: torch.ops.farspan.lines_backward(out, None, q, k, v, lse, *tables),
    }
    for name, call in calls.items():
        assert any(share(call) > 0.2 for _ in range(20)), name


class Watched:
    """The core, with a look at what another thread has done while the kernels ran."""

    def __init__(self, before, after):
        self.before, self.after = before, after

    def __getattr__(self, name):
        real = getattr(core, name)
        if name not in ("lines_forward", "lines_backward"):
            return real

        def call(*arguments):
            self.before()
            real(*arguments)
            self.after(name)

        return call


def test_other_python_threads_run_meanwhile(monkeypatch):
    """With an endless switch interval a thread waits until the one that runs lets go of the GIL."""
    go, done, seen = threading.Semaphore(0), [], {}

    def other():
        for _ in range(2):
            go.acquire()
            done.append(True)

    inputs = random_qkv(heads=4, q_len=6000, head_dim=64, dtype=torch.float32)
    thread = threading.Thread(target=other)
    thread.start()
    monkeypatch.setattr(cpu_lines, "_core", Watched(go.release, lambda name: seen.update({name: len(done)})))
    interval = sys.getswitchinterval()
    sys.setswitchinterval(1000)
    try:
        in_threads(1, *inputs, patterns.fibonacci(64))
    finally:
        sys.setswitchinterval(interval)
        thread.join()
    assert seen == {"lines_forward": 1, "lines_backward": 2}


# What a fresh pair of eyes found


@pytest.mark.parametrize("dim", [7, 8, 64])
def test_queries_that_overlap_themselves_are_their_copies(dim):
    """F12: a sliding view, whose rows share memory."""
    q = torch.randn(1, 1, 4 + dim).unfold(2, dim, 1)[:, :, :4]
    k = torch.randn(1, 1, 4, dim)
    found, expected = (run("cpu", x, k, k, Lines([0, 1])) for x in (q, q.contiguous()))
    assert_same(found, expected)


@pytest.mark.parametrize("backend", ["torch", "cpu"])
def test_forward_mode_derivatives_are_refused(backend):
    q = torch.randn(1, 2, 9, 8)
    with forward_ad.dual_level(), pytest.raises(NotImplementedError, match=r"^attention has no forward-mode"):
        attention(forward_ad.make_dual(q, torch.ones_like(q)), q, q, Lines([0]), backend=backend)
    with pytest.raises(NotImplementedError, match=r"^attention has no forward-mode"):
        torch.func.jvp(lambda x: attention(x, q, q, Lines([0]), backend=backend), (q,), (torch.ones_like(q),))


def test_a_trace_without_gradients_is_a_computation_and_no_constant():
    q, other = torch.randn(1, 2, 9, 8), torch.randn(1, 2, 9, 8)
    support = Lines([0, 1, 2])
    with torch.no_grad():
        traced = torch.jit.trace(lambda x: attention(x, x, x, support), (q,), check_trace=False)
    assert torch.equal(traced(other), attention(other, other, other, support))


def test_lazily_negated_and_layout_less_inputs():
    v = torch.randn(1, 2, 9, 1, dtype=torch.complex64).conj().imag
    q = torch.randn(1, 2, 9, 8)
    assert v.is_neg()
    assert torch.equal(attention(q, q, v, Lines([0, 1])), attention(q, q, v.clone(), Lines([0, 1])))
    with pytest.raises(ValueError, match=r"^k must be a strided tensor"):
        attention(q, q.to_sparse(), q, Lines([0]))


@pytest.mark.parametrize("bad", [float("nan"), float("inf")], ids=str)
def test_what_is_not_a_number_shows(bad):
    """A query that diverged must not look like one without keys."""
    q, k, v = random_qkv(q_len=30, dtype=torch.float32)
    q[0, 0, 13, 2] = bad
    out, lse = attention(q, k, v, Lines([0, 1, 20]), return_lse=True, backend="cpu")
    assert not out[0, 0, 13].isfinite().any()
    assert not lse[0, 0, 13].isfinite()
    assert lse[0, 0, 13] != -torch.inf
    assert out[0, 1].isfinite().all()
    huge = torch.full((1, 1, 9, 8), 1e20)
    assert attention(huge, huge, huge, Lines([0, 1]), backend="cpu").isnan().all()
