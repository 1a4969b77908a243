"""What the report needs to know of a figure before it is drawn."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from matplotlib.figure import Figure

from farspan.studies.report.figures.theme import Theme


@dataclass(frozen=True)
class Drawing:
    """`key` names file and element, `alt` says in words what the figure shows.

    `draw(theme, wide)` makes the figure; it is called inside `canvas.drawing()`.
    """

    key: str
    title: str
    alt: str
    caption: str
    draw: Callable[[Theme, bool], Figure]
