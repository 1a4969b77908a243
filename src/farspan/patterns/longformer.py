"""Longformer's windows, causal: of any width, dilated in some heads, with global tokens; and the paper's plan over
depth."""

from __future__ import annotations

from farspan.patterns.arguments import at_least, layer_below
from farspan.patterns.card import Card
from farspan.support import Lines

CARD = Card(
    "both",
    "window",
    "fixed",
    "fixed",
    "all heads, or per head where dilated",
    False,
    "Longformer, arXiv 2004.05150, sections 3 and 4",
)


def longformer(window: int, heads: int, dilation: int = 1, dilated_heads: int = 2, global_tokens: int = 0) -> Lines:
    """The nearest `window` keys; in the last `dilated_heads` heads, `window` keys `dilation` apart.

    `dilation = 1` has no gaps (the paper counts the gaps: its 0 is 1 here); then all heads share their keys, otherwise
    the slashes are `[heads, window]`. Fewer heads than `dilated_heads` are all dilated. The first `global_tokens` keys
    are read by every query; they read all keys before them as it is. The separate projections that the paper gives its
    global tokens are no matter of a pattern. One rule per layer gives each layer a window of its own.

    Raises:
        TypeError, ValueError: `window`, `heads` or `dilation` < 1, or `dilated_heads` or `global_tokens` < 0.
    """
    window, heads = at_least("window", window, 1), at_least("heads", heads, 1)
    dilation, dilated = at_least("dilation", dilation, 1), at_least("dilated_heads", dilated_heads, 0)
    verticals = range(at_least("global_tokens", global_tokens, 0))
    if dilation == 1 or dilated == 0:
        return Lines(range(window), verticals)
    steps = [dilation if head >= heads - dilated else 1 for head in range(heads)]
    return Lines([range(0, window * step, step) for step in steps], verticals)


def longformer_depth(
    bottom: int, top: int, layer: int, layers: int, heads: int, dilated_heads: int = 2, global_tokens: int = 0
) -> Lines:
    """`longformer` with a window that goes from `bottom` in the first layer to `top` in the last, dilated high up.

    The paper's character models go from 32 to 512 and beyond and found that better than the reverse; it gives the ends
    only, here the steps between are equal factors. The lower half of the layers is not dilated; the thirds of the upper
    half leave gaps of 1, 2 and 3 keys in `dilated_heads` heads (its table 12: layers 6-7, 8-9 and 10-11 of twelve).

    Raises:
        TypeError, ValueError: `bottom`, `top`, `layers` or `heads` < 1, `layer` is not one of the layers, or
            `dilated_heads` or `global_tokens` < 0.
    """
    layer, layers = layer_below(layer, layers)
    bottom, top = at_least("bottom", bottom, 1), at_least("top", top, 1)
    window = round(bottom * (top / bottom) ** (layer / max(layers - 1, 1)))
    undilated = (layers + 1) // 2
    gap = 0 if layer < undilated else 1 + 3 * (layer - undilated) // (layers - undilated)
    return longformer(window, heads, 1 + gap, dilated_heads, global_tokens)
