"""What every rule says about itself; docs and reports print it."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal


@dataclass(frozen=True)
class Card:
    """The axes on which the field's methods differ, and where this one comes from."""

    phase: Literal["prefill", "decode", "both"]
    unit: Literal["slash", "vertical", "window", "block", "page", "token"]
    importance: Literal["fixed", "estimated", "learned", "exact"]
    budget: Literal["fixed", "adaptive", "threshold"]
    sharing: str
    trained: bool
    source: str
