"""Pictures of patterns with matplotlib: one stack by itself, and several side by side."""

from __future__ import annotations

import math
import textwrap
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.layout_engine import ConstrainedLayoutEngine
from matplotlib.ticker import MaxNLocator

from farspan.patterns.coverage import Analysis, distances
from farspan.patterns.drawing.axes import by_column, columns, stack_map, ticks
from farspan.support import Support

COLOURS = ("#0072b2", "#d55e00", "#009e73", "#cc79a7", "#e69f00", "#56b4e9", "#000000")
"""Of Okabe and Ito: told apart by people who do not see all colours."""
_DASHES = ("-", "--", ":", "-.")
_TITLE, _LABEL = 10, 9
_BINS = 240
_TILES = 256
"""Across a mask: few enough that each is more than a pixel, so that no line is lost."""


def picture(stack: Sequence[Support], length: int, title: str = "") -> Figure:
    """The mask of the first and the last layer beside the distances of all layers, as a matplotlib figure."""
    shown = stack[:1] if all(support == stack[0] for support in stack) else [stack[0], stack[-1]]
    figure = Figure(figsize=(3.3 * len(shown) + 4.8, 3.7), layout="constrained")
    axes = figure.subplots(1, len(shown) + 1, width_ratios=[*[1] * len(shown), 1.5])
    for axis, support, name in zip(axes, shown, ("first layer", "last layer"), strict=False):
        _mask(axis, [support], length)
        axis.set_title(name if len(shown) > 1 else "every layer", fontsize=_TITLE)
    axis = axes[-1]
    for number, support in enumerate(stack, 1):
        read = distances(support, length)
        axis.scatter(read + 1, np.full(len(read), number), s=14, marker="s", linewidths=0, color=COLOURS[0])
    axis.set_title("distances read", fontsize=_TITLE)
    _distance_axis(axis, length)
    axis.set_ylabel("layer, bottom = 1", fontsize=_LABEL)
    axis.set_ylim(len(stack) + 0.5, 0.5)
    axis.yaxis.set_major_locator(MaxNLocator(integer=True))
    axis.tick_params(labelsize=_LABEL - 1)
    figure.suptitle(title, fontsize=_TITLE + 1)
    return figure


def comparison(stacks: Mapping[str, Sequence[Support]], found: Mapping[str, Analysis]) -> Figure:
    """Masks, reach by layer and path counts of several stacks of the same length, as a matplotlib figure.

    Args:
        stacks: the layers of each pattern, by its name.
        found: `coverage.analyse` of each.
    """
    length = next(iter(found.values())).length
    bands = -(-len(stacks) // 4)
    across = -(-len(stacks) // bands)
    width = max(3.1 * across, 7.6)
    figure = Figure(figsize=(width, 5.6 * bands + 3.4), layout=ConstrainedLayoutEngine(w_pad=0.08, h_pad=0.08))
    parts: Any = figure.subfigures(bands + 1, 1, height_ratios=[*[5.6] * bands, 3.4])
    names = list(stacks)
    for band in range(bands):
        here = names[band * across : (band + 1) * across]
        axes = parts[band].subplots(2, across, squeeze=False, height_ratios=[1.35, 1])
        for column in range(across):
            upper, lower = axes[:, column]
            if column >= len(here):
                upper.set_axis_off()
                lower.set_axis_off()
                continue
            name = here[column]
            _mask(upper, stacks[name], length)
            upper.set_title(_wrapped(name), fontsize=_TITLE, fontweight="bold")
            _reach(lower, found[name])
            if column:
                upper.set_ylabel("")
                lower.set_ylabel("")
    left, right = parts[-1].subplots(1, 2)
    for number, name in enumerate(names):
        style = {"color": COLOURS[number % len(COLOURS)], "linestyle": _DASHES[number // len(COLOURS) % len(_DASHES)]}
        _connected(left, found[name], style, name)
        _paths(right, found[name], style, name)
    left.set_title("distances connected by the bottom layers", fontsize=_TITLE)
    left.set_xlabel("layers, from the bottom", fontsize=_LABEL)
    left.set_ylabel("connected distances (%)", fontsize=_LABEL)
    left.set_ylim(-3, 103)
    left.xaxis.set_major_locator(MaxNLocator(integer=True))
    right.set_title("paths through the whole stack", fontsize=_TITLE)
    right.set_ylabel("paths (log10)", fontsize=_LABEL)
    _distance_axis(right, length)
    for axis in (left, right):
        axis.tick_params(labelsize=_LABEL - 1)
        axis.grid(color="#dddddd", linewidth=0.6)
        axis.set_axisbelow(True)
        axis.spines[["top", "right"]].set_visible(False)
    parts[-1].legend(
        *left.get_legend_handles_labels(), loc="outside lower center", ncols=min(len(names), 3), fontsize=8
    )
    return figure


def _mask(axis: Axes, stack: Sequence[Support], length: int) -> None:
    side = -(-length // _TILES)
    shares = stack_map(stack, length, _TILES)
    # The root lifts what a single layer or head reads out of the white.
    axis.imshow(
        np.sqrt(shares), cmap="Greys", vmin=0, vmax=1, extent=(0, length, length, 0), interpolation="nearest", aspect=1
    )
    axis.set_xlabel("key (tokens)", fontsize=_LABEL)
    axis.set_ylabel("query (tokens)", fontsize=_LABEL)
    axis.tick_params(labelsize=_LABEL - 1)
    for side_axis in (axis.xaxis, axis.yaxis):
        side_axis.set_major_formatter(lambda number, _: _short(number))
    axis.xaxis.set_major_locator(MaxNLocator(4, integer=True))
    axis.yaxis.set_major_locator(MaxNLocator(5, integer=True))
    if side > 1:
        axis.text(
            0.97, 0.97, f"tiles of {side} tokens", transform=axis.transAxes, ha="right", va="top", fontsize=_LABEL - 1
        )


def _reach(axis: Axes, found: Analysis) -> None:
    axis.set_ylabel("layers used", fontsize=_LABEL)
    axis.tick_params(labelsize=_LABEL - 1)
    if found.layers_needed is None:
        axis.text(0.5, 0.5, "reach not known\nat this length", transform=axis.transAxes, ha="center", va="center")
        axis.set_xticks([])
        axis.set_yticks([])
        return
    depth = len(found.layers)
    shares = [by_column((found.layers_needed <= number).astype(float), _BINS) for number in range(1, depth + 1)]
    longest = math.log2(found.length)
    extent = (0, longest, depth + 0.5, 0.5)
    # Lighter than a full blue, so that the frame and the letters beside it stand out.
    axis.imshow(shares, cmap="Blues", vmin=0, vmax=1.3, aspect="auto", interpolation="nearest", extent=extent)
    kept = [found.length - 1]
    for tick in ticks(found.length)[-2::-1]:
        if math.log2((1 + kept[-1]) / (1 + tick)) > longest / 7:
            kept.append(tick)
    axis.set_xticks([math.log2(1 + tick) for tick in kept], [_short(tick) for tick in kept])
    axis.set_xlabel("distance connected (tokens)", fontsize=_LABEL)
    axis.yaxis.set_major_locator(MaxNLocator(integer=True))


def _connected(axis: Axes, found: Analysis, style: dict[str, Any], name: str) -> None:
    shares = [] if found.connected is None else [0.0, *found.connected]
    label = name if shares else f"{name} (reach not known)"
    axis.plot(range(len(shares)), [100 * share for share in shares], label=label, linewidth=1.8, **style)


def _paths(axis: Axes, found: Analysis, style: dict[str, Any], name: str) -> None:
    if found.log_paths is None:
        return
    curve = found.log_paths / math.log(10)
    at = columns(found.length, _BINS)
    middle, low, high, where = [], [], [], []
    for column in np.unique(at):
        inside = np.arange(*np.searchsorted(at, [column, column + 1]))
        values = curve[inside]
        some = values[np.isfinite(values)]
        where.append(1 + float(inside[len(inside) // 2]))
        middle.append(float(np.median(some)) if len(some) else math.nan)
        low.append(float(some.min()) if len(some) else math.nan)
        high.append(float(some.max()) if len(some) else math.nan)
    axis.plot(where, middle, linewidth=1.8, **style)
    axis.fill_between(where, low, high, color=style["color"], alpha=0.15, linewidth=0)


def _distance_axis(axis: Axes, length: int) -> None:
    axis.set_xscale("log")
    axis.set_xlim(0.85, length * 1.15)
    shown = [tick for tick in ticks(length) if tick == length - 1 or 3 * (tick + 1) < length]
    axis.set_xticks([tick + 1 for tick in shown], [_short(tick) for tick in shown])
    axis.minorticks_off()
    axis.set_xlabel("distance (tokens)", fontsize=_LABEL)


def _short(number: float) -> str:
    for unit, size in (("M", 1_000_000), ("k", 10_000)):
        if number >= size - 1:
            return f"{number / (1000 if unit == 'k' else size):.3g}{unit}"
    return f"{number:.0f}"


def _wrapped(name: str, width: int = 30) -> str:
    return "\n".join(textwrap.wrap(name.replace(",", ", "), width))
