"""The self-contained page."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from jinja2 import Environment, FileSystemLoader, StrictUndefined
from markupsafe import Markup

from farspan.studies.report.claims import Claim, Verdict
from farspan.studies.report.figures.canvas import drawing, to_svg
from farspan.studies.report.figures.drawing import Drawing
from farspan.studies.report.figures.theme import DARK, INLINE, LIGHT, css_values
from farspan.studies.report.results import STATES, Study
from farspan.studies.report.tables.table import Table

_TEMPLATES = Path(__file__).parent / "templates"
_SIGNS = {
    Verdict.SHOWS: ("shows", "\N{CHECK MARK}"),
    Verdict.NOT: ("not", "\N{MULTIPLICATION X}"),
    Verdict.UNDECIDED: ("undecided", "\N{ALMOST EQUAL TO}"),
    Verdict.UNTESTED: ("untested", "\N{EN DASH}"),
}


@dataclass(frozen=True)
class Picture:
    """A drawing as inline SVG in both renditions."""

    drawing: Drawing
    wide: Markup
    narrow: Markup


@dataclass(frozen=True)
class Page:
    """What the template shows."""

    study: Study
    findings: Sequence[str]
    warnings: Sequence[str]
    scale: Sequence[tuple[str, str]]
    caveat: str
    claims: Sequence[Claim]
    hero: Picture | None
    pictures: Sequence[Picture]
    tables: Sequence[Table]
    states: Table
    provenance: Sequence[Table]


def picture(item: Drawing) -> Picture:
    """Draws both renditions: the narrow one is what a phone shows."""
    with drawing():
        wide, narrow = (
            to_svg(item.draw(INLINE, is_wide), f"{item.key}-{name}", item.alt)
            for is_wide, name in ((True, "wide"), (False, "narrow"))
        )
    return Picture(item, Markup(wide), Markup(narrow))


def render(page: Page) -> str:
    """The HTML text; every label in it is escaped."""
    environment = Environment(
        loader=FileSystemLoader(_TEMPLATES),
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
        keep_trailing_newline=True,
    )
    counts = {state: sum(cell.state == state for cell in page.study.cells) for state in STATES}
    return environment.get_template("report.html").render(
        page=page,
        signs=_SIGNS,
        counts={state: number for state, number in counts.items() if number},
        complete=counts["finished"] == len(page.study.cells),
        light=css_values(LIGHT),
        dark=css_values(DARK),
    )
