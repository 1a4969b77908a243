"""Schedule files: one rule per layer and what it was designed for, for `farspan train` and the arms of a study."""

from __future__ import annotations

import hashlib
import json
from importlib.resources.abc import Traversable
from pathlib import Path
from typing import Any, Literal

from pydantic import BaseModel, ConfigDict, Field, ValidationError

from farspan.data.files import write_json_atomic
from farspan.patterns.design import Design


class DesignedFor(BaseModel):
    """The question that the rules answer, enough to ask it again. Budget, window and reach count tiles."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    objective: Literal["hops", "coverage", "paths"]
    keys: int = Field(ge=2, description="budget: distances a layer")
    window: int = Field(ge=1)
    reach: int = Field(ge=1)
    tile: int = Field(1, ge=1, description="tokens in a tile")
    seed: int = Field(ge=0)
    steps: int = Field(ge=0)
    method: Literal["exact", "enumerated", "annealed"]
    score: float


class ScheduleFile(BaseModel):
    """The content of a schedule file. One written by hand leaves `designed_for` out."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    format: Literal["farspan-schedule"]
    version: Literal[1]
    designed_for: DesignedFor | None = None
    rules: list[dict[str, Any]] = Field(min_length=1, description="one per layer, bottom to top")


def write(path: Path, design: Design, steps: int) -> None:
    """Writes a design as a schedule file, whole or not at all."""
    asked = DesignedFor(
        objective=design.objective,
        keys=design.keys,
        window=design.window,
        reach=design.reach,
        tile=design.tile,
        seed=design.seed,
        steps=steps,
        method=design.method,
        score=design.score,
    )
    content = ScheduleFile(format="farspan-schedule", version=1, designed_for=asked, rules=design.rules())
    write_json_atomic(path, content.model_dump(mode="json"))


def read(path: Path | Traversable) -> tuple[ScheduleFile, str]:
    """The content of a schedule file and the SHA-256 of its bytes.

    Raises:
        ValueError: there is no such file, or it is no schedule file of a known version.
    """
    try:
        content = path.read_bytes()
        return ScheduleFile.model_validate(json.loads(content)), hashlib.sha256(content).hexdigest()
    except OSError as error:
        raise ValueError(f"schedule file {path} cannot be read: {error.strerror or error}") from None
    except ValidationError as error:
        first = error.errors()[0]
        where = ".".join(map(str, first["loc"]))
        raise ValueError(f"schedule file {path}: {where}: {first['msg']}, got {first['input']!r:.60}") from None
    except ValueError as error:
        raise ValueError(f"schedule file {path} is not valid JSON: {error}") from None
