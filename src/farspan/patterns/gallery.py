"""The gallery: a page with the picture, card, geometry and cost of every pattern, written from the code."""

from __future__ import annotations

import dataclasses
import inspect
import json
import os
from collections.abc import Callable, Iterator
from pathlib import Path

from farspan.patterns.coverage import Analysis, analyse
from farspan.patterns.examples import EXAMPLES, HEADS, LAYERS, LENGTH, Example

_INTRODUCTION = f"""# Gallery

Every static pattern that farspan ships: {LAYERS} layers, {HEADS} heads, {LENGTH:,} tokens, causal. Written by
`farspan pattern gallery docs/gallery`; nothing here is by hand. A picture shows the pairs of the first and the last
layer (all heads together, queries downwards) and the distances that each layer reads.

- *keys*: keys per query, mean over queries, heads and layers. Patterns can be compared at equal keys; these examples
  have what is natural for each.
- *reach*: the stack connects every distance up to this one. *depth*: layers, from the bottom, that connect all
  {LENGTH - 1:,} distances at every position; none where the stack does not.
- *hops*: the most keys in a row that a token must be passed along, if any layer could read any of the distances.
- *tiles*: share of the causal tiles of 64 x 64 that hold a pair, which is what a kernel of such tiles computes.
- *cache*: entries per key head that must be kept while decoding, mean over layers.
- *decode*: keys and values read for one token in all layers, in KiB (bf16, heads of 64).
- *broken*: neighbouring tokens that never meet, at any depth.
"""


def write(folder: Path, progress: Callable[[int, int], None] = lambda done, total: None) -> list[Path]:
    """Writes `README.md` and one PNG per example into `folder`, and returns the files, the page first.

    The page is put in place last and at once, so that a page that is there is whole.
    """
    from farspan.patterns.drawing.figures import picture

    folder.mkdir(parents=True, exist_ok=True)
    pictures, analyses = [], []
    for number, example in enumerate(EXAMPLES):
        progress(number, len(EXAMPLES))
        stack = example.stack()
        analyses.append(analyse(stack, LENGTH, heads=HEADS))
        pictures.append(folder / f"{example.slug}.png")
        picture(stack, LENGTH, example.title).savefig(pictures[-1], dpi=80)
    page = folder / "README.md"
    draft = folder / "README.md.part"
    draft.write_text("\n".join(_page(analyses)), encoding="utf-8")
    os.replace(draft, page)
    progress(len(EXAMPLES), len(EXAMPLES))
    return [page, *pictures]


def text() -> str:
    """The page, without drawing anything."""
    return "\n".join(_page([analyse(example.stack(), LENGTH, heads=HEADS) for example in EXAMPLES]))


def _page(analyses: list[Analysis]) -> Iterator[str]:
    yield _INTRODUCTION
    yield "| pattern | keys | reach | depth | hops | tiles | cache | decode | broken |"
    yield "|---|---:|---:|---:|---:|---:|---:|---:|---:|"
    for example, found in zip(EXAMPLES, analyses, strict=True):
        cells = [
            f"[{example.title}](#{_anchor(example.title)})",
            f"{found.keys_per_query:.1f}",
            _known(found.reach),
            _known(found.depth),
            "-" if found.hops is None else _known(found.to_dict()["hops"]),
            f"{found.tiles[64]:.0%}",
            f"{sum(layer.kv_held for layer in found.layers) / LAYERS:.0f}",
            f"{sum(layer.decode_kv_bytes for layer in found.layers) / 1024:.0f}",
            f"{len(found.unread_neighbours)}",
        ]
        yield f"| {' | '.join(cells)} |"
    for example, found in zip(EXAMPLES, analyses, strict=True):
        yield from _section(example, found)


def _section(example: Example, found: Analysis) -> Iterator[str]:
    card = example.family.card
    summary = (inspect.getdoc(example.family.build) or "").split("\n\n")[0].replace("\n", " ")
    yield f"\n## {example.title}\n"
    yield f"![{example.title}]({example.slug}.png)\n"
    yield f"{summary}\n"
    words = [
        f"{field.name} {getattr(card, field.name)}".replace("trained False", "not trained")
        for field in dataclasses.fields(card)
        if field.name != "source"
    ]
    scheduled = "" if example.schedule is None else f", schedule `{example.schedule}`"
    yield f"- rule `{json.dumps(example.rule)}`{scheduled}"
    yield f"- card: {', '.join(words)}"
    yield f"- source: {card.source}"
    yield (
        f"- cost: {sum(layer.pairs for layer in found.layers):,} pairs,"
        f" {sum(layer.flops for layer in found.layers) / 1e6:,.0f} MFLOP forward (heads of 64)"
    )
    runs = found.unreachable
    if runs:
        count = sum(last - first + 1 for first, last in runs)
        yield f"- never connected: {count:,} distances, the first of them {runs[0][0]:,}"
    yield from (f"- {note}" for note in found.notes)


def _known(value: int | None) -> str:
    return "-" if value is None else f"{value:,}"


def _anchor(title: str) -> str:
    return "".join(c for c in title.lower().replace(" ", "-") if c.isalnum() or c == "-")
