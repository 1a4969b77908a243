"""A picture of each schedule: which distances each layer reads."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import FixedLocator, FuncFormatter, NullLocator

from farspan.studies.report import words
from farspan.studies.report.figures.canvas import (
    NARROW,
    SMALL,
    WIDE,
    dress,
    layer_ticks,
    new_figure,
    place,
    title,
)
from farspan.studies.report.figures.theme import Theme


@dataclass(frozen=True)
class Schedule:
    """`layers[i]` are the distances layer i reads, None for all of them (dense)."""

    label: str
    family: str
    layers: Sequence[Sequence[int] | None]


def draw_schedules(schedules: list[Schedule], reach: int, train_length: int | None, theme: Theme, wide: bool) -> Figure:
    """Small multiples, layers downward, log of distance + 1 to the right: a bar the window, a tick a rung."""
    columns = min(len(schedules), 3 if wide else 2)
    lines = -(-len(schedules) // columns)
    depth = max(len(schedule.layers) for schedule in schedules)
    height = 0.42 + min(0.105 * depth + 0.2, 1.5)
    figure = new_figure(WIDE if wide else NARROW, height * lines + 0.45)
    grid = figure.subplots(lines, columns, sharex=True, squeeze=False)
    for axes, schedule in zip(grid.flat, schedules, strict=False):
        _draw_one(axes, schedule, reach, theme)
        if train_length:
            axes.axvline(train_length + 1, color=theme.muted, linewidth=0.9, linestyle=(0, (2, 2)), zorder=1)
        title(axes, words.clipped(schedule.label, 28 if wide else 20), theme, SMALL)
    for axes in grid.flat[len(schedules) :]:
        axes.set_visible(False)
    for axes in grid.flat[max(0, len(schedules) - columns) : len(schedules)]:
        axes.tick_params(labelbottom=True)
    for axes in grid[:, 0]:
        axes.set_ylabel("layer", labelpad=0)
    figure.supxlabel("distance in tokens", fontsize=SMALL, color=theme.muted, y=0.01)
    place(figure, left=32, right=10, top=20, bottom=36, wspace=0.16, hspace=0.42 / (height - 0.42))
    return figure


def _draw_one(axes: Axes, schedule: Schedule, reach: int, theme: Theme) -> None:
    colour = theme.family(schedule.family)
    depth = len(schedule.layers)
    ticks_x: list[float] = []
    ticks_y: list[float] = []
    for layer, distances in enumerate(schedule.layers, start=1):
        window = reach if distances is None else _window(distances)
        axes.fill_between([1, window + 1], layer - 0.3, layer + 0.3, color=colour, alpha=0.32, linewidth=0)
        for distance in (distances or [])[window:]:
            ticks_x += [distance + 1, distance + 1, np.nan]
            ticks_y += [layer - 0.36, layer + 0.36, np.nan]
    axes.plot(ticks_x, ticks_y, color=colour, linewidth=1.5, solid_capstyle="butt")
    dress(axes, theme, grid=None)
    axes.set_xscale("log")
    axes.set_xlim(1, reach + 1)
    axes.set_ylim(depth + 0.6, 0.4)
    marks = [d for d in (0, 3, 10, 30, 100, 300, 1000, 3000, 10_000, 30_000, 100_000) if d <= reach]
    axes.xaxis.set_major_locator(FixedLocator([d + 1 for d in marks[:: 1 if len(marks) < 7 else 2]]))
    axes.xaxis.set_minor_locator(NullLocator())
    axes.xaxis.set_major_formatter(FuncFormatter(lambda x, _: f"{x - 1:,.0f}"))
    axes.set_yticks(layer_ticks(depth))
    axes.spines["left"].set_visible(False)


def _window(distances: Sequence[int]) -> int:
    """Length of the unbroken run 0, 1, 2, ... at the start of sorted distances."""
    return next((i for i, d in enumerate(distances) if d != i), len(distances))
