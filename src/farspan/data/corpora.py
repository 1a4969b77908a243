"""A corpus: where text documents come from, as data, and the documents themselves."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from functools import cache
from pathlib import Path
from string import Formatter
from typing import Any, Literal, NamedTuple, Self

from pydantic import BaseModel, ConfigDict, Field, field_validator, model_validator

from farspan.data.files import sha256_file, sha256_json
from farspan.data.readers import hub_commit, local_files, no_field, read_hub, read_local, stdlib_files

HUB_OPTIONS = ("config", "split", "revision", "streaming")


class Document(NamedTuple):
    """One text.

    Attributes:
        id: Where it came from: a relative path, `FILE:LINE`, `FILE:ROW` or `DATASET/CONFIG/SPLIT:ROW`.
        text: Its text, unchanged.
        group: What decides its side of the train/held-out split if that is not the text itself (see
            `Source.split_by`).
    """

    id: str
    text: str
    group: str | None = None


class Source(BaseModel):
    """One place that documents come from, and how a row there becomes a document.

    Exactly one of the first three fields is given.

    Attributes:
        embedded: `"python-stdlib"`: the `.py` files of the standard library of the Python that runs.
        path: A `.txt` (one document), `.jsonl`, `.jsonl.gz` or `.parquet` file (one document a row), or a
            folder of them.
        hub: A Hugging Face dataset, `owner/name`. Needs a network; nothing else here does.
        config: The dataset's configuration, or several to be read one after the other.
        split: The dataset's split.
        revision: Branch, tag or commit of the dataset; resolved to a commit before it is read.
        streaming: Read the dataset over the network in each pass (True) or download it whole to the hub's
            cache first.
        template: How fields make a text, e.g. `"{problem}\\n\\n{solution}"`. A `.txt` has the one field
            `text`.
        split_by: Fields, in the same form, that must not be on both sides of the split: documents with
            equal `split_by` stay together, as the many solutions of one problem should.
    """

    model_config = ConfigDict(extra="forbid", frozen=True)

    embedded: Literal["python-stdlib"] | None = None
    path: Path | None = None
    hub: str | None = Field(default=None, pattern=r"^[\w.-]+(/[\w.-]+)?$")
    config: str | tuple[str, ...] | None = None
    split: str = "train"
    revision: str | None = None
    streaming: bool = True
    template: str = "{text}"
    split_by: str | None = None

    @field_validator("template", "split_by")
    @classmethod
    def _check_template(cls, template: str | None) -> str | None:
        if template is not None:
            _fields(template)
        return template

    @model_validator(mode="after")
    def _check_place(self) -> Self:
        if sum(place is not None for place in (self.embedded, self.path, self.hub)) != 1:
            raise ValueError("exactly one of embedded, path and hub should be given")
        if self.hub is None and (idle := [name for name in HUB_OPTIONS if name in self.model_fields_set]):
            raise ValueError(f"{', '.join(idle)} means something for a hub dataset only")
        return self

    @property
    def bounded(self) -> bool:
        """Whether reading to the end is reasonable: everything but a hub dataset that is streamed."""
        return self.hub is None or not self.streaming

    def documents(self) -> Iterator[Document]:
        """A fresh pass over the documents, always in the same order.

        Documents of nothing but whitespace are left out.

        Raises:
            ValueError: The place is missing, unreadable or holds no documents, or a row lacks a field of
                the template.
        """
        empty = True
        for where, row in self._rows():
            text = _render(self.template, where, row)
            if not text or text.isspace():
                continue
            empty = False
            yield Document(where, text, None if self.split_by is None else _render(self.split_by, where, row))
        if empty:
            raise ValueError(f"corpus {self.describe()} holds no documents")

    def sha256(self) -> str:
        """Hash of what the documents are made from: names and bytes of files, or a hub dataset's commit.

        Independent of where the files lie. Files are read whole, so it costs one pass over them.
        """
        made_by = {"template": self.template, "split_by": self.split_by}
        if self.hub is not None:
            commit = hub_commit(self.hub, self.revision)
            place = {"hub": self.hub, "config": self._configs(), "split": self.split, "commit": commit}
            return sha256_json({**place, **made_by})
        return sha256_json({"files": [[name, sha256_file(path)] for name, path in self._files()], **made_by})

    def describe(self) -> str:
        """The place in one word, for messages."""
        return repr(str(self.embedded or self.path or self.hub))

    def _rows(self) -> Iterator[tuple[str, Mapping[str, Any]]]:
        if self.hub is not None:
            commit = hub_commit(self.hub, self.revision)
            yield from read_hub(self.hub, self._configs(), self.split, commit, self.streaming)
            return
        fields = sorted({*_fields(self.template), *_fields(self.split_by or self.template)})
        for name, path in self._files():
            yield from read_local(name, path, fields)

    def _files(self) -> list[tuple[str, Path]]:
        return stdlib_files() if self.path is None else local_files(self.path)

    def _configs(self) -> list[str | None]:
        return list(self.config) if isinstance(self.config, tuple) else [self.config]


@cache
def _fields(template: str) -> tuple[str, ...]:
    fields = []
    for _, field, spec, conversion in Formatter().parse(template):
        if field is None:
            continue
        if spec or conversion or not re.fullmatch(r"\w+", field):
            raise ValueError(f"a template should hold plain field names in braces, got {template!r}")
        fields.append(field)
    if not fields:
        raise ValueError(f"a template should name at least one field in braces, got {template!r}")
    return tuple(fields)


def _render(template: str, where: str, row: Mapping[str, Any]) -> str:
    for field in _fields(template):
        if field not in row:
            raise ValueError(no_field(where, field, row))
        if not isinstance(row[field], str):
            raise ValueError(f"{where}: field {field!r} should be text, got {type(row[field]).__name__}")
    text = template.format_map(row)
    try:
        text.encode("utf-8")
    except UnicodeEncodeError as error:
        raise ValueError(f"{where}: half a surrogate pair at character {error.start} is not text") from None
    return text
