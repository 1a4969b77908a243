"""ALiBi's slopes, on any support (static-patterns.md, B14)."""

from __future__ import annotations

import pytest
import torch

from farspan import Lines, patterns
from farspan.patterns import alibi_slopes, with_alibi


def test_slopes_of_eight_heads():
    assert alibi_slopes(8).tolist() == [0.5**h for h in range(1, 9)]


def test_slopes_of_twelve_heads():
    """Eight of eight, then every other one of sixteen."""
    extra = [0.70711, 0.35355, 0.17678, 0.08839]
    assert alibi_slopes(12)[:8].tolist() == alibi_slopes(8).tolist()
    torch.testing.assert_close(alibi_slopes(12)[8:], torch.tensor(extra), rtol=0, atol=1e-5)


@pytest.mark.parametrize("heads", [1, 2, 3, 5, 6, 7, 16, 20, 31])
def test_slopes_follow_the_recipe(heads):
    def recipe(n):
        if n & (n - 1) == 0:
            return [2 ** (-8 / n * (h + 1)) for h in range(n)]
        lower = 2 ** (n.bit_length() - 1)
        return recipe(lower) + recipe(2 * lower)[::2][: n - lower]

    slopes = alibi_slopes(heads)
    assert slopes.dtype == torch.float32
    torch.testing.assert_close(slopes, torch.tensor(recipe(heads)))


SUPPORTS = [
    Lines([0, 1, 5], [0]),
    Lines([[0], [0, 2]]),
    patterns.bigbird(128, block=8, heads=2),
    patterns.longnet([16, 64], [1, 4], 128, heads=4),
]


@pytest.mark.parametrize("support", SUPPORTS, ids=repr)
def test_a_support_keeps_its_pairs_and_gains_slopes(support):
    biased = with_alibi(support, 4)
    assert type(biased) is type(support)
    assert torch.equal(biased.alibi_slopes, alibi_slopes(4))
    assert support.alibi_slopes is None
    assert torch.equal(biased.mask(128, 128), support.mask(128, 128))
    assert getattr(biased, "bias", None) is getattr(support, "bias", None)
    assert biased != support
    assert repr(biased).endswith("alibi_slopes=tensor[4])")


def test_slopes_hold_numbers_under_the_meta_device():
    with torch.device("meta"):
        assert alibi_slopes(6).device.type == "cpu"


@pytest.mark.parametrize(
    ("arguments", "error", "words"),
    [
        ((Lines([0]), 0), ValueError, "heads must be an integer >= 1, got 0"),
        ((Lines([0]), 2.0), TypeError, "heads must be an integer >= 1, got 2.0"),
        ((Lines([[0], [1]]), 3), ValueError, "heads must be a multiple of the support's 2, got 3"),
        (([0], 2), TypeError, "support must be Lines, Blocks or Tokens, got list"),
    ],
    ids=["none", "float", "multiple", "no support"],
)
def test_wrong_arguments_are_refused(arguments, error, words):
    with pytest.raises(error, match=f"^{words}"):
        with_alibi(*arguments)
