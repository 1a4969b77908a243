"""Does a learned alpha move?"""

from __future__ import annotations

from statistics import fmean

from farspan.studies.report import words
from farspan.studies.report.claims.book import Book
from farspan.studies.report.claims.verdicts import Claim, Finding, Verdict
from farspan.studies.report.kinds import Kind
from farspan.studies.report.rows import Row

MOVED = 0.05
"""A tenth of the 0.5 that a stagger spans on either side of 1: with less, a learned alpha has not moved."""


def learned_stays(book: Book) -> Claim:
    """The paper: the gradient of a spacing reaches one position, so alpha stays where it starts."""
    learned = Kind("fibonacci", "learned")
    findings = tuple(_movement(row) for row in book.find(learned) if row.first.get("alphas"))
    return Claim(
        "learned-stays",
        "A learned alpha hardly moves from where it starts",
        f"Shows if no layer's alpha moved by {MOVED} or more in any seed, a tenth of the 0.5 that a stagger spans on "
        "either side of 1.",
        findings or book.missing(learned),
    )


def _movement(row: Row) -> Finding:
    moves = [
        (abs(end - start), layer, start, end)
        for cell in row.cells
        if (alphas := cell.result.get("alphas"))
        for layer, (start, end) in enumerate(zip(alphas["initial"], alphas["final"], strict=True), start=1)
    ]
    most, layer, start, end = max(moves)
    mean = fmean(move for move, *_ in moves)
    text = (
        f"{words.name(row.label)}: the largest move is {most:.3f} (layer {layer}, {start:.3f} to {end:.3f}), the mean "
        f"move {mean:.3f}, over {words.plural(len(moves), 'layer')} in {words.plural(len(row.cells), 'seed')}."
    )
    return Finding(Verdict.SHOWS if most < MOVED else Verdict.NOT, text, f"{words.name(row.label)} {most:.3f}", most)
