"""The figures of the language cells."""

from __future__ import annotations

from functools import partial

from farspan.studies.report import words
from farspan.studies.report.compare import Comparer
from farspan.studies.report.figures.alpha import alphas, draw_alphas
from farspan.studies.report.figures.by_position import position_differences, position_loss
from farspan.studies.report.figures.drawing import Drawing
from farspan.studies.report.figures.perplexity import draw_perplexity, highlighted
from farspan.studies.report.figures.schedule import Schedule, draw_schedules
from farspan.studies.report.figures.speed import draw_speed
from farspan.studies.report.figures.training import draw_training, loss_curve
from farspan.studies.report.kinds import Kind, family
from farspan.studies.report.rows import Row, evaluated_lengths

MOST_SCHEDULES = 12


def language_drawings(rows: list[Row], comparer: Comparer) -> list[Drawing]:
    """In reading order; a figure without data is left out."""
    drawings = [
        _perplexity(rows, "disjoint"),
        _perplexity(rows, "sliding"),
        position_loss(rows),
        position_differences(rows, comparer),
        _alpha(rows),
        _schedules(rows),
        _speed(rows),
        _training(rows),
    ]
    return [drawing for drawing in drawings if drawing is not None]


_PROTOCOLS = {
    "disjoint": (
        "perplexity-vs-length",
        "Perplexity against evaluation length",
        "Non-overlapping windows, as in the paper: longer windows have fewer tokens with little context, which alone "
        "lowers perplexity.",
    ),
    "sliding": (
        "perplexity-sliding",
        "Perplexity against evaluation length, sliding windows",
        "Half-overlapping windows: nearly every token keeps at least half a window of context, so the early tokens "
        "of a window count for little.",
    ),
}


def _perplexity(rows: list[Row], protocol: str) -> Drawing | None:
    if not any(row.nll(protocol, n) is not None for row in rows for n in row.lengths):
        return None
    key, title, says = _PROTOCOLS[protocol]
    named = highlighted(rows, protocol)
    points = [
        f"{row.label} " + ", ".join(f"{words.perplexity(row.nll(protocol, n))} at {n}" for n in row.lengths)
        for row in named
    ]
    left = len(rows) - len(named)
    return Drawing(
        key,
        title,
        f"Line chart of perplexity against evaluation length, training length {rows[0].train_length}. "
        f"{'; '.join(points)}.",
        f"{says} Logarithmic axes; numbers are perplexities at the longest length, an arrow marks a line that leaves "
        "the axis." + (f" Thin lines are the {left} other models." if left else ""),
        partial(draw_perplexity, rows, protocol),
    )


def _alpha(rows: list[Row]) -> Drawing | None:
    entries = alphas(rows)
    if not entries:
        return None
    moved = [f"{e.name}: largest move {e.movement:.3f}" for e in entries if e.movement is not None]
    values = [f"{e.name}: {', '.join(f'{a:.2f}' for a in e.final)}" for e in entries]
    return Drawing(
        "alpha",
        "Alpha of each layer",
        f"Small charts of alpha by layer. {'; '.join(values)}.",
        "What stretches the base sequence, layer by layer, first seed; 1 leaves it as it is."
        + (f" Learned alphas run from a ring (initial) to a dot (final). {'; '.join(moved)}." if moved else ""),
        partial(draw_alphas, entries),
    )


def _schedules(rows: list[Row]) -> Drawing:
    shown, note = rows, ""
    if len(rows) > MOST_SCHEDULES:
        first: dict[Kind, Row] = {}
        for row in rows:
            first.setdefault(row.kind, row)
        shown = list(first.values())
        note = f" One window of each family and schedule is drawn, {len(shown)} of {len(rows)} models."
    schedules = [
        Schedule(
            row.label,
            row.family,
            [None if family(x["pattern"]) == "dense" else sorted(x["slashes"]) for x in row.first["layers"]],
        )
        for row in shown
    ]
    reads = "; ".join(f"{schedule.label}: {_distances(schedule)}" for schedule in schedules)
    return Drawing(
        "schedules",
        "What each layer reads",
        f"Small charts of the distances each layer reads, layers downward. {reads}.",
        "Layers downward, distance from the query to the right (logarithmic): a bar is the window, a tick one "
        f"distance beyond it. The dotted line is the training length.{note}",
        partial(draw_schedules, schedules, evaluated_lengths(rows)[-1], rows[0].train_length),
    )


def _distances(schedule: Schedule) -> str:
    sparse = [set(layer) for layer in schedule.layers if layer is not None]
    if len(sparse) < len(schedule.layers):
        return "every distance"
    union = set().union(*sparse)
    return f"{len(union)} distances over all layers, the largest {max(union, default=0)}"


def _speed(rows: list[Row]) -> Drawing | None:
    timed = [(row.label, speed) for row in rows if (speed := row.mean("train_tokens_per_second")) is not None]
    if not timed:
        return None
    return Drawing(
        "speed",
        "Training speed",
        f"Bar chart of training tokens per second. {'; '.join(f'{k} {v:,.0f}' for k, v in timed)}.",
        "Training tokens per second, mean over seeds, on the machine named under Provenance.",
        partial(draw_speed, rows),
    )


def _training(rows: list[Row]) -> Drawing | None:
    curves = [curve for row in highlighted(rows) if (curve := loss_curve(row)) is not None]
    if not curves:
        return None
    ends = "; ".join(f"{curve.row.label} {curve.loss[-1]:.2f}" for curve in curves)
    return Drawing(
        "training-loss",
        "Training loss",
        f"Line chart of training loss against training tokens. At the end: {ends}.",
        "Loss on the training batches, first seed, averaged over short stretches; all models see the same batches in "
        "the same order. The steep start is cut off.",
        partial(draw_training, curves),
    )
