"""Multi-scale window attention: windows of four sizes, over the heads, over the layers, or both."""

from __future__ import annotations

from farspan.patterns.arguments import at_least, layer_below, one_of
from farspan.patterns.card import Card
from farspan.support import Lines

CARD = Card(
    "both",
    "window",
    "fixed",
    "fixed",
    "per quarter of the heads",
    False,
    "MSWA, arXiv 2501.01039",
)
OVER = ("both", "heads", "layers")


def mswa(window: int, layer: int, layers: int, heads: int, over: str = "both") -> Lines:
    """Windows of a quarter, half, once and twice `window` for the four quarters of the heads, of the layers, or both.

    From the first head to the last and from the bottom layer to the top the windows grow; where both do, the factors
    multiply (our reading of the paper's budget, 7/8 of a uniform window): `window / 16` to `4 window`. The mean is
    15/16 of `window` over heads or layers and 225/256 over both, where the quarters are equal and `window` divides.
    Widths round to the nearest key, half to even, and are at least one. Slashes are `[heads, n]` where heads differ.

    Raises:
        TypeError, ValueError: `window`, `layers` or `heads` < 1, `layer` is not one of the layers, `over` is unknown,
            or heads differ and are no multiple of 4.
    """
    window, heads = at_least("window", window, 1), at_least("heads", heads, 1)
    layer, layers = layer_below(layer, layers)
    if one_of("over", over, OVER) != "layers" and heads % 4:
        raise ValueError(f"heads must be a multiple of 4 for four windows over heads, got {heads}")
    deep = 1.0 if over == "heads" else 2.0 ** (4 * layer // layers - 2)
    if over == "layers":
        return Lines(_window(window * deep))
    return Lines([_window(window * deep * 2.0 ** (4 * head // heads - 2)) for head in range(heads)])


def _window(width: float) -> range:
    return range(max(1, round(width)))
