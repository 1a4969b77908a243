"""TWO ROUTES (cases.md): oracle, reference, fast paths and dense attention give one answer, and one gradient."""

from __future__ import annotations

from unittest import mock

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from attention_probes import (
    PATTERNS,
    assert_same,
    backends,
    differentiate,
    fast_backends,
    oracle,
    random_qkv,
    run,
    start_of,
    tolerance,
    widest,
)
from farspan import Lines, attention
from farspan.attention import dense_attention, torch_lines
from farspan.attention.reference import allowed as reference_mask

pytestmark = pytest.mark.usefixtures("poisoned_memory")

names = pytest.mark.parametrize("name", PATTERNS)

LENGTHS = [1, 2, 3, 5, 7, 17, 31, 33, 63, 65, 127, 129]


# The definition


@backends
@names
@pytest.mark.parametrize(
    ("q_len", "k_len"), [(9, 9), (3, 70), (20, 3)], ids=["square", "cache", "more queries than keys"]
)
def test_every_backend_is_the_oracle(backend, name, q_len, k_len):
    support = PATTERNS[name]
    q, k, v = random_qkv(batch=2, heads=2, q_len=q_len, k_len=k_len, head_dim=3, value_dim=5)
    expected = differentiate(lambda q, k, v: oracle(q, k, v, support.mask(q_len, k_len), scale=0.7), q, k, v)
    assert_same(run(backend, q, k, v, support, scale=0.7), expected)


@backends
def test_every_backend_is_the_oracle_with_start_and_lines_per_head(backend):
    support = Lines([[0, 1, 40], [0, 3], [], [2]], verticals=[[0], [], [1, 33], []])
    q, k, v = random_qkv(batch=2, heads=4, kv_heads=2, q_len=50, head_dim=3)
    start = torch.cat([start_of(20, 30), start_of(50)])
    mask = reference_mask(support, 4, 50, 50, None) & (torch.arange(50) >= start[:, None, :, None])
    expected = differentiate(lambda q, k, v: oracle(q, k, v, mask), q, k, v)
    assert_same(run(backend, q, k, v, support, start=start), expected)


def test_the_default_scale_is_one_over_the_root_of_the_head_size():
    q, k, v = random_qkv(q_len=20, head_dim=16)
    assert torch.equal(attention(q, k, v, Lines(range(9))), attention(q, k, v, Lines(range(9)), scale=0.25))


# Fast paths against reference in fp64


@fast_backends
@names
@pytest.mark.parametrize("length", [1, 17, 63, 129, 1000])
def test_a_fast_path_is_the_reference(backend, name, length):
    q, k, v = random_qkv(heads=1, q_len=length)
    assert_same(run(backend, q, k, v, PATTERNS[name]), run("reference", q, k, v, PATTERNS[name]))


@fast_backends
@names
@pytest.mark.parametrize("length", LENGTHS)
def test_a_fast_path_is_the_reference_at_ragged_lengths_in_fp32(backend, name, length):
    """F06."""
    q, k, v = random_qkv(batch=2, q_len=length, dtype=torch.float32)
    assert_same(run(backend, q, k, v, PATTERNS[name]), run("reference", q, k, v, PATTERNS[name]))


SHAPES = {
    "one key head per query head": {"heads": 4, "kv_heads": 4},
    "groups of two": {"heads": 4, "kv_heads": 2},
    "one key head": {"heads": 4, "kv_heads": 1},
    "wide values": {"head_dim": 4, "value_dim": 20},
    "narrow values": {"head_dim": 20, "value_dim": 1},
    "batch of three": {"batch": 3, "heads": 4, "kv_heads": 2},
    "a few queries, a long cache": {"q_len": 5, "k_len": 300, "heads": 4, "kv_heads": 2},
    "more than a chunk of queries, a long cache": {"q_len": 150, "k_len": 300},
    "more queries than keys": {"q_len": 300, "k_len": 140},
}


@fast_backends
@names
@pytest.mark.parametrize("shape", SHAPES.values(), ids=SHAPES)
def test_a_fast_path_is_the_reference_for_every_shape(backend, name, shape):
    q, k, v = random_qkv(**{"q_len": 140, **shape})
    assert_same(run(backend, q, k, v, PATTERNS[name]), run("reference", q, k, v, PATTERNS[name]))


@fast_backends
@names
@pytest.mark.parametrize("kv_heads", [1, 2, 4])
def test_a_fast_path_is_the_reference_with_start(backend, name, kv_heads):
    """Left padding in one row, packed documents in the next, a row that reads nothing in the third."""
    q, k, v = random_qkv(batch=3, heads=4, kv_heads=kv_heads, q_len=150)
    start = torch.cat([torch.full((1, 150), 61), start_of(1, 64, 85), torch.full((1, 150), 150)])
    support = PATTERNS[name]
    assert_same(run(backend, q, k, v, support, start=start), run("reference", q, k, v, support, start=start))


@fast_backends
def test_a_fast_path_is_the_reference_with_start_and_a_cache(backend):
    q, k, v = random_qkv(batch=2, q_len=4, k_len=150)
    start = torch.tensor([[0, 0, 0, 0], [140, 140, 148, 149]])
    for support in PATTERNS.values():
        assert_same(run(backend, q, k, v, support, start=start), run("reference", q, k, v, support, start=start))


LINES_OF_THEIR_OWN = {
    "all heads differ": Lines([[0, 1], [0, 50, 90], [3], [0, 100]], [[0], [], [1], [7, 60]]),
    "some heads agree": Lines([[0, 50], [0, 1], [0, 50], [0, 1]]),
    "some heads read nothing": Lines([[], [0, 1], [], [64]]),
    "batch rows differ": Lines(torch.tensor([[[0, 1, 50]], [[0, 90, -1]]]), [0]),
    "both differ": Lines(torch.tensor([[[0], [1], [50], [0]], [[0], [0], [0], [99]]]), [[0], [0], [3], [3]]),
}


@fast_backends
@pytest.mark.parametrize("kv_heads", [1, 2, 4])
@pytest.mark.parametrize("with_start", [True, False], ids=["start", "no start"])
@pytest.mark.parametrize("support", LINES_OF_THEIR_OWN.values(), ids=LINES_OF_THEIR_OWN)
def test_a_fast_path_is_the_reference_for_lines_of_their_own(backend, support, with_start, kv_heads):
    q, k, v = random_qkv(batch=2, heads=4, kv_heads=kv_heads, q_len=131)
    start = torch.cat([torch.full((1, 131), 10), start_of(100, 31)]) if with_start else None
    assert_same(run(backend, q, k, v, support, start=start), run("reference", q, k, v, support, start=start))


INSIDES = {
    "all far": {"_CHUNK": 4, "_SLASH_IN_COLUMNS": 0},
    "all near": {"_CHUNK": 4, "_SLASH_IN_COLUMNS": 10**6},
    "a cut between": {"_CHUNK": 7, "_SLASH_IN_COLUMNS": 2},
    "one row of scores at a time": {"_CHUNK": 5, "_CPU_SCORES": 1},
    "one chunk": {"_CHUNK": 10**6, "_CPU_SCORES": 10**9},
}


@pytest.mark.parametrize("inside", INSIDES.values(), ids=INSIDES)
@pytest.mark.parametrize(("q_len", "k_len"), [(29, 41), (41, 29)], ids=["cache", "more queries"])
def test_where_chunks_and_columns_are_cut_does_not_matter(monkeypatch, inside, q_len, k_len):
    q, k, v = random_qkv(batch=3, heads=4, kv_heads=2, q_len=q_len, k_len=k_len)
    start = torch.randint(-1, k_len, (3, q_len), generator=torch.Generator().manual_seed(0))
    supports = [
        *PATTERNS.values(),
        Lines([[0, 1], [0, 6, 9], [30], [0, 12, 13]], [[0], [], [5], [5, 8]]),
        Lines(torch.tensor([[[0, 1]], [[8, -1]], [[0, 20]]])),
    ]
    expected = [run("reference", q, k, v, support, start=start) for support in supports]
    for name, value in inside.items():
        monkeypatch.setattr(torch_lines, name, value)
    for support, result in zip(supports, expected, strict=True):
        assert_same(run("torch", q, k, v, support, start=start), result)


distances = st.lists(st.integers(0, 45), max_size=5)


@st.composite
def calls(draw):
    """Inputs, lines (shared, per head or per batch row) and start for one call, and where the fast path cuts."""
    batch, kv_heads, group = draw(st.integers(1, 2)), draw(st.integers(1, 2)), draw(st.integers(1, 2))
    q_len, k_len = draw(st.integers(1, 40)), draw(st.integers(0, 40))
    heads = kv_heads * group
    row = st.lists(distances, min_size=heads, max_size=heads)
    kind = draw(st.sampled_from(["shared", "per head", "per row"]))
    slashes, verticals = draw(distances if kind == "shared" else row), draw(distances | row)
    if kind == "per row":
        table = torch.full((batch, heads, 5), -1)
        for b in range(batch):
            for h, line in enumerate(slashes if b == 0 else draw(row)):
                table[b, h, : len(line)] = torch.tensor(line)
        slashes = table
    positions = st.lists(st.integers(-1, k_len + 1), min_size=q_len, max_size=q_len)
    start = draw(st.none() | st.lists(positions, min_size=batch, max_size=batch))
    inputs = random_qkv(batch=batch, heads=heads, kv_heads=kv_heads, q_len=q_len, k_len=k_len, head_dim=3)
    inside = {"_CHUNK": draw(st.integers(1, 50)), "_SLASH_IN_COLUMNS": draw(st.integers(0, 60))}
    return inputs, Lines(slashes, verticals), None if start is None else torch.tensor(start), inside


@fast_backends
@settings(max_examples=60)
@given(call=calls())
def test_a_fast_path_is_the_reference_for_any_call(backend, call):
    inputs, support, start, inside = call
    with mock.patch.multiple(torch_lines, **inside):
        result = run(backend, *inputs, support, start=start)
    assert_same(result, run("reference", *inputs, support, start=start))


# Identities


@backends
@pytest.mark.parametrize("length", LENGTHS)
@pytest.mark.parametrize("extra", [0, 40], ids=["full", "more than full"])
def test_a_full_budget_is_dense_attention(backend, length, extra):
    """F02, F06."""
    q, k, v = random_qkv(batch=2, heads=4, kv_heads=2, q_len=length, dtype=torch.float32)
    support = Lines(range(length + extra), verticals=range(extra))
    dense = dense_attention(q, k, v)
    torch.testing.assert_close(attention(q, k, v, support, backend=backend), dense, atol=1e-5, rtol=0)


@names
def test_one_support_serves_every_length(name):
    """F08: the object that ran at 1024 gives at other lengths what a new one gives."""
    support = PATTERNS[name]
    for length in (1024, 100, 1023, 1025):
        q, k, v = random_qkv(q_len=length, dtype=torch.float32)
        fresh = Lines(support.slashes, support.verticals)
        out = attention(q, k, v, support)
        assert torch.equal(out, attention(q, k, v, fresh))
        prefix = attention(*(x[:, :, :100] for x in (q, k, v)), support)
        torch.testing.assert_close(out[:, :, :100], prefix, atol=1e-5, rtol=0)


@backends
@names
@pytest.mark.parametrize("steps", [[1] * 17, [5, 1, 11], [16, 1]], ids=["token by token", "5 + 1 + 11", "prefill, 1"])
def test_a_sequence_fed_in_pieces_is_the_whole(backend, name, steps):
    """F16, F06: the queries of each piece over the keys so far."""
    q, k, v = random_qkv(batch=2, q_len=17, dtype=torch.float32)
    whole = attention(q, k, v, PATTERNS[name], backend=backend)
    end, pieces = 0, []
    for step in steps:
        end += step
        piece = attention(q[:, :, end - step : end], k[:, :, :end], v[:, :, :end], PATTERNS[name], backend=backend)
        pieces.append(piece)
    torch.testing.assert_close(torch.cat(pieces, 2), whole, atol=1e-5, rtol=0)


@backends
@names
def test_a_long_decode_step_is_the_last_row(backend, name):
    q, k, v = random_qkv(heads=4, kv_heads=2, q_len=400, dtype=widest(backend))
    whole = attention(q, k, v, PATTERNS[name], backend=backend)
    last = attention(q[:, :, -1:], k, v, PATTERNS[name], backend=backend)
    torch.testing.assert_close(last, whole[:, :, -1:], atol=tolerance(q.dtype), rtol=0)


@backends
@names
def test_padding_on_the_left_is_the_same_sequence(backend, name):
    """F04: real rows equal the single run without padding, padded rows are zeros."""
    support = Lines(PATTERNS[name].slashes)
    q, k, v = random_qkv(batch=2, q_len=90, dtype=widest(backend))
    padding = (0, 30)
    padded = [torch.stack([x[b].roll(padding[b], 1) for b in range(2)]) for x in (q, k, v)]
    start = torch.tensor(padding)[:, None].expand(2, 90)
    out = attention(*padded, support, start=start, backend=backend)
    for b, pad in enumerate(padding):
        alone = attention(*(x[b : b + 1, :, : 90 - pad] for x in (q, k, v)), support, backend=backend)
        torch.testing.assert_close(out[b : b + 1, :, pad:], alone, atol=tolerance(q.dtype), rtol=0)
        assert not out[b, :, :pad].any()


@backends
def test_packed_documents_are_the_documents(backend):
    q, k, v = random_qkv(q_len=160, dtype=widest(backend))
    out = attention(q, k, v, PATTERNS["fibonacci"], start=start_of(10, 50, 100), backend=backend)
    for begin, end in ((0, 10), (10, 60), (60, 160)):
        alone = attention(*(x[:, :, begin:end] for x in (q, k, v)), PATTERNS["fibonacci"], backend=backend)
        torch.testing.assert_close(out[:, :, begin:end], alone, atol=tolerance(q.dtype), rtol=0)


@backends
@names
@pytest.mark.parametrize("length", [33, 129])
def test_a_row_does_not_depend_on_its_batch_mates(backend, name, length):
    """F04, F19. Not to the bit: PyTorch's exp2 rounds the last `numel % 8` elements of a tensor in its own way."""
    q, k, v = random_qkv(batch=5, heads=4, kv_heads=2, q_len=length, dtype=torch.float32)
    together = run(backend, q, k, v, PATTERNS[name])
    for b in range(5):
        alone = attention(q[b : b + 1], k[b : b + 1], v[b : b + 1], PATTERNS[name], return_lse=True, backend=backend)
        for whole, one in zip(together[:2], alone, strict=True):
            torch.testing.assert_close(whole[b : b + 1], one, atol=1e-6, rtol=0)


@backends
def test_the_order_of_the_lines_does_not_matter(backend):
    """F19: not one bit."""
    q, k, v = random_qkv(q_len=150, dtype=torch.float32)
    slashes, verticals = [0, 1, 5, 40, 60, 100], [2, 30, 77]
    shuffled = Lines(torch.tensor([[60, 1, -1, 100, 5, 40, 0, 1]]), torch.tensor([[77, 2, 30]]))
    for a, b in zip(run(backend, q, k, v, Lines(slashes, verticals)), run(backend, q, k, v, shuffled), strict=True):
        assert torch.equal(a, b)


@backends
@pytest.mark.parametrize("shape", [(0, 2, 3, 5), (1, 2, 0, 5), (1, 2, 3, 0), (1, 2, 0, 0)], ids=str)
def test_nothing_to_do_gives_empty_or_zero_outputs(backend, shape):
    """No batch row, no query, no key."""
    batch, heads, q_len, k_len = shape
    for support in PATTERNS.values():
        q, k, v = random_qkv(batch=batch, heads=heads, kv_heads=1, q_len=q_len, k_len=k_len, value_dim=3)
        result = run(backend, q, k, v, support)
        assert result.out.shape == (batch, heads, q_len, 3)
        assert not result.out.any()
        assert (result.lse == -torch.inf).all()
        assert not any(grad.any() for grad in result[2:])
