"""READOUT (cases.md): with equal scores the output shows which keys each query reads, and how often."""

from __future__ import annotations

import pytest
import torch

from attention_probes import (
    BACKENDS,
    PATTERNS,
    assert_reads,
    mask_by_definition,
    readout,
    start_of,
    tolerance,
    widest,
)
from farspan import Lines, attention, patterns
from farspan.attention.torch_lines import _CHUNK

pytestmark = [pytest.mark.usefixtures("poisoned_memory"), pytest.mark.parametrize("backend", [*BACKENDS, None])]

LENGTHS = [(1, 1), (8, 8), (130, 130), (1, 5), (5, 9), (70, 200), (9, 5), (200, 70), (3, 0), (0, 3), (0, 0)]
lengths = pytest.mark.parametrize(("q_len", "k_len"), LENGTHS, ids=[f"{q} queries {k} keys" for q, k in LENGTHS])


@lengths
@pytest.mark.parametrize("name", PATTERNS)
def test_exactly_the_keys_of_the_pattern_are_read_once(backend, name, q_len, k_len):
    support = PATTERNS[name]
    mask = mask_by_definition(support.slashes, support.verticals, q_len, k_len)
    assert_reads(readout(support, q_len, k_len, backend=backend), mask)


@pytest.mark.parametrize("length", [8, 3 * _CHUNK + 1])
def test_a_window_of_three_counts_the_query_itself(backend, length):
    """F01: every row i has min(i + 1, 3) keys, across the edges of chunks too."""
    weights = readout(patterns.sliding_window(3), length, length, backend=backend)[0, 0]
    assert (weights > 0).sum(-1).tolist() == [min(i + 1, 3) for i in range(length)]
    assert weights[7].nonzero().flatten().tolist() == [5, 6, 7]
    assert (weights[:8] > 0).sum() == 21


def test_queries_stand_at_the_end_of_the_keys(backend):
    """F03: bottom-right alignment."""
    weights = readout(Lines(range(5)), 2, 5, backend=backend)[0, 0]
    expected = torch.tensor([[0.25, 0.25, 0.25, 0.25, 0], [0.2, 0.2, 0.2, 0.2, 0.2]], dtype=weights.dtype)
    torch.testing.assert_close(weights, expected, atol=tolerance(weights.dtype), rtol=0)


def test_queries_before_the_first_key_read_nothing(backend):
    """F03: zeros, lse = -inf, and a backward that is finite and zero there."""
    q = torch.zeros(1, 1, 5, 1, dtype=widest(backend), requires_grad=True)
    k = torch.zeros(1, 1, 2, 1, dtype=widest(backend), requires_grad=True)
    v = torch.eye(2, dtype=widest(backend))[None, None].requires_grad_()
    out, lse = attention(q, k, v, Lines(range(5)), return_lse=True, backend=backend)
    assert out[0, 0].tolist() == [[0, 0], [0, 0], [0, 0], [1, 0], [0.5, 0.5]]
    assert lse[0, 0].tolist() == [-torch.inf] * 3 + [0, pytest.approx(torch.tensor(2.0).log().item())]
    (out.sum() + lse.masked_fill(lse.isinf(), 0).sum()).backward()
    assert q.grad[0, 0, :3].tolist() == [[0], [0], [0]]
    assert v.grad[0, 0].tolist() == [[1.5, 1.5], [0.5, 0.5]]
    assert k.grad.isfinite().all()


def test_overlapping_offsets_have_equal_weights(backend):
    """F10: offsets [1, 1, 2, 3] and window 2; counting an overlap twice would give it more weight."""
    weights = readout(Lines([*range(2), 1, 1, 2, 3]), 6, 6, backend=backend)[0, 0]
    torch.testing.assert_close(weights[5], torch.tensor([0, 0, 0.25, 0.25, 0.25, 0.25], dtype=weights.dtype))
    weights = readout(Lines([*range(3), 1, 2, 3, 5, 8]), 16, 16, backend=backend)[0, 0]
    assert weights[8].nonzero().flatten().tolist() == [0, 3, 5, 6, 7, 8]
    assert weights[15].nonzero().flatten().tolist() == [7, 10, 12, 13, 14, 15]
    assert (weights > 0).sum() == 77


def test_a_key_listed_by_a_slash_and_a_vertical_is_read_once(backend):
    support = Lines([0, 1, 50, 90], verticals=[0, 1, 45, 99])
    assert_reads(
        readout(support, 150, 150, backend=backend), mask_by_definition([0, 1, 50, 90], [0, 1, 45, 99], 150, 150)
    )


def test_lse_of_equal_scores_counts_the_keys(backend):
    support = PATTERNS["slashes and verticals"]
    q, k, v = (torch.zeros(1, 1, 70, 3) for _ in range(3))
    _, lse = attention(q, k, v, support, return_lse=True, backend=backend)
    torch.testing.assert_close(lse[0, 0], support.mask(70, 70).sum(-1).log())


# Heads


def test_query_heads_read_their_group_in_order(backend):
    """F11: 1, 2, 1, 2 would be the wrong order."""
    q, k = torch.zeros(1, 4, 1, 2), torch.zeros(1, 2, 1, 2)
    v = torch.tensor([1.0, 2.0]).reshape(1, 2, 1, 1).requires_grad_()
    out = attention(q, k, v, Lines([0]), backend=backend)
    assert out.flatten().tolist() == [1, 1, 2, 2]
    out.sum().backward()
    assert v.grad.flatten().tolist() == [2, 2]


PER_HEAD = {
    "all differ": [[0, 1], [0, 5], [3, 70], [0, 1, 2]],
    "some agree": [[0, 60], [0, 1], [0, 60], [0, 1]],
    "all agree": [[0, 60]] * 4,
    "some read nothing": [[], [0], [], [2]],
}


@pytest.mark.parametrize("kv_heads", [1, 2, 4])
@pytest.mark.parametrize("slashes", PER_HEAD.values(), ids=PER_HEAD)
def test_each_head_reads_its_own_lines(backend, slashes, kv_heads):
    verticals = [[0], [2], [], [0, 4]]
    k_len = 75
    # The value of key j in key head g is row j of g + 1 times the identity.
    v = torch.stack([(g + 1) * torch.eye(k_len, dtype=widest(backend)) for g in range(kv_heads)])[None]
    q, k = torch.zeros(1, 4, 75, 1, dtype=v.dtype), torch.zeros(1, kv_heads, k_len, 1, dtype=v.dtype)
    out = attention(q, k, v, Lines(slashes, verticals), backend=backend)
    for head in range(4):
        mask = mask_by_definition(slashes[head], verticals[head], 75, k_len)
        assert_reads(out[0, head] / (head // (4 // kv_heads) + 1), mask)


@pytest.mark.parametrize("shared_heads", [True, False], ids=["shared by heads", "per head"])
def test_each_batch_row_reads_its_own_lines(backend, shared_heads):
    slashes = torch.tensor([[[0, 1, -1], [0, 60, -1]], [[2, 70, -1], [0, 1, 2]], [[-1, -1, -1], [0, -1, -1]]])
    slashes = slashes[:, :1] if shared_heads else slashes
    weights = readout(Lines(slashes), 80, 80, heads=2, batch=3, backend=backend)
    for b in range(3):
        for h in range(2):
            lines = [d for d in slashes[b, 0 if shared_heads else h].tolist() if d >= 0]
            assert_reads(weights[b, h], mask_by_definition(lines, (), 80, 80))


def test_lines_per_batch_row_meet_verticals_per_head(backend):
    support = Lines(torch.tensor([[[0]], [[3]]]), verticals=[[1], [], [2], [0]])
    assert_reads(readout(support, 9, 9, heads=4, batch=2, backend=backend), support.mask(9, 9))


# start


@pytest.mark.parametrize("dtype", [torch.int32, torch.int64], ids=["int32", "int64"])
@pytest.mark.parametrize("name", PATTERNS)
def test_left_padding_is_not_read(backend, name, dtype):
    """F04: rows of length 150, 100 and 0 in a batch of 150; padded queries give zeros."""
    support = PATTERNS[name]
    padding = [0, 50, 150]
    start = torch.tensor(padding, dtype=dtype)[:, None].expand(3, 150)
    weights = readout(support, 150, 150, batch=3, start=start, backend=backend)
    mask = mask_by_definition(support.slashes, support.verticals, 150, 150)
    for b, pad in enumerate(padding):
        assert_reads(weights[b, 0], mask & (torch.arange(150) >= pad))


@pytest.mark.parametrize("name", PATTERNS)
def test_packed_documents_do_not_read_each_other(backend, name):
    support = PATTERNS[name]
    start = start_of(3, 70, 1, 76)
    weights = readout(support, 150, 150, start=start, backend=backend)[0, 0]
    mask = mask_by_definition(support.slashes, support.verticals, 150, 150)
    assert_reads(weights, mask & (torch.arange(150) >= start[0, :, None]))


def test_start_outside_the_keys_means_all_or_none(backend):
    start = torch.tensor([[-7, 0, 2, 3, 4, 99]])
    weights = readout(Lines(range(9), [0]), 6, 6, start=start, backend=backend)[0, 0]
    assert [row.nonzero().flatten().tolist() for row in weights] == [[0], [0, 1], [2], [3], [4], []]
