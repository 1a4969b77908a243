"""The table of `farspan pattern compare` and the pictures in text below it."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

from rich.console import Console
from rich.table import Column, Table

if TYPE_CHECKING:
    from farspan.patterns.coverage import Analysis
    from farspan.support import Support

DRAWN_WIDTH = 64


def print_comparison(stacks: dict[str, list[Support]], found: dict[str, Analysis]) -> None:
    """Prints the table, then for each pattern its mask and its reach, then path counts, notes and broken boundaries."""
    from farspan.patterns import drawing

    console = Console()
    length = next(iter(found.values())).length
    table = Table(
        Column("", no_wrap=True), *(Column(_stacked(text), justify="right", overflow="fold") for text in found)
    )
    for label, values in _rows(list(found.values())):
        table.add_row(label, *values)
    console.print(table)
    for text, stack in stacks.items():
        console.print(f"\n{text}: mask of the bottom layer", style="bold", highlight=False, markup=False)
        console.print(drawing.mask_text(stack[0], length, DRAWN_WIDTH // 2), highlight=False, markup=False)
        console.print("distances connected by the bottom layers, layer by layer", highlight=False)
        console.print(drawing.reach_text(found[text], DRAWN_WIDTH), highlight=False, markup=False)
    wide = min(max(console.width - max(map(len, found)) - 8, 16), DRAWN_WIDTH)
    console.print("\npaths through the whole stack, by distance", style="bold")
    console.print(drawing.paths_text(found, wide), highlight=False, markup=False)
    for text, one in found.items():
        for note in one.notes:
            console.print(f"{text}: {note}", highlight=False, markup=False)
        if broken := len(one.unread_neighbours):
            console.print(
                f"{text}: no layer reads the left neighbour of {broken:,} positions, first that of"
                f" {one.unread_neighbours[0]}: the two meet at no depth",
                style="yellow",
                highlight=False,
                markup=False,
            )


def _rows(found: list[Analysis]) -> list[tuple[str, list[str]]]:
    described = [one.to_dict() for one in found]

    def row(label: str, key: str, form: str = ",", of: str | None = None) -> tuple[str, list[str]]:
        """A missing number is "none" where what it is `of` is known, and unknown otherwise."""
        missing = ["none" if of is None or getattr(one, of) is not None else "not known" for one in found]
        return label, [
            word if one[key] is None else format(one[key], form) for word, one in zip(missing, described, strict=True)
        ]

    rows = [
        row("keys per query, mean", "keys_per_query", ".1f"),
        ("  least to most", [_span(one) for one in found]),
        row("distances read", "distances"),
        ("  longest", [f"{max(layer.reach for layer in one.layers):,}" for one in found]),
        row("  common factor", "common_factor"),
        row("reach of the stack", "reach", of="layers_needed"),
        row("depth to connect all", "depth", of="layers_needed"),
        row("steps to connect all", "steps", of="steps"),
        row("hops to connect all", "hops", of="hops"),
        row("distances unreachable", "unreachable", of="layers_needed"),
        row("neighbours that never meet", "unread_neighbours"),
        *[
            (f"tiles of {side} touched", [f"{one.tiles[side]:.1%}" for one in found])
            for side in found[0].layers[0].tiles
        ],
        ("pairs, all layers and heads", [_scaled(one["pairs"]) for one in described]),
        ("prefill FLOPs", [_scaled(one["flops"]) for one in described]),
        ("prefill KV read (bytes)", [_scaled(one["kv_bytes"]) for one in described]),
        ("decode FLOPs per token", [_scaled(one["decode_flops"]) for one in described]),
        ("decode KV read (bytes)", [_scaled(one["decode_kv_bytes"]) for one in described]),
        ("KV entries that may be dropped", [f"{1 - one['kv_held'] / one['length']:.1%}" for one in described]),
    ]
    return rows


def _stacked(text: str) -> str:
    """The arguments of a pattern below one another, for the head of a column."""
    return re.sub(r"[:,](?![^\[]*\])", "\n", text) if len(text) > 12 and not text.startswith("{") else text


def _span(found: Analysis) -> str:
    return f"{min(layer.keys.least for layer in found.layers):,} to {max(layer.keys.most for layer in found.layers):,}"


def _scaled(number: float) -> str:
    for unit in ("", "k", "M", "G", "T"):
        if number < 1000:
            return f"{number:.3g} {unit}".rstrip()
        number /= 1000
    return f"{number:.3g} P"
