"""`farspan pattern design` and `farspan train --schedule-file`."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from typer.testing import CliRunner

from farspan.cli import app
from farspan.studies import schedule_file

SMALL = ["pattern", "design", "--layers", "3", "--keys", "6", "--reach", "60", "--steps", "300"]


def test_it_writes_a_schedule_and_shows_it_beside_the_known_ones(tmp_path: Path) -> None:
    out = tmp_path / "designed.json"
    result = CliRunner().invoke(app, [*SMALL, "--out", str(out)])
    assert result.exit_code == 0, result.output
    for name in ("designed", "fib stagger", "fib coprime", "fib fixed", "powers stagger"):
        assert name in result.stdout
    content, _ = schedule_file.read(out)
    assert len(content.rules) == 3


def test_json_is_for_a_program(tmp_path: Path) -> None:
    result = CliRunner().invoke(app, [*SMALL, "--objective", "coverage", "--tiles", "4", "--json"])
    assert result.exit_code == 0, result.output
    shown = json.loads(result.stdout)
    assert shown["method"] == "exact"
    assert {rule["pattern"] for rule in shown["rules"]} == {"block_lines"}
    assert shown["compared"][0]["name"] == "designed"


def test_controls_that_cannot_be_as_cheap_are_marked() -> None:
    result = CliRunner().invoke(
        app, ["pattern", "design", "--keys", "8", "--reach", "8192", "--tiles", "64", "--steps", "0"]
    )
    assert "* Not at equal pairs" in result.stdout


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        ([*SMALL, "--out", "designed.toml"], "out must be a .json file, got designed.toml"),
        ([*SMALL, "--objective", "speed"], "objective must be one of hops, coverage, paths, got 'speed'"),
        (["train", "try", "--schedule-file", "a.json", "--window", "9"], "it goes without --window"),
        (["train", "try", "--schedule-file", "gone.json"], "schedule file gone.json cannot be read"),
    ],
    ids=lambda value: value if isinstance(value, str) else "",
)
def test_wrong_options_end_in_one_sentence(arguments: list[str], words: str) -> None:
    result = CliRunner().invoke(app, arguments)
    assert isinstance(result.exception, ValueError)
    assert words in str(result.exception)
