"""`farspan pattern show` and `farspan pattern compare`."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer
from rich.console import Console

from farspan.cli.common import AsJson, progress_bar
from farspan.cli.pattern_table import print_comparison

if TYPE_CHECKING:
    from farspan.support import Support

PATTERN_OPTIONS = {"allow_extra_args": True, "ignore_unknown_options": True}
Layers = Annotated[int, typer.Option(min=1, help="Depth of the stack.")]
Heads = Annotated[int, typer.Option(min=1, help="Query heads.")]
Out = Annotated[Path | None, typer.Option(help="Draw it to this .png or .svg file.")]


def pattern_show(
    context: typer.Context,
    pattern: Annotated[
        str, typer.Argument(help="NAME, NAME:KEY=VALUE,... or a schedule file (.json).")
    ] = "fibonacci:window=13",
    layers: Layers = 16,
    heads: Heads = 8,
    length: Annotated[int, typer.Option(min=2, max=65_536, help="Tokens.")] = 256,
    out: Out = None,
) -> None:
    """Draw the mask of a pattern and what each layer of its schedule reads.

    Arguments of the pattern follow as options, --window 13, or as window=13; lists are spelled [1,2]. --schedule gives
    every layer its alpha. `farspan pattern compare` has its reach and its cost.

    Example: farspan pattern show fibonacci --window 13 --schedule stagger --length 256 --out stagger.png
    """
    from farspan.cli.spelling import assigned, layer_rules, parsed, stack_rules
    from farspan.patterns import drawing

    _check_out(out)
    given = assigned(_as_assignments(context.args))
    if pattern.endswith(".json"):
        if given:
            raise ValueError(f"a schedule file must go without further arguments, got {', '.join(given)}")
        written = stack_rules(pattern, layers, heads)
    else:
        rule = parsed(pattern)
        if twice := sorted(set(rule) & set(given)):
            raise ValueError(f"an argument of a pattern must be given once, got {twice[0]} twice")
        rule = _with_window(rule | given)
        written = layer_rules(rule, layers, heads)
    stack = _built(written, length)
    console = Console()
    keys = [_mean_pairs(support, length) / length for support in stack]
    density = sum(support.density(length, length) for support in stack) / len(stack)
    name = str(written[0]["pattern"])
    console.print(
        f"{name}, {length} tokens: {sum(keys) / len(keys):.1f} keys per query, density {density:.1%}\n",
        highlight=False,
    )
    console.print(drawing.mask_text(stack[0], length), highlight=False, markup=False)
    console.print(f"\nlayer │ distances read, {min(keys):.1f} to {max(keys):.1f} keys per query", highlight=False)
    console.print(drawing.schedule_text(stack, length), highlight=False, markup=False)
    if out is not None:
        from farspan.patterns.drawing.figures import picture

        picture(stack, length, _title(pattern, given)).savefig(out, dpi=160)
        console.print(f"{out}", soft_wrap=True)


def pattern_compare(
    patterns: Annotated[
        list[str], typer.Argument(help="Each is NAME, NAME:KEY=VALUE,..., JSON or a schedule file (.json).")
    ],
    length: Annotated[int, typer.Option(min=2, max=1_048_576, help="Tokens.")] = 1024,
    layers: Layers = 16,
    heads: Heads = 8,
    kv_heads: Annotated[int | None, typer.Option(min=1, help="Key heads. Default: the query heads.")] = None,
    head_dim: Annotated[int, typer.Option(min=1, help="Size of a head; keys and values are 2 bytes a number.")] = 64,
    out: Out = None,
    as_json: AsJson = False,
) -> None:
    """Put patterns side by side: keys, cost, and how many layers connect which distances by how many paths.

    Everything is computed from the definitions, nothing is run. `reach` is the distance up to which the stack connects
    everything, `depth` the layers that takes from the bottom, `steps` those that must move something; `hops` are steps
    if every layer read what any layer reads, at any depth.

    Example: farspan pattern compare fibonacci:window=13,schedule=stagger powers:window=13 sliding_window:window=22
    --length 1024 --out compared.png
    """
    from farspan.cli.spelling import stack_rules
    from farspan.patterns.coverage import analyse

    _check_out(out)
    if twice := sorted({text for text in patterns if patterns.count(text) > 1}):
        raise ValueError(f"patterns must differ, got {twice[0]} twice")
    kv_heads = heads if kv_heads is None else kv_heads
    written = {text: stack_rules(text, layers, heads) for text in patterns}
    stacks, found = {}, {}
    with progress_bar("analysing", hidden=as_json) as progress:
        for number, (text, rules_of_text) in enumerate(written.items()):
            progress(number, len(written))
            stacks[text] = _built(rules_of_text, length)
            found[text] = analyse(stacks[text], length, heads=heads, kv_heads=kv_heads, head_dim=head_dim)
    if out is not None:
        from farspan.patterns.drawing.figures import comparison

        comparison(stacks, found).savefig(out, dpi=160)
    if as_json:
        typer.echo(json.dumps({text: one.to_dict() for text, one in found.items()}))
        return
    print_comparison(stacks, found)
    if out is not None:
        Console().print(f"{out}", soft_wrap=True)


def _check_out(out: Path | None) -> None:
    if out is not None and (out.suffix.lower() not in (".png", ".svg") or out.is_dir()):
        raise ValueError(f"out must be a .png or .svg file, got {out}")


def _as_assignments(arguments: Sequence[str]) -> list[str]:
    """`--key value` and `--key=value` as `key=value`; what is that already stays."""
    found, rest = [], list(arguments)
    while rest:
        part = rest.pop(0)
        if not part.startswith("--"):
            found.append(part)
            continue
        key, equals, value = part.removeprefix("--").partition("=")
        if not equals:
            if not rest:
                raise ValueError(f"option {part} needs a value")
            value = rest.pop(0)
        found.append(f"{key.replace('-', '_')}={value}")
    return found


def _with_window(rule: dict[str, Any]) -> dict[str, Any]:
    """The window that patterns are shown with where none is given, if they need one."""
    import inspect

    from farspan.patterns.rules import PATTERNS

    family = PATTERNS.get(str(rule.get("pattern")))
    window = None if family is None else inspect.signature(family.build).parameters.get("window")
    return {"window": 13, **rule} if window is not None and window.default is window.empty else rule


def _built(written: list[dict[str, Any]], length: int) -> list[Support]:
    """The support of every layer; equal rules share theirs, so that they are analysed once."""
    from farspan.patterns import rules

    built: dict[str, Support] = {}
    stack = []
    for rule in written:
        key = json.dumps(rule, sort_keys=True)
        if key not in built:
            built[key] = rules.build(rule, length)
        stack.append(built[key])
    return stack


def _mean_pairs(support: Support, length: int) -> float:
    import torch

    return torch.as_tensor(support.pairs(length, length), dtype=torch.float64).mean().item()


def _title(pattern: str, given: dict[str, Any]) -> str:
    extra = [f"{key} {value}" for key, value in given.items()]
    return ", ".join([pattern.replace(":", ", ").replace("=", " "), *extra])


def pattern_gallery(
    folder: Annotated[Path, typer.Argument(help="Where the page (README.md) and its pictures go.")],
) -> None:
    """Write the gallery: every pattern of the registry with its picture, card, geometry and cost.

    Example: farspan pattern gallery docs/gallery
    """
    from farspan.patterns import gallery

    if folder.exists() and not folder.is_dir():
        raise ValueError(f"folder must be a folder or not exist, got the file {folder}")
    with progress_bar("drawing", hidden=False) as progress:
        page = gallery.write(folder, progress)[0]
    Console().print(f"{page}", soft_wrap=True)
