"""The command line: a thin face on the library."""

from __future__ import annotations

import json
import math
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import asdict
from pathlib import Path
from typing import Annotated, Any

import typer
from rich.console import Console
from rich.table import Column, Table

from farspan.cli.common import AsJson, progress_bar
from farspan.cli.patterns import pattern_app

app = typer.Typer(
    no_args_is_help=True,
    add_completion=False,
    rich_markup_mode="rich",
)
study_app = typer.Typer(no_args_is_help=True, help="Run a grid of matched models and report on it.")
eval_app = typer.Typer(no_args_is_help=True, help="Judge a trained model.")
app.add_typer(study_app, name="study")
app.add_typer(pattern_app, name="pattern")
app.add_typer(eval_app, name="eval")

Root = Annotated[Path, typer.Option("--runs", help="Folder that holds the runs.")]
StudyName = Annotated[
    str,
    typer.Argument(
        help="A shipped study (mini, small, shift-copy, zoo-mini, windows, depth, design, paper) or a TOML file."
    ),
]


def main() -> None:
    """Entry point: bad input ends in one sentence and exit code 2."""
    try:
        app()
    except (ValueError, TypeError, OSError, OverflowError, FloatingPointError) as error:
        Console(stderr=True).print(f"farspan: {error}", style="red", markup=False, highlight=False, soft_wrap=True)
        sys.exit(2)


@contextmanager
def _resumable() -> Iterator[None]:
    """Ctrl-C in a long command ends it in one sentence and exit code 130."""
    try:
        yield
    except KeyboardInterrupt:
        Console(stderr=True).print("\nfarspan: interrupted; run the same command again to continue", style="yellow")
        raise typer.Exit(130) from None


def _version(asked: bool) -> None:
    if asked:
        import farspan

        typer.echo(farspan.__version__)
        raise typer.Exit


@app.callback()
def options(
    version: Annotated[bool, typer.Option("--version", callback=_version, is_eager=True, help="Print the version.")] = (
        False
    ),
) -> None:
    """Sparse attention for PyTorch: design patterns, train and test models with them, see what each costs."""


@study_app.command("run")
def study_run(
    study: StudyName,
    runs: Root = Path("runs"),
    jobs: Annotated[int | None, typer.Option(min=1, help="Cells at a time. Default: what the cores allow.")] = None,
    retry_failed: Annotated[bool, typer.Option("--retry-failed", help="Run failed cells again.")] = False,
) -> None:
    """Train and evaluate every cell of a study. Finished cells are kept, interrupted ones go on where they were.

    Example: farspan study run mini
    """
    from farspan.studies.runner import run_study
    from farspan.studies.schema import load

    loaded = load(study)
    with _resumable():
        states = run_study(loaded, runs, jobs=jobs, retry_failed=retry_failed)
    missing = [state for state in states if state.state != "finished"]
    if missing:
        listed = ", ".join(f"{state.cell.id} ({state.state})" for state in missing)
        raise ValueError(f"{len(missing)} of {len(states)} cells have no result: {listed}")
    Console().print(f"All {len(states)} cells have results. Next: farspan study report {study}")


@study_app.command("status")
def study_status(study: StudyName, runs: Root = Path("runs"), as_json: AsJson = False) -> None:
    """Show where every cell of a study stands. Starts nothing.

    Example: farspan study status mini
    """
    from farspan.studies.runner import states
    from farspan.studies.schema import load

    rows = states(load(study), runs)
    if as_json:
        typer.echo(
            json.dumps(
                [{"cell": r.cell.id, "state": r.state, "step": r.step, "steps": r.cell.recipe.steps} for r in rows]
            )
        )
        return
    table = Table(Column("cell", no_wrap=True), "state", "step", Column(overflow="fold"))
    for row in rows:
        table.add_row(row.cell.id, row.state, f"{row.step}/{row.cell.recipe.steps}", row.detail)
    Console().print(table)


@study_app.command("report")
def study_report(study: StudyName, runs: Root = Path("runs")) -> None:
    """Write report.html, tables.md, results.csv and figures from what the cells have left. Starts nothing.

    Example: farspan study report mini
    """
    from farspan.studies.report import build

    name = Path(study).stem if study.endswith(".toml") else study
    paths = build(runs / name)
    Console().print(f"{paths.html}", soft_wrap=True)


@study_app.command("correlation")
def study_correlation(study: StudyName, runs: Root = Path("runs"), as_json: AsJson = False) -> None:
    """Rank correlation of a study's shift-copy accuracy with hops and path counts of its patterns. Starts nothing.

    Example: farspan study correlation shift-copy
    """
    from farspan.studies.report.prediction import predictions
    from farspan.studies.report.results import read_study
    from farspan.studies.report.rows import probe_rows

    name = Path(study).stem if study.endswith(".toml") else study
    found = predictions(probe_rows(read_study(runs / name), "shift-copy"))
    if not found:
        raise ValueError(f"{name} has no finished shift-copy cell with a static pattern")
    if as_json:
        typer.echo(json.dumps([asdict(one) for one in found]))
        return
    table = Table("accuracy at a distance goes with", "cells", "Spearman's rho", "95 % interval")
    for one in found:
        known = one.rho is not None and one.low is not None and one.high is not None
        table.add_row(
            one.name,
            f"{one.cells}",
            f"{one.rho:+.2f}" if known else "",
            f"{one.low:+.2f} to {one.high:+.2f}" if known else "all equal",
        )
    Console().print(table)


@app.command()
def train(
    name: Annotated[str, typer.Argument(help="Name of the run; its folder is RUNS/NAME.")],
    pattern: Annotated[
        str | None,
        typer.Option(
            help="dense, sliding_window, fibonacci, powers, powers_grown, learned_spacing. Default fibonacci."
        ),
    ] = None,
    schedule_file: Annotated[
        Path | None, typer.Option(help="The rules of all layers, from `farspan pattern design --out`.")
    ] = None,
    window: Annotated[int | None, typer.Option(help="Nearest keys read, the query included. Default 13.")] = None,
    rungs: Annotated[int | None, typer.Option(help="Fibonacci numbers stretched. Default 15.")] = None,
    schedule: Annotated[
        str | None, typer.Option(help="fixed, stagger or coprime. Default: stagger for fibonacci.")
    ] = None,
    seed: Annotated[int, typer.Option()] = 42,
    settings: Annotated[
        list[str] | None,
        typer.Option(
            "--set",
            help="Any setting of a language study, as KEY=VALUE: recipe.tokens=1000000, model.layers=8.",
        ),
    ] = None,
    runs: Root = Path("runs"),
) -> None:
    """Train one model by the recipe of the Fibonacci paper (16 layers, 426M tokens) or a smaller one, and test it.

    Example: farspan train try --set recipe.tokens=400000 --set recipe.batch_tokens=2048 --set recipe.length=256
    --set recipe.warmup_steps=20 --set recipe.learning_rate=2e-3 --set model.hidden_size=112 --set model.layers=8
    --set model.heads=4 --set model.head_dim=32 --set data.vocab_size=2048 --set evaluation.tokens=16385
    """
    from farspan.studies.runner import run_study
    from farspan.studies.single import single

    if schedule_file is None:
        rule = _rule(pattern or "fibonacci", window, rungs, schedule)
    else:
        others = {"pattern": pattern, "window": window, "rungs": rungs, "schedule": schedule}
        if given := [other for other, value in others.items() if value is not None]:
            raise ValueError(f"--schedule-file holds the rules of all layers, so it goes without --{given[0]}")
        rule = {"file": str(schedule_file)}
    study = single(name, rule, seed, settings or [])
    with _resumable():
        state = run_study(study, runs, retry_failed=True)[0]
    if state.state != "finished":
        raise ValueError(f"{state.cell.id} has no result ({state.state}): {state.detail}")
    result = json.loads((state.folder / "result.json").read_text())
    table = Table("length", *(f"perplexity, {protocol}" for protocol in result["perplexity"]))
    for length in next(iter(result["perplexity"].values())):
        table.add_row(length, *(f"{lengths[length]['ppl']:.2f}" for lengths in result["perplexity"].values()))
    Console().print(table)
    Console().print(f"{state.folder / 'model'}", soft_wrap=True)


def _rule(pattern: str, window: int | None, rungs: int | None, schedule: str | None) -> dict[str, Any]:
    rule: dict[str, Any] = {"pattern": pattern}
    if window is not None or pattern in (
        "fibonacci",
        "powers",
        "powers_grown",
        "learned_spacing",
        "sliding_window",
    ):
        rule["window"] = 13 if window is None else window
    if rungs is not None:
        rule["rungs"] = rungs
    if schedule is not None or pattern == "fibonacci":
        rule["schedule"] = schedule or "stagger"
    return rule


@eval_app.command("perplexity")
def eval_perplexity(
    model: Annotated[
        str, typer.Argument(help="A folder with a transformers causal LM, or the name of one on the hub.")
    ],
    lengths: Annotated[str, typer.Option(help="Window lengths in tokens.")] = "256,512,1024,2048",
    train_length: Annotated[int | None, typer.Option(min=1, help="Default: the model's max_position_embeddings.")] = (
        None
    ),
    text: Annotated[str, typer.Option(help="A corpus: python-stdlib, or a file or folder.")] = "python-stdlib",
    tokens: Annotated[int | None, typer.Option(min=2, help="Held-out tokens scored. Default: up to 65537.")] = None,
    as_json: AsJson = False,
) -> None:
    """Perplexity of any causal LM at several lengths, by both protocols, with the context that each token had.

    Example: farspan eval perplexity runs/mini/cells/dense-seed42/model --lengths 256,1024
    """
    from farspan.evaluation.checkpoint import checkpoint_perplexity
    from farspan.studies.runner import quiet

    quiet()
    wanted = [_integer(part, "lengths") for part in lengths.split(",")]
    with progress_bar("scoring", hidden=as_json) as progress:
        found = checkpoint_perplexity(
            model, wanted, corpus=text, tokens=tokens, train_length=train_length, progress=progress
        )
    if as_json:
        typer.echo(json.dumps({"model": model, **found}))
        return
    beyond_column = f"perplexity beyond {found['train_length']} tokens"
    table = Table("protocol", "length", "perplexity", "tokens", "mean context", beyond_column)
    for protocol, by_length in found["perplexity"].items():
        for length, entry in by_length.items():
            beyond = "" if entry["beyond_nll"] is None else f"{math.exp(entry['beyond_nll']):.2f}"
            table.add_row(
                protocol,
                length,
                f"{entry['ppl']:.2f}",
                f"{entry['tokens']:,}",
                f"{entry['mean_context']:.0f}",
                beyond,
            )
    Console().print(table)


@app.command()
def doctor(as_json: AsJson = False) -> None:
    """Say what this machine can run, and for what is missing, why and how to get it.

    Example: farspan doctor
    """
    from farspan import doctor as diagnosis

    report = diagnosis.report()
    if as_json:
        typer.echo(json.dumps(report.to_dict()))
    else:
        diagnosis.render(report)


def _integer(text: str, name: str) -> int:
    try:
        return int(text)
    except ValueError:
        raise ValueError(f"{name} must be integers separated by commas, got {text!r}") from None
