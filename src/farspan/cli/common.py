"""What the commands share: the option for JSON and the progress bar."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Annotated

import typer
from rich.console import Console
from rich.progress import Progress

AsJson = Annotated[bool, typer.Option("--json", help="Print JSON for a program to read.")]


@contextmanager
def progress_bar(description: str, *, hidden: bool) -> Iterator[Callable[[int, int], None]]:
    """A progress bar driven by calls with (done, total); none where there is no terminal to show it."""
    console = Console(stderr=True)
    with Progress(console=console, disable=hidden or not console.is_terminal, transient=True) as progress:
        task = progress.add_task(description, total=None)
        yield lambda done, total: progress.update(task, completed=done, total=total)
