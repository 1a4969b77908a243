"""Where the rows of a blocked pattern stand."""

from __future__ import annotations

import json

import pytest
import torch

from farspan.patterns.query_rows import query_rows
from farspan.patterns.rules import build
from patterns.zoo_blocks import ZOO


@pytest.mark.parametrize(
    ("length", "queries", "block", "rows", "block_q"),
    [
        (200, None, 64, [0, 64, 128, 192], 64),
        (200, 72, 64, [128, 192], 64),
        (200, 104, 64, [96, 128, 160, 192], 32),
        (200, 1, 64, [199], 1),
        (7, 3, 1, [4, 5, 6], 1),
        (200, 0, 64, [], 8),
    ],
)
def test_a_row_stays_within_one_block(length, queries, block, rows, block_q):
    found, size = query_rows(length, queries, block)
    assert (found.tolist(), size) == (rows, block_q)


@pytest.mark.parametrize(
    ("length", "queries", "words"),
    [
        (0, None, "length must be an integer >= 1, got 0"),
        (8, -1, "queries must be an integer >= 0, got -1"),
        (8, 9, "queries must be at most length = 8, got 9"),
    ],
)
def test_more_queries_than_tokens_are_refused(length, queries, words):
    with pytest.raises(ValueError, match=f"^{words}"):
        query_rows(length, queries)


@pytest.mark.parametrize("rule", [rule for rule, _ in ZOO], ids=[json.dumps(rule) for rule, _ in ZOO])
def test_a_pattern_holds_its_numbers_under_the_meta_device(rule):
    """transformers builds models under it."""
    with torch.device("meta"):
        support = build(rule, 100)
    assert support.index.device.type == "cpu"
    assert support == build(rule, 100)
