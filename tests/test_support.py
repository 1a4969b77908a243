"""`Lines`: what it accepts, which pairs it stands for, and what it says they cost."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from attention_probes import PATTERNS, allowed, mask_by_definition, start_of
from farspan import Blocks, Lines, Tokens, patterns

numbers = st.lists(st.integers(0, 30), max_size=8)
lengths = st.integers(0, 24)


# What is accepted (F02)


@pytest.mark.parametrize(
    ("given_value", "error", "words"),
    [
        pytest.param([0, -1], ValueError, "got -1", id="negative"),
        pytest.param(torch.tensor([0, -1]), ValueError, "got -1", id="negative in a flat tensor"),
        pytest.param([2**31], ValueError, "got 2147483648", id="above int32"),
        pytest.param([1.0], TypeError, "1.0 of type float", id="float"),
        pytest.param(np.array([1.0]), TypeError, "1.0 of type float", id="float array"),
        pytest.param(torch.tensor([1.0]), TypeError, "1.0 of type float", id="float tensor"),
        pytest.param([float("nan")], TypeError, "nan", id="nan"),
        pytest.param([True], TypeError, "boolean True", id="bool"),
        pytest.param(torch.tensor([True]), TypeError, "boolean True", id="bool tensor"),
        pytest.param([None], TypeError, "None", id="none"),
        pytest.param(3, TypeError, "got 3", id="a bare integer"),
        pytest.param(torch.tensor(3), TypeError, "sequence of integers", id="a scalar tensor"),
        pytest.param(np.array(3), TypeError, "sequence of integers", id="a scalar array"),
        pytest.param("12", TypeError, "got '12'", id="string"),
        pytest.param([[0], 1], TypeError, "got 1 among sequences", id="integers beside sequences"),
        pytest.param([[0], [[1]]], TypeError, "must be integers", id="three levels"),
        pytest.param([[0], [-2]], ValueError, "got -2", id="negative per head"),
        pytest.param(torch.tensor([[0, -2]]), ValueError, "got -2..0", id="below -1 in a tensor"),
        pytest.param(torch.tensor([[2**31, 0]]), ValueError, "2147483648", id="above int32 in a tensor"),
        pytest.param(torch.zeros(2, 3), TypeError, "float32", id="float tensor per head"),
        pytest.param(torch.zeros(2, 3, dtype=torch.bool), TypeError, "torch.bool", id="bool tensor per head"),
        pytest.param(torch.zeros(1, 1, 1, 1, dtype=torch.int64), ValueError, r"\[1, 1, 1, 1\]", id="four axes"),
        pytest.param(torch.zeros(0, 3, dtype=torch.int64), ValueError, "at least one head", id="no head"),
    ],
)
@pytest.mark.parametrize("argument", ["slashes", "verticals"])
def test_what_is_not_a_line_is_refused_by_name(argument, given_value, error, words):
    with pytest.raises(error, match=rf"^{argument} .*{words}"):
        Lines(**{"slashes": [0], argument: given_value})


@pytest.mark.parametrize(
    ("slashes", "verticals", "what"),
    [
        pytest.param([[0], [1]], [[0], [1], [2]], "heads, got 2 and 3", id="heads"),
        pytest.param(
            torch.zeros(2, 1, 1, dtype=torch.int64),
            torch.zeros(3, 1, 1, dtype=torch.int64),
            "batch rows, got 2 and 3",
            id="batch rows",
        ),
    ],
)
def test_slashes_and_verticals_that_disagree_are_refused(slashes, verticals, what):
    with pytest.raises(ValueError, match=f"number of {what}"):
        Lines(slashes, verticals)


@pytest.mark.parametrize(
    "form",
    [list, tuple, set, iter, np.array, torch.tensor, lambda x: torch.tensor(x, dtype=torch.int32)[None]],
    ids=["list", "tuple", "set", "iterator", "array", "flat tensor", "tensor of one head"],
)
def test_every_form_of_the_same_lines_is_the_same_support(form):
    plain = Lines([0, 2, 5, 9], verticals=[1, 3])
    given_lines = Lines(form([5, 0, 9, 2]), verticals=form([3, 1]))
    assert given_lines == plain
    assert hash(given_lines) == hash(plain)
    assert torch.equal(given_lines.mask(12, 12), plain.mask(12, 12))


def test_a_range_is_a_sequence():
    assert Lines(range(3)) == Lines([0, 1, 2])


def test_padding_and_duplicates_of_a_tensor_do_not_count():
    padded = torch.tensor([[3, -1, 0, 3, -1], [-1, 2, 2, -1, 2]])
    assert Lines(padded) == Lines([[0, 3], [2]])
    assert hash(Lines(padded)) == hash(Lines([[0, 3], [2]]))
    head_0, head_1 = Lines(padded, verticals=padded).mask(5, 5)
    assert torch.equal(head_0, mask_by_definition([0, 3], [0, 3], 5, 5))
    assert torch.equal(head_1, mask_by_definition([2], [2], 5, 5))


def test_lines_do_not_change_with_the_tensor_they_came_from():
    table = torch.tensor([[0, 1]])
    lines = Lines(table)
    table[0, 1] = 2
    assert lines == Lines([0, 1])


def test_lines_made_under_the_meta_device_hold_their_numbers():
    """transformers builds models there."""
    with torch.device("meta"):
        made = [Lines([0, 2], [1]), Lines([[0], [2]])]
    assert made == [Lines([0, 2], [1]), Lines([[0], [2]])]


@pytest.mark.parametrize(
    "other",
    [Lines([0, 1]), Lines([0, 2], [1]), Lines([0, 1, 2], [0]), Lines([[0, 1], [0, 1]], [0]), "Lines", None],
    ids=["fewer", "other slash", "more", "per head", "string", "none"],
)
def test_different_lines_are_not_equal(other):
    assert Lines([0, 1], [0]) != other


def test_a_slash_and_a_vertical_are_not_the_same():
    assert Lines([1], []) != Lines([], [1])


@pytest.mark.parametrize(
    ("lines", "text"),
    [
        (Lines([2, 0, 2], [1]), "Lines([0, 2], verticals=[1])"),
        (Lines([[0], [1, 3]]), "Lines([(0,), (1, 3)], verticals=[])"),
        (Lines(range(100)), "Lines([0, 1, ... 99: 100], verticals=[])"),
        (Lines(torch.zeros(2, 3, 4, dtype=torch.int64)), "Lines(tensor[2, 3, 1], verticals=[])"),
    ],
    ids=["shared", "per head", "long", "tensor"],
)
def test_repr_is_short_and_says_what_is_read(lines, text):
    assert repr(lines) == text


# Which pairs it stands for


@given(numbers, numbers, lengths, lengths)
def test_mask_is_the_definition(slashes, verticals, q_len, k_len):
    assert torch.equal(
        Lines(slashes, verticals).mask(q_len, k_len), mask_by_definition(slashes, verticals, q_len, k_len)
    )


@pytest.mark.parametrize(("window", "offsets"), [(3, ()), (3, (1, 2, 3, 5, 8)), (2, (1, 1, 2, 3)), (1, (0, 4, 30))])
def test_window_and_offsets_are_those_of_the_cases_reference(window, offsets):
    """Part C of cases.md, as it stands there."""

    def by_part_c(i):
        keys = set(range(max(0, i - window + 1), i + 1))
        return keys | {i - o for o in offsets if i - o >= 0}

    mask = Lines([*range(window), *offsets]).mask(16, 16)
    assert [set(row.nonzero().flatten().tolist()) for row in mask] == [by_part_c(i) for i in range(16)]


@given(st.lists(numbers, min_size=1, max_size=3), numbers, lengths, lengths)
def test_each_head_has_its_own_mask(slashes, verticals, q_len, k_len):
    mask = Lines(slashes, verticals).mask(q_len, k_len)
    expected = torch.stack([mask_by_definition(lines, verticals, q_len, k_len) for lines in slashes])
    assert torch.equal(mask, expected if len(slashes) > 1 else expected[0])


def test_each_batch_row_has_its_own_mask():
    slashes = torch.tensor([[[0, 1], [2, -1]], [[3, 0], [-1, -1]]])
    mask = Lines(slashes, verticals=[[0], [2]]).mask(4, 6)
    assert mask.shape == (2, 2, 4, 6)
    for b in range(2):
        for h in range(2):
            given_slashes = [d for d in slashes[b, h].tolist() if d >= 0]
            assert torch.equal(mask[b, h], mask_by_definition(given_slashes, [[0], [2]][h], 4, 6))


def test_lines_shared_by_heads_but_not_by_rows_have_a_head_axis_of_one():
    lines = Lines(torch.tensor([[[0]], [[1]]]))
    assert lines.mask(2, 3).shape == (2, 1, 2, 3)
    assert lines.pairs(2, 3).shape == (2, 1)


@pytest.mark.parametrize("distance", [8, 9, 2**31 - 1])
def test_a_distance_beyond_the_sequence_adds_nothing(distance):
    assert torch.equal(Lines([0, distance]).mask(8, 8), Lines([0]).mask(8, 8))
    assert Lines([0, distance], [distance]).pairs(8, 8) == 8


def test_no_lines_read_nothing():
    nothing = Lines([])
    assert nothing.mask(3, 3).sum() == 0
    assert nothing.pairs(3, 3) == 0
    assert nothing.density(3, 3) == 0


# How many they are (F10)


@given(numbers, numbers, lengths, lengths)
def test_pairs_are_what_the_mask_holds(slashes, verticals, q_len, k_len):
    lines = Lines(slashes, verticals)
    assert lines.pairs(q_len, k_len) == lines.mask(q_len, k_len).sum()


@given(st.lists(numbers, min_size=2, max_size=3), numbers, lengths, lengths)
def test_pairs_are_counted_head_by_head(slashes, verticals, q_len, k_len):
    lines = Lines(slashes, verticals)
    assert lines.pairs(q_len, k_len).tolist() == lines.mask(q_len, k_len).sum((-1, -2)).tolist()


def test_pairs_are_counted_batch_row_by_batch_row():
    lines = Lines(torch.tensor([[[0, 1], [2, -1]], [[3, 0], [-1, -1]]]), verticals=[0])
    assert lines.pairs(4, 6).tolist() == lines.mask(4, 6).sum((-1, -2)).tolist()


@given(st.data(), st.lists(numbers, min_size=1, max_size=2), numbers, lengths, lengths, st.integers(1, 2))
def test_pairs_with_start_are_what_the_mask_holds(data, slashes, verticals, q_len, k_len, batch):
    row = st.lists(st.integers(-2, k_len + 2), min_size=q_len, max_size=q_len)
    start = torch.tensor(data.draw(st.lists(row, min_size=batch, max_size=batch)), dtype=torch.int64)
    start = start.reshape(batch, q_len)
    lines = Lines(slashes, verticals)
    seen = lines.mask(q_len, k_len) & (torch.arange(k_len) >= start[:, None, :, None])
    assert lines.pairs(q_len, k_len, start).tolist() == seen.sum((-1, -2)).tolist()


def test_pairs_with_start_of_lines_that_differ_by_batch_row():
    lines = Lines(torch.tensor([[[0, 1]], [[0, 3]]]))
    assert lines.pairs(4, 4, torch.tensor([[0, 0, 0, 0], [0, 0, 0, 1]])).tolist() == [[7], [4]]
    assert lines.pairs(4, 4, torch.tensor([[0, 0, 2, 2]])).tolist() == [[6], [4]]


@pytest.mark.parametrize(
    ("start", "error", "words"),
    [
        pytest.param(torch.zeros(1, 3, dtype=torch.int64), ValueError, r"\[1, 3\]", id="length"),
        pytest.param(torch.zeros(4, dtype=torch.int64), ValueError, r"\[4\]", id="one axis"),
        pytest.param(torch.zeros(3, 4, dtype=torch.int64), ValueError, "3", id="batch"),
        pytest.param(torch.zeros(2, 4), TypeError, "float32", id="float"),
        pytest.param([[0, 0, 0, 0]] * 2, TypeError, "list", id="list"),
    ],
)
def test_a_start_that_does_not_fit_is_refused(start, error, words):
    with pytest.raises(error, match=f"^start .*{words}"):
        Lines(torch.tensor([[[0]], [[1]]])).pairs(4, 4, start)


def test_window_of_three_has_21_pairs():
    """F10, F01."""
    assert Lines(range(3)).pairs(8, 8) == 21


def test_overlapping_window_and_offsets_have_77_pairs():
    """F10: 106 would mean that overlaps count twice."""
    lines = Lines([*range(3), 1, 2, 3, 5, 8])
    assert lines.pairs(16, 16) == 77
    mask = lines.mask(16, 16)
    assert mask[8].nonzero().flatten().tolist() == [0, 3, 5, 6, 7, 8]
    assert mask[15].nonzero().flatten().tolist() == [7, 10, 12, 13, 14, 15]


def test_packed_documents_have_950_pairs():
    """F10."""
    start = start_of(10, 10, 20, 20, 20, 20)
    assert Lines(range(100)).pairs(100, 100, start).tolist() == [[950]]


@pytest.mark.parametrize("alpha", [0.01, 0.3, 0.5, 0.77, 1.5])
def test_rungs_that_collide_after_scaling_count_once(alpha):
    """F10: rounding makes offsets collide."""
    lines = patterns.fibonacci(window=3, alpha=alpha)
    base = (1, 2, 3, 5, 8, 13, 21, 34, 55, 89, 144, 233, 377, 610, 987)
    slashes = {0, 1, 2} | {round(alpha * f) for f in base}
    assert lines.pairs(100, 100) == sum(len(allowed(i, slashes)) for i in range(100))


def test_pairs_need_no_mask_at_a_million_tokens():
    length = 2**20
    lines = Lines([0, 1, 512, 2**19], verticals=[0, 100])
    slashes = length + (length - 1) + (length - 512) + 2**19
    # Vertical 0 is read by slashes at 0, 1, 512, 2**19; vertical 100 at 100, 101, 612, 2**19 + 100.
    total = slashes + length + (length - 100) - 8
    assert lines.pairs(length, length) == total
    assert lines.pairs(length, length, torch.zeros(1, length, dtype=torch.int32)).tolist() == [[total]]


@pytest.mark.parametrize(
    ("lines", "density"),
    [
        pytest.param(Lines(range(8)), 1.0, id="full"),
        pytest.param(Lines(range(99), [0, 1]), 1.0, id="more than full"),
        pytest.param(Lines(range(3)), 21 / 36, id="window"),
        pytest.param(Lines([[0], range(8)]), (8 + 36) / 2 / 36, id="mean over heads"),
        pytest.param(Lines(torch.tensor([[[0]], [[7]]])), (8 + 1) / 2 / 36, id="mean over batch rows"),
    ],
)
def test_density_is_over_causal_pairs(lines, density):
    assert lines.density(8, 8) == pytest.approx(density, rel=1e-15)


@given(numbers, numbers, lengths, lengths)
def test_density_is_a_fraction_of_the_causal_pairs(slashes, verticals, q_len, k_len):
    lines = Lines(slashes, verticals)
    causal = sum(max(0, k_len - q_len + row + 1) for row in range(q_len))
    density = lines.density(q_len, k_len)
    assert 0 <= density <= 1
    assert density * causal == pytest.approx(lines.pairs(q_len, k_len), abs=1e-9)


@pytest.mark.parametrize("call", ["mask", "pairs", "density"])
@pytest.mark.parametrize(("lengths", "name"), [((-1, 4), "q_len"), ((4, -1), "k_len")], ids=["q_len", "k_len"])
def test_negative_lengths_are_refused(call, lengths, name):
    with pytest.raises(ValueError, match=f"^{name} must be >= 0, got -1"):
        getattr(Lines([0]), call)(*lengths)


# What they cost


@pytest.mark.parametrize(
    ("lines", "sizes", "options", "expected"),
    [
        # 5 pairs a head, 6 queries, 3 keys, D + Dv = 7: 6 * 7 + 3 * 7 elements of 4 bytes and 6 lse of 4.
        pytest.param(
            Lines([0, 1]),
            (3, 3),
            {"heads": 2, "kv_heads": 1, "head_dim": 4, "value_dim": 3},
            (10, 2 * 10 * 7, 2 * 10 * (3 * 4 + 2 * 3), 63 * 4 + 24, 2 * 63 * 4 + 24),
            id="window of two",
        ),
        # Positions 6 and 7 read keys 1, 2 by the slash and key 0 by the vertical: 3 of 8 keys move.
        pytest.param(
            Lines([5], [0]),
            (2, 8),
            {"heads": 1, "kv_heads": 1, "head_dim": 2, "dtype": torch.bfloat16},
            (4, 2 * 4 * 4, 2 * 4 * 10, (2 * 4 + 3 * 4) * 2 + 8, 2 * (2 * 4 + 3 * 4) * 2 + 8),
            id="keys nobody reads",
        ),
        # Head 0 reads keys 0..2, head 1 keys 0 and 1 of the same key head: 3 keys move once, in 2 batch rows.
        pytest.param(
            Lines([[0], [1]]),
            (3, 3),
            {"heads": 2, "kv_heads": 1, "head_dim": 1, "batch": 2},
            (10, 2 * 10 * 2, 2 * 10 * 5, (12 * 2 + 6 * 2) * 4 + 48, 2 * (12 * 2 + 6 * 2) * 4 + 48),
            id="heads of a group share keys",
        ),
        # The same lines with a key head each: 3 + 2 keys.
        pytest.param(
            Lines([[0], [1]]),
            (3, 3),
            {"heads": 2, "kv_heads": 2, "head_dim": 1},
            (5, 20, 50, (6 * 2 + 5 * 2) * 4 + 24, 2 * (6 * 2 + 5 * 2) * 4 + 24),
            id="key heads of their own",
        ),
        # Heads 0 and 1 share the first key head and read 3 keys, heads 2 and 3 the second and read 2.
        pytest.param(
            Lines([[0], [0], [1], [1]]),
            (3, 3),
            {"heads": 4, "kv_heads": 2, "head_dim": 1},
            (10, 40, 100, (12 * 2 + 5 * 2) * 4 + 48, 2 * (12 * 2 + 5 * 2) * 4 + 48),
            id="groups in order",
        ),
        # Batch rows read 1 and 2 keys.
        pytest.param(
            Lines(torch.tensor([[[1]], [[0]]])),
            (2, 2),
            {"heads": 1, "kv_heads": 1, "head_dim": 1, "batch": 2, "dtype": torch.float64},
            (3, 12, 30, (4 * 2 + 3 * 2) * 8 + 32, 2 * (4 * 2 + 3 * 2) * 8 + 32),
            id="batch rows of their own, fp64",
        ),
        pytest.param(
            Lines([0], [0]), (0, 4), {"heads": 1, "kv_heads": 1, "head_dim": 1}, (0, 0, 0, 0, 0), id="no query"
        ),
    ],
)
def test_cost_is_what_a_hand_counts(lines, sizes, options, expected):
    cost = lines.cost(*sizes, **options)
    counted = (cost.pairs, cost.forward_flops, cost.backward_flops, cost.forward_bytes, cost.backward_bytes)
    assert counted == expected


@given(numbers, numbers, lengths, lengths)
def test_cost_moves_the_keys_that_the_mask_reads(slashes, verticals, q_len, k_len):
    lines = Lines(slashes, verticals)
    read = int(lines.mask(q_len, k_len).any(0).sum())
    cost = lines.cost(q_len, k_len, heads=1, kv_heads=1, head_dim=1)
    assert cost.forward_bytes == (2 * q_len + 2 * read) * 4 + 4 * q_len


@pytest.mark.parametrize(
    ("lines", "options", "words"),
    [
        pytest.param(Lines([0]), {"heads": 0}, "heads must be >= 1, got 0", id="no head"),
        pytest.param(Lines([0]), {"kv_heads": 0}, "kv_heads must be >= 1, got 0", id="no key head"),
        pytest.param(Lines([0]), {"head_dim": 0}, "head_dim must be >= 1, got 0", id="no size"),
        pytest.param(Lines([0]), {"batch": 0}, "batch must be >= 1, got 0", id="no row"),
        pytest.param(Lines([0]), {"kv_heads": 3}, "multiple of kv_heads, got 4 and 3", id="group"),
        pytest.param(Lines([[0], [1]]), {}, "2 heads", id="heads of the support"),
        pytest.param(Lines(torch.zeros(2, 1, 1, dtype=torch.int64)), {"batch": 3}, "2 batch rows", id="rows"),
    ],
)
def test_cost_of_sizes_that_do_not_fit_is_refused(lines, options, words):
    with pytest.raises(ValueError, match=words):
        lines.cost(8, 8, **{"heads": 4, "kv_heads": 2, "head_dim": 8, **options})


@pytest.mark.parametrize("name", PATTERNS)
def test_a_support_fits_every_length(name):
    """F08: one object, no length in it."""
    lines = PATTERNS[name]
    slashes, verticals = lines.slashes, lines.verticals
    for length in (32, 5, 31, 33):
        assert torch.equal(lines.mask(length, length), mask_by_definition(slashes, verticals, length, length))


# Blocks and Tokens


@st.composite
def entries(draw):
    """A random index with padding and duplicates, its block sizes, and lengths that it was made for."""
    q_len, k_len = draw(st.integers(1, 30)), draw(st.integers(0, 30))
    block_q, block_k = draw(st.integers(1, 35)), draw(st.integers(1, 35))
    shape = (draw(st.integers(1, 2)), draw(st.integers(1, 3)), -(-q_len // block_q), draw(st.integers(0, 4)))
    generator = torch.Generator().manual_seed(draw(st.integers(0, 2**20)))
    index = torch.randint(-2, k_len // block_k + 3, shape, generator=generator).clamp_min(-1)
    return index, block_q, block_k, q_len, k_len


def mask_of_entries(index, block_q, block_k, q_len, k_len):
    """bool `[B, Hs, q_len, k_len]`, pair by pair."""
    mask = torch.zeros(*index.shape[:2], q_len, k_len, dtype=torch.bool)
    for b, rows in enumerate(index.tolist()):
        for h, row in enumerate(rows):
            for i in range(q_len):
                for j in range(min(k_len, k_len - q_len + i + 1)):
                    mask[b, h, i, j] = j // block_k in row[i // block_q]
    return mask


@given(made=entries())
def test_the_mask_of_blocks_is_the_definition(made):
    index, block_q, block_k, q_len, k_len = made
    mask = mask_of_entries(*made)
    found = Blocks(index, block_q, block_k).mask(q_len, k_len)
    shape = mask.shape if index.shape[0] > 1 else mask.shape[1:] if index.shape[1] > 1 else mask.shape[2:]
    assert found.shape == shape
    assert torch.equal(found.expand_as(mask), mask)


@given(made=entries())
def test_tokens_are_blocks_of_one_key(made):
    index, block_q, _, q_len, k_len = made
    tokens, blocks = Tokens(index, block_q), Blocks(index, block_q, 1)
    assert torch.equal(tokens.mask(q_len, k_len), blocks.mask(q_len, k_len))
    assert tokens != blocks
    assert tokens == Tokens(index.flip(-1), block_q)


@given(made=entries(), data=st.data())
def test_the_pairs_of_blocks_are_what_the_mask_holds(made, data):
    index, block_q, block_k, q_len, k_len = made
    support, mask = Blocks(index, block_q, block_k), mask_of_entries(*made)
    assert torch.equal(torch.as_tensor(support.pairs(q_len, k_len)).expand(mask.shape[:2]), mask.sum((2, 3)))
    positions = st.lists(st.integers(-2, k_len + 2), min_size=q_len, max_size=q_len)
    start = torch.tensor(data.draw(st.lists(positions, min_size=index.shape[0], max_size=index.shape[0])))
    seen = mask & (torch.arange(k_len) >= start[:, None, :, None])
    assert torch.equal(support.pairs(q_len, k_len, start), seen.sum((2, 3)))


@given(made=entries())
def test_the_cost_of_blocks_moves_the_keys_that_the_mask_reads(made):
    index, block_q, block_k, q_len, k_len = made
    mask = mask_of_entries(*made)
    batch, heads = index.shape[:2]
    for kv_heads in {1, heads}:
        keys = mask.unflatten(1, (kv_heads, -1)).flatten(2, 3).any(2).sum().item()
        sizes = {"heads": heads, "kv_heads": kv_heads, "head_dim": 2, "batch": batch}
        cost = Blocks(index, block_q, block_k).cost(q_len, k_len, **sizes)
        assert cost.pairs == mask.sum()
        assert cost.forward_bytes == 4 * ((batch * heads * q_len + keys) * 4 + batch * heads * q_len)


def test_entries_of_key_heads_cost_as_much_as_those_of_their_query_heads():
    index = torch.tensor([[[[0], [1]], [[1], [0]]]])
    sizes = {"heads": 4, "kv_heads": 2, "head_dim": 8}
    shared = Blocks(index, 2, 2).cost(4, 4, **sizes)
    assert shared == Blocks(index.repeat_interleave(2, 1), 2, 2).cost(4, 4, **sizes)


def test_blocks_are_sorted_unique_and_padded_at_the_end():
    support = Blocks(torch.tensor([[[[3, -1, 0, 3, -1], [2, 1, -1, -1, -1]]]]), 2, 2)
    assert support.index.tolist() == [[[[0, 3], [1, 2]]]]
    assert support.index.dtype == torch.int32
    assert (support.batch, support.heads) == (1, 1)


def test_a_bias_moves_with_its_entries_and_keeps_its_gradient():
    bias = torch.tensor([[[[1.0, 2.0, 3.0]]]], requires_grad=True)
    support = Blocks(torch.tensor([[[[4, -1, 0]]]]), 1, 2, bias)
    assert support.bias.tolist() == [[[[3.0, 1.0]]]]
    (support.bias * torch.tensor([10.0, 100.0])).sum().backward()
    assert bias.grad.tolist() == [[[[100.0, 0.0, 10.0]]]]


def test_blocks_differ_by_everything_that_they_hold():
    index, bias = torch.tensor([[[[0, 1]]]]), torch.tensor([[[[0.0, 1.0]]]])
    same = Blocks(index, 2, 2, bias, alibi_slopes=[1.0])
    assert same == Blocks(index.flip(-1), 2, 2, bias.flip(-1), alibi_slopes=torch.tensor([1.0]))
    assert hash(same) == hash(Blocks(index, 2, 2, bias, alibi_slopes=[1.0]))
    others = [
        Blocks(index + 1, 2, 2, bias, alibi_slopes=[1.0]),
        Blocks(index, 3, 2, bias, alibi_slopes=[1.0]),
        Blocks(index, 2, 3, bias, alibi_slopes=[1.0]),
        Blocks(index, 2, 2, bias + 1, alibi_slopes=[1.0]),
        Blocks(index, 2, 2, alibi_slopes=[1.0]),
        Blocks(index, 2, 2, bias, alibi_slopes=[2.0]),
        Blocks(index, 2, 2, bias),
    ]
    assert all(same != other for other in others)
    assert Lines([0], alibi_slopes=[1.0]) != Lines([0])
    assert Blocks(index, 2, 2) != Lines([0])


INDEX = torch.tensor([[[[0, 1]]]])
WRONG_ENTRIES = [
    ({"index": [[[[0]]]]}, TypeError, "index must be an int32 or int64 tensor, got list"),
    ({"index": INDEX.float()}, TypeError, "index must be an int32 or int64 tensor, got torch.float32"),
    ({"index": INDEX[0]}, ValueError, r"index must be \[B, Hs, blocks, n\] .* got \[1, 1, 2\]"),
    ({"index": INDEX[:, :0]}, ValueError, r"index must be .* at least one head, got \[1, 0, 1, 2\]"),
    ({"index": INDEX - 2}, ValueError, "index must lie in .*, got -2..-1"),
    ({"index": INDEX + 2**31}, ValueError, "index must lie in .*, got 2147483648"),
    ({"block_q": 0}, ValueError, "block_q must lie in .*, got 0"),
    ({"block_k": 2.0}, TypeError, "block_k must be an integer, got 2.0"),
    ({"block_k": True}, TypeError, "block_k must be an integer, got the boolean True"),
    ({"bias": [0.0, 1.0]}, TypeError, "bias must be a floating point tensor, got list"),
    ({"bias": INDEX}, TypeError, "bias must be a floating point tensor, got torch.int64"),
    (
        {"bias": torch.zeros(1, 1, 1, 3)},
        ValueError,
        r"bias must have the shape .* \[1, 1, 1, 2\] .* got \[1, 1, 1, 3\]",
    ),
    ({"index": INDEX * 0, "bias": torch.zeros(1, 1, 1, 2)}, ValueError, "index must list an entry once .* got 0 twice"),
    ({"alibi_slopes": [[1.0]]}, ValueError, r"alibi_slopes must be one number per head, .* got shape \[1, 1\]"),
    ({"alibi_slopes": [torch.inf]}, ValueError, r"alibi_slopes must be finite, got \[inf\]"),
    ({"alibi_slopes": [True]}, TypeError, "alibi_slopes must be real numbers, got torch.bool"),
    ({"alibi_slopes": torch.ones(1, requires_grad=True)}, ValueError, "alibi_slopes must not require a gradient"),
]


@pytest.mark.parametrize(("given_values", "error", "words"), WRONG_ENTRIES, ids=[words for *_, words in WRONG_ENTRIES])
def test_what_is_not_an_entry_is_refused_by_name(given_values, error, words):
    arguments = {"index": INDEX, "block_q": 2, "block_k": 2}
    Blocks(**arguments)
    with pytest.raises(error, match=f"^{words}") as raised:
        Blocks(**{**arguments, **given_values})
    assert "\n" not in str(raised.value)


@pytest.mark.parametrize("call", ["mask", "pairs"])
def test_blocks_made_for_another_number_of_queries_say_so(call):
    with pytest.raises(ValueError, match=r"^index must list 3 blocks of 2 query rows for 5 queries, got 1"):
        getattr(Blocks(INDEX, 2, 2), call)(5, 5)


def test_repr_of_blocks_and_tokens_says_what_they_hold():
    bias = torch.zeros(1, 1, 1, 2)
    assert repr(Blocks(INDEX, 2, 4)) == "Blocks(tensor[1, 1, 1, 2], block_q=2, block_k=4)"
    assert repr(Tokens(INDEX, 2, bias, alibi_slopes=[1.0])) == (
        "Tokens(tensor[1, 1, 1, 2], block_q=2, bias=tensor[1, 1, 1, 2], alibi_slopes=tensor[1])"
    )
