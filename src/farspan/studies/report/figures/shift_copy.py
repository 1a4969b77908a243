"""The copy probe: which distances a trained model copies from, and which some layer reads directly."""

from __future__ import annotations

from matplotlib.axes import Axes
from matplotlib.colors import to_rgba
from matplotlib.figure import Figure
from matplotlib.patches import Rectangle

from farspan.studies.report import words
from farspan.studies.report.figures.canvas import NARROW, SMALL, WIDE, new_figure, place, text_width
from farspan.studies.report.figures.theme import Theme
from farspan.studies.report.rows import ProbeRow

SOLVED = 0.9
_COUNT = 52
"""Points to the right of the map, for the counts."""
_WIDEST = 56
"""Points: a cell is no wider, however few distances there are."""


def draw_heat_map(rows: list[ProbeRow], theme: Theme, wide: bool) -> Figure:
    """Rows by distances; the fill is the accuracy, a dot says that some layer reads the distance directly."""
    distances = sorted({d for row in rows for d in row.accuracy})
    names = [f"{words.clipped(row.label, 24 if wide else 15)}, {row.depth}L" for row in rows]
    width = WIDE if wide else NARROW
    cell = 21 if wide else 23
    turned = not wide or len(distances) > 10
    top = 44 if turned else 30
    figure = new_figure(width, (top + cell * len(rows) + 26) / 72)
    axes = figure.add_subplot()
    for y, row in enumerate(rows):
        for x, distance in enumerate(distances):
            if distance in row.accuracy:
                _cell(axes, x, y, row.accuracy[distance], row.reads(distance), theme, numbers=wide)
        asked = len(row.accuracy)
        axes.annotate(
            f"{len(row.solved(SOLVED))} of {asked}",
            (len(distances) - 0.5, y),
            xytext=(8, 0),
            textcoords="offset points",
            va="center",
            fontsize=SMALL,
            color=theme.ink,
            fontweight="bold",
            annotation_clip=False,
        )
        axes.annotate(
            names[y],
            (-0.5, y),
            xytext=(-6, 0),
            textcoords="offset points",
            va="center",
            ha="right",
            fontsize=SMALL,
            color=theme.ink,
            annotation_clip=False,
        )
        if y and row.depth != rows[y - 1].depth:
            axes.plot([-0.5, len(distances) - 0.5], [y - 0.5] * 2, color=theme.muted, linewidth=0.9)
    for x, distance in enumerate(distances):
        axes.text(
            x,
            -0.66,
            f"{distance:,}",
            ha="left" if turned else "center",
            va="bottom",
            rotation=55 if turned else 0,
            rotation_mode="anchor",
            fontsize=SMALL,
            color=theme.ink,
        )
    axes.annotate(
        f"> {SOLVED}",
        (len(distances) - 0.5, -0.66),
        xytext=(8, 0),
        textcoords="offset points",
        va="bottom",
        fontsize=SMALL,
        color=theme.muted,
        annotation_clip=False,
    )
    axes.set_xlim(-0.5, len(distances) - 0.5)
    axes.set_ylim(len(rows) - 0.5, -0.5)
    axes.set_axis_off()
    note = "\N{BLACK CIRCLE} some layer reads this distance directly"
    axes.annotate(
        note,
        (0, 0),
        xytext=(0, -16),
        xycoords="axes fraction",
        textcoords="offset points",
        fontsize=SMALL,
        color=theme.muted,
    )
    left = max(text_width(figure, name, SMALL) for name in names) + 14
    free = 72 * width - left - _COUNT
    place(figure, left=left, right=_COUNT + max(0.0, free - _WIDEST * len(distances)), top=top, bottom=26)
    return figure


def _cell(axes: Axes, x: int, y: int, accuracy: float, direct: bool, theme: Theme, numbers: bool) -> None:
    share = min(max(accuracy, 0.0), 1.0)
    axes.add_patch(
        Rectangle(
            (x - 0.47, y - 0.45),
            0.94,
            0.9,
            facecolor=to_rgba(theme.heat, 0.04 + 0.96 * share),
            edgecolor=theme.grid,
            linewidth=0.6,
        )
    )
    on_fill = "#ffffff" if share > 0.7 else theme.ink
    if numbers:
        text = "1.0" if share > 0.995 else f"{share:.2f}".lstrip("0")
        axes.text(x - (0.12 if direct else 0), y, text, ha="center", va="center", fontsize=SMALL, color=on_fill)
    if direct:
        axes.plot([x + (0.33 if numbers else 0)], [y], "o", markersize=3.4 if numbers else 4.5, color=on_fill)
