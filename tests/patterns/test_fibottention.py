"""Fibottention (static-patterns.md, B1)."""

from __future__ import annotations

import pytest

from farspan import Lines
from farspan.patterns import fibottention
from farspan.patterns.fibottention import wythoff

TOKENS, HEADS = 196, 12
GOLDEN = [[1, 2, 3, 5], [4, 7], [6, 10], [9, 15], [12, 20], [14, 23]]
GOLDEN += [[17, 28], [19, 31], [22, 36], [25, 41], [27, 44], [30, 49]]


def test_the_golden_vector():
    assert wythoff(HEADS, TOKENS // 3) == GOLDEN


def test_the_modified_rows_begin_two_terms_earlier():
    rows = wythoff(HEADS, TOKENS // 3, modified=True)
    assert rows[:3] == [[0, 1, 1, 2, 3, 5], [1, 3, 4, 7], [2, 4, 6, 10]]
    assert [row[2:] for row in rows] == GOLDEN


@pytest.mark.parametrize(("modified", "density"), [(False, 1.99), (True, 3.83)])
def test_the_density_of_the_paper(modified, density):
    """Of 196 x 196 pairs, both ways, which is how the paper counts."""
    rows = wythoff(HEADS, TOKENS // 3, modified=modified)
    causal = Lines(rows).mask(TOKENS, TOKENS)
    both = causal | causal.mT
    assert round(100 * both.double().mean().item(), 2) == density


def test_every_distance_belongs_to_one_head():
    distances = [d for row in wythoff(200, 500, narrowest=500) for d in row]
    assert sorted(distances) == list(range(1, 501))


def test_a_head_whose_width_is_less_than_its_first_term_reads_only_its_window():
    assert wythoff(3, 5) == [[1, 2, 3, 5], [4], []]
    assert fibottention(5, 0, 3, window=2, shuffle=False).slashes == ((0, 1, 2, 3, 5), (0, 1, 4), (0, 1))


def test_layers_shuffle_the_same_rows():
    layers = [fibottention(65, layer, HEADS).slashes for layer in range(4)]
    plain = fibottention(65, 0, HEADS, shuffle=False).slashes
    assert len(set(layers)) == 4
    assert all(sorted(layer) == sorted(plain) for layer in layers)
    assert plain == tuple((0, *row) for row in GOLDEN)


def test_without_a_window_the_plain_pattern_leaves_the_query_out():
    assert fibottention(65, 0, HEADS, window=0, shuffle=False).slashes == tuple(map(tuple, GOLDEN))


def test_one_head_has_the_narrowest_width():
    assert wythoff(1, 100, narrowest=8) == [[1, 2, 3, 5, 8]]


def test_the_widest_is_at_least_the_narrowest():
    with pytest.raises(ValueError, match=r"^widest must be an integer >= 5, got 4"):
        wythoff(4, 4)
