"""The geometry of stacks: golden numbers of static-patterns.md, and brute force at small lengths."""

from __future__ import annotations

import itertools
import json
import math
import time

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from farspan import Blocks, Lines, Tokens, patterns, schedules
from farspan.patterns import coverage
from farspan.patterns.coverage import NEVER

PAPER = [patterns.fibonacci(9, alpha=alpha) for alpha in schedules.stagger(16)]


@st.composite
def lines(draw, heads=None, verticals=True):
    count = draw(st.integers(1, 3)) if heads is None else heads
    numbers = st.lists(st.integers(0, 40), max_size=6)
    slashes = [draw(numbers) for _ in range(count)]
    return Lines(slashes, [draw(numbers) for _ in range(count)] if verticals else ())


@st.composite
def blocks(draw, length):
    block_q, block_k = draw(st.integers(1, 5)), draw(st.integers(1, 5))
    rows, width, heads = -(-length // block_q), draw(st.integers(0, 4)), draw(st.integers(1, 3))
    numbers = draw(
        st.lists(st.integers(-1, length // block_k + 1), min_size=rows * width * heads, max_size=rows * width * heads)
    )
    index = torch.tensor(numbers, dtype=torch.int32).reshape(1, heads, rows, width)
    return Tokens(index, block_q) if draw(st.booleans()) and block_k == 1 else Blocks(index, block_q, block_k)


@st.composite
def supports(draw):
    length = draw(st.integers(1, 40))
    return draw(st.one_of(lines(), blocks(length))), length


@st.composite
def stacks(draw, depth=3):
    length = draw(st.integers(1, 24))
    return [draw(st.one_of(lines(), blocks(length))) for _ in range(draw(st.integers(1, depth)))], length


def masks(support, length):
    """bool `[heads, length, length]`."""
    mask = support.mask(length, length).numpy()
    return mask if mask.ndim == 3 else mask[None]


distance_sets = st.lists(
    st.lists(st.integers(0, 30), max_size=5).map(lambda s: np.array(sorted(set(s)), np.int64)), min_size=1, max_size=4
)


# Golden numbers


@pytest.mark.parametrize(
    ("rates", "second", "holes"),
    [
        ([1, 2, 5], 2, 0),
        ([1, 2, 9], 5, 4),
        ([2, 4, 8], 4, 14),
        ([1, 2, 3], 2, 0),
        ([1, 3, 5], 3, 0),
        ([1, 2, 5, 9], 2, 0),
        ([5, 9, 17], 9, 36),
        ([2, 2, 2], 2, 6),
    ],
)
def test_hdc(rates, second, holes):
    """B9: M_2 and the holes in the exact sum set, kernel 3, both sides: here from the left end, `0, r, 2 r`."""
    assert coverage.hdc_gaps(rates)[1] == second
    sets = [np.array([0, rate, 2 * rate]) for rate in rates]
    needed = coverage.layers_needed(sets, 2 * sum(rates) + 1)
    assert (needed == NEVER).sum() == holes


def test_hdc_where_a_rate_exceeds_the_gap_above():
    """max(2 - 18, 18 - 2, 9)."""
    assert coverage.hdc_gaps([1, 9, 2]) == [14, 16, 2]


@pytest.mark.parametrize(("length", "hops"), [(1024, 10), (4096, 12), (16384, 14)])
def test_log_sparse_hops_are_binary_digits(length, hops):
    """B8."""
    found = coverage.hops(np.array([0, *(2**e for e in range(15) if 2**e < length)]), length)
    assert found.max() == hops
    assert found.tolist() == [d.bit_count() for d in range(length)]


@pytest.mark.parametrize(
    ("blocks", "distances", "hops"),
    [
        (128, [*range(5), 8, 16, 32, 64], 6),
        (512, [*range(5), 8, 16, 32, 64, 128, 256], 8),
        (128, [*range(9)], 16),
    ],
    ids=["power 32K", "power 128K", "window 32K"],
)
def test_power_attention_hops(blocks, distances, hops):
    """B2, in blocks of 256."""
    assert coverage.hops(np.array(distances), blocks).max() == hops


def test_the_paper_reads_133_distances():
    """A7.5: 133 in all, 124 beyond W = 8; 19 where every layer has alpha 1."""
    read = coverage.union(coverage.distances(support, 1024) for support in PAPER)
    assert len(read) == 133
    assert (read > 8).sum() == 124
    assert len(coverage.distances(patterns.fibonacci(9), 1024)) == 19
    assert read.max() == 1020


@pytest.mark.parametrize(
    ("window", "base", "schedule", "least", "most", "mean", "reach"),
    [
        (7, "fibonacci", "fixed", 18, 18, 18, 987),
        (13, "fibonacci", "fixed", 23, 23, 23, 987),
        (7, "fibonacci", "stagger", 16, 18, 17.4, 1020),
        (9, "fibonacci", "coprime", 18, 19, 18.8, 1020),
        (11, "fibonacci", "stagger", 19, 21, 20.4, 1020),
        (13, "fibonacci", "stagger", 21, 23, 22.0, 1020),
        (9, "powers", "fixed", 15, 15, 15, 512),
        (9, "powers", "stagger", 14, 16, 15.4, 768),
        (13, "powers", "stagger", 18, 19, 18.7, 768),
    ],
)
def test_keys_per_row_of_the_paper(window, base, schedule, least, most, mean, reach):
    """A3, L = 16, T = 1024: the keys of the last query are all of a layer's distances."""
    build = {"fibonacci": patterns.fibonacci, "powers": patterns.powers}[base]
    alphas = getattr(schedules, schedule)(16)
    keys = [coverage.keys_per_query(build(window, alpha=alpha), 1024).most for alpha in alphas]
    read = [coverage.distances(build(window, alpha=alpha), 1024) for alpha in alphas]
    assert (min(keys), max(keys)) == (least, most)
    assert round(sum(keys) / 16, 1) == mean
    assert coverage.union(read).max() == reach


# Brute force


@given(distance_sets, st.integers(1, 60))
def test_layers_needed_are_those_of_the_sum_set(sets, length):
    needed = coverage.layers_needed(sets, length)
    sums, expected = {0}, {0: 0}
    for layer, numbers in enumerate(sets, 1):
        sums |= {a + b for a in sums for b in numbers.tolist()}
        for d in sums:
            expected.setdefault(d, layer)
    assert needed.tolist() == [expected.get(d, NEVER) for d in range(length)]


@given(distance_sets, st.integers(1, 60))
def test_steps_and_paths_are_those_of_all_choices(sets, length):
    choices = list(itertools.product(*[sorted({0, *numbers.tolist()}) for numbers in sets]))
    steps = [min((sum(x > 0 for x in c) for c in choices if sum(c) == d), default=NEVER) for d in range(length)]
    paths = [sum(sum(c) == d for c in choices) for d in range(length)]
    assert coverage.steps_needed(sets, length).tolist() == steps
    assert coverage.path_counts(sets, length).tolist() == paths
    logs = coverage.log_path_counts(sets, length)
    assert logs == pytest.approx([math.log(p) if p else -math.inf for p in paths], rel=1e-14)


@given(st.lists(st.integers(0, 50), max_size=8), st.integers(1, 300))
def test_hops_are_those_of_a_coin_by_coin_search(coins, length):
    best = [0] + [math.inf] * (length - 1)
    for d in range(1, length):
        best[d] = min((best[d - c] + 1 for c in coins if 0 < c <= d), default=math.inf)
    found = coverage.hops(np.array(sorted(set(coins)), np.int64), length)
    assert found.tolist() == [NEVER if b == math.inf else b for b in best]


@given(st.integers(1, 200), st.integers(1, 2000))
def test_hops_of_a_window_are_a_division(window, length):
    assert coverage.hops(np.arange(window + 1), length).tolist() == [-(-d // window) for d in range(length)]


@given(supports())
def test_what_a_layer_reads_is_what_its_mask_shows(case):
    support, length = case
    mask = masks(support, length)
    keys = coverage.keys_per_query(support, length)
    counts = mask.sum(-1)
    assert (keys.least, keys.most) == (counts.min(), counts.max())
    assert keys.mean == pytest.approx(counts.mean())
    slashes_only = Lines(support.slashes) if isinstance(support, Lines) else support
    _, query, key = np.nonzero(masks(slashes_only, length))
    assert coverage.distances(support, length).tolist() == sorted(set((query - key).tolist()))


@given(supports(), st.integers(1, 12))
def test_tiles_are_those_of_the_mask(case, tile):
    support, length = case
    count = -(-length // tile)
    mask = np.pad(masks(support, length), [(0, 0), *[(0, count * tile - length)] * 2])
    tiles = mask.reshape(-1, count, tile, count, tile).any((2, 4))
    touched = tiles.sum((1, 2)).mean()
    assert coverage.tile_map(support, length, tile) == pytest.approx(tiles.mean(0))
    assert coverage.touched_tiles(support, length, tile) == pytest.approx(touched / (count * (count + 1) / 2))


@given(stacks())
def test_reach_by_position_is_a_product_of_masks(case):
    stack, length = case
    found = coverage.reach_by_position(stack, length)
    held = np.eye(length, dtype=int)
    expected = [0] + [NEVER] * (length - 1)
    shares = []
    for layer, support in enumerate(stack, 1):
        step = masks(support, length).any(0) | np.eye(length, dtype=bool)
        held = ((step.astype(int) @ held) > 0).astype(int)
        for d in range(length):
            if held.diagonal(-d).all() and expected[d] == NEVER:
                expected[d] = layer
        shares.append(held.sum() / (length * (length + 1) / 2))
    assert found.layers_needed.tolist() == expected
    assert found.connected == pytest.approx(shares)


@given(st.lists(lines(verticals=False), min_size=1, max_size=3), st.integers(1, 40))
def test_by_position_and_by_distance_agree_where_both_apply(stack, length):
    sets = [coverage.distances(support, length) for support in stack]
    by_position = coverage.reach_by_position(stack, length).layers_needed
    assert by_position.tolist() == coverage.layers_needed(sets, length).tolist()


@given(stacks())
def test_unread_neighbours_are_those_that_no_depth_connects(case):
    stack, length = case
    held = np.eye(length, dtype=int)
    for _ in range(3):
        for support in stack:
            held = (((masks(support, length).any(0) | np.eye(length, dtype=bool)).astype(int) @ held) > 0).astype(int)
    expected = [t for t in range(1, length) if not held[t, t - 1]]
    assert coverage.unread_neighbours(stack, length).tolist() == expected


@given(supports(), st.integers(1, 3))
def test_what_is_held_is_what_later_queries_read(case, kv_heads):
    """Lines go on for ever, so their masks are looked at far beyond the length; blocks end with it."""
    support, length = case
    kv_heads = kv_heads if support.heads % kv_heads == 0 else 1
    mask = masks(support, length + 41 if isinstance(support, Lines) else length)
    read = [group.any(0) for group in np.array_split(mask, kv_heads)]
    held = [sum(head[t + 1 :, : t + 1].any(0).sum() for head in read) for t in range(length)]
    assert coverage.kv_held(support, length, kv_heads) == pytest.approx(max(held) / kv_heads)


@given(stacks())
def test_paths_by_position_are_a_product_of_masks(case):
    stack, length = case
    counts = np.eye(length, dtype=object)
    for support in stack:
        counts = (masks(support, length).any(0) | np.eye(length, dtype=bool)).astype(object) @ counts
    means = [sum(counts.diagonal(-d)) / (length - d) for d in range(length)]
    expected = [math.log(mean) if mean else -math.inf for mean in means]
    assert coverage.log_paths_by_position(stack, length) == pytest.approx(expected)


@given(st.lists(lines(verticals=False), min_size=1, max_size=3), st.integers(1, 40))
def test_paths_by_position_and_by_distance_agree_where_both_apply(stack, length):
    by_distance = coverage.log_path_counts([coverage.distances(support, length) for support in stack], length)
    assert coverage.log_paths_by_position(stack, length) == pytest.approx(by_distance)


def test_paths_by_position_do_not_overflow():
    dense = Lines(range(600))
    found = coverage.log_paths_by_position([dense] * 600, 600)
    expected = [math.log(math.comb(d + 599, d)) for d in range(600)]
    assert expected[-1] > math.log(np.finfo(float).max)
    assert found[-1] == pytest.approx(expected[-1])


# Boundaries


@pytest.mark.parametrize("depth", [1, 4, 12])
def test_a_block_causal_stack_is_flagged_at_every_depth(depth):
    index = torch.arange(4, dtype=torch.int32).reshape(1, 1, 4, 1)
    found = coverage.analyse([Blocks(index, 8, 8)] * depth, 32)
    assert found.unread_neighbours.tolist() == [8, 16, 24]
    assert found.depth is None
    assert found.unreachable == [(1, 31)]
    bridge = Lines([0, 1])
    assert len(coverage.analyse([*[Blocks(index, 8, 8)] * depth, bridge], 32).unread_neighbours) == 0


def test_a_common_factor_grids():
    """B9: [2, 4, 8] reaches even distances only, at any depth."""
    found = coverage.analyse([Lines([0, rate, 2 * rate]) for rate in (2, 4, 8)] * 3, 64)
    assert found.common_factor == 2
    assert {first % 2 for first, _ in found.unreachable} == {1}
    assert len(found.unread_neighbours) == 63
    assert (found.hops[1::2] == NEVER).all()
    assert (found.hops[::2] < NEVER).all()


@pytest.mark.parametrize(
    ("numbers", "factor"), [([0, 4, 6], 2), ([6, 10, 15], 1), ([0, 7], 7), ([0], 0), ([], 0)], ids=str
)
def test_the_common_factor_is_that_of_all(numbers, factor):
    assert coverage.common_factor(np.array(numbers, np.int64)) == factor


def test_two_and_three_never_make_one():
    found = coverage.analyse([Lines([2, 3])] * 8, 16)
    assert found.common_factor == 1
    assert np.flatnonzero(found.hops == NEVER).tolist() == [1]


# The whole


def test_the_order_of_layers_matters_for_depth_and_not_for_steps():
    near, far = Lines([0, 1]), Lines([0, 2])
    one, other = coverage.analyse([near, far, near], 4), coverage.analyse([far, near, near], 4)
    assert one.layers_needed.tolist() == [0, 1, 2, 2]
    assert other.layers_needed.tolist() == [0, 2, 1, 2]
    assert one.steps.tolist() == other.steps.tolist() == [0, 1, 1, 2]
    assert one.log_paths.tolist() == other.log_paths.tolist()


def test_the_paper_in_numbers():
    """Stagger, L = 16, W = 8 at 1024: the bottom four layers connect everything."""
    found = coverage.analyse(PAPER, 1024, heads=8, kv_heads=2, head_dim=32, dtype=torch.float32, tiles=[64])
    assert (found.distances, found.common_factor, found.depth, found.reach) == (133, 1, 4, 1023)
    assert found.connected[2:4] == [pytest.approx(860 / 1023), 1.0]
    pairs = [support.pairs(1024, 1024) for support in PAPER]
    assert [layer.pairs for layer in found.layers] == [8 * count for count in pairs]
    assert [layer.flops for layer in found.layers] == [8 * count * 4 * 32 for count in pairs]
    assert [layer.kv_bytes for layer in found.layers] == [1024 * 2 * 2 * 32 * 4] * 16
    keys = [layer.keys.most for layer in found.layers]
    assert [layer.decode_flops for layer in found.layers] == [8 * count * 4 * 32 for count in keys]
    assert [layer.decode_kv_bytes for layer in found.layers] == [count * 2 * 2 * 32 * 4 for count in keys]
    assert [layer.kv_held for layer in found.layers] == [min(max(support.slashes), 1024) for support in PAPER]
    assert found.keys_per_query == pytest.approx(sum(pairs) / 16 / 1024)


@given(stacks())
@settings(max_examples=30)
def test_costs_of_decoding_are_those_of_the_last_query(case):
    stack, length = case
    heads = math.lcm(*[support.heads for support in stack])
    stack = [support for support in stack if support.heads in (1, heads)]
    if not stack:
        return
    found = coverage.analyse(stack, length, heads=heads, head_dim=3, dtype=torch.float32)
    for support, layer in zip(stack, found.layers, strict=True):
        last = masks(support, length)[:, -1].sum() * (heads // support.heads)
        assert layer.decode_flops == last * 4 * 3
        assert layer.decode_kv_bytes == last * 2 * 3 * 4
        read = masks(support, length).any(1).sum() * (heads // support.heads)
        assert layer.kv_bytes == read * 2 * 3 * 4
        assert layer.pairs == masks(support, length).sum() * (heads // support.heads)


@given(stacks())
@settings(max_examples=30)
def test_the_result_is_plain_json(case):
    stack, length = case
    heads = max(support.heads for support in stack)
    stack = [support for support in stack if support.heads in (1, heads)]
    described = coverage.analyse(stack, length).to_dict()
    assert json.loads(json.dumps(described, allow_nan=False))["length"] == length


def test_verticals_are_said_to_be_left_out():
    found = coverage.analyse([Lines([0, 1], [0])], 16)
    assert found.notes == ("keys that every query reads (verticals) are left out of distances, hops and paths",)
    assert found.depth is None


def test_counts_beyond_float64_are_summed_in_logarithms():
    """Dense layers choose with repetition: C(d + layers - 1, d) paths."""
    logs = coverage.log_path_counts([np.arange(2000)] * 600, 2000)
    expected = [math.log(math.comb(d + 599, d)) for d in range(2000)]
    assert expected[-1] > math.log(np.finfo(float).max)
    assert logs == pytest.approx(expected, rel=1e-12)


def test_a_million_distances_take_seconds():
    """16 layers of 25 distances; 0.4 s on the machine this was written on."""
    stack = [patterns.fibonacci(8, alpha=alpha, rungs=28) for alpha in schedules.stagger(16)]
    began = time.perf_counter()
    found = coverage.analyse(stack, 1_000_000)
    assert time.perf_counter() - began < 10
    assert found.depth is not None
    assert (found.hops <= found.steps).all()
    assert (found.steps <= found.layers_needed).all()


def test_a_pattern_that_is_not_made_of_distances_is_not_followed_for_ever():
    length = coverage.LONGEST + 1
    tokens = Tokens(torch.arange(length, dtype=torch.int32).reshape(1, 1, length, 1))
    with pytest.raises(ValueError, match=f"^length must be at most {coverage.LONGEST} where pairs are followed"):
        coverage.reach_by_position([tokens], length)
    found = coverage.analyse([tokens], length)
    assert found.layers_needed is found.depth is found.unreachable is found.connected is found.reach is None
    assert "reach by position is followed up to" in found.notes[0]
    assert len(found.unread_neighbours) == length - 1


@pytest.mark.parametrize(
    ("call", "words"),
    [
        (lambda: coverage.analyse([], 8), "stack must hold at least one support, got none"),
        (lambda: coverage.analyse([Lines([0])], 0), "length must be an integer >= 1, got 0"),
        (lambda: coverage.analyse([Lines([[0], [1]])], 8, heads=3), "heads and batch must fit the support of 2 heads"),
        (lambda: coverage.touched_tiles(Lines([0]), 8, 0), "tile must be an integer >= 1, got 0"),
        (lambda: coverage.kv_held(Lines([[0], [1]]), 8, 3), "kv_heads must divide the 2 heads of the support, got 3"),
        (
            lambda: coverage.kv_held(Lines(torch.zeros(2, 1, 1, dtype=torch.int64)), 8),
            "support must be the same for all batch rows, got 2 of them",
        ),
        (
            lambda: coverage.distances(Tokens(torch.zeros(1, 1, 4, 1, dtype=torch.int32)), 8),
            "index must list 8 blocks of 1 query rows for 8 queries, got 4",
        ),
    ],
    ids=["empty", "length", "heads", "tile", "kv_heads", "batch", "rows"],
)
def test_what_cannot_be_analysed_is_refused(call, words):
    with pytest.raises(ValueError, match=f"^{words}"):
        call()
