"""Keys at the beginning that every query reads: StreamingLLM, and the Fibonacci and powers patterns with sinks."""

from __future__ import annotations

import pytest

from farspan import Lines
from farspan.patterns import fibonacci, powers, streaming_llm


def test_the_papers_default_is_four_sinks():
    """B13: a query reads key j where j < 4 or i - j < W."""
    mask = streaming_llm(3).mask(10, 10)
    assert mask[9].nonzero().flatten().tolist() == [0, 1, 2, 3, 7, 8, 9]
    assert streaming_llm(3) == Lines(range(3), range(4))


@pytest.mark.parametrize("build", [fibonacci, powers])
def test_sinks_are_added_to_a_pattern(build):
    assert build(9, 0.5, sinks=2) == Lines(build(9, 0.5).slashes, range(2))
    assert build(9) == build(9, sinks=0)


@pytest.mark.parametrize("build", [fibonacci, powers])
def test_one_alpha_for_each_head(build):
    alphas = [0.5, 1.0, 1.5]
    assert build(9, alphas).slashes == tuple(build(9, alpha).slashes for alpha in alphas)
    assert build(9, alphas, sinks=1).heads == 3


@pytest.mark.parametrize("build", [fibonacci, powers])
@pytest.mark.parametrize("wrong", [[], [1.0, 0], [True], ["1"]])
def test_alphas_are_positive(build, wrong):
    with pytest.raises((TypeError, ValueError), match=r"^alpha must be a .*number > 0"):
        build(9, wrong)
