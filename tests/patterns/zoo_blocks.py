"""The zoo's patterns of blocks and of tokens: (rule, which pairs it keeps for head h, query i and key j).

Each definition is written from the paper, in another way than the builder, and leaves causality out. `h` is
`[H, 1, 1]`, `i` `[T, 1]`, `j` `[T]`.
"""

from __future__ import annotations

from fractions import Fraction

import torch

MASK64 = 2**64 - 1


def splitmix(state):
    state = (state + 0x9E3779B97F4A7C15) & MASK64
    state = ((state ^ (state >> 30)) * 0xBF58476D1CE4E5B9) & MASK64
    state = ((state ^ (state >> 27)) * 0x94D049BB133111EB) & MASK64
    return state ^ (state >> 31)


def drawn(limit, count, *stream):
    """`count` different numbers below `limit`, one after the other on a list."""
    if limit <= count:
        return list(range(limit))
    state = 0
    for number in stream:
        state = splitmix(state + number)
    numbers, again = [0] * count, [True] * count
    while any(again):
        state = splitmix(state)
        fresh = (splitmix(state + slot) % limit for slot in range(count))
        numbers = sorted(new if take else old for new, old, take in zip(fresh, numbers, again, strict=True))
        again = [k > 0 and numbers[k] == numbers[k - 1] for k in range(count)]
    return numbers


def listed(h, i, j, keys_of):
    """Whether `keys_of(head, query)` lists the key."""
    mask = torch.zeros(len(h), len(i), len(j), dtype=torch.bool)
    for head in h.flatten().tolist():
        for query in i.flatten().tolist():
            mask[head, query, keys_of(head, query)] = True
    return mask


def bigbird(h, i, j, block, window, first, randoms, seed, layer):
    def keys(head, query):
        row = query // block
        blocks = drawn(row - window + 1 - first, randoms, seed, layer, head, row)
        return [(first + b) * block + k for b in blocks for k in range(block)]

    return (i // block - j // block < window) | (j // block < first) | listed(h, i, j, keys)


def elastic(h, i, j, width, layer, layers):
    """The formulas of the note in fractions; Python rounds these half to even."""
    a, b = Fraction(layer, max(layers - 1, 1)), [Fraction(n, max(len(h) - 1, 1)) for n in range(len(h))]

    def keys(head, query):
        last = max(query, width - 1)
        start = max(round(last + 1 - (width * (1 - a) + (last + 1) * a)), 0)
        steps = [start + round(n * Fraction(last + 1 - start, width)) for n in range(width + 1)]
        chosen = [round(steps[n] * (1 - b[head]) + (steps[n + 1] - 1) * b[head]) for n in range(width)]
        return [key for key in chosen if key <= query]

    return listed(h, i, j, keys)


def dilated(i, j, w, r, s):
    return (i // w == j // w) & (i % w % r == s) & (j % w % r == s)


ZOO = [
    ({"pattern": "sparse_fixed", "stride": 16, "summary": 4}, lambda h, i, j: i // 16 == j // 16),
    ({"pattern": "sparse_fixed", "stride": 16, "summary": 4, "layer": 1}, lambda h, i, j: j % 16 >= 12),
    (
        {"pattern": "sparse_fixed", "stride": 16, "summary": 6, "form": "merged"},
        lambda h, i, j: (i // 16 == j // 16) | (j % 16 >= 10),
    ),
    (
        {"pattern": "sparse_fixed", "stride": 16, "summary": 4, "form": "heads", "heads": 6, "subblocks": 3},
        lambda h, i, j: (i // 16 == j // 16) | ((15 - j % 16) // 4 == h % 3),
    ),
    (
        {"pattern": "bigbird", "block": 8, "heads": 2},
        lambda h, i, j: bigbird(h, i, j, 8, 3, 2, 3, 0, 0),
    ),
    (
        {
            "pattern": "bigbird",
            "block": 4,
            "window_blocks": 1,
            "global_blocks": 0,
            "random_blocks": 5,
            "seed": 7,
            "layer": 2,
        },
        lambda h, i, j: bigbird(h, i, j, 4, 1, 0, 5, 7, 2),
    ),
    (
        {"pattern": "longnet", "segments": [8, 16, 64], "ratios": [1, 2, 4], "heads": 4},
        lambda h, i, j: dilated(i, j, 8, 1, 0) | dilated(i, j, 16, 2, h % 2) | dilated(i, j, 64, 4, h % 4),
    ),
    (
        {"pattern": "longnet", "segments": [10, 25], "ratios": [3, 6], "heads": 3, "offsets": "group"},
        # Three heads in three groups of one, and in six groups of one of which three have a head.
        lambda h, i, j: dilated(i, j, 10, 3, h) | dilated(i, j, 25, 6, h),
    ),
    (
        {"pattern": "longnet", "segments": [32], "ratios": [2], "heads": 5, "offsets": "group"},
        lambda h, i, j: dilated(i, j, 32, 2, (h > 2).long()),
    ),
    (
        {"pattern": "power_attention", "block": 16, "window_blocks": 3},
        lambda h, i, j: (i // 16 - j // 16 < 3) | ((i // 16 - j // 16) & (i // 16 - j // 16 - 1) == 0) | (j < 16),
    ),
    (
        {"pattern": "power_attention", "block": 4, "window_blocks": 1, "sink_blocks": 0},
        lambda h, i, j: torch.isin(i // 4 - j // 4, torch.tensor([0, 1, 2, 4, 8, 16, 32, 64, 128])),
    ),
    (
        {"pattern": "s2_attention", "block": 8, "local_blocks": 3, "stride": 4, "heads": 4},
        lambda h, i, j: (i // 8 - j // 8 < 3) | ((j // 8 + h) % 4 == 0),
    ),
    (
        {
            "pattern": "s2_attention",
            "block": 8,
            "local_blocks": 2,
            "stride": 7,
            "heads": 3,
            "offset": 1,
            "dense_heads": 1,
        },
        lambda h, i, j: (i // 8 - j // 8 < 2) | ((j // 8 + 2 * h + 1) % 7 == 0) | (h == 2),
    ),
    ({"pattern": "elastic", "keys": 8, "layers": 4, "heads": 2}, lambda h, i, j: i - j < 8),
    (
        {"pattern": "elastic", "keys": 8, "layer": 1, "layers": 4, "heads": 3},
        lambda h, i, j: elastic(h, i, j, 8, 1, 4),
    ),
    (
        {"pattern": "elastic", "keys": 5, "layer": 2, "layers": 3, "heads": 4},
        lambda h, i, j: elastic(h, i, j, 5, 2, 3),
    ),
    ({"pattern": "block_local", "block": 16}, lambda h, i, j: i // 16 == j // 16),
    ({"pattern": "block_local", "block": 16, "bridge": 6}, lambda h, i, j: i // 16 * 16 - j <= 6),
    (
        {"pattern": "random", "window": 3, "keys": 10, "seed": 5, "layer": 1},
        lambda h, i, j: (i - j < 3) | listed(h, i, j, lambda head, query: drawn(query - 2, 7, 5, 1, query)),
    ),
]
