"""From a `Figure` to an inline SVG that follows the page's theme, and to a PNG. No pyplot."""

from __future__ import annotations

import html
import io
import re
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import matplotlib
from matplotlib.axes import Axes
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure
from matplotlib.font_manager import FontProperties

from farspan.studies.report.figures.theme import CSS_VARIABLES, Theme

WIDE, MEDIUM, NARROW = 7.6, 6.4, 3.9
"""Widths in inches. Medium stands beside text; narrow is for phones: fewer columns, letters as large."""

FONT_SIZE = 9.0
SMALL = 8.0

_RC: dict[str, Any] = {
    "font.family": "DejaVu Sans",
    "font.size": FONT_SIZE,
    "svg.fonttype": "none",
    "svg.hashsalt": "farspan",
    "axes.spines.top": False,
    "axes.spines.right": False,
    "axes.linewidth": 0.8,
    "axes.labelsize": SMALL,
    "axes.titlelocation": "left",
    "axes.titlepad": 6.0,
    # Given outright: looking for a free height costs a second layout of every axis.
    "axes.titley": 1.0,
    "axes.axisbelow": True,
    "axes.unicode_minus": True,
    "lines.solid_capstyle": "round",
    "text.parse_math": False,
    "path.simplify": False,
}


@contextmanager
def drawing() -> Iterator[None]:
    """Figures are made and saved inside this; the process-wide settings return afterwards."""
    with matplotlib.rc_context(_RC):
        yield


def new_figure(width: float, height: float) -> Figure:
    """A figure of `width` x `height` inches at 72 dots an inch: pixels are points while it is laid out."""
    figure = Figure(figsize=(width, height), dpi=72)
    FigureCanvasAgg(figure)
    return figure


def text_width(figure: Figure, text: str, size: float = FONT_SIZE) -> float:
    """Width of the widest line of text in points."""
    renderer = figure.canvas.get_renderer()  # type: ignore[attr-defined]
    font = FontProperties(size=size)
    return max(float(renderer.get_text_width_height_descent(line, font, False)[0]) for line in text.split("\n"))


def place(figure: Figure, left: float, right: float, top: float, bottom: float, **grid: float) -> None:
    """Margins in points."""
    width, height = (72 * float(side) for side in figure.get_size_inches())
    figure.subplots_adjust(
        left=left / width, right=1 - right / width, top=1 - top / height, bottom=bottom / height, **grid
    )


def layer_ticks(depth: int) -> list[int]:
    """First, middle and last layer."""
    return sorted({1, (depth + 1) // 2, depth}) if depth > 3 else list(range(1, depth + 1))


def dress(axes: Axes, theme: Theme, grid: str | None = "y") -> None:
    """Quiet axes in the theme's colours."""
    axes.set_facecolor("none")
    for spine in axes.spines.values():
        spine.set_color(theme.muted)
    axes.tick_params(which="both", colors=theme.muted, labelcolor=theme.ink, length=3, width=0.8, labelsize=SMALL)
    axes.tick_params(which="minor", length=0)
    axes.xaxis.label.set_color(theme.muted)
    axes.yaxis.label.set_color(theme.muted)
    if grid:
        axes.grid(True, axis=grid, which="major", color=theme.grid, linewidth=0.7)  # type: ignore[arg-type]


def title(
    axes: Axes, text: str, theme: Theme, size: float = FONT_SIZE, pad: float = 6.0, colour: str | None = None
) -> None:
    """A left-aligned title; the colour is given outright, as a title takes the process-wide one otherwise."""
    axes.set_title(text, fontsize=size, pad=pad, color=colour or theme.ink)


def to_svg(figure: Figure, name: str, alt: str) -> str:
    """An `<svg>` element for a page: themed colours, ids of its own, a text alternative, no outside link."""
    buffer = io.StringIO()
    with matplotlib.rc_context(_RC):
        figure.savefig(buffer, format="svg", transparent=True)
    svg = buffer.getvalue()
    svg = svg[svg.index("<svg") :]
    svg = re.sub(r"<metadata>.*?</metadata>\s*", "", svg, flags=re.S)
    svg = re.sub(r'\sid="([^"]+)"', rf' id="{name}-\1"', svg)
    svg = svg.replace('href="#', f'href="#{name}-').replace("url(#", f"url(#{name}-")
    svg = svg.replace("xlink:href", "href")
    svg = svg.replace("'DejaVu Sans'", "var(--sans)")
    for colour, variable in CSS_VARIABLES.items():
        svg = svg.replace(colour, variable)
    size = re.search(r'viewBox="([^"]+)"', svg)
    box = size.group(1) if size else "0 0 1 1"
    widest = round(1.5 * float(box.split()[2]))
    label = html.escape(alt, quote=True)
    opening = f'<svg viewBox="{box}" style="max-width: {widest}px" role="img" aria-label="{label}">'
    return opening + svg[svg.index(">") + 1 :].rstrip()


def to_png(figure: Figure, theme: Theme, dpi: int = 160) -> bytes:
    """PNG bytes on the theme's surface, the same for the same figure."""
    buffer = io.BytesIO()
    with matplotlib.rc_context(_RC):
        figure.savefig(buffer, format="png", dpi=dpi, facecolor=theme.surface, metadata={"Software": None})
    return buffer.getvalue()
