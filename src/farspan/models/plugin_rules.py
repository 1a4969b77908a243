"""From what a user gives to one checked rule per layer."""

from __future__ import annotations

import copy
from collections.abc import Mapping, Sequence
from typing import Any

from torch import Tensor

from farspan.layers import LAYERS
from farspan.models.configuration import check_rule
from farspan.models.plugin_layer import Rule
from farspan.models.static_rule import StaticRule
from farspan.patterns import rules as patterns
from farspan.selectors import Selector
from farspan.support import Lines, Support

SERVED = 4096
"""Lines that do not grow are built for at least so many keys: below, a compiled decoding needs one graph only."""


def per_layer(rule: Any, windows: Sequence[int | None], heads: int, kv_heads: int) -> list[Rule | None]:
    """One rule per layer; None where a layer stays as it is. Layers that slide (a window in `windows`) do.

    A rule that wants to know its place (`layer`, `layers`, `heads`) is told. Equal rules are one object, so that their
    supports are built once.

    Raises:
        ValueError: the rules are not one per layer, one is for a layer that slides, or it cannot run in this model.
        TypeError: a rule is neither a dictionary nor `Lines` nor a selector.
    """
    if isinstance(rule, list | tuple):
        if len(rule) != len(windows):
            raise ValueError(f"rule must be one, or one per layer ({len(windows)}), got {len(rule)}")
        for layer, (each, window) in enumerate(zip(rule, windows, strict=True)):
            if each is not None and window is not None:
                raise ValueError(
                    f"rule of layer {layer} must be None: the layer slides over {window} keys and stays so, got {each}"
                )
        given = list(rule)
    elif all(window is not None for window in windows):
        raise ValueError(
            f"model must have a layer with full attention, got one whose layers all slide over {windows[0]} keys"
        )
    else:
        _check_kind(rule)
        given = [rule if window is None else None for window in windows]
    known: list[StaticRule] = []
    return [
        None if each is None else _checked(each, layer, len(windows), heads, kv_heads, known)
        for layer, each in enumerate(given)
    ]


def _check_kind(rule: Any) -> None:
    selects = isinstance(rule, Selector) and not isinstance(rule, Tensor | type)
    if not (isinstance(rule, Mapping | Lines) or selects):
        kind = type(rule).__name__
        hint = ", which fits one length only: return it from a selector" if isinstance(rule, Support) else ""
        raise TypeError(f"rule must be a dictionary, Lines or an object with a select method, got {kind}{hint}")


def _checked(rule: Any, layer: int, layers: int, heads: int, kv_heads: int, known: list[StaticRule]) -> Rule:
    _check_kind(rule)
    if isinstance(rule, Lines):
        if not rule.fits(heads, kv_heads) or rule.batch != 1:
            raise ValueError(
                f"rule of layer {layer} must be Lines for 1 or {heads} heads and 1 batch row,"
                f" got {rule.heads} heads and {rule.batch} batch rows"
            )
        if rule.alibi_slopes is not None:
            raise ValueError(
                f"rule of layer {layer} must be without alibi: the model has its own positions, got slopes"
            )
        return rule
    if not isinstance(rule, Mapping):
        return rule
    name = rule.get("pattern")
    if isinstance(name, str) and name in LAYERS:
        raise ValueError(f"rule of layer {layer} must be a pattern, got {name}, which is trained with a model of ours")
    if patterns.has_alibi(rule):
        raise ValueError(
            f"rule of layer {layer} must be without alibi: the model has its own positions, got {dict(rule)}"
        )
    placed = copy.deepcopy(dict(rule))
    try:
        if isinstance(name, str) and name in patterns.PATTERNS:
            placed = patterns.over_depth(placed, layers, heads)[layer]
        check_rule(placed, heads, kv_heads)
    except (TypeError, ValueError) as error:
        raise ValueError(f"rule of layer {layer}: {error}") from error
    for other in known:
        if other.rule == placed:
            return other
    known.append(StaticRule(placed, 1 if name == "dense" or patterns.grows(placed) else SERVED))
    return known[-1]
