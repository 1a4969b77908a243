"""Labels written at the end of their lines, moved apart where they would touch."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import islice
from statistics import fmean

from matplotlib.axes import Axes

from farspan.studies.report.figures.canvas import SMALL


@dataclass(frozen=True)
class EndLabel:
    """`text`, of one or more lines, for what ends at (x, y) in data coordinates; `beside` keeps it inside the axes."""

    x: float
    y: float
    text: str
    colour: str
    beside: bool = False


def spread(wanted: Sequence[float], gap: float, low: float, high: float) -> list[float]:
    """Positions near `wanted`, at least `gap` apart and within [low, high] if they fit; order is kept.

    Neighbours that are too close merge into a block centred on the mean of what its members wanted.
    """
    order = sorted(range(len(wanted)), key=lambda i: wanted[i])
    blocks: list[tuple[float, int]] = []  # centre, members
    for i in order:
        centre, size = min(max(wanted[i], low), high), 1
        while blocks and centre - gap * (size - 1) / 2 < blocks[-1][0] + gap * (blocks[-1][1] - 1) / 2 + gap:
            before, members = blocks.pop()
            centre = (centre * size + before * members) / (size + members)
            size += members
            half = gap * (size - 1) / 2
            centre = max(low + half, min(high - half, centre)) if 2 * half <= high - low else (low + high) / 2
        blocks.append((centre, size))
    placed = [c + gap * (k - (n - 1) / 2) for c, n in blocks for k in range(n)]
    result = [0.0] * len(order)
    for i, position in zip(order, placed, strict=True):
        result[i] = position
    return result


def end_labels(axes: Axes, labels: Sequence[EndLabel], offset: float = 10, gap: float = 11.5) -> None:
    """Draws the labels to the right of the axes; the limits of the axes must be final."""
    height = axes.get_figure(root=True).get_size_inches()[1] * 72  # type: ignore[union-attr]
    ends = [axes.transData.transform((label.x, label.y)) for label in labels]
    margin = axes.get_window_extent().x1
    # Every line of a label takes a place of its own; the label stands in their middle.
    lines = [label.text.count("\n") + 1 for label in labels]
    places = iter(
        spread([float(y) for (_, y), n in zip(ends, lines, strict=True) for _ in range(n)], gap, 6, height - 6)
    )
    middles = [fmean(islice(places, n)) for n in lines]
    for label, (x, y), new in zip(labels, ends, middles, strict=True):
        axes.annotate(
            label.text,
            xy=(label.x, label.y),
            xytext=((x if label.beside else max(margin, x)) + offset, y if label.beside else new),
            textcoords="figure points",
            va="center",
            ha="left",
            color=label.colour,
            fontsize=SMALL,
            annotation_clip=False,
            arrowprops={
                "arrowstyle": "-",
                "color": label.colour,
                "linewidth": 0.6,
                "alpha": 0.6,
                "shrinkA": 0,
                "shrinkB": 3,
                "relpos": (0, 0.5),
            },
        )
