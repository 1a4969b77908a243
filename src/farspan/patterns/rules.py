"""Patterns by name: the form in which configs and study files hold one rule per layer.

A rule is a plain dictionary, `{"pattern": "fibonacci", "window": 13, "alpha": 0.5}`, so it survives JSON and TOML.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping
from typing import Any

from farspan.patterns import schedules
from farspan.patterns.card import Card
from farspan.patterns.fibonacci import CARD as FIBONACCI
from farspan.patterns.fibonacci import fibonacci
from farspan.patterns.powers import CARD as POWERS
from farspan.patterns.powers import powers, powers_grown
from farspan.patterns.window import CARD as WINDOW
from farspan.patterns.window import sliding_window
from farspan.support import Lines

PATTERNS: dict[str, tuple[Callable[..., Lines], Card]] = {
    "sliding_window": (sliding_window, WINDOW),
    "fibonacci": (fibonacci, FIBONACCI),
    "powers": (powers, POWERS),
    "powers_grown": (powers_grown, POWERS),
    "lines": (
        Lines,
        Card("both", "slash", "fixed", "fixed", "all heads or per head", False, "given by the user"),
    ),
}
SCHEDULES: dict[str, Callable[..., list[float]]] = {
    "fixed": schedules.fixed,
    "stagger": schedules.stagger,
    "coprime": schedules.coprime,
}


def grows(rule: Mapping[str, Any]) -> bool:
    """Whether the rule reads other keys in a longer sequence (its builder takes `length`)."""
    return "length" in _parameters(rule)


def build(rule: Mapping[str, Any], length: int) -> Lines:
    """The support of a rule for a sequence of `length` tokens.

    Raises:
        ValueError: the pattern is unknown or an argument is unknown, missing or out of range.
    """
    arguments = {key: value for key, value in rule.items() if key != "pattern"}
    known = _parameters(rule)
    if "length" in arguments:
        raise ValueError(f"length is not part of a {rule['pattern']} rule: it is the length of the sequence it runs on")
    unknown = set(arguments) - set(known)
    if unknown:
        takes = ", ".join(sorted(set(known) - {"length"}))
        raise ValueError(f"a {rule['pattern']} rule takes {takes}, got {', '.join(sorted(unknown))}")
    missing = {n for n, p in known.items() if p.default is p.empty and n != "length"} - set(arguments)
    if missing:
        raise ValueError(f"a {rule['pattern']} rule needs {', '.join(sorted(missing))}, got {dict(rule)}")
    if grows(rule):
        arguments["length"] = length
    return PATTERNS[rule["pattern"]][0](**arguments)


def over_depth(rule: Mapping[str, Any], schedule: str, layers: int, **bounds: float) -> list[dict[str, Any]]:
    """One rule per layer, with the alphas of a schedule by name (`bounds`: its further arguments, such as low and
    high).

    Raises:
        ValueError: the schedule is unknown, or the rule has an alpha of its own or takes none.
    """
    if not isinstance(schedule, str) or schedule not in SCHEDULES:
        raise ValueError(f"schedule must be one of {', '.join(SCHEDULES)}, got {schedule!r}")
    if "alpha" in rule:
        raise ValueError(f"a scheduled rule must leave alpha to the schedule, got alpha = {rule['alpha']}")
    if "alpha" not in _parameters(rule):
        raise ValueError(f"a {rule['pattern']} rule has no alpha that a schedule could set")
    return [{**rule, "alpha": alpha} for alpha in SCHEDULES[schedule](layers, **bounds)]


def _parameters(rule: Mapping[str, Any]) -> Mapping[str, inspect.Parameter]:
    name = rule.get("pattern")
    if not isinstance(name, str) or name not in PATTERNS:
        raise ValueError(f"pattern must be one of {', '.join(PATTERNS)}, got {name!r}")
    return inspect.signature(PATTERNS[name][0]).parameters
