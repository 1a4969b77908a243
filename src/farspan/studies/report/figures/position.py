"""Loss by position: what a row gains or loses against a baseline, by how much context a token had."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import FixedLocator, FuncFormatter, MaxNLocator, NullLocator

from farspan.studies.report import words
from farspan.studies.report.figures.canvas import (
    NARROW,
    SMALL,
    WIDE,
    dress,
    new_figure,
    place,
    text_width,
    title,
)
from farspan.studies.report.figures.labels import EndLabel, end_labels
from farspan.studies.report.figures.theme import Theme, line_styles
from farspan.studies.report.rows import Row

SETTLED = 8
"""Tokens of context: with fewer, losses are high and bins small; they would flatten all others."""


@dataclass(frozen=True)
class Profile:
    """Values over context bins `[edges[i], edges[i+1])`; `low`/`high` are given for differences."""

    row: Row
    edges: Sequence[int]
    value: Sequence[float]
    low: Sequence[float] | None = None
    high: Sequence[float] | None = None

    @property
    def centres(self) -> list[float]:
        return [float(np.sqrt(max(a, 0.7) * max(b - 1, a, 0.7))) for a, b in pairwise(self.edges)]


def draw_position_loss(profiles: list[Profile], theme: Theme, wide: bool) -> Figure:
    """Mean loss in nats over the number of tokens before it (log), one line a row."""
    figure = new_figure(WIDE if wide else NARROW, 3.9 if wide else 4.4)
    axes = figure.add_subplot()
    rows = [profile.row for profile in profiles]
    labels = []
    for profile, style in zip(profiles, line_styles(rows, theme), strict=True):
        axes.plot(profile.centres, profile.value, **{**style, "markersize": 2.8})
        finite = [(x, y) for x, y in zip(profile.centres, profile.value, strict=True) if np.isfinite(y)]
        if finite:
            text = words.wrapped(profile.row.label, 28 if wide else 18)
            labels.append(EndLabel(*finite[-1], text, theme.family(profile.row.family)))
    dress(axes, theme)
    _context_axis(axes, profiles[0], theme)
    title(axes, "loss in nats per token", theme, pad=17)
    axes.set_xlabel("tokens of context before the scored token")
    axes.yaxis.set_major_locator(MaxNLocator(6))
    settled = [y for p in profiles for y in _settled(p)]
    if settled:
        low, high = min(y for p in profiles for y in p.value), max(settled)
        axes.set_ylim(low - 0.05 * (high - low), high + 0.15 * (high - low))
    widest = max((text_width(figure, label.text, SMALL) for label in labels), default=0)
    place(figure, left=38, right=widest + 18, top=34, bottom=36)
    end_labels(axes, labels)
    return figure


def draw_position_differences(profiles: list[Profile], theme: Theme, wide: bool) -> Figure:
    """Small multiples: difference in loss to the baseline on the same tokens, with its interval as a band."""
    columns = 4 if wide else 2
    lines = -(-len(profiles) // columns)
    figure = new_figure(WIDE if wide else NARROW, 1.55 * lines + 0.55)
    limit = _limit(profiles)
    grid = figure.subplots(lines, columns, sharex=True, sharey=True, squeeze=False)
    for axes, profile in zip(grid.flat, profiles, strict=False):
        colour = theme.family(profile.row.family)
        axes.axhline(0, color=theme.muted, linewidth=0.8)
        if profile.low is not None and profile.high is not None:
            axes.fill_between(profile.centres, profile.low, profile.high, color=colour, alpha=0.25, linewidth=0)
        axes.plot(profile.centres, profile.value, color=colour, linewidth=1.4, marker="o", markersize=2.4)
        _mark_clipped(axes, profile, limit, theme)
        dress(axes, theme)
        _context_axis(axes, profile, theme, note=False, sparse_ticks=True)
        title(axes, words.clipped(profile.row.label, 24), theme, SMALL, colour=colour)
    for axes in grid.flat[len(profiles) :]:
        axes.set_visible(False)
    for axes in grid.flat[max(0, len(profiles) - columns) : len(profiles)]:
        axes.tick_params(labelbottom=True)
    grid[0, 0].set_ylim(-limit, limit)
    grid[0, 0].yaxis.set_major_locator(MaxNLocator(5, symmetric=True))
    grid[0, 0].yaxis.set_major_formatter(FuncFormatter(lambda y, _: words.signed(y, 2)))
    figure.supxlabel("tokens of context before the scored token", fontsize=SMALL, color=theme.muted, y=0.01)
    place(figure, left=40, right=8, top=22, bottom=38, wspace=0.12, hspace=0.42)
    return figure


def _limit(profiles: list[Profile]) -> float:
    """Half-height of the axis: covers all rows but dense, which may leave it beyond the training length."""
    calm = [abs(v) for p in profiles if p.row.family != "dense" for v in _settled(p)]
    return 1.6 * max(calm, default=0.1) or 0.1


def _settled(profile: Profile) -> list[float]:
    return [v for x, v in zip(profile.centres, profile.value, strict=True) if x >= SETTLED]


def _mark_clipped(axes: Axes, profile: Profile, limit: float, theme: Theme) -> None:
    outside = [value for value in _settled(profile) if abs(value) > limit]
    if outside:
        arrow = "\N{UPWARDS ARROW}" if outside[-1] > 0 else "\N{DOWNWARDS ARROW}"
        axes.annotate(
            f"{arrow} {words.signed(outside[-1], 2)}",
            xy=(1, 1),
            xytext=(0, 6),
            xycoords="axes fraction",
            textcoords="offset points",
            ha="right",
            fontsize=SMALL,
            color=theme.family(profile.row.family),
        )


def _context_axis(axes: Axes, profile: Profile, theme: Theme, note: bool = True, sparse_ticks: bool = False) -> None:
    train = profile.row.train_length
    last = profile.edges[-1]
    axes.set_xscale("log", base=2)
    step = 16 if sparse_ticks else 4
    axes.xaxis.set_major_locator(FixedLocator([step**i for i in range(12) if step**i <= last]))
    axes.xaxis.set_minor_locator(NullLocator())
    axes.xaxis.set_major_formatter(FuncFormatter(lambda x, _: f"{x:,.0f}"))
    axes.axvline(train, color=theme.muted, linewidth=1.0, linestyle=(0, (2, 2)), zorder=1)
    axes.axvspan(train, last, color=theme.shade, zorder=0, linewidth=0)
    axes.set_xlim(0.8, last)
    if note:
        axes.text(
            train,
            1.015,
            "beyond training length \N{RIGHTWARDS ARROW}",
            transform=axes.get_xaxis_transform(),
            fontsize=SMALL,
            color=theme.muted,
        )
