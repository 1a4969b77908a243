"""Sums of distance sets, by shifts: the arithmetic below hops, layers and path counts.

An array over distances `0 .. n - 1` is combined with shifted copies of itself, one shift for each distance. A run of
m consecutive distances costs about 2 log2 m shifts instead of m, in whatever the combination is: or, minimum, sum.
Nothing is ever subtracted, so sums of floats keep their relative precision.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
from numpy.typing import NDArray

Array = NDArray[Any]
Combine = Callable[..., Any]
Run = tuple[int, int]


def runs_of(numbers: Array) -> list[Run]:
    """Sorted unique integers as runs `(first, last)` of consecutive ones."""
    if not len(numbers):
        return []
    breaks = np.flatnonzero(np.diff(numbers) > 1)
    firsts = numbers[np.concatenate([[0], breaks + 1])]
    lasts = numbers[np.concatenate([breaks, [len(numbers) - 1]])]
    return list(zip(firsts.tolist(), lasts.tolist(), strict=True))


def spread(values: Array, runs: list[Run], combine: Combine, nothing: Any) -> Array:
    """`out[i] = combine over d in runs of values[i - d]`, and `nothing` where there is no such i - d.

    Args:
        values: `[n]`.
        runs: disjoint runs of distances; those >= n add nothing.
        combine: a NumPy ufunc of two arguments that takes `out`, associative and commutative: `np.logical_or`,
            `np.minimum`, `np.add`, `np.logaddexp`.
        nothing: its neutral element.
    """
    length = len(values)
    out = np.full(length, nothing, dtype=values.dtype)
    for first, last in runs:
        if first >= length:
            break
        _add_run(out, values, first, last - first + 1, combine)
    return out


def _add_run(out: Array, values: Array, first: int, count: int, combine: Combine) -> None:
    """Combines `values` shifted by `first .. first + count - 1` into `out`, by the binary digits of `count`."""
    length, width, power = len(out), 1, values
    while first < length:
        if count & width:
            combine(out[first:], power[: length - first], out=out[first:])
            first += width
            count -= width
        if not count:
            return
        if width < length:
            doubled = power.copy()
            combine(doubled[width:], power[: length - width], out=doubled[width:])
            power = doubled
        width *= 2
