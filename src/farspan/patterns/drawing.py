"""Pictures of patterns, in text and with matplotlib: the mask of one layer, and what each layer reads."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import TYPE_CHECKING

import torch
from torch import Tensor

from farspan.patterns.arguments import at_least
from farspan.support import Lines

if TYPE_CHECKING:
    from matplotlib.figure import Figure

_HALVES = {(False, False): " ", (True, False): "▀", (False, True): "▄", (True, True): "█"}


def mask_text(lines: Lines, length: int, width: int = 64) -> str:
    """The mask of the first head at `length` tokens, queries downwards, at most `width` characters wide.

    A character holds two queries; longer sequences are shown in tiles, filled if any of their pairs is read.
    """
    tiles = _tiles(lines, at_least("length", length, 1), width)
    if len(tiles) % 2:
        tiles = torch.cat([tiles, torch.zeros_like(tiles[:1])])
    rows = tiles.tolist()
    drawn = (
        "".join(_HALVES[upper, lower] for upper, lower in zip(*pair, strict=True)).rstrip()
        for pair in zip(rows[::2], rows[1::2], strict=True)
    )
    return "\n".join(drawn)


def schedule_text(layers: Sequence[Lines], length: int, width: int = 64) -> str:
    """One row per layer, first layer on top: the distances it reads within `length` tokens, on a logarithmic axis."""
    longest = at_least("length", length, 2) - 1

    def column(distance: int) -> int:
        return round(math.log2(1 + distance) / math.log2(1 + longest) * (width - 1))

    label = len(str(len(layers) - 1))
    rows = []
    for number, lines in enumerate(layers):
        cells = [" "] * width
        for distance in _distances(lines, length):
            cells[column(distance)] = "█"
        rows.append(f"{number:>{label}} │{''.join(cells)}│")
    axis = [" "] * (width + 12)
    free = 0
    for tick in [0, *(4**k for k in range(16) if 4**k < longest), longest]:
        text, at = str(tick), column(tick)
        if at >= free:
            axis[at : at + len(text)] = text
            free = at + len(text) + 1
    return "\n".join([*rows, " " * (label + 2) + "".join(axis).rstrip()])


def picture(layers: Sequence[Lines], length: int, title: str = "") -> Figure:
    """The mask of the first and the last layer beside the distances of all layers, as a matplotlib figure."""
    from matplotlib.figure import Figure

    shown = layers[:1] if len(set(layers)) == 1 else [layers[0], layers[-1]]
    figure = Figure(figsize=(3.2 * len(shown) + 4.8, 3.6), layout="constrained")
    axes = figure.subplots(1, len(shown) + 1, width_ratios=[*[1] * len(shown), 1.5])
    for axis, lines, name in zip(axes, shown, ("first layer", "last layer"), strict=False):
        axis.imshow(_tiles(lines, length, 512), cmap="Greys", extent=(0, length, length, 0), interpolation="nearest")
        axis.set(title=name if len(shown) > 1 else "every layer", xlabel="key", ylabel="query")
    for number, lines in enumerate(layers):
        distances = [distance + 1 for distance in _distances(lines, length)]
        axes[-1].scatter(distances, [number] * len(distances), s=14, marker="s", linewidths=0, color="black")
    axes[-1].set(title="distances read", xlabel="distance + 1", ylabel="layer", xscale="log", xlim=(0.8, length * 1.2))
    axes[-1].set_ylim(len(layers) - 0.5, -0.5)
    axes[-1].yaxis.get_major_locator().set_params(integer=True)
    figure.suptitle(title)
    return figure


def _distances(lines: Lines, length: int) -> list[int]:
    return sorted({d for d in lines.slash_table.flatten().tolist() if 0 <= d < length})


def _tiles(lines: Lines, length: int, most: int) -> Tensor:
    """bool `[n, n]`, n <= most: which tiles of the mask hold a pair. Built row by row, never `[length, length]`."""
    side = -(-length // most)
    count = -(-length // side)
    tiles = torch.zeros(count, count, dtype=torch.bool)
    for row in range(count):
        last = min((row + 1) * side, length)
        band = lines.mask(last - row * side, last)
        band = band.flatten(0, -3)[0] if band.ndim > 2 else band
        keys = band.any(0)
        padded = torch.nn.functional.pad(keys, (0, count * side - last))
        tiles[row] = padded.view(count, side).any(1)
    return tiles
