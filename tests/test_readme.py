"""The README's Python examples run, and its commands exist."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

from farspan.cli import app
from farspan.studies.schema import shipped

ROOT = Path(__file__).parents[1]
README = (ROOT / "README.md").read_text()
EXAMPLES = re.findall(r"```python\n(.*?)```", README, re.DOTALL)
COMMANDS = re.findall(r"farspan ((?:study|pattern|eval) \w+|train|doctor)(.*)", README)


def test_the_readme_has_examples() -> None:
    assert len(EXAMPLES) >= 3
    assert len(COMMANDS) >= 5


@pytest.mark.parametrize("example", EXAMPLES, ids=lambda text: text.strip().splitlines()[-1][:40])
def test_examples_run(example: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    names: dict[str, Any] = {}
    exec(compile(example, "README.md", "exec"), names)
    if example == EXAMPLES[0]:
        assert str(list(names["out"].shape)) in example, "the comment says another shape"


@pytest.mark.parametrize("command", sorted({command for command, _ in COMMANDS}))
def test_commands_have_help_with_an_example(command: str) -> None:
    result = CliRunner().invoke(app, [*command.split(), "--help"])
    assert result.exit_code == 0
    assert f"Example: farspan {command}" in " ".join(result.output.split())


def test_studies_named_are_shipped() -> None:
    named = set(re.findall(r"farspan study run ([\w-]+)", README))
    assert named == set(shipped())


def test_links_lead_to_files() -> None:
    for link in re.findall(r"\]\((?!http)([^)#]+)\)", README):
        assert (ROOT / link).exists(), link
