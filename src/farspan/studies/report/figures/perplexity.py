"""Perplexity against evaluation length: the picture of the study."""

from __future__ import annotations

import math

from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import FixedLocator, FuncFormatter, MaxNLocator, NullLocator

from farspan.studies.report import words
from farspan.studies.report.figures.canvas import (
    MEDIUM,
    NARROW,
    SMALL,
    dress,
    new_figure,
    place,
    text_width,
    title,
)
from farspan.studies.report.figures.labels import EndLabel, end_labels
from farspan.studies.report.figures.theme import Theme, line_styles
from farspan.studies.report.rows import Row

MOST_LINES = 10
_CLIP = 2.4


def highlighted(rows: list[Row], protocol: str = "disjoint") -> list[Row]:
    """The rows a line figure names: all, or the best of each family and schedule where there are many."""
    if len(rows) <= MOST_LINES:
        return rows
    best: dict[tuple[str, str], Row] = {}
    for row in rows:
        kept = best.setdefault((row.family, row.schedule), row)
        if (row.nll(protocol, row.longest) or math.inf) < (kept.nll(protocol, kept.longest) or math.inf):
            best[row.family, row.schedule] = row
    return [row for row in rows if row in best.values()]


def draw_perplexity(rows: list[Row], protocol: str, theme: Theme, wide: bool) -> Figure:
    """One line a row over evaluation lengths (log), the training length marked, lines named at their ends."""
    named = highlighted(rows, protocol)
    figure = new_figure(MEDIUM if wide else NARROW, 4.1 if wide else 4.4)
    axes = figure.add_subplot()
    curves = {row.label: _curve(row, protocol) for row in rows}
    top = _top([curves[r.label] for r in rows if r.family != "dense"], [curves[r.label] for r in rows])
    for row in rows:
        if row not in named:
            axes.plot(*_clipped(curves[row.label], top), color=theme.family(row.family), linewidth=0.6, alpha=0.35)
    for row, style in zip(named, line_styles(named, theme), strict=True):
        xs, ys = _clipped(curves[row.label], top)
        measured = [i for i, (_, y) in enumerate(curves[row.label]) if y <= top]
        axes.plot(xs, ys, zorder=3 if row.family == "dense" else 4, markevery=measured, **style)
    _axes(axes, rows, protocol, theme)
    labels = [_end(row, curves[row.label], top, theme, wide) for row in named if curves[row.label]]
    widest = max((text_width(figure, label.text, SMALL) for label in labels), default=0)
    place(figure, left=44, right=widest + 18, top=34, bottom=46)
    lowest = min((y for curve in curves.values() for _, y in curve), default=1.0)
    room = math.log(top / lowest) if top > lowest else 0.1
    axes.set_ylim(lowest * math.exp(-0.06 * room), top * math.exp(0.04 * room))
    end_labels(axes, labels)
    return figure


def _curve(row: Row, protocol: str) -> list[tuple[int, float]]:
    points = [(n, row.nll(protocol, n)) for n in row.lengths]
    return [(n, math.exp(nll)) for n, nll in points if nll is not None and nll < 700]


def _top(sparse: list[list[tuple[int, float]]], every: list[list[tuple[int, float]]]) -> float:
    """Upper limit of the axis: the highest point, or less where one exploding line would flatten the rest."""
    values = [y for curve in every for _, y in curve] or [1.0]
    calm = [y for curve in sparse for _, y in curve] + [curve[0][1] for curve in every if curve]
    low, high = min(values), max(values)
    limit = max(calm, default=high)
    limit = limit * (limit / low) ** (_CLIP - 1)
    return high if limit <= low or high < limit else limit


def _clipped(curve: list[tuple[int, float]], top: float) -> tuple[list[float], list[float]]:
    """The curve up to where it leaves the axis, cut there in log-log coordinates."""
    xs: list[float] = []
    ys: list[float] = []
    for x, y in curve:
        if y > top and ys:
            share = math.log(top / ys[-1]) / math.log(y / ys[-1])
            xs.append(xs[-1] * (x / xs[-1]) ** share)
            ys.append(top)
            break
        xs.append(float(x))
        ys.append(y)
    return xs, ys


def _end(row: Row, curve: list[tuple[int, float]], top: float, theme: Theme, wide: bool) -> EndLabel:
    xs, ys = _clipped(curve, top)
    length, value = curve[-1]
    text = words.wrapped(row.label, 28 if wide else 18)
    number = words.perplexity(math.log(value))
    where = f" at {length:,}" if wide else ""
    text += f" \N{UPWARDS ARROW} {number}{where}" if value > top else f" {number}"
    return EndLabel(xs[-1], ys[-1], text, theme.family(row.family), beside=value > top)


def _axes(axes: Axes, rows: list[Row], protocol: str, theme: Theme) -> None:
    lengths = sorted({n for row in rows for n in row.lengths})
    train = rows[0].train_length
    axes.set_xscale("log", base=2)
    axes.set_yscale("log")
    dress(axes, theme)
    axes.xaxis.set_major_locator(FixedLocator(lengths))
    axes.xaxis.set_minor_locator(NullLocator())
    axes.xaxis.set_major_formatter(FuncFormatter(lambda x, _: f"{x:,.0f}\n{words.multiple(round(x), train)}"))
    axes.yaxis.set_major_locator(MaxNLocator(7, steps=[1, 2, 2.5, 5, 10]))
    axes.yaxis.set_minor_locator(NullLocator())
    axes.yaxis.set_major_formatter(FuncFormatter(lambda y, _: f"{y:,.4g}"))
    axes.axvline(train, color=theme.muted, linewidth=1.0, linestyle=(0, (2, 2)), zorder=1)
    axes.set_xlim(lengths[0] * 0.88, lengths[-1] * 1.03)
    axes.axvspan(train, lengths[-1] * 1.03, color=theme.shade, zorder=0, linewidth=0)
    axes.text(
        train,
        1.015,
        "trained at this length",
        transform=axes.get_xaxis_transform(),
        fontsize=SMALL,
        color=theme.muted,
    )
    axes.set_xlabel("evaluation length in tokens")
    title(axes, f"perplexity, {PROTOCOLS[protocol]}", theme, pad=17)


PROTOCOLS = {"disjoint": "non-overlapping windows", "sliding": "sliding windows"}
