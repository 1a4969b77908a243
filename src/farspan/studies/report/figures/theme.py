"""Colours and line styles. Hue says the family of the pattern, dash and marker say the schedule.

Hues follow Okabe and Ito's colour-blind-safe set, darkened for paper and lightened for a dark page so that
each keeps a contrast above 3:1; no figure relies on hue alone.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from farspan.studies.report.rows import Row


@dataclass(frozen=True)
class Theme:
    """Colours of one rendition. `surface` is what lies behind the figure."""

    ink: str
    muted: str
    grid: str
    shade: str
    surface: str
    heat: str
    families: Mapping[str, str]

    def family(self, name: str) -> str:
        return self.families.get(name, self.families["other"])


LIGHT = Theme(
    ink="#1b1d21",
    muted="#5c626d",
    grid="#dfe2e7",
    shade="#f3f4f6",
    surface="#ffffff",
    heat="#1f5fa8",
    families={
        "dense": "#1b1d21",
        "window": "#00795a",
        "fibonacci": "#0b62b0",
        "powers": "#c24a00",
        "other": "#8f3f86",
    },
)
DARK = Theme(
    ink="#e8eaee",
    muted="#a2a9b5",
    grid="#333841",
    shade="#1d2026",
    surface="#14161a",
    heat="#2f74c4",
    families={
        "dense": "#e8eaee",
        "window": "#3fcf9f",
        "fibonacci": "#6bb3ff",
        "powers": "#ff9a52",
        "other": "#e49bdb",
    },
)

# An inline figure follows the page: it is drawn in marker colours that become CSS variables.
_MARKERS = {
    "ink": "#01f001",
    "muted": "#01f002",
    "grid": "#01f003",
    "shade": "#01f004",
    "surface": "#01f005",
    "heat": "#01f006",
    "dense": "#01f007",
    "window": "#01f008",
    "fibonacci": "#01f009",
    "powers": "#01f00a",
    "other": "#01f00b",
}
CSS_VARIABLES = {colour: f"var(--{name})" for name, colour in _MARKERS.items()}
INLINE = Theme(
    ink=_MARKERS["ink"],
    muted=_MARKERS["muted"],
    grid=_MARKERS["grid"],
    shade=_MARKERS["shade"],
    surface=_MARKERS["surface"],
    heat=_MARKERS["heat"],
    families={name: _MARKERS[name] for name in LIGHT.families},
)


def css_values(theme: Theme) -> dict[str, str]:
    """The value of every CSS variable that an inline figure uses."""
    plain = {k: getattr(theme, k) for k in ("ink", "muted", "grid", "shade", "surface", "heat")}
    return {**plain, **theme.families}


_SCHEDULES: dict[str, dict[str, Any]] = {
    "fixed": {"linestyle": (0, (4, 1.6)), "marker": "s"},
    "stagger": {"linestyle": "-", "marker": "o"},
    "coprime": {"linestyle": (0, (5, 1.4, 1, 1.4)), "marker": "D"},
    "learned": {"linestyle": (0, (1.2, 1.2)), "marker": "^"},
}


def line_style(row: Row, theme: Theme, repeat: bool = False) -> dict[str, Any]:
    """Line properties of a row; `repeat` marks a second row of one family and schedule by hollow markers."""
    colour = theme.family(row.family)
    style = _SCHEDULES.get(row.schedule, {"linestyle": "-", "marker": "o" if row.family == "dense" else "v"})
    return {
        **style,
        "color": colour,
        "linewidth": 2.2 if row.family == "dense" else 1.5,
        "markersize": 4.2,
        "markerfacecolor": theme.surface if repeat else colour,
        "markeredgecolor": colour,
        "markeredgewidth": 1.0,
    }


def line_styles(rows: list[Row], theme: Theme) -> list[dict[str, Any]]:
    """The style of each row, in order."""
    seen: set[tuple[str, str]] = set()
    styles = []
    for row in rows:
        key = (row.family, row.schedule)
        styles.append(line_style(row, theme, repeat=key in seen))
        seen.add(key)
    return styles
