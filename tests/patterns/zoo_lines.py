"""The zoo's patterns of lines: (rule, which pairs it keeps for head h, query i and key j), causality left out.

Each definition is written from the paper, in another way than the builder. `h` is `[H, 1, 1]`, `i` `[T, 1]`, `j` `[T]`.
"""

from __future__ import annotations

import torch


def among(distance, numbers):
    return torch.isin(distance, torch.tensor(numbers))


def among_row(distance, head, rows):
    """Whether the distance is in the row of its head."""
    return torch.stack([among(distance, row) for row in rows])[head.flatten()]


def power_of_two(x):
    return (x > 0) & ((x & (x - 1)) == 0)


def log_sparse(d, local, restart):
    return (d % restart < local) | power_of_two(d % restart - local + 1)


FIBONACCI = [1, 2, 3, 5, 8, 13, 21, 34, 55, 89, 144, 233, 377, 610, 987]
HALF = [0, 1, 2, 4, 6, 10, 17, 28, 44, 72, 116, 188, 305, 494]
ONE_AND_A_HALF = [2, 3, 4, 8, 12, 20, 32, 51, 82, 134, 216, 350, 566, 915, 1480]
# B1, N = 196 and 12 heads.
WYTHOFF = [[1, 2, 3, 5], [4, 7], [6, 10], [9, 15], [12, 20], [14, 23]]
WYTHOFF += [[17, 28], [19, 31], [22, 36], [25, 41], [27, 44], [30, 49]]
# [0, .., 11] after random.seed(1); random.shuffle
SHUFFLED = [7, 11, 0, 8, 5, 6, 3, 10, 4, 1, 9, 2]
TWELVE = {"layers": 12, "heads": 4}
FIBO = {"pattern": "fibottention", "widest": 65, "layer": 1, "heads": 12}

ZOO = [
    ({"pattern": "sliding_window", "window": 7}, lambda h, i, j: i - j < 7),
    ({"pattern": "fibonacci", "window": 3}, lambda h, i, j: (i - j < 3) | among(i - j, FIBONACCI)),
    (
        {"pattern": "fibonacci", "window": 3, "rungs": 9, "sinks": 4},
        lambda h, i, j: (i - j < 3) | (j < 4) | among(i - j, FIBONACCI[:9]),
    ),
    (
        {"pattern": "fibonacci", "window": 2, "alpha": [0.5, 1.5], "heads": 2},
        lambda h, i, j: (i - j < 2) | among_row(i - j, h, [HALF, ONE_AND_A_HALF]),
    ),
    (
        {"pattern": "fibonacci_blocks", "window": 20, "block": 16},
        lambda h, i, j: among(i // 16 - j // 16, [0, 1, 2, 3, 6, 9, 15, 24, 38, 62]),
    ),
    (
        {"pattern": "fibonacci_blocks", "window": 17, "block": 16, "alpha": 1.5, "rungs": 11},
        lambda h, i, j: among(i // 16 - j // 16, [0, 1, 2, 3, 5, 8, 14]),
    ),
    (
        {"pattern": "powers", "window": 3, "reach": 100, "sinks": 1},
        lambda h, i, j: (i - j < 3) | (j < 1) | (power_of_two(i - j) & (i - j < 100)),
    ),
    (
        {"pattern": "powers", "window": 1, "alpha": [3.0, 5.0, 7.0], "reach": 100, "heads": 3},
        lambda h, i, j: (i == j) | among_row(i - j, h, [[a * 2**k for k in range(7)] for a in (3, 5, 7)]),
    ),
    (
        {"pattern": "powers_grown", "window": 3, "alpha": 0.5},
        lambda h, i, j: (i - j < 3) | (power_of_two(i - j) & (2 * (i - j) < len(j))),
    ),
    ({"pattern": "log_sparse"}, lambda h, i, j: (i == j) | power_of_two(i - j)),
    ({"pattern": "log_sparse", "local": 6}, lambda h, i, j: (i - j < 6) | power_of_two(i - j - 5)),
    ({"pattern": "log_sparse", "restart": 24}, lambda h, i, j: log_sparse(i - j, 1, 24)),
    ({"pattern": "log_sparse", "local": 5, "restart": 32}, lambda h, i, j: log_sparse(i - j, 5, 32)),
    ({"pattern": "sparse_strided", "stride": 9, "layer": 2}, lambda h, i, j: i - j <= 9),
    ({"pattern": "sparse_strided", "stride": 9, "layer": 3}, lambda h, i, j: (i - j) % 9 == 0),
    (
        {"pattern": "sparse_strided", "stride": 9, "form": "merged"},
        lambda h, i, j: (i - j < 9) | ((i - j) % 9 == 0),
    ),
    (
        {"pattern": "sparse_strided", "stride": 9, "form": "heads", "heads": 4},
        lambda h, i, j: torch.where(h % 2 == 0, i - j <= 9, (i - j) % 9 == 0),
    ),
    ({"pattern": "longformer", "window": 8, "heads": 4, "global_tokens": 2}, lambda h, i, j: (i - j < 8) | (j < 2)),
    (
        {"pattern": "longformer", "window": 8, "heads": 4, "dilation": 3, "dilated_heads": 1},
        lambda h, i, j: torch.where(h < 3, i - j < 8, ((i - j) % 3 == 0) & (i - j < 24)),
    ),
    (
        {"pattern": "longformer_depth", "bottom": 32, "top": 512, "layer": 0, **TWELVE},
        lambda h, i, j: i - j < 32,
    ),
    (
        {"pattern": "longformer_depth", "bottom": 4, "top": 64, "layer": 11, "global_tokens": 1, **TWELVE},
        lambda h, i, j: (j < 1) | torch.where(h < 2, i - j < 64, ((i - j) % 4 == 0) & (i - j < 256)),
    ),
    (
        {"pattern": "mswa", "window": 64, "layer": 9, **TWELVE},
        lambda h, i, j: i - j < 128 * 2**h // 4,
    ),
    (
        {"pattern": "mswa", "window": 64, "over": "heads", "layer": 9, "layers": 12, "heads": 8},
        lambda h, i, j: i - j < 16 * 2 ** (h // 2),
    ),
    ({"pattern": "mswa", "window": 64, "over": "layers", "layer": 4, **TWELVE}, lambda h, i, j: i - j < 32),
    ({**FIBO, "shuffle": False}, lambda h, i, j: (i == j) | among_row(i - j, h, WYTHOFF)),
    ({**FIBO, "window": 3}, lambda h, i, j: (i - j < 3) | among_row(i - j, h, [WYTHOFF[row] for row in SHUFFLED])),
    (
        {"pattern": "fibottention", "widest": 19, "layer": 0, "heads": 3, "modified": True, "shuffle": False},
        lambda h, i, j: (i == j) | among_row(i - j, h, [[0, 1, 2, 3, 5], [1, 3, 4, 7, 11], [2, 4, 6, 10, 16]]),
    ),
    ({"pattern": "wavenet", "layer": 0}, lambda h, i, j: (i == j) | (i - j == 1)),
    ({"pattern": "wavenet", "layer": 19}, lambda h, i, j: (i == j) | (i - j == 512)),
    ({"pattern": "wavenet", "layer": 7, "cycle": 4}, lambda h, i, j: (i == j) | (i - j == 8)),
    ({"pattern": "hdc", "layer": 4}, lambda h, i, j: (i - j) * (i - j - 2) * (i - j - 4) == 0),
    (
        {"pattern": "hdc", "layer": 2, "rates": [1, 5, 9], "kernel": 5},
        lambda h, i, j: ((i - j) % 9 == 0) & (i - j <= 36),
    ),
    (
        {"pattern": "dilateformer", "heads": 6},
        lambda h, i, j: ((i - j) % (h // 2 + 1) == 0) & ((i - j) // (h // 2 + 1) < 3),
    ),
    (
        {"pattern": "dilateformer", "heads": 4, "window": 9, "dilations": [1, 8]},
        lambda h, i, j: torch.where(h < 2, i - j < 9, ((i - j) % 8 == 0) & (i - j <= 64)),
    ),
    ({"pattern": "streaming_llm", "window": 12}, lambda h, i, j: (j < 4) | (i - j < 12)),
    (
        {"pattern": "partial_power", "exponent": 0.625},
        lambda h, i, j: (
            (i - j < 64) | (((i - j) ** 0.625).floor() != (i - j - 1).clamp_min(0).double().pow(0.625).floor())
        ),
    ),
    (
        {"pattern": "partial_power", "exponent": 0.5, "window": 1},
        lambda h, i, j: among(i - j, [k * k for k in range(32)]),
    ),
    ({"pattern": "partial_power", "exponent": 1.0, "window": 5}, lambda h, i, j: i >= j),
]
