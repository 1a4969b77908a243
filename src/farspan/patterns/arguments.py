"""Checks shared by the pattern builders."""

from __future__ import annotations

import math
import operator
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

MOST = 2**24
"""Largest integer that a builder takes unless it says otherwise: many numbers are counted up to, and held."""


def at_least(name: str, value: Any, smallest: int, largest: int = MOST) -> int:
    """`value` as an integer >= `smallest` (and <= `largest`), or an error that names the argument."""
    try:
        number = operator.index(value)
    except TypeError:
        raise TypeError(f"{name} must be an integer >= {smallest}, got {value!r}") from None
    if isinstance(value, bool) or number < smallest:
        raise ValueError(f"{name} must be an integer >= {smallest}, got {value!r}")
    if number > largest:
        raise ValueError(f"{name} must be at most {largest:,}, got {value!r}")
    return number


def positive(name: str, value: Any) -> float:
    """`value` as a finite float > 0, or an error that names the argument."""
    if isinstance(value, bool) or not hasattr(value, "__float__"):
        raise TypeError(f"{name} must be a number > 0, got {value!r}")
    number = float(value)
    if not (math.isfinite(number) and number > 0):
        raise ValueError(f"{name} must be a finite number > 0, got {value!r}")
    return number


def between(name: str, value: Any, low: float, high: float) -> float:
    """`value` as a float in `low` .. `high`, or an error that names the argument."""
    if isinstance(value, bool) or not hasattr(value, "__float__"):
        raise TypeError(f"{name} must be a number in {low}..{high}, got {value!r}")
    number = float(value)
    if not low <= number <= high:
        raise ValueError(f"{name} must lie in {low}..{high}, got {value!r}")
    return number


def positives(name: str, value: Any) -> list[float]:
    """`value` as one finite float > 0, or as one for each head, or an error that names the argument."""
    if not isinstance(value, Sequence) or isinstance(value, str):
        return [positive(name, value)]
    if not value:
        raise ValueError(f"{name} must be a number > 0 or one for each head, got {value!r}")
    return [positive(name, number) for number in value]


def all_at_least(name: str, value: Any, smallest: int) -> list[int]:
    """`value` as a non-empty list of integers >= `smallest`, or an error that names the argument."""
    if not isinstance(value, Iterable) or isinstance(value, str | bytes | Mapping):
        raise TypeError(f"{name} must be a list of integers >= {smallest}, got {value!r}")
    numbers = [at_least(name, number, smallest) for number in value]
    if not numbers:
        raise ValueError(f"{name} must be a list of at least one integer, got {value!r}")
    return numbers


def one_of(name: str, value: Any, options: Sequence[str]) -> str:
    """`value`, which is one of `options`, or an error that names the argument."""
    if not isinstance(value, str) or value not in options:
        raise ValueError(f"{name} must be one of {', '.join(options)}, got {value!r}")
    return value


def flag(name: str, value: Any) -> bool:
    """`value` as a boolean, or an error that names the argument."""
    if not isinstance(value, bool):
        raise TypeError(f"{name} must be true or false, got {value!r}")
    return value


def layer_below(layer: Any, layers: Any) -> tuple[int, int]:
    """A layer and the number of layers, or an error unless the layer is one of them."""
    layer, layers = at_least("layer", layer, 0), at_least("layers", layers, 1)
    if layer >= layers:
        raise ValueError(f"layer must be below layers = {layers}, got {layer}")
    return layer, layers
