"""Alpha of each layer: where a schedule puts it, and how far a learned one moved."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from matplotlib.figure import Figure
from matplotlib.ticker import MaxNLocator, MultipleLocator

from farspan.studies.report import words
from farspan.studies.report.figures.canvas import NARROW, SMALL, WIDE, dress, new_figure, place
from farspan.studies.report.figures.theme import Theme
from farspan.studies.report.rows import Row


@dataclass(frozen=True)
class Alphas:
    """Alpha of each layer of one row (first seed); `initial` only where it was learned."""

    name: str
    family: str
    final: Sequence[float]
    initial: Sequence[float] | None = None

    @property
    def movement(self) -> float | None:
        """Largest change of any layer's alpha in training."""
        if self.initial is None:
            return None
        return max(abs(b - a) for a, b in zip(self.initial, self.final))


def alphas(rows: list[Row]) -> list[Alphas]:
    """One entry for each distinct set of alphas, named after the rows that share it; learned rows stand alone."""
    shared: dict[tuple[float, ...], tuple[str, list[str]]] = {}
    learned = []
    for row in rows:
        recorded = row.first.get("alphas")
        if recorded:
            learned.append(Alphas(row.label, row.family, recorded["final"], recorded["initial"]))
            continue
        values = [layer.get("alpha") for layer in row.first["layers"]]
        if values and all(v is not None for v in values):
            shared.setdefault(tuple(values), (row.schedule, []))[1].append(row.label)
    fixed = [
        Alphas(schedule or words.joined(labels), "other", values) for values, (schedule, labels) in shared.items()
    ]
    return fixed + learned


def draw_alphas(entries: list[Alphas], theme: Theme, wide: bool) -> Figure:
    """Small multiples over layers; a learned alpha is drawn from its initial value (ring) to its final one (dot)."""
    columns = min(len(entries), 4 if wide else 2)
    lines = -(-len(entries) // columns)
    figure = new_figure(WIDE if wide else NARROW, 1.75 * lines + 0.5)
    grid = figure.subplots(lines, columns, sharey=True, squeeze=False)
    every = [a for e in entries for a in (*e.final, *(e.initial or ()))]
    for axes, entry in zip(grid.flat, entries):
        layers = range(1, len(entry.final) + 1)
        colour = theme.family("fibonacci") if entry.initial is None else theme.family("powers")
        start = entry.initial or [1.0] * len(entry.final)
        axes.axhline(1.0, color=theme.muted, linewidth=0.8)
        axes.vlines(layers, start, entry.final, color=colour, linewidth=1.2)
        if entry.initial is not None:
            axes.plot(layers, start, "o", markersize=6.5, markerfacecolor="none", markeredgecolor=theme.muted)
        axes.plot(layers, entry.final, "o", markersize=3.6, color=colour)
        title = words.clipped(entry.name, 24)
        if entry.movement is not None:
            title += f"\nlargest move {entry.movement:.3f}"
        axes.set_title(title, fontsize=SMALL)
        dress(axes, theme)
        axes.xaxis.set_major_locator(MaxNLocator(4, integer=True))
        axes.set_xlim(0.4, len(entry.final) + 0.6)
    grid[0, 0].set_ylim(min(0.45, *every) - 0.03, max(1.55, *every) + 0.03)
    grid[0, 0].yaxis.set_major_locator(MultipleLocator(0.25))
    for axes in grid.flat[len(entries) :]:
        axes.set_visible(False)
    figure.supxlabel("layer", fontsize=SMALL, color=theme.muted, y=0.01)
    place(figure, left=36, right=8, top=32, bottom=34, wspace=0.12, hspace=0.6)
    return figure
