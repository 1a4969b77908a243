"""Training loss."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from matplotlib.figure import Figure
from matplotlib.ticker import FuncFormatter, MaxNLocator

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
from farspan.studies.report.results import Cell
from farspan.studies.report.rows import Row

POINTS = 200
START = 0.2


@dataclass(frozen=True)
class LossCurve:
    """Loss in nats over training tokens, averaged in at most `POINTS` equal stretches."""

    row: Row
    tokens: Sequence[float]
    loss: Sequence[float]


def loss_curve(row: Row) -> LossCurve | None:
    """The first seed's logged loss."""
    tokens, loss = _logged(row.cells[0])
    if len(tokens) < 2:
        return None
    points = min(POINTS, max(2, len(tokens) // 4))
    parts = np.array_split(np.arange(len(tokens)), points)
    return LossCurve(row, [float(tokens[p].mean()) for p in parts], [float(loss[p].mean()) for p in parts])


def _logged(cell: Cell) -> tuple[np.ndarray, np.ndarray]:
    records = [(r["tokens"], r["loss"]) for r in cell.metrics() if np.isfinite(r["loss"])]
    table = np.array(records, dtype=np.float64).reshape(-1, 2)
    return table[:, 0], table[:, 1]


def draw_training(curves: list[LossCurve], theme: Theme, wide: bool) -> Figure:
    """One line a row; the axis fits what follows the first fifth, where lines can be told apart."""
    figure = new_figure(WIDE if wide else NARROW, 3.6 if wide else 4.0)
    axes = figure.add_subplot()
    labels = []
    for curve, style in zip(curves, line_styles([c.row for c in curves], theme), strict=True):
        axes.plot(curve.tokens, curve.loss, **{**style, "marker": "", "linewidth": 1.2})
        text = words.wrapped(curve.row.label, 28 if wide else 18)
        labels.append(EndLabel(curve.tokens[-1], curve.loss[-1], text, theme.family(curve.row.family)))
    dress(axes, theme)
    late = [y for c in curves for x, y in zip(c.tokens, c.loss, strict=True) if x >= START * c.tokens[-1]]
    low, high = min(late), max(late)
    axes.set_ylim(low - 0.04 * (high - low), high + 0.04 * (high - low))
    axes.set_xlim(0, 1.01 * max(c.tokens[-1] for c in curves))
    axes.xaxis.set_major_locator(MaxNLocator(4))
    axes.xaxis.set_major_formatter(FuncFormatter(lambda x, _: words.count(x)))
    title(axes, "training loss in nats per token", theme)
    axes.set_xlabel("training tokens")
    widest = max(text_width(figure, label.text, SMALL) for label in labels)
    place(figure, left=34, right=widest + 18, top=22, bottom=36)
    end_labels(axes, labels)
    return figure
