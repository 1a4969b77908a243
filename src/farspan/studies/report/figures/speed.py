"""Training speed of each row."""

from __future__ import annotations

from matplotlib.figure import Figure

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
from farspan.studies.report.figures.theme import Theme
from farspan.studies.report.rows import Row


def draw_speed(rows: list[Row], theme: Theme, wide: bool) -> Figure:
    """Horizontal bars, fastest first, every bar with its number."""
    timed = [(row, speed) for row in rows if (speed := row.mean("train_tokens_per_second")) is not None]
    timed.sort(key=lambda pair: -pair[1])
    figure = new_figure(WIDE if wide else NARROW, 0.25 * len(timed) + 0.6)
    axes = figure.add_subplot()
    names = [words.clipped(row.label, 32 if wide else 20) for row, _ in timed]
    axes.barh(
        range(len(timed)),
        [speed for _, speed in timed],
        height=0.66,
        color=[theme.family(r.family) for r, _ in timed],
    )
    for y, (_, speed) in enumerate(timed):
        axes.annotate(
            f"{speed:,.0f}",
            (speed, y),
            xytext=(4, 0),
            textcoords="offset points",
            va="center",
            fontsize=SMALL,
            color=theme.ink,
        )
    title(axes, "training tokens per second", theme)
    axes.set_yticks(range(len(timed)), names)
    axes.set_ylim(len(timed) - 0.5, -0.5)
    dress(axes, theme, grid=None)
    axes.tick_params(axis="y", length=0)
    axes.xaxis.set_visible(False)
    axes.spines["bottom"].set_visible(False)
    place(figure, left=max(text_width(figure, n, SMALL) for n in names) + 10, right=46, top=22, bottom=6)
    return figure
