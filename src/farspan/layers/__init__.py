"""Attention modules with parameters of their own."""

from __future__ import annotations

import inspect
from collections.abc import Mapping
from typing import Any

from farspan.layers.adaptive_span import AdaptiveSpan
from farspan.layers.dcls import DCLS
from farspan.layers.learned import LearnedLayer
from farspan.layers.learned_spacing import LearnedSpacing

LAYERS: dict[str, type[LearnedLayer]] = {
    "learned_spacing": LearnedSpacing,
    "adaptive_span": AdaptiveSpan,
    "dcls": DCLS,
}
"""The layers by the name that a rule gives them as its `pattern`."""

__all__ = ["DCLS", "LAYERS", "AdaptiveSpan", "LearnedLayer", "LearnedSpacing", "build"]


def build(rule: Mapping[str, Any], heads: int) -> LearnedLayer:
    """The layer of a rule, `{"pattern": "adaptive_span", "max_span": 512}`, for so many query heads.

    Raises:
        TypeError, ValueError: an argument is unknown, missing or out of range.
    """
    layer = LAYERS[rule["pattern"]]
    known = list(inspect.signature(layer).parameters)
    arguments = {key: value for key, value in rule.items() if key != "pattern"}
    takes = [name for name in known if name != "heads"]
    if unknown := set(arguments) - set(takes):
        raise ValueError(f"a rule of {rule['pattern']} takes {', '.join(takes)}, got {', '.join(sorted(unknown))}")
    required = {name for name, each in inspect.signature(layer).parameters.items() if each.default is each.empty}
    if missing := sorted(required - {"heads"} - set(arguments)):
        raise ValueError(f"a rule of {rule['pattern']} needs {', '.join(missing)}, got {dict(rule)}")
    return layer(**({"heads": heads} if "heads" in known else {}), **arguments)
