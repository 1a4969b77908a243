"""A study of one cell: what `farspan train` runs."""

from __future__ import annotations

import tomllib
from typing import Any

from pydantic import ValidationError

from farspan.studies.schema import Study, first_fault


def single(name: str, rule: dict[str, Any], seed: int, settings: list[str]) -> Study:
    """The study behind `farspan train NAME`: one arm and one seed, the paper's settings unless changed.

    Args:
        settings: "table.key=value" of a language study, the value as TOML or a bare string.

    Raises:
        ValueError: a setting is malformed, unknown or out of range.
    """
    language: dict[str, Any] = {"arms": [{"label": name, "rule": rule}]}
    for setting in settings:
        key, equals, value = setting.partition("=")
        table, dot, field = key.partition(".")
        if not equals or not dot or table not in ("model", "data", "recipe", "evaluation"):
            raise ValueError(f"--set takes model|data|recipe|evaluation.KEY=VALUE, got {setting!r}")
        language.setdefault(table, {})[field] = _value(value)
    try:
        return Study.model_validate({"name": name, "title": name, "seeds": [seed], "language": language})
    except ValidationError as error:
        raise ValueError(first_fault(error)) from None


def _value(text: str) -> Any:
    try:
        return tomllib.loads(f"value = {text}")["value"]
    except tomllib.TOMLDecodeError:
        return text
