"""From a study folder to its report."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from farspan.data.files import write_atomic
from farspan.studies.report import headline
from farspan.studies.report.claims import language_claims, probe_claims
from farspan.studies.report.compare import Comparer
from farspan.studies.report.figures.canvas import drawing, to_png
from farspan.studies.report.figures.drawing import Drawing
from farspan.studies.report.figures.language import language_drawings
from farspan.studies.report.figures.probe import probe_drawing
from farspan.studies.report.figures.theme import DARK, LIGHT
from farspan.studies.report.page import Page, picture, render
from farspan.studies.report.prediction import predictions
from farspan.studies.report.results import PROBES, read_study
from farspan.studies.report.rows import language_rows, probe_rows
from farspan.studies.report.summary import tables_markdown
from farspan.studies.report.tables.cells import provenance_tables, state_table
from farspan.studies.report.tables.cost import cost_table
from farspan.studies.report.tables.headline import headline_table
from farspan.studies.report.tables.prediction import prediction_table
from farspan.studies.report.tables.probe import probe_table
from farspan.studies.report.tables.results_csv import results_csv
from farspan.studies.report.tables.sliding import sliding_table

HEROES = ("perplexity-vs-length", "shift-copy")
"""The picture that stands beside what came out: the first of these that the study has."""


@dataclass(frozen=True)
class ReportPaths:
    """The files of a report; `top_picture` is for a README, and `NAME-dark.png` beside it for dark pages."""

    html: Path
    tables: Path
    csv: Path
    figures: tuple[Path, ...]
    top_picture: Path | None


def build(study_dir: Path) -> ReportPaths:
    """Writes `report.html`, `tables.md`, `results.csv` and `figures/*.png` into `study_dir`.

    Reads only the files of that folder and starts nothing; the same files give the same bytes. Cells that are
    not finished are listed with their state. Each file is replaced in one step, `report.html` last.

    Raises `ValueError` if the folder holds no study or no finished cell.
    """
    study_dir = Path(study_dir)
    study = read_study(study_dir)
    rows, comparer = language_rows(study), Comparer()
    probes = {task: found for task in PROBES if (found := probe_rows(study, task))}
    copy = probes.get("shift-copy", [])
    claims = (language_claims(study, rows, comparer) if rows else []) + (probe_claims(copy) if copy else [])
    drawings = language_drawings(rows, comparer) if rows else []
    drawings += [probe_drawing(found, task) for task, found in probes.items()]
    tables = [headline_table(rows, comparer), sliding_table(rows, comparer), cost_table(rows)] if rows else []
    tables += [probe_table(found, task) for task, found in probes.items()]
    tables += [prediction_table(predictions(copy))]
    hero = next((d for key in HEROES for d in drawings if d.key == key), None)
    page = Page(
        study=study,
        findings=headline.findings(rows, copy, claims, comparer),
        warnings=headline.warnings(rows),
        scale=headline.scale(study, rows, [row for found in probes.values() for row in found]),
        caveat=headline.caveat(rows),
        claims=claims,
        hero=picture(hero) if hero else None,
        pictures=[picture(d) for d in drawings if d is not hero],
        tables=[table for table in tables if table is not None],
        states=state_table(study),
        provenance=provenance_tables(study),
    )
    html = render(page)
    figures = _write_figures(study_dir / "figures", drawings, hero)
    paths = ReportPaths(
        html=study_dir / "report.html",
        tables=study_dir / "tables.md",
        csv=study_dir / "results.csv",
        figures=figures,
        top_picture=next((path for path in figures if hero and path.stem == hero.key), None),
    )
    write_atomic(paths.csv, results_csv(study))
    write_atomic(paths.tables, tables_markdown(page))
    write_atomic(paths.html, html)
    return paths


def _write_figures(folder: Path, drawings: list[Drawing], hero: Drawing | None) -> tuple[Path, ...]:
    """PNGs on white; the hero also on dark, for a README that follows its reader's theme."""
    paths = []
    for item in drawings:
        renditions = [(LIGHT, "")] + ([(DARK, "-dark")] if item is hero else [])
        for theme, suffix in renditions:
            path = folder / f"{item.key}{suffix}.png"
            with drawing():
                write_atomic(path, to_png(item.draw(theme, True), theme))
            paths.append(path)
    return tuple(paths)
