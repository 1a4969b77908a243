"""The figure of a copy probe."""

from __future__ import annotations

from functools import partial

from farspan.studies.report.figures.drawing import Drawing
from farspan.studies.report.figures.shift_copy import draw_heat_map
from farspan.studies.report.rows import ProbeRow

_TITLES = {
    "shift-copy": "Which distances a trained model copies from",
    "marked-copy": "Copying from two marked distances at once",
}


def probe_drawing(rows: list[ProbeRow], task: str) -> Drawing:
    """The heat map of one task."""
    counts = [
        f"{row.label}, {row.depth} layers: {len(row.solved())} of {len(row.accuracy)} distances above 0.9"
        for row in rows
    ]
    return Drawing(
        task,
        _TITLES[task],
        f"Heat map of copy accuracy, models by distance. {'; '.join(counts)}.",
        "Accuracy by distance, the fuller the colour the higher. A dot marks a distance that some layer reads "
        "directly, without adding up several layers. The last column counts distances above 0.9.",
        partial(draw_heat_map, rows),
    )
