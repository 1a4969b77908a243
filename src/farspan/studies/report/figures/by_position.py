"""The figures of loss by position: their data, and what is said about them."""

from __future__ import annotations

import math
from collections.abc import Sequence
from functools import partial
from statistics import fmean

from farspan.studies.report import words
from farspan.studies.report.compare import Comparer, NotComparable
from farspan.studies.report.figures.drawing import Drawing
from farspan.studies.report.figures.perplexity import highlighted
from farspan.studies.report.figures.position import Profile, draw_position_differences, draw_position_loss
from farspan.studies.report.kinds import Kind
from farspan.studies.report.rows import Row

MOST_PANELS = 12


def position_loss(rows: list[Row]) -> Drawing | None:
    """Mean loss by context at the longest length, or None without position bins."""
    profiles = [p for row in highlighted(rows) if (p := _profile(row)) is not None]
    if not profiles:
        return None
    ends = "; ".join(f"{p.row.label} {p.value[-1]:.3f}" for p in profiles)
    return Drawing(
        "loss-by-position",
        "Loss by position",
        f"Line chart of mean loss against tokens of context, by model. At the longest context: {ends}.",
        "Mean loss of held-out tokens by how many tokens came before them in the window, in windows of "
        f"{rows[0].longest or rows[0].train_length:,} tokens; the shaded part is context that training "
        "never showed. "
        "The steep start is cut off. A bin holds other tokens than its neighbour, so its height is also the "
        "text's: "
        "compare models, not bins.",
        partial(draw_position_loss, profiles),
    )


def _profile(row: Row) -> Profile | None:
    bins = [cell.result["position_bins"] for cell in row.cells if cell.result.get("position_bins")]
    if not bins:
        return None
    edges: Sequence[int] = bins[0]["edges"]
    means = [fmean(v) if None not in v else None for v in zip(*(b["nll"] for b in bins), strict=True)]
    kept = [(i, mean) for i, mean in enumerate(means) if mean is not None]
    if not kept:
        return None
    return Profile(row, [*(edges[i] for i, _ in kept), edges[kept[-1][0] + 1]], [mean for _, mean in kept])


def baseline(rows: list[Row]) -> Row:
    """What losses by position are measured against: a fixed Fibonacci spacing, else dense, else the first."""
    fixed = [row for row in rows if row.kind == Kind("fibonacci", "fixed")]
    dense = [row for row in rows if row.family == "dense"]
    return (fixed or dense or rows)[0]


def position_differences(rows: list[Row], comparer: Comparer) -> Drawing | None:
    """Paired differences to the baseline by context, or None where nothing can be compared."""
    base = baseline(rows)
    profiles = [p for row in highlighted(rows) if row is not base and (p := _difference(row, base, comparer))]
    if not profiles:
        return None
    shown = profiles[:MOST_PANELS]
    ends = "; ".join(f"{p.row.label} {words.signed(p.value[-1])}" for p in shown)
    left = len(profiles) - len(shown)
    return Drawing(
        "loss-differences",
        f"Where the loss differs from {base.label}",
        f"Small line charts of the difference in loss to {base.label} by tokens of context. At the longest "
        "context: "
        f"{ends}.",
        f"Difference in nats a token to {base.label} on the same tokens, by context; below zero is better. "
        "Bands are "
        "95 % paired bootstrap intervals; an arrow gives a value beyond the axis, which fits contexts of "
        "eight "
        "tokens and more." + (f" {left} more models are not drawn." if left else ""),
        partial(draw_position_differences, shown),
    )


def _difference(row: Row, base: Row, comparer: Comparer) -> Profile | None:
    bins = base.first.get("position_bins")
    if not bins or row.longest != base.longest:
        return None
    try:
        compared = comparer.bins(row, base, base.longest, bins["edges"])
    except NotComparable:
        return None
    kept = [(b.begin, b.end, b.comparison) for b in compared if b.comparison is not None]
    return Profile(
        row,
        [*(begin for begin, _, _ in kept), kept[-1][1]],
        [c.difference for _, _, c in kept],
        [math.nan if c.low is None else c.low for _, _, c in kept],
        [math.nan if c.high is None else c.high for _, _, c in kept],
    )
