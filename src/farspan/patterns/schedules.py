"""Schedules: one alpha for each layer, bottom to top (arXiv 2606.28560, section 3.2)."""

from __future__ import annotations

import math

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


def _ramp(slots: list[int], low: float, high: float) -> list[float]:
    low, high = positive("low", low), positive("high", high)
    if len(slots) == 1:
        return [(low + high) / 2]
    return [low + (high - low) * slot / (len(slots) - 1) for slot in slots]
