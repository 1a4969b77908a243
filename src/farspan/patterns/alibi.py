"""ALiBi: a penalty on distance, for any support (arXiv 2108.12409)."""

from __future__ import annotations

import copy
from typing import TypeVar

import torch
from torch import Tensor

from farspan.patterns.arguments import at_least
from farspan.support import Support

AnySupport = TypeVar("AnySupport", bound=Support)


def alibi_slopes(heads: int) -> Tensor:
    """The slopes of ALiBi (arXiv 2108.12409, section 3): fp32 `[heads]`, `2 ** (-8 h / heads)` for h = 1 .. heads.

    That is for powers of two. Other numbers of heads, as in the authors' code, take the slopes of the next smaller
    power of two and then every other one of the slopes of the next larger.

    Raises:
        TypeError, ValueError: `heads` is not an integer >= 1.
    """
    heads = at_least("heads", heads, 1)
    power = 1 << heads.bit_length() - 1
    exponents = [8 * h / power for h in range(1, power + 1)]
    exponents += [4 * h / power for h in range(1, 2 * (heads - power), 2)]
    # Explicitly on the CPU: transformers builds models under the meta device.
    return torch.tensor([2.0**-e for e in exponents], device="cpu")


def with_alibi(support: AnySupport, heads: int) -> AnySupport:
    """The same pairs with ALiBi's `-slope * distance` on their scores, for `heads` query heads.

    Takes and returns lines, blocks or tokens; what the support was made of is shared, and a bias stays.

    Raises:
        TypeError: `support` is no support, or `heads` no integer.
        ValueError: `heads` < 1 or not a multiple of the support's own heads.
    """
    if not isinstance(support, Support):
        raise TypeError(f"support must be Lines, Blocks or Tokens, got {type(support).__name__}")
    slopes = alibi_slopes(heads)
    if heads % support.heads:
        raise ValueError(f"heads must be a multiple of the support's {support.heads}, got {heads}")
    biased = copy.copy(support)
    biased.alibi_slopes = slopes
    return biased
