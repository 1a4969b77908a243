"""The table of what a pattern's geometry predicts about copying."""

from __future__ import annotations

from farspan.studies.report import words
from farspan.studies.report.prediction import Prediction
from farspan.studies.report.tables.table import Column, Entry, Table


def prediction_table(found: list[Prediction]) -> Table | None:
    """One row a property; None where no finished cell has a static pattern."""
    if not found:
        return None
    body = [
        [
            Entry(one.name),
            Entry(str(one.cells)),
            Entry(words.signed(one.rho, 2), strong=one.low is not None and (one.low > 0 or (one.high or 0) < 0)),
            Entry(words.MISSING if one.low is None or one.high is None else words.interval(one.low, one.high, 2)),
        ]
        for one in found
    ]
    return Table(
        "prediction",
        "What the geometry of a pattern predicts",
        [
            Column("the accuracy at a distance goes with", number=False),
            Column("cells"),
            Column("Spearman's rho"),
            Column("95 % interval"),
        ],
        body,
        [
            "Over all patterns and distances of the shift-copy probe, without dense and learned ones. The interval is "
            "a bootstrap over distances. Bold: the interval leaves out nought."
        ],
    )
