"""Pictures of patterns in text: masks, the distances of every layer, what a stack connects and by how many paths."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence

import numpy as np

from farspan.patterns.arguments import at_least
from farspan.patterns.coverage import Analysis, distances
from farspan.patterns.drawing.axes import by_column, columns, stack_map, ticks
from farspan.support import Support

_HALVES = {(False, False): " ", (True, False): "▀", (False, True): "▄", (True, True): "█"}
_SHADES = " ░▒▓█"
_BARS = "▁▂▃▄▅▆▇█"


def mask_text(support: Support, length: int, width: int = 64) -> str:
    """The mask at `length` tokens, queries downwards, at most `width` characters wide.

    A character holds two queries; longer sequences are shown in tiles. A tile is filled if any head reads any of it.
    """
    tiles = stack_map([support], at_least("length", length, 1), width) > 0
    if len(tiles) % 2:
        tiles = np.concatenate([tiles, np.zeros_like(tiles[:1])])
    rows = tiles.tolist()
    drawn = (
        "".join(_HALVES[upper, lower] for upper, lower in zip(*pair, strict=True)).rstrip()
        for pair in zip(rows[::2], rows[1::2], strict=True)
    )
    return "\n".join(drawn)


def schedule_text(stack: Sequence[Support], length: int, width: int = 64) -> str:
    """One row per layer, first layer on top: the distances it reads within `length` tokens, on a logarithmic axis."""
    at = columns(at_least("length", length, 2), width)
    label = len(str(len(stack) - 1))
    rows = []
    for number, support in enumerate(stack):
        read = set(at[distances(support, length)].tolist())
        rows.append(f"{number:>{label}} │{''.join('█' if cell in read else ' ' for cell in range(width))}│")
    return "\n".join([*rows, " " * (label + 2) + _axis(length, width)])


def reach_text(found: Analysis, width: int = 64) -> str:
    """One row per depth, until everything is connected: the share of the distances that the bottom layers connect.

    Darker is more: blank is none, and a full block all distances in that column.
    """
    if found.layers_needed is None:
        return "not known at this length"
    depth = found.depth or len(found.layers)
    label = len(str(depth))
    rows = []
    for number in range(1, depth + 1):
        share = by_column((found.layers_needed <= number).astype(float), width)
        # Only what is whole is drawn full, and only what is empty is left out.
        shades = np.where(share == 0, 0, np.where(share == 1, 4, 1 + np.minimum(share * 3, 2).astype(int)))
        rows.append(f"{number:>{label}} │{''.join(_SHADES[shade] for shade in shades)}│")
    return "\n".join([*rows, " " * (label + 2) + _axis(found.length, width)])


def paths_text(found: Mapping[str, Analysis], width: int = 64) -> str:
    """One row per pattern: the logarithm of the number of paths to each distance, all on one scale; blank is none."""
    known = {name: one.log_paths / math.log(10) for name, one in found.items() if one.log_paths is not None}
    if not known:
        return "not known at this length"
    largest = max(float(curve.max()) for curve in known.values())
    label = max(len(name) for name in known)
    rows = []
    for name, curve in known.items():
        some = np.isfinite(curve)
        share = by_column(some.astype(float), width)
        mean = by_column(np.where(some, curve, 0.0), width) / np.maximum(share, 1e-9)
        bars = np.clip(np.rint(mean / max(largest, 1e-9) * (len(_BARS) - 1)), 0, len(_BARS) - 1).astype(int)
        cells = "".join(_BARS[bar] if some else " " for bar, some in zip(bars, share > 0, strict=True))
        rows.append(f"{name:>{label}} │{cells}│")
    length = max(one.length for one in found.values())
    return "\n".join([*rows, " " * (label + 2) + _axis(length, width), f"full height: 10^{largest:.1f} paths"])


def _axis(length: int, width: int) -> str:
    at = columns(length, width)
    axis = [" "] * (width + 12)
    free = 0
    for tick in ticks(length):
        text, column = str(tick), int(at[tick])
        if column >= free:
            axis[column : column + len(text)] = text
            free = column + len(text) + 1
    return "".join(axis).rstrip()
