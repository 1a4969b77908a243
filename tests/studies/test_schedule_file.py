"""Schedule files: written whole, read by study arms and `farspan train`, and of no effect once a cell has its rules."""

from __future__ import annotations

import hashlib
import json
from pathlib import Path

import pytest
from rich.console import Console

from farspan.patterns.design import design
from farspan.studies import schedule_file
from farspan.studies.runner import run_study
from farspan.studies.schema import load
from farspan.studies.single import single

STUDY = """
title = "Designed"
seeds = [1]
threads = 1
[copy]
distances = [3]
[copy.model]
hidden_size = 16
layers = 2
heads = 2
kv_heads = 1
[copy.recipe]
length = 16
tokens = 128
batch_tokens = 64
micro_batch = 4
log_every = 1
save_every = 1
[[copy.arms]]
label = "designed"
rule = { file = "designed.json" }
[[copy.arms]]
label = "window"
rule = { pattern = "sliding_window", match = "designed" }
"""


@pytest.fixture
def study(tmp_path: Path) -> Path:
    """A study file beside the schedule file that it names."""
    schedule_file.write(tmp_path / "designed.json", design(2, 5, 15, "coverage"), 10)
    path = tmp_path / "try.toml"
    path.write_text(STUDY)
    return path


def test_a_file_holds_the_rules_and_what_they_were_designed_for(tmp_path: Path) -> None:
    found = design(3, 6, 40, "hops", window=2, tile=2, seed=7, steps=50)
    schedule_file.write(tmp_path / "one.json", found, 50)
    content, digest = schedule_file.read(tmp_path / "one.json")
    assert content.rules == found.rules()
    assert content.designed_for is not None
    assert content.designed_for.model_dump() == {
        "objective": "hops",
        "keys": 6,
        "window": 2,
        "reach": 20,
        "tile": 2,
        "seed": 7,
        "steps": 50,
        "method": found.method,
        "score": found.score,
    }
    assert digest == hashlib.sha256((tmp_path / "one.json").read_bytes()).hexdigest()


def test_an_arm_takes_its_rules_from_a_file_beside_the_study(study: Path) -> None:
    designed, window = load(study).cells()
    content, digest = schedule_file.read(study.parent / "designed.json")
    assert designed.rules == content.rules
    assert designed.group == {"pattern": "schedule file", "file": "designed.json", "sha256": digest}
    assert [rule["pattern"] for rule in window.rules] == ["sliding_window"] * 2


def test_the_cell_keeps_the_rules_and_the_hash_whatever_becomes_of_the_file(study: Path) -> None:
    loaded = load(study)
    before, digest = schedule_file.read(study.parent / "designed.json")
    schedule_file.write(study.parent / "designed.json", design(2, 6, 15, "coverage"), 10)
    states = run_study(loaded, study.parent, jobs=1, console=Console(quiet=True))
    assert [state.state for state in states] == ["finished"] * 2
    assert json.loads((states[0].folder / "config.json").read_text())["rules"] == before.rules
    assert json.loads((states[0].folder / "provenance.json").read_text())["schedule_file_sha256"] == digest
    assert "schedule_file_sha256" not in json.loads((states[1].folder / "provenance.json").read_text())
    with pytest.raises(ValueError, match="written with other settings"):
        run_study(load(study), study.parent, jobs=1, console=Console(quiet=True))


def test_train_takes_a_file_by_its_path_from_here(study: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(study.parent)
    (cell,) = single("one", {"file": "designed.json"}, 7, ["model.layers=2"]).cells()
    assert cell.rules == schedule_file.read(study.parent / "designed.json")[0].rules


@pytest.mark.parametrize(
    ("old", "new", "words"),
    [
        ("designed.json", "gone.json", ["schedule file", "gone.json", "cannot be read", "No such file"]),
        ("layers = 2", "layers = 3", ["arm 'designed'", "the model has 3 layers, but designed.json has rules for 2"]),
        ('file = "designed.json"', "file = 3", ["file must be the path of a schedule file, got 3"]),
        ('json" }', 'json", window = 3 }', ["a rule from a file takes nothing else, got window"]),
        (
            'rule = { file = "designed.json" }',
            'rule = {}\nmatrix = { file = ["designed.json"] }',
            ["file must stand in the arm's rule, got it in a matrix"],
        ),
    ],
    ids=lambda value: "" if isinstance(value, list) else value[:20],
)
def test_a_wrong_arm_is_refused_in_one_sentence(study: Path, old: str, new: str, words: list[str]) -> None:
    study.write_text(STUDY.replace(old, new))
    with pytest.raises(ValueError, match=r"try\.toml") as raised:
        load(study)
    for word in words:
        assert word in str(raised.value)
    assert "\n" not in str(raised.value)


@pytest.mark.parametrize(
    ("content", "words"),
    [
        ("{", "is not valid JSON"),
        ("[]", "valid dictionary"),
        ('{"format": "farspan-schedule", "version": 2, "rules": [{}]}', "version: Input should be 1, got 2"),
        ('{"format": "farspan-schedule", "version": 1, "rules": []}', "rules: List should have at least 1 item"),
        ('{"format": "farspan-schedule", "version": 1, "rules": [{}], "more": 1}', "more: Extra inputs"),
        ('{"version": 1, "rules": [{}]}', "format: Field required"),
    ],
)
def test_a_wrong_file_is_refused_in_one_sentence(tmp_path: Path, content: str, words: str) -> None:
    (tmp_path / "bad.json").write_text(content)
    with pytest.raises(ValueError, match=r"schedule file .*bad\.json") as raised:
        schedule_file.read(tmp_path / "bad.json")
    assert words in str(raised.value)
    assert "\n" not in str(raised.value)


def test_a_rule_in_a_file_that_no_model_can_have_is_named_by_its_layer(study: Path) -> None:
    content = json.loads((study.parent / "designed.json").read_text())
    content["rules"][1] = {"pattern": "fibonacci", "windows": 3}
    (study.parent / "designed.json").write_text(json.dumps(content))
    with pytest.raises(ValueError, match=r"designed\.json, rules\[1\]: a fibonacci rule takes .* got windows"):
        load(study)
