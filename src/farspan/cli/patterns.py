"""`farspan pattern`: look at patterns, compare them and design them."""

from __future__ import annotations

import json
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, cast

import typer
from rich.console import Console
from rich.table import Column, Table

from farspan.cli.common import AsJson, progress_bar
from farspan.cli.pattern_views import PATTERN_OPTIONS, pattern_compare, pattern_gallery, pattern_show

if TYPE_CHECKING:
    from farspan.patterns.objectives import Objective

pattern_app = typer.Typer(no_args_is_help=True, help="Look at patterns.")


pattern_app.command("show", context_settings=PATTERN_OPTIONS)(pattern_show)
pattern_app.command("compare")(pattern_compare)
pattern_app.command("gallery")(pattern_gallery)


@pattern_app.command("design")
def pattern_design(
    layers: Annotated[int, typer.Option(min=1)] = 16,
    keys: Annotated[int, typer.Option(min=2, help="Distances that each layer reads, the window included.")] = 24,
    reach: Annotated[int, typer.Option(min=2, max=1_048_576, help="Connect every distance up to this.")] = 8192,
    objective: Annotated[
        str, typer.Option(help="hops: few layers to any distance; coverage: many read directly; paths: many paths.")
    ] = "hops",
    tiles: Annotated[
        int | None, typer.Option(min=2, help="Read whole tiles of so many tokens; --keys and --window count tiles.")
    ] = None,
    window: Annotated[int | None, typer.Option(min=1, help="Nearest keys read. Default: half of --keys.")] = None,
    seed: Annotated[int, typer.Option(min=0)] = 0,
    steps: Annotated[int, typer.Option(min=0, help="Moves that the search tries.")] = 100_000,
    out: Annotated[Path | None, typer.Option(help="Write the schedule to this .json file.")] = None,
    as_json: AsJson = False,
) -> None:
    """Search the distances of every layer under a budget, and show them beside known schedules at equal pairs.

    The file goes into `farspan train --schedule-file` and, as rule = { file = "designed.json" }, into the arms of a
    study.

    Example: farspan pattern design --layers 16 --keys 24 --reach 8192 --objective hops --out designed.json
    """
    from farspan.patterns.design import design
    from farspan.patterns.design_controls import compared
    from farspan.studies import schedule_file

    if out is not None and (out.suffix != ".json" or out.is_dir()):
        raise ValueError(f"out must be a .json file, got {out}")
    with progress_bar("searching", hidden=as_json) as progress:
        found = design(
            layers,
            keys,
            reach,
            cast("Objective", objective),
            window=window,
            tile=tiles or 1,
            seed=seed,
            steps=steps,
            progress=progress,
        )
    rows = compared(found)
    if out is not None:
        schedule_file.write(out, found, steps)
    if as_json:
        shown = {"rules": found.rules(), "method": found.method, "compared": [asdict(row) for row in rows]}
        typer.echo(json.dumps(shown | {"file": None if out is None else str(out)}))
        return
    console = Console()
    unequal = [row.name for row in rows if abs(row.pairs - rows[0].pairs) >= 1]
    unit = "key" if tiles is None else f"tile of {tiles}"
    table = Table(
        Column("schedule", no_wrap=True),
        "window",
        "pairs",
        "read directly",
        "most hops",
        "mean hops",
        "coverage",
        "paths",
        highlight=False,
    )
    for row in rows:
        table.add_row(
            row.name,
            f"{row.window}",
            f"{row.pairs:.2f}" + ("" if row.name not in unequal else " *"),
            f"{row.read:,}",
            "some never" if row.largest_hops is None else f"{row.largest_hops}",
            f"{row.mean_hops:.3f}",
            f"{row.scores['coverage']:.4f}",
            f"{row.scores['paths']:.3f}",
        )
    console.print(table)
    console.print(
        f"Distances up to {found.reach:,}, one {unit} each; pairs are per query and layer. Searched for {objective} "
        f"({found.method}). Paths are log10 of their number to the worst distance, the mean over octaves.",
        highlight=False,
    )
    if unequal:
        console.print("* Not at equal pairs: no window brings this schedule's pairs to those of the design.")
    if out is not None:
        console.print(f"{out}", soft_wrap=True)
