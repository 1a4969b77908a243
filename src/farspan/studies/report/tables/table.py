"""A table as data, and the same table as Markdown for GitHub; the page's template renders it as HTML."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass


@dataclass(frozen=True)
class Column:
    """`group` is a heading shared with neighbours that have the same one; `number` columns align right."""

    title: str
    group: str = ""
    number: bool = True


@dataclass(frozen=True)
class Entry:
    """One cell of a table. `small` is a second, quieter line; `strong` marks the best."""

    text: str
    small: str = ""
    strong: bool = False


@dataclass(frozen=True)
class Table:
    """`rows[i]` has one `Entry` a column, the first names the row. `key` is an id unique in the report."""

    key: str
    title: str
    columns: Sequence[Column]
    rows: Sequence[Sequence[Entry]]
    notes: Sequence[str] = ()

    @property
    def groups(self) -> list[tuple[str, int]]:
        """Heading and width of each run of columns that share a group."""
        runs: list[tuple[str, int]] = []
        for column in self.columns:
            if runs and runs[-1][0] == column.group:
                runs[-1] = (column.group, runs[-1][1] + 1)
            else:
                runs.append((column.group, 1))
        return runs

    @property
    def grouped(self) -> bool:
        return any(name for name, _ in self.groups)


def markdown(table: Table) -> str:
    """The table in GitHub's Markdown, its title as a heading and its notes below."""
    heads = [f"{c.group}: {c.title}" if c.group else c.title for c in table.columns]
    lines = [
        f"## {escape(table.title)}",
        "",
        _line([escape(head) for head in heads]),
        _line(["---:" if c.number else "---" for c in table.columns]),
        *(_line([_markdown_entry(entry) for entry in row]) for row in table.rows),
        "",
        *(f"{escape(note)}  " for note in table.notes),
    ]
    return "\n".join(lines).rstrip() + "\n"


def _markdown_entry(entry: Entry) -> str:
    text = escape(entry.text)
    if entry.strong and text:
        text = f"**{text}**"
    return f"{text}<br>{escape(entry.small)}" if entry.small else text


def escape(text: str) -> str:
    """Text that Markdown shows as it is: no markup, link or column break comes out of a label."""
    text = text.replace("&", "&amp;").replace("<", "&lt;").replace(">", "&gt;")
    return re.sub(r"([\\`*_\[\]|#~$!])", r"\\\1", text)


def _line(entries: Sequence[str]) -> str:
    return f"| {' | '.join(entries)} |"
