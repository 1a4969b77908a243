"""Alpha of each layer: where a schedule puts it, and how far a learned one moved."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from matplotlib.figure import Figure
from matplotlib.ticker import MultipleLocator

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
from farspan.studies.report.rows import Row


@dataclass(frozen=True)
class Alphas:
    """Alpha of each layer under one name, first seed; `initial` only where it was learned."""

    name: str
    final: Sequence[float]
    initial: Sequence[float] | None = None

    @property
    def movement(self) -> float | None:
        """Largest change of any layer's alpha in training."""
        if self.initial is None:
            return None
        return max(abs(b - a) for a, b in zip(self.initial, self.final, strict=True))


def alphas(rows: list[Row]) -> list[Alphas]:
    """One entry a distinct set of alphas of layers, named after its schedule; each learned row stands alone."""
    shared: dict[tuple[float, ...], str] = {}
    learned = []
    for row in rows:
        recorded = row.first.get("alphas")
        if recorded:
            learned.append(Alphas(row.label, recorded["final"], recorded["initial"]))
            continue
        if row.family in ("fibonacci", "powers"):
            # A rule without an alpha leaves its base as it is.
            values = [layer["alpha"] if layer.get("alpha") is not None else 1.0 for layer in row.first["layers"]]
            # Heads with alphas of their own have no single one to draw.
            if not any(isinstance(value, list) for value in values):
                shared.setdefault(tuple(values), row.schedule)
    return [Alphas(schedule, values) for values, schedule in shared.items()] + learned


def draw_alphas(entries: list[Alphas], theme: Theme, wide: bool) -> Figure:
    """Small multiples over layers; a learned alpha goes from its start (ring) to its end (dot)."""
    columns = min(len(entries), 4 if wide else 2)
    lines = -(-len(entries) // columns)
    figure = new_figure(WIDE if wide else NARROW, 1.75 * lines + 0.5)
    grid = figure.subplots(lines, columns, sharey=True, squeeze=False)
    every = [a for e in entries for a in (*e.final, *(e.initial or ()))]
    for axes, entry in zip(grid.flat, entries, strict=False):
        layers = range(1, len(entry.final) + 1)
        start = entry.initial or [1.0] * len(entry.final)
        axes.axhline(1.0, color=theme.muted, linewidth=0.8)
        axes.vlines(layers, start, entry.final, color=theme.ink, linewidth=1.2)
        if entry.initial is not None:
            axes.plot(layers, start, "o", markersize=6.5, markerfacecolor="none", markeredgecolor=theme.muted)
        axes.plot(layers, entry.final, "o", markersize=3.6, color=theme.ink)
        name = words.clipped(entry.name, 24)
        if entry.movement is not None:
            name += f"\nlargest move {entry.movement:.3f}"
        title(axes, name, theme, SMALL)
        dress(axes, theme)
        axes.set_xticks(layer_ticks(len(entry.final)))
        axes.set_xlim(0.4, len(entry.final) + 0.6)
    grid[0, 0].set_ylim(min(0.45, *every) - 0.03, max(1.55, *every) + 0.03)
    grid[0, 0].yaxis.set_major_locator(MultipleLocator(0.25))
    for axes in grid.flat[len(entries) :]:
        axes.set_visible(False)
    figure.supxlabel("layer", fontsize=SMALL, color=theme.muted, y=0.01)
    place(figure, left=36, right=8, top=32, bottom=34, wspace=0.12, hspace=0.6)
    return figure
