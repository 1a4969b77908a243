"""`Blocks`, `Tokens`, biases and ALiBi slopes through the probes of cases.md: supports made for a call's lengths."""

from __future__ import annotations

import copy
from unittest import mock

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch.autograd import forward_ad

from attention_probes import (
    MADE,
    SLOPES,
    Results,
    assert_reads,
    assert_same,
    biased,
    differentiate,
    entries,
    oracle,
    random_qkv,
    readout,
    run,
    start_of,
    tolerance,
)
from farspan import Blocks, Lines, Tokens, attention, patterns
from farspan.attention import dense_attention, torch_blocks
from farspan.attention.reference import allowed as reference_mask

pytestmark = pytest.mark.usefixtures("poisoned_memory")

names = pytest.mark.parametrize("name", MADE)
backends = pytest.mark.parametrize("backend", ["reference", "torch"])
# Of the supports that have one; differentiable beside q, k and v.
with_bias = pytest.mark.parametrize("name", [name for name in MADE if "bias" in name])
INSIDES = {"one block of one head": 1, "a few blocks": 3000, "one chunk": 10**9}


def inputs(q_len, k_len=None, *, dtype=torch.float64, **more):
    return random_qkv(**{"batch": 2, "heads": 4, "kv_heads": 2, "q_len": q_len, "k_len": k_len, "dtype": dtype, **more})


def made(name, q_len, k_len=None, dtype=torch.float64):
    support = MADE[name](q_len, q_len if k_len is None else k_len)
    if isinstance(support, Blocks) and support.bias is not None:
        support.bias = support.bias.to(dtype)
    return support


def plain(support):
    """The same pairs with nothing added to their scores."""
    support = copy.copy(support)
    support.alibi_slopes = None
    if isinstance(support, Blocks):
        support.bias = None
    return support


def bias_gradient(backend, q, k, v, support, **options):
    support = copy.copy(support)
    support.bias = support.bias.detach().requires_grad_()
    out, lse = attention(q, k, v, support, return_lse=True, backend=backend, **options)
    loss = out.sin().sum() + lse.masked_fill(lse.isinf(), 0).cos().sum()
    return torch.autograd.grad(loss, support.bias)[0]


# The definition


def by_definition(q, k, v, support, start=None):
    """Pair by pair in fp64: a score, what is added to it, a softmax."""
    heads, q_len, k_len = q.shape[1], q.shape[2], k.shape[2]
    out = torch.zeros(*q.shape[:3], v.shape[3], dtype=torch.float64)
    for b in range(q.shape[0]):
        for h in range(heads):
            g = h // (heads // k.shape[1])
            own = h // (heads // support.heads)
            row_of = min(b, support.batch - 1)
            for i in range(q_len):
                position, scores, keys = k_len - q_len + i, [], []
                for n, c in enumerate(support.index[row_of, own, i // support.block_q].tolist()):
                    for j in range(c * support.block_k, (c + 1) * support.block_k) if c >= 0 else ():
                        if j <= position and (start is None or j >= start[b, i]):
                            score = q[b, h, i] @ k[b, g, j] / q.shape[3] ** 0.5
                            if support.bias is not None:
                                score = score + support.bias[row_of, own, i // support.block_q, n]
                            if support.alibi_slopes is not None:
                                score = score - support.alibi_slopes[h].double() * (position - j)
                            scores.append(score)
                            keys.append(j)
                if keys:
                    out[b, h, i] = torch.stack(scores).softmax(0) @ v[b, g, keys]
    return out


@backends
@names
@pytest.mark.parametrize(("q_len", "k_len"), [(9, 9), (3, 20), (20, 7)], ids=["square", "cache", "more queries"])
@pytest.mark.parametrize("with_start", [False, True], ids=["no start", "start"])
def test_every_backend_is_the_definition(backend, name, q_len, k_len, with_start):
    support = made(name, q_len, k_len)
    if isinstance(support, Lines):
        pytest.skip("the definition here is that of entries")
    q, k, v = inputs(q_len, k_len, head_dim=3, value_dim=5)
    start = torch.randint(-1, k_len, (2, q_len), generator=torch.Generator().manual_seed(0)) if with_start else None
    out = attention(q, k, v, support, start=start, backend=backend)
    torch.testing.assert_close(out, by_definition(q, k, v, support, start), atol=1e-13, rtol=0)


@backends
def test_slopes_take_from_the_score_what_the_distance_costs(backend):
    """One slope of log 2: each key weighs half of the one after it."""
    weights = readout(Lines(range(9), alibi_slopes=[0.6931471805599453]), 4, 4, backend=backend)[0, 0]
    torch.testing.assert_close(weights[3], torch.tensor([1.0, 2, 4, 8], dtype=weights.dtype) / 15, atol=1e-7, rtol=0)


# READOUT and LEAK


@backends
@names
@pytest.mark.parametrize(("q_len", "k_len"), [(1, 1), (40, 40), (5, 70), (70, 9), (3, 0), (0, 3)], ids=lambda n: str(n))
def test_exactly_the_keys_of_the_support_are_read_once(backend, name, q_len, k_len):
    support = plain(made(name, q_len, k_len))
    v = torch.eye(k_len, dtype=torch.float64).expand(2, 2, k_len, k_len)
    q, k = torch.zeros(2, 4, q_len, 1, dtype=v.dtype), torch.zeros(2, 2, k_len, 1, dtype=v.dtype)
    mask = reference_mask(support, 4, q_len, k_len, None).expand(2, 4, q_len, k_len)
    assert_reads(attention(q, k, v, support, backend=backend), mask)


@backends
@names
@pytest.mark.parametrize("autocast", [False, True], ids=["plain", "autocast"])
def test_the_future_changes_no_bit(backend, name, autocast):
    """LEAK. Autocast changes none either."""
    q, k, v = inputs(70, dtype=torch.float32)
    support, start = made(name, 70), torch.randint(0, 3, (2, 70))
    before = attention(q, k, v, support, start=start, return_lse=True, backend=backend)
    for j in (1, 35, 69):
        q_, k_, v_ = (x.clone() for x in (q, k, v))
        for x in (q_, k_, v_):
            x[..., j:, :] = 1e3 * torch.randn_like(x[..., j:, :])
        with torch.autocast("cpu", torch.bfloat16, enabled=autocast):
            after = attention(q_, k_, v_, support, start=start, return_lse=True, backend=backend)
        for a, b in zip(before, after, strict=True):
            assert torch.equal(a[:, :, :j], b[:, :, :j])


# TWO ROUTES


@names
@pytest.mark.parametrize("length", [1, 17, 63, 129, 1000])
@pytest.mark.parametrize("dtype", [torch.float64, torch.float32], ids=str)
def test_torch_is_the_reference(name, length, dtype):
    q, k, v = inputs(length, dtype=dtype)
    support = made(name, length)
    expected = run("reference", q.double(), k.double(), v.double(), support)
    assert_same(run("torch", q, k, v, support), expected)


@names
@pytest.mark.parametrize("inside", INSIDES.values(), ids=INSIDES)
@pytest.mark.parametrize(("q_len", "k_len"), [(29, 41), (41, 29), (61, 61)], ids=["cache", "more queries", "square"])
def test_where_chunks_are_cut_does_not_matter(monkeypatch, name, inside, q_len, k_len):
    monkeypatch.setattr(torch_blocks, "_CPU_NUMBERS", inside)
    q, k, v = inputs(q_len, k_len, head_dim=4, value_dim=7)
    support, start = made(name, q_len, k_len), torch.randint(0, 20, (2, q_len))
    expected = run("reference", q, k, v, support, start=start)
    assert_same(run("torch", q, k, v, support, start=start), expected)


@with_bias
@pytest.mark.parametrize("inside", INSIDES.values(), ids=INSIDES)
@pytest.mark.parametrize(("q_len", "k_len"), [(29, 41), (41, 29), (150, 150)], ids=["cache", "more queries", "square"])
def test_the_gradient_of_the_bias_is_that_of_the_reference(monkeypatch, name, inside, q_len, k_len):
    monkeypatch.setattr(torch_blocks, "_CPU_NUMBERS", inside)
    q, k, v = inputs(q_len, k_len)
    support, start = made(name, q_len, k_len), torch.randint(0, 20, (2, q_len))
    found, expected = (bias_gradient(b, q, k, v, support, start=start) for b in ("torch", "reference"))
    assert expected.any()
    torch.testing.assert_close(found, expected, atol=1e-12, rtol=0)


@pytest.mark.parametrize(("heads", "kv_heads"), [(4, 4), (4, 2), (4, 1), (1, 1)], ids=lambda n: str(n))
@pytest.mark.parametrize("own", ["one", "key heads", "query heads"])
@pytest.mark.parametrize(("block_q", "block_k"), [(1, 1), (8, 8), (3, 16)], ids=lambda n: str(n))
def test_heads_read_the_entries_of_their_group(heads, kv_heads, own, block_q, block_k):
    """F11, for every number of heads an index may have."""
    own = {"one": 1, "key heads": kv_heads, "query heads": heads}[own]
    q, k, v = inputs(50, heads=heads, kv_heads=kv_heads)
    support = Blocks(entries(50, 50, own, block_q, block_k), block_q, block_k)
    assert_same(run("torch", q, k, v, support), run("reference", q, k, v, support))
    mask = support.mask(50, 50)
    mask = mask.repeat_interleave(heads // own, 0) if own > 1 else mask
    torch.testing.assert_close(attention(q, k, v, support), oracle(q, k, v, mask)[0], atol=1e-13, rtol=0)


@st.composite
def calls(draw):
    q_len, k_len = draw(st.integers(1, 40)), draw(st.integers(0, 40))
    kv_heads, group, batch = draw(st.integers(1, 2)), draw(st.integers(1, 2)), draw(st.integers(1, 2))
    block_q, block_k = draw(st.integers(1, 45)), draw(st.integers(1, 45))
    own = draw(st.sampled_from([1, kv_heads, kv_heads * group]))
    shape = (draw(st.sampled_from([1, batch])), own, -(-q_len // block_q), draw(st.integers(0, 6)))
    generator = torch.Generator().manual_seed(draw(st.integers(0, 2**20)))
    index = torch.randint(-2, k_len // block_k + 2, shape, generator=generator).clamp_min(-1)
    index, bias = biased(index)
    slopes = draw(st.none() | st.lists(st.floats(-2, 2), min_size=kv_heads * group, max_size=kv_heads * group))
    support = Blocks(index, block_q, block_k, draw(st.sampled_from([None, bias.double()])), alibi_slopes=slopes)
    start = draw(st.none() | st.just(torch.randint(-1, k_len + 2, (batch, q_len), generator=generator)))
    operands = random_qkv(batch=batch, heads=kv_heads * group, kv_heads=kv_heads, q_len=q_len, k_len=k_len, head_dim=3)
    return operands, support, start, draw(st.integers(1, 5000))


@settings(max_examples=80)
@given(call=calls())
def test_torch_is_the_reference_for_any_call(call):
    operands, support, start, inside = call
    with mock.patch.object(torch_blocks, "_CPU_NUMBERS", inside):
        found = run("torch", *operands, support, start=start)
    assert_same(found, run("reference", *operands, support, start=start))


@backends
@pytest.mark.parametrize("length", [1, 5, 63, 65, 129])
@pytest.mark.parametrize("block", [1, 16, 64])
def test_all_blocks_are_dense_attention(backend, length, block):
    """F05, F06."""
    blocks = -(-length // block)
    q, k, v = inputs(length, dtype=torch.float32)
    support = Blocks(torch.arange(blocks).expand(1, 1, blocks, blocks), block, block)
    torch.testing.assert_close(
        attention(q, k, v, support, backend=backend), dense_attention(q, k, v), atol=1e-5, rtol=0
    )


@names
def test_a_decoding_step_is_the_last_row(name):
    """A block of one query, over the entries of the block that it stands in."""
    support = made(name, 61)
    q, k, v = inputs(61)
    last = copy.copy(support)
    if isinstance(support, Blocks):
        last.index, last.block_q = support.index[:, :, -1:], 1
        last.bias = None if support.bias is None else support.bias[:, :, -1:]
    whole = attention(q, k, v, support)[:, :, -1:]
    torch.testing.assert_close(attention(q[:, :, -1:], k, v, last), whole, atol=tolerance(q.dtype), rtol=0)


# F07, F09, F12, F13, F19


@backends
@pytest.mark.parametrize("length", [64, 65, 70, 127])
@pytest.mark.parametrize("block_q", [1, 64])
def test_nothing_beyond_the_last_key_takes_mass(backend, length, block_q):
    """F07: all scores -10, so a key of zeros would win."""
    q = torch.tensor([-10.0, 0.0]).expand(1, 1, length, 2)
    k = torch.tensor([1.0, 0.0]).expand(1, 1, length, 2)
    index = torch.arange(-(-length // 64)).expand(1, 1, -(-length // block_q), -1)
    out = attention(q, k, torch.ones(1, 1, length, 1), Blocks(index, block_q, 64), scale=1.0, backend=backend)
    torch.testing.assert_close(out, torch.ones_like(out), atol=1e-6, rtol=0)


@backends
def test_what_lies_behind_the_keys_in_memory_is_not_read(backend):
    """F07: keys and values are the front of a buffer whose rest is NaN."""
    q, _, _ = inputs(70)
    k, v = (torch.full((2, 2, 128, 8), torch.nan, dtype=q.dtype) for _ in range(2))
    for x in (k, v):
        x[:, :, :70] = torch.randn(2, 2, 70, 8)
    found = run(backend, q, k[:, :, :70], v[:, :, :70], Blocks(entries(70, 70, 1, 16, 64), 16, 64))
    assert all(x.isfinite().all() for x in found)


@backends
def test_every_encoding_of_a_block_mask_gives_one_answer(backend):
    """F09: blocks (i, 0) and (i, i), as lists in any order and padding, as tokens, as a mask, as a block map."""
    q, k, v = inputs(64)
    block = torch.arange(64) // 16
    mask = (block[:, None] == block) | (block == 0)
    expected = oracle(q, k, v, mask.tril())[0]
    pairs = torch.tensor([[i, 0] for i in range(4)])[None, None]
    block_map = torch.eye(4, dtype=torch.bool)
    block_map[:, 0] = True
    from_map = torch.where(block_map, torch.arange(4), -1)[None, None]
    encodings = {
        "sorted": Blocks(pairs.flip(-1), 16, 16),
        "shuffled": Blocks(pairs, 16, 16),
        "padded": Blocks(torch.nn.functional.pad(pairs, (2, 3), value=-1), 16, 16),
        "twice": Blocks(pairs.repeat(1, 1, 1, 2), 16, 16),
        "block map": Blocks(from_map, 16, 16),
        "smaller blocks": Blocks((pairs[..., None] * 2 + torch.arange(2)).flatten(3), 16, 8),
        "tokens": Tokens((pairs[..., None] * 16 + torch.arange(16)).flatten(3), 16),
        "tokens of each query": Tokens(torch.where(mask, torch.arange(64), -1)[None, None]),
    }
    for name, support in encodings.items():
        torch.testing.assert_close(
            attention(q, k, v, support, backend=backend),
            expected,
            atol=1e-13,
            rtol=0,
            msg=lambda m, n=name: f"{n}: {m}",
        )


@backends
def test_the_order_of_the_entries_does_not_matter(backend):
    """F19: not one bit, gradients and those of the bias included."""
    index, bias = biased(entries(150, 150, 2, 8, 8))
    order = torch.randperm(index.shape[-1], generator=torch.Generator().manual_seed(0))
    q, k, v = inputs(150, dtype=torch.float32)
    support, shuffled = Blocks(index, 8, 8, bias), Blocks(index[..., order], 8, 8, bias[..., order])
    for a, b in zip(run(backend, q, k, v, support), run(backend, q, k, v, shuffled), strict=True):
        assert torch.equal(a, b)
    assert torch.equal(*(bias_gradient(backend, q, k, v, s) for s in (support, shuffled)))


@names
def test_rows_of_a_batch_are_the_rows_alone(name):
    """F04, F07: to the bit, gradients too."""
    support = made(name, 129)
    if isinstance(support, Lines) or support.batch > 1:
        pytest.skip("Lines keep this to the last bit but one; rows of their own are other supports alone")
    q, k, v = inputs(129, batch=3, dtype=torch.float32)

    def call(q, k, v):
        return attention(q, k, v, support, return_lse=True)

    leaves = [x.requires_grad_() for x in (q, k, v)]
    out, lse = call(*leaves)
    grads = torch.autograd.grad(out, leaves, out.detach())
    for b in range(3):
        alone = [x[b : b + 1].detach().requires_grad_() for x in leaves]
        one, one_lse = call(*alone)
        one_grads = torch.autograd.grad(one, alone, one.detach())
        for whole, single in zip((out, lse, *grads), (one, one_lse, *one_grads), strict=True):
            assert torch.equal(whole[b : b + 1], single)


@names
def test_the_number_of_threads_changes_no_bit(name):
    """F19."""
    q, k, v = inputs(600, dtype=torch.float32, head_dim=64)
    support, results = made(name, 600), []
    before = torch.get_num_threads()
    try:
        for threads in (1, 2, 1):
            torch.set_num_threads(threads)
            results.append(run("torch", q, k, v, support))
    finally:
        torch.set_num_threads(before)
    for other in results[1:]:
        for a, b in zip(results[0], other, strict=True):
            assert torch.equal(a, b)


def test_a_key_that_every_query_lists_gets_every_gradient():
    """Against fp64: 4,000 summands, in an order of their own for each chunk."""
    q, k, v = inputs(4000, batch=1, dtype=torch.float32)
    support = Tokens(torch.stack([torch.zeros(4000), torch.arange(4000)], -1).long()[None, None])
    found = run("torch", q, k, v, support)
    expected = run("torch", q.double(), k.double(), v.double(), support)
    assert_same(found, expected)


FORMS = {
    "transposed": lambda heads: torch.randn(2, heads, 8, 33).transpose(2, 3),
    "permuted": lambda heads: torch.randn(2, 33, heads, 8).transpose(1, 2),
    "every second": lambda heads: torch.randn(4, 2 * heads, 66, 16)[::2, 1::2, ::2, 1::2],
    "front of a cache": lambda heads: torch.randn(2, heads, 50, 8)[:, :, :33],
    "part of a fused buffer": lambda heads: torch.randn(2, 33, 3, heads, 8)[:, :, 1].transpose(1, 2),
    "of one head": lambda heads: torch.randn(2, 1, 33, 8).expand(2, heads, 33, 8),
}


@names
@pytest.mark.parametrize("form", FORMS)
def test_views_are_their_copies(name, form):
    """F12."""
    q, k, v = (FORMS[form](heads) for heads in (4, 2, 2))
    support = made(name, 33)
    found = run("torch", q, k, v, support)
    assert_same(found, run("torch", q.contiguous(), k.contiguous(), v.contiguous(), support))


@names
@pytest.mark.parametrize("factor", [1, 100])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16], ids=str)
def test_large_scores_and_narrow_dtypes_stay_right(name, factor, dtype):
    """F13: no further from fp64 than twice the reference in the same dtype, and a rounding.

    On average, not at worst: two scores of 5e4 that nearly agree can make either of them ten times worse by chance.
    """
    q, k, v = inputs(129, head_dim=64, dtype=dtype)
    q, k, support = q * factor, k * factor, made(name, 129)
    exact = run("reference", q.double(), k.double(), v.double(), support)
    rough, found = (run(backend, q, k, v, support) for backend in ("reference", "torch"))
    for field, truth, bound, got in zip(Results._fields, exact, rough, found, strict=True):
        assert got.dtype == bound.dtype
        assert torch.equal(got.isinf(), truth.isinf()), field
        truth, bound, got = (x.double().masked_fill(truth.isinf(), 0) for x in (truth, bound, got))
        rounding = (torch.finfo(dtype).eps + 64 * torch.finfo(torch.float32).eps) * truth.abs().max()
        assert got.isfinite().all(), field
        assert (got - truth).abs().mean() <= 2 * (bound - truth).abs().mean() + rounding, field


def test_blocks_that_read_nothing_send_no_gradient():
    """F03: zeros, lse = -inf, not even a gradient from that."""
    support = made("empty blocks", 40)
    leaves = [x.requires_grad_() for x in inputs(40)]
    out, lse = attention(*leaves, support, return_lse=True)
    grads = torch.autograd.grad((out, lse), leaves, (torch.ones_like(out), torch.ones_like(lse)))
    rows = torch.arange(40) // 4 % 3 == 0
    assert not out[:, :, rows].any()
    assert (lse[:, :, rows] == -torch.inf).all()
    assert not grads[0][:, :, rows].any()
    assert grads[0][:, :, ~rows].any()
    assert all(grad.isfinite().all() for grad in grads)


# The operator (F23)


@with_bias
@pytest.mark.parametrize("form", ["permuted", "transposed"])
def test_opcheck(name, form):
    support = made(name, 33, dtype=torch.float32)
    q, k, v = (FORMS[form](heads).requires_grad_() for heads in (4, 2, 2))
    bias = support.bias.requires_grad_()
    start = start_of(7, 26).expand(2, -1)
    others = (support.index, bias, support.alibi_slopes, start, support.block_q, support.block_k, 0.3, "torch")
    torch.library.opcheck(torch.ops.farspan.blocks.default, (q, k, v, *others))
    out, lse = (x.detach() for x in torch.ops.farspan.blocks(q, k, v, *others))
    q, k, v, bias = (x.detach() for x in (q, k, v, bias))
    for given_bias in (bias, None):
        arguments = (out, lse, q, k, v, lse, others[0], given_bias, *others[2:])
        torch.library.opcheck(
            torch.ops.farspan.blocks_backward.default, arguments, test_utils=("test_schema", "test_faketensor")
        )


def test_opcheck_of_lines_with_slopes():
    support = made("lines per head with slopes", 33)
    q, k, v = (torch.randn(2, heads, 33, 8, requires_grad=True) for heads in (4, 2, 2))
    tables = (support.slash_table, support.vertical_table, support.alibi_slopes)
    torch.library.opcheck(torch.ops.farspan.lines.default, (q, k, v, *tables, None, 0.3, "torch"))


@backends
@names
def test_gradcheck(backend, name):
    support = made(name, 7)
    leaves = [x.requires_grad_() for x in inputs(7, head_dim=2, value_dim=3)]
    if isinstance(support, Blocks) and support.bias is not None:
        leaves.append(support.bias.requires_grad_())

    def call(q, k, v, bias=None):
        if bias is not None:
            support.bias = bias
        out, lse = attention(q, k, v, support, return_lse=True, backend=backend)
        return out, lse.masked_fill(lse.isinf(), 0)

    assert torch.autograd.gradcheck(call, leaves, fast_mode=True)


def test_second_derivatives_are_refused():
    leaves = [x.requires_grad_() for x in inputs(9)]
    out = attention(*leaves, made("blocks", 9))
    (grad,) = torch.autograd.grad(out.square().sum(), leaves[0], create_graph=True)
    with pytest.raises(NotImplementedError, match=r"differentiable once.*'reference'"):
        grad.square().sum().backward()


@pytest.mark.parametrize("name", ["blocks with bias per head and slopes", "tokens", "lines with slopes"])
@pytest.mark.parametrize("compiler", ["aot_eager", "inductor"])
def test_compiled_is_eager_at_several_lengths(name, compiler):
    def call(q, k, v, support):
        return attention(q, k, v, support, return_lse=True, backend="torch")

    compiled = torch.compile(call, fullgraph=True, backend=compiler)
    for length in (64, 96, 100, 129):
        support = made(name, length, dtype=torch.float32)
        operands = inputs(length, dtype=torch.float32)
        found, expected = (differentiate(lambda *x, f=f: f(*x, support), *operands) for f in (compiled, call))  # noqa: B023
        assert_same(found, expected)


# Arguments and backends


@names
def test_the_cpu_backend_says_what_it_does_not_take(name):
    """Named, it refuses; without a name, the torch backend runs."""
    q, k, v = inputs(9, dtype=torch.float32)
    support = made(name, 9, dtype=torch.float32)
    with pytest.raises(ValueError, match=r"^backend 'cpu' does not run here: ") as raised:
        attention(q, k, v, support, backend="cpu")
    assert "\n" not in str(raised.value)
    assert torch.equal(attention(q, k, v, support), attention(q, k, v, support, backend="torch"))


WRONG = {
    "three heads": (Blocks(torch.zeros(1, 3, 3, 1).int(), 3, 3), "support must be for 1, 2 or 4 heads .* got 3"),
    "three rows": (Blocks(torch.zeros(3, 1, 3, 1).int(), 3, 3), "support must be for 1 or 2 batch rows .* got 3"),
    "rows": (Tokens(torch.zeros(1, 1, 3, 1).int()), "index must list 9 blocks of 1 query rows for 9 queries, got 3"),
    "slopes": (Lines([0], alibi_slopes=[1.0, 2.0]), "alibi_slopes must be .* 4 query heads, got 2"),
    "one slope": (
        Blocks(torch.zeros(1, 1, 1, 1).int(), 9, 3, alibi_slopes=[1.0]),
        "alibi_slopes must be .* 4 query heads, got 1",
    ),
}


@pytest.mark.parametrize("support", [x for x, _ in WRONG.values()], ids=WRONG)
def test_what_does_not_fit_is_refused_by_name(support):
    words = next(words for x, words in WRONG.values() if x is support)
    with pytest.raises(ValueError, match=f"^{words}") as raised:
        attention(*inputs(9), support)
    assert "\n" not in str(raised.value)


def test_slopes_of_zero_are_no_slopes():
    q, k, v = inputs(70)
    lines = patterns.fibonacci(5)
    sloped = Lines(lines.slashes, alibi_slopes=[0.0] * 4)
    assert torch.equal(attention(q, k, v, sloped), attention(q, k, v, lines))
    assert not torch.equal(attention(q, k, v, Lines(lines.slashes, alibi_slopes=SLOPES)), attention(q, k, v, lines))


@pytest.mark.parametrize("slopes", [None, [-2.0]], ids=["bias", "slopes"])
def test_rows_that_fill_up_the_last_block_stay_finite(slopes):
    """Scores beyond what exp can hold in fp32, and five queries in blocks of four."""
    torch.manual_seed(0)
    leaves = [torch.randn(1, 1, 65, 4, requires_grad=True) for _ in range(3)]
    bias = torch.full((1, 1, 17, 17), 90.0, requires_grad=True)
    index = torch.arange(17).expand(1, 1, 17, 17).contiguous()
    grads = []
    for backend in ("torch", "reference"):
        support = Blocks(index, 4, 4, bias, alibi_slopes=slopes)
        out = attention(*leaves, support, backend=backend)
        grads.append(torch.autograd.grad(out.square().sum(), [*leaves, bias]))
    for found, expected in zip(*grads, strict=True):
        torch.testing.assert_close(found, expected, rtol=1e-3, atol=1e-4)


def test_the_tangent_of_a_bias_is_not_dropped():
    q, index = torch.zeros(1, 1, 4, 8), torch.zeros(1, 1, 1, 1, dtype=torch.int64)
    with forward_ad.dual_level():
        bias = forward_ad.make_dual(torch.zeros(index.shape), torch.ones(index.shape))
        with pytest.raises(NotImplementedError, match=r"^attention has no forward-mode"):
            attention(q, q, q, Blocks(index, 4, 4, bias), backend="torch")
