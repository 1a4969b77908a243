"""Hybrid dilated convolution as attention: a dilated window per layer, with rates that leave no holes together."""

from __future__ import annotations

from collections.abc import Sequence

from farspan.patterns.arguments import all_at_least, at_least
from farspan.patterns.card import Card
from farspan.support import Lines

CARD = Card("both", "slash", "fixed", "fixed", "all heads", False, "HDC, arXiv 1702.08502, section 3.2")


def hdc(layer: int, rates: Sequence[int] = (1, 2, 3), kernel: int = 3) -> Lines:
    """Distances 0, r, 2r, ..., (kernel - 1) r with r = `rates[layer % len(rates)]`, shared by all heads.

    The paper's kernels are centred; these are causal, which moves every sum of distances by the same constant and
    leaves its holes as they are. Its saw-tooth 1, 2, 3, 1, 2, 3, ... is the default. See `hdc_gaps` for its test.

    Raises:
        TypeError, ValueError: `layer` < 0, `kernel` < 1, or `rates` is empty or has a rate < 1.
    """
    layer, rates, kernel = at_least("layer", layer, 0), all_at_least("rates", rates, 1), at_least("kernel", kernel, 1)
    rate = rates[layer % len(rates)]
    return Lines(range(0, kernel * rate, rate))


def hdc_gaps(rates: Sequence[int]) -> list[int]:
    """M_1 .. M_n of the paper's section 3.2: the largest distance between two taps that layers i .. n leave together.

    M_n = r_n and M_i = max(M_(i+1) - 2 r_i, 2 r_i - M_(i+1), r_i). The design rule is M_2 <= kernel, with
    M_2 = `hdc_gaps(...)[1]`. It is not enough alone: rates 2, 2, 2 pass it and still grid, so the rates must have no
    common factor as well.

    Raises:
        TypeError, ValueError: `rates` is empty or has a rate < 1.
    """
    rates = all_at_least("rates", rates, 1)
    gaps = [rates[-1]]
    for rate in reversed(rates[:-1]):
        gaps.append(max(gaps[-1] - 2 * rate, 2 * rate - gaps[-1], rate))
    return gaps[::-1]
