"""LogSparse (static-patterns.md, B8)."""

from __future__ import annotations

import itertools

import pytest

from farspan.patterns import log_sparse


def test_the_distances_are_the_powers_of_two():
    assert log_sparse(1024).slashes == (0, 1, 2, 4, 8, 16, 32, 64, 128, 256, 512)
    assert log_sparse(1025).slashes[-1] == 1024


@pytest.mark.parametrize(("length", "layers"), [(2, 1), (16, 4), (17, 5), (64, 6)])
def test_layers_that_connect_every_pair(length, layers):
    """As many as the most ones in a distance: popcount(length - 1) and below (B8: 10 at N = 1023)."""
    reached = {0}
    for _ in range(layers):
        reached = {a + b for a, b in itertools.product(reached, log_sparse(length).slashes) if a + b < length}
    assert reached == set(range(length))


def test_the_local_window_counts_the_query_and_powers_go_on_from_its_end():
    assert log_sparse(64, local=4).slashes == (0, 1, 2, 3, 4, 5, 7, 11, 19, 35)


def test_restart_repeats_the_pattern():
    assert log_sparse(32, restart=12).slashes == (0, 1, 2, 4, 8, 12, 13, 14, 16, 20, 24, 25, 26, 28)


def test_the_authors_default_for_subsequences_of_32():
    """What their mask holds for a query far from the beginning: local ceil(log2 32) = 5, then 4 + 2^k up to 32."""
    once = [0, 1, 2, 3, 4, 5, 6, 8, 12, 20]
    assert log_sparse(96, local=5, restart=32).slashes == (*once, *(32 + d for d in once), *(64 + d for d in once))


def test_a_window_longer_than_the_subsequence_is_dense():
    assert log_sparse(20, local=9, restart=4).slashes == tuple(range(20))
