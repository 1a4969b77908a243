"""Schedules: one alpha for each layer, bottom to top (arXiv 2606.28560, section 3.2), or one for each of its heads.

The paper has `fixed`, `stagger` and `coprime`. The others are controls for its claims (`descending`, `shuffled`: the
same alphas in another order) and what it did not try (`stagger_heads`, `coprime_heads`).
"""

from __future__ import annotations

import math
import random

from farspan.patterns.arguments import at_least, positive


def fixed(layers: int, alpha: float = 1.0) -> list[float]:
    """The same alpha in every layer.

    Raises:
        TypeError, ValueError: `layers` < 1 or `alpha` <= 0.
    """
    return [positive("alpha", alpha)] * at_least("layers", layers, 1)


def stagger(layers: int, low: float = 0.5, high: float = 1.5) -> list[float]:
    """Alpha rises linearly from `low` in the first layer to `high` in the last; a single layer gets the middle.

    Raises:
        TypeError, ValueError: `layers` < 1, or `low` or `high` <= 0.
    """
    return _ramp(list(range(at_least("layers", layers, 1))), low, high)


def descending(layers: int, low: float = 0.5, high: float = 1.5) -> list[float]:
    """The alphas of `stagger` from the top down: `high` in the first layer, `low` in the last.

    Raises:
        TypeError, ValueError: `layers` < 1, or `low` or `high` <= 0.
    """
    return stagger(layers, low, high)[::-1]


def shuffled(layers: int, low: float = 0.5, high: float = 1.5, seed: int = 0) -> list[float]:
    """The alphas of `stagger` in an order drawn with `seed`, the same on every machine.

    Raises:
        TypeError, ValueError: `layers` < 1, `seed` < 0, or `low` or `high` <= 0.
    """
    alphas = stagger(layers, low, high)
    random.Random(at_least("seed", seed, 0, 2**63)).shuffle(alphas)
    return alphas


def coprime(layers: int, low: float = 0.5, high: float = 1.5) -> list[float]:
    """The alphas of `stagger`, permuted so that neighbouring layers differ widely: layer l gets slot (S l) mod layers.

    S is the largest stride in 2 .. layers // 2 that has no factor in common with `layers`. Depths 1, 2, 3, 4 and 6
    have no such stride; there S = 1, which is `stagger`.

    Raises:
        TypeError, ValueError: `layers` < 1, or `low` or `high` <= 0.
    """
    stride = coprime_stride(layers)
    return _ramp([stride * layer % layers for layer in range(layers)], low, high)


def coprime_stride(layers: int) -> int:
    """The stride of `coprime`: 7 for 16 layers, 3 for 8, and 1 where no stride exists."""
    at_least("layers", layers, 1)
    return next((s for s in range(layers // 2, 1, -1) if math.gcd(s, layers) == 1), 1)


def stagger_heads(layers: int, heads: int, low: float = 0.5, high: float = 1.5) -> list[list[float]]:
    """`stagger` over the heads instead of the layers: every layer has all alphas. Returns `[layers][heads]`.

    Raises:
        TypeError, ValueError: `layers` or `heads` < 1, or `low` or `high` <= 0.
    """
    alphas = _ramp(list(range(at_least("heads", heads, 1))), low, high)
    return [list(alphas) for _ in range(at_least("layers", layers, 1))]


def coprime_heads(layers: int, heads: int, low: float = 0.5, high: float = 1.5) -> list[list[float]]:
    """`coprime` over the heads and `stagger` over the layers: no alpha occurs twice. Returns `[layers][heads]`.

    The range is cut into one part for each head, in the order of `coprime`, so that neighbouring heads, which share
    keys under grouped queries, differ widely; within its part a head's alpha rises from layer to layer.

    Raises:
        TypeError, ValueError: `layers` or `heads` < 1, or `low` or `high` <= 0.
    """
    at_least("layers", layers, 1)
    stride = coprime_stride(at_least("heads", heads, 1))
    slots = [stride * head % heads * layers + layer for layer in range(layers) for head in range(heads)]
    alphas = _ramp(slots, low, high)
    return [alphas[layer * heads : (layer + 1) * heads] for layer in range(layers)]


def _ramp(slots: list[int], low: float, high: float) -> list[float]:
    low, high = positive("low", low), positive("high", high)
    if len(slots) == 1:
        return [(low + high) / 2]
    return [low + (high - low) * slot / (len(slots) - 1) for slot in slots]
