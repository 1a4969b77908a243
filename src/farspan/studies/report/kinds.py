"""What a cell's pattern is to the claims of the paper: its family and its schedule."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, NamedTuple

FAMILY_NAMES = {
    "dense": "dense",
    "window": "sliding window",
    "fibonacci": "Fibonacci",
    "powers": "powers of two",
}


class Kind(NamedTuple):
    """`family` is dense, window, fibonacci, powers or a pattern's own name; `schedule` may be empty."""

    family: str
    schedule: str = ""

    @property
    def name(self) -> str:
        return " ".join(filter(None, [FAMILY_NAMES.get(self.family, self.family), self.schedule]))


def order(kind: Kind) -> tuple[int, int]:
    """Sorts kinds as a reader goes through them: yardstick, control, the paper's base, its rival, then others."""
    families, schedules = list(FAMILY_NAMES), ["fixed", "stagger", "coprime", "learned"]
    family, schedule = kind
    return (
        families.index(family) if family in families else len(families),
        schedules.index(schedule) if schedule in schedules else len(schedules),
    )


def family(pattern: str) -> str:
    """The family of a pattern, by the name that rules give it."""
    if pattern in ("fibonacci", "learned_spacing"):
        return "fibonacci"
    if pattern in ("powers", "powers_grown"):
        return "powers"
    return "window" if pattern == "sliding_window" else pattern


def kind(group: Mapping[str, Any]) -> Kind:
    """The kind of a cell, from its rule: a stretched base without a schedule has a fixed alpha."""
    pattern = str(group.get("pattern", ""))
    if pattern == "learned_spacing":
        return Kind("fibonacci", "learned")
    base = family(pattern)
    schedule = str(group.get("schedule") or "")
    if base in ("fibonacci", "powers") and not schedule:
        alpha = group.get("alpha", 1.0)
        schedule = "fixed" if alpha == 1 else f"alpha {alpha}"
    return Kind(base, schedule)
