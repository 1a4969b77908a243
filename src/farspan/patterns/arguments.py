"""Checks shared by the pattern builders."""

from __future__ import annotations

import math
import operator
from typing import Any


def at_least(name: str, value: Any, smallest: int) -> int:
    """`value` as an integer >= `smallest`, or an error that names the argument."""
    try:
        number = operator.index(value)
    except TypeError:
        raise TypeError(f"{name} must be an integer >= {smallest}, got {value!r}") from None
    if isinstance(value, bool) or number < smallest:
        raise ValueError(f"{name} must be an integer >= {smallest}, got {value!r}")
    return number


def positive(name: str, value: Any) -> float:
    """`value` as a finite float > 0, or an error that names the argument."""
    if isinstance(value, bool) or not hasattr(value, "__float__"):
        raise TypeError(f"{name} must be a number > 0, got {value!r}")
    number = float(value)
    if not (math.isfinite(number) and number > 0):
        raise ValueError(f"{name} must be a finite number > 0, got {value!r}")
    return number
