"""`farspan pattern`: look at patterns, compare them and design them."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any

import typer
from rich.console import Console

pattern_app = typer.Typer(no_args_is_help=True, help="Look at patterns.")


@pattern_app.command("show")
def pattern_show(
    pattern: Annotated[str, typer.Argument(help="sliding_window, fibonacci, powers or powers_grown.")] = "fibonacci",
    window: Annotated[int, typer.Option(max=65_536, help="Nearest keys read, the query included.")] = 13,
    rungs: Annotated[int | None, typer.Option(max=1000, help="Fibonacci numbers stretched.")] = None,
    schedule: Annotated[str | None, typer.Option(help="fixed, stagger or coprime.")] = None,
    layers: Annotated[int, typer.Option(min=1)] = 16,
    length: Annotated[int, typer.Option(min=2, max=65_536, help="Tokens.")] = 256,
    out: Annotated[Path | None, typer.Option(help="Also draw it to this .png or .svg file.")] = None,
) -> None:
    """Draw the mask of a pattern and what each layer of its schedule reads.

    Example: farspan pattern show fibonacci --window 13 --schedule stagger --length 256 --out stagger.png
    """
    from farspan.patterns import drawing, rules

    if out is not None and (out.suffix.lower() not in (".png", ".svg") or out.is_dir()):
        raise ValueError(f"out must be a .png or .svg file, got {out}")
    rule: dict[str, Any] = {"pattern": pattern, "window": window} | ({} if rungs is None else {"rungs": rungs})
    written = rules.over_depth(rule, layers, 1, schedule)
    lines = [rules.build(one, length) for one in written]
    console = Console()
    counts = [one.pairs(length, length) for one in lines]
    mean = sum(int(count) for count in counts) / len(counts)
    density = sum(one.density(length, length) for one in lines) / len(lines)
    console.print(
        f"{pattern}, {length} tokens: {mean / length:.1f} keys per query, density {density:.1%}\n",
        highlight=False,
    )
    console.print(drawing.mask_text(lines[0], length), highlight=False, markup=False)
    console.print(f"\nlayer │ distances read, {min(counts) / length:.1f} to {max(counts) / length:.1f} keys per query")
    console.print(drawing.schedule_text(lines, length), highlight=False, markup=False)
    if out is not None:
        drawing.picture(lines, length, f"{pattern}, window {window}" + (f", {schedule}" if schedule else "")).savefig(
            out, dpi=160
        )
        console.print(f"{out}", soft_wrap=True)
