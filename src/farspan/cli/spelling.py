"""How the command line spells a pattern: `fibonacci:window=13,schedule=stagger`, JSON, or a schedule file."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from farspan.patterns import rules

BOUNDS = ("low", "high", "seed")
"""What a schedule takes beside the layers and heads."""


def parsed(text: str) -> dict[str, Any]:
    """A pattern and its arguments, `schedule` among them, as a dictionary with `pattern`.

    Raises:
        ValueError: it is spelled in none of the known ways.
    """
    if text.lstrip().startswith("{"):
        try:
            rule = json.loads(text)
        except json.JSONDecodeError as error:
            raise ValueError(f"a pattern in braces must be JSON, got {text!r}: {error}") from None
        return dict(rule)
    name, _, arguments = text.partition(":")
    parts: list[str] = []
    for piece in arguments.split(","):
        # A comma inside the brackets of a list does not end an argument.
        if parts and parts[-1].count("[") > parts[-1].count("]"):
            parts[-1] += f",{piece}"
        elif piece:
            parts.append(piece)
    return {"pattern": name, **assigned(parts)}


def assigned(parts: list[str]) -> dict[str, Any]:
    """`key=value` texts as a dictionary; a value that is JSON is read as such, any other is a text.

    Raises:
        ValueError: a text is not `key=value`, or a key stands there twice.
    """
    found: dict[str, Any] = {}
    for part in parts:
        key, equals, value = part.strip().partition("=")
        if not key or not equals:
            raise ValueError(f"an argument of a pattern must be spelled key=value, got {part.strip()!r}")
        if key in found:
            raise ValueError(f"an argument of a pattern must be given once, got {key} twice")
        try:
            found[key] = json.loads(value)
        except json.JSONDecodeError:
            found[key] = value
    return found


def layer_rules(rule: Mapping[str, Any], layers: int, heads: int) -> list[dict[str, Any]]:
    """The rule of every layer. A `schedule`, with its `low`, `high` and `seed`, sets their alphas.

    Raises:
        ValueError: the pattern, the schedule or an argument is unknown.
    """
    rule = dict(rule)
    schedule = rule.pop("schedule", None)
    bounds = {key: rule.pop(key) for key in BOUNDS if schedule is not None and key in rule}
    return rules.over_depth(rule, layers, heads, schedule, **bounds)


def stack_rules(text: str, layers: int, heads: int) -> list[dict[str, Any]]:
    """The rule of every layer of a pattern as spelled, or of a schedule file (`NAME.json`), which must have as many.

    Raises:
        ValueError: the spelling, the file or an argument is wrong.
    """
    if not text.endswith(".json"):
        return layer_rules(parsed(text), layers, heads)
    from farspan.studies import schedule_file

    content, _ = schedule_file.read(Path(text))
    if len(content.rules) != layers:
        raise ValueError(
            f"schedule file {text} has {len(content.rules)} layers: ask for --layers {len(content.rules)}, got {layers}"
        )
    return content.rules
