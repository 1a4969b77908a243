"""Weighted mixtures of sources: a TOML file of shares, and the order in which documents are drawn."""

from __future__ import annotations

import tomllib
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Self, TypeVar

from pydantic import BaseModel, ConfigDict, Field, ValidationError, model_validator

from farspan.data.corpora import HUB_OPTIONS, Source
from farspan.data.files import sha256_json

_SHIPPED = Path(__file__).parent / "shipped"
_Item = TypeVar("_Item")


class MixtureSource(Source):
    """A source with its share of a mixture.

    Attributes:
        name: What messages and overrides call it.
        weight: Share of the mixture's *tokens*. The weights of a mixture sum to 1.
        repeat: Start again from the first document when a training pass has used them all. Without it that
            is an error.
    """

    name: str = Field(pattern=r"^[\w.-]+$")
    weight: float = Field(gt=0, le=1)
    repeat: bool = False


class Mixture(BaseModel):
    """Several sources, each with its share of the tokens."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    sources: tuple[MixtureSource, ...] = Field(alias="source", min_length=1)

    @model_validator(mode="after")
    def _check(self) -> Self:
        names = [source.name for source in self.sources]
        if len(set(names)) < len(names):
            raise ValueError(f"source names should differ, got {', '.join(names)}")
        total = sum(source.weight for source in self.sources)
        if abs(total - 1) > 1e-6:
            raise ValueError(f"the weights should sum to 1, they sum to {total:g}")
        return self

    def sha256(self) -> str:
        """Hash of the weights, the repeats and what every source's documents are made from."""
        return sha256_json([[source.weight, source.repeat, source.sha256()] for source in self.sources])


def shipped_mixtures() -> list[str]:
    """Names of the mixtures that come with farspan."""
    return sorted(path.stem for path in _SHIPPED.glob("*.toml"))


def load_mixture(path: str | Path, overrides: Mapping[str, str | Path] | None = None) -> Mixture:
    """Read a mixture file, or a shipped mixture by name.

    Args:
        path: A TOML file with one `[[source]]` table per source (fields of `MixtureSource`), or one of
            `shipped_mixtures()`. A relative `path` inside the file is taken from the file's folder.
        overrides: Source name to local path: read that file or folder (same fields) instead of where the
            source points.

    Raises:
        ValueError: The file is missing or not valid, named with the key at fault, or an override names no
            source.
    """
    file = _SHIPPED / f"{path}.toml" if str(path) in shipped_mixtures() else Path(path)
    try:
        content = tomllib.loads(file.read_text(encoding="utf-8"))
    except FileNotFoundError:
        shipped = ", ".join(shipped_mixtures())
        raise ValueError(f"mixture {path} is neither a file nor one of {shipped}") from None
    except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
        raise ValueError(f"{file} is not valid TOML: {error}") from error
    unused = dict(overrides or {})
    tables = content.get("source")
    for table in tables if isinstance(tables, list) else ():
        if not isinstance(table, dict):
            continue
        if table.get("name") in unused:
            table.pop("hub", None)
            for option in HUB_OPTIONS:
                table.pop(option, None)
            table["path"] = Path(unused.pop(table["name"])).absolute()
        elif isinstance(table.get("path"), str):
            table["path"] = file.parent.absolute() / table["path"]
    if unused:
        raise ValueError(f"override {next(iter(unused))!r} names no source of mixture {path}")
    try:
        return Mixture.model_validate(content)
    except ValidationError as error:
        raise ValueError(f"{file}: {_first_fault(error)}") from error


def _first_fault(error: ValidationError) -> str:
    fault = error.errors()[0]
    where, message = ".".join(str(part) for part in fault["loc"]), fault["msg"].removeprefix("Value error, ")
    if fault["type"] == "extra_forbidden":
        model = MixtureSource if len(fault["loc"]) > 1 else Mixture
        allowed = sorted(field.alias or name for name, field in model.model_fields.items())
        message = f"unknown key; allowed are {', '.join(allowed)}"
    return f"{where}: {message}" if where else message


def interleave(
    streams: Sequence[Iterator[_Item]], shares: Sequence[float], size: Callable[[_Item], int]
) -> Iterator[_Item]:
    """Merge streams so that each keeps its share of the total size (in tokens, when `size` counts tokens).

    The next item comes from the stream furthest below its share of what has been drawn, the first of
    equals. Nothing is random. A stream is thus never more than one item above its share. Ends when the
    stream whose turn it is has ended.
    """
    drawn = [0] * len(streams)
    while True:
        total = sum(drawn)
        turn = max(range(len(streams)), key=lambda i: shares[i] * total - drawn[i])
        try:
            item = next(streams[turn])
        except StopIteration:
            return
        drawn[turn] += size(item)
        yield item


def training_passes(source: MixtureSource, one_pass: Callable[[], Iterator[_Item]]) -> Iterator[_Item]:
    """`one_pass()` again and again if the source may repeat.

    Raises:
        ValueError: The source has run out and may not repeat.
    """
    while True:
        count = 0
        for item in one_pass():
            count += 1
            yield item
        if not source.repeat or count == 0:
            raise ValueError(
                f"mixture source {source.name!r} ran out after {count} documents; "
                "set repeat = true for it, lower its weight or ask for fewer tokens"
            )
