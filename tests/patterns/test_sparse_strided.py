"""Sparse Transformer, strided (static-patterns.md, B6)."""

from __future__ import annotations

import pytest

from farspan.patterns import sparse_strided
from farspan.patterns.rules import build, over_depth

BAND, COLUMN = (0, 1, 2, 3, 4), (0, 4, 8, 12, 16)


@pytest.mark.parametrize(("layer", "slashes"), [(0, BAND), (1, COLUMN), (2, BAND), (11, COLUMN)])
def test_layers_alternate(layer, slashes):
    assert sparse_strided(4, 20, layer=layer).slashes == slashes


def test_merged_is_the_union():
    assert sparse_strided(4, 20, "merged").slashes == (0, 1, 2, 3, 4, 8, 12, 16)


def test_heads_alternate_in_every_layer():
    assert sparse_strided(4, 20, "heads", layer=1, heads=3).slashes == (BAND, COLUMN, BAND)


@pytest.mark.parametrize("length", [16, 100, 101])
def test_two_layers_connect_every_pair(length):
    """B6: two hops, one along the column and one along the band."""
    rules = over_depth({"pattern": "sparse_strided", "stride": 10}, 2, 4)
    band, column = (build(rule, length).slashes for rule in rules)
    assert {a + b for a in band for b in column} >= set(range(length))


def test_a_query_reads_about_two_roots_of_the_length():
    assert len(sparse_strided(32, 1024, "merged").slashes) == 2 * 32 - 1
