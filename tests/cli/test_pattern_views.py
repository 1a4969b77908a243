"""`farspan pattern show` and `compare`: what they print, draw and refuse."""

from __future__ import annotations

import json
import sys

import pytest
from typer.testing import CliRunner

from farspan import cli, patterns, schedules
from farspan.cli.spelling import layer_rules, parsed, stack_rules
from farspan.patterns import coverage
from farspan.patterns.rules import build

THREE = ["fibonacci:window=5,schedule=stagger", "sliding_window:window=9", '{"pattern": "log_sparse"}']


def run(*arguments):
    result = CliRunner().invoke(cli.app, ["pattern", *map(str, arguments)], env={"COLUMNS": "160"})
    assert result.exit_code == 0, result.output
    return result.output


def refused(capsys, monkeypatch, *arguments):
    """What `farspan` says on stderr, from the entry point, with exit code 2."""
    monkeypatch.setattr(sys, "argv", ["farspan", "pattern", *map(str, arguments)])
    with pytest.raises(SystemExit) as stopped:
        cli.main()
    assert stopped.value.code == 2
    said = capsys.readouterr().err
    assert said.count("\n") == 1
    return said


# Spelling


@pytest.mark.parametrize(
    ("text", "rule"),
    [
        ("fibonacci", {"pattern": "fibonacci"}),
        ("fibonacci:window=13", {"pattern": "fibonacci", "window": 13}),
        ("fibonacci:window=13, alpha=0.5", {"pattern": "fibonacci", "window": 13, "alpha": 0.5}),
        ("lines:slashes=[0,5],verticals=[0]", {"pattern": "lines", "slashes": [0, 5], "verticals": [0]}),
        ("lines:slashes=[[0,1],[0,5]]", {"pattern": "lines", "slashes": [[0, 1], [0, 5]]}),
        ("mswa:over=heads,window=8", {"pattern": "mswa", "over": "heads", "window": 8}),
        ("fibottention:modified=true", {"pattern": "fibottention", "modified": True}),
        ('{"pattern": "hdc", "rates": [1, 2]}', {"pattern": "hdc", "rates": [1, 2]}),
    ],
)
def test_a_pattern_is_spelled(text, rule):
    assert parsed(text) == rule


def test_a_schedule_takes_its_bounds():
    written = layer_rules(parsed("fibonacci:window=5,schedule=stagger,low=1,high=2"), 3, 1)
    assert [rule["alpha"] for rule in written] == schedules.stagger(3, 1, 2)


def test_a_seed_without_a_schedule_is_the_pattern_s():
    assert layer_rules(parsed("random:window=2,keys=4,seed=7"), 2, 1)[1]["seed"] == 7


def test_a_schedule_file_is_read(tmp_path):
    rules = [{"pattern": "sliding_window", "window": 3}, {"pattern": "powers", "window": 2}]
    path = tmp_path / "stack.json"
    path.write_text(json.dumps({"format": "farspan-schedule", "version": 1, "rules": rules}))
    assert stack_rules(str(path), 2, 1) == rules
    with pytest.raises(ValueError, match=f"^schedule file {path} has 2 layers: ask for --layers 2, got 3"):
        stack_rules(str(path), 3, 1)


# Show


def test_show_draws_the_mask_and_the_layers(tmp_path):
    out = tmp_path / "stagger.png"
    said = run("show", "fibonacci", "--window", 5, "--schedule", "stagger", "--length", 32, "--layers", 4, "--out", out)
    pairs = sum(patterns.fibonacci(5, alpha=alpha).pairs(32, 32) for alpha in schedules.stagger(4))
    assert said.startswith(f"fibonacci, 32 tokens: {pairs / 4 / 32:.1f} keys per query, density")
    assert "█" in said
    assert [line.split(" ")[0] for line in said.splitlines() if line.startswith(tuple("0123"))] == list("0123")
    assert out.read_bytes().startswith(b"\x89PNG")


@pytest.mark.parametrize(
    "arguments",
    [
        ["fibonacci", "--window", "5", "--rungs", "4"],
        ["fibonacci", "window=5", "rungs=4"],
        ["fibonacci", "--window=5", "--rungs=4"],
        ["fibonacci:window=5,rungs=4"],
        ['{"pattern": "fibonacci", "window": 5, "rungs": 4}'],
    ],
    ids=["options", "key=value", "--key=value", "spelled", "JSON"],
)
def test_show_takes_arguments_in_every_spelling(arguments):
    assert run("show", *arguments, "--length", 16) == run("show", "fibonacci:window=5,rungs=4", "--length", 16)


ARGUMENTS = {
    "fibonacci_blocks": "block=4",
    "sparse_strided": "stride=4",
    "longformer_depth": "bottom=4,top=8",
    "fibottention": "widest=16",
    "partial_power": "exponent=0.5,window=4",
    "block_lines": "distances=[0,1],block=4",
    "lines": "slashes=[0,2]",
    "sparse_fixed": "stride=8,summary=2",
    "dilateformer": "dilations=[1,2]",
    "longnet": "segments=[8,16],ratios=[1,2]",
    "elastic": "keys=8",
    "block_local": "block=16",
    "random": "keys=16",
}


@pytest.mark.parametrize("name", patterns.rules.PATTERNS)
def test_show_and_compare_know_every_pattern(name):
    """Those without arguments here have defaults for all but the window."""
    spelled = f"{name}:{ARGUMENTS[name]}" if name in ARGUMENTS else name
    assert "keys per query" in run("show", spelled, "--length", 48, "--layers", 2, "--heads", 4)
    window = ",window=8" if "window" in _needed(name) else ""
    spelled = f"{spelled}{window}" if ":" in spelled else f"{spelled}{window.replace(',', ':')}"
    found = json.loads(run("compare", spelled, "--length", 48, "--layers", 2, "--heads", 4, "--json"))
    assert found[spelled]["length"] == 48


def _needed(name):
    import inspect

    known = inspect.signature(patterns.rules.PATTERNS[name].build).parameters
    return {key for key, parameter in known.items() if parameter.default is parameter.empty}


# Compare


def test_compare_prints_a_table_and_pictures():
    said = run("compare", *THREE, "--length", 64, "--layers", 4)
    for words in (
        "keys per query, mean",
        "reach of the stack",
        "distances unreachable",
        "prefill FLOPs",
        "KV entries that may be dropped",
        "paths through the whole stack",
    ):
        assert words in said
    assert said.count("mask of the bottom layer") == 3


def test_compare_tells_none_from_unknown():
    """A window connects not everything; hops are those of distances, which blocks are not made of."""
    said = run("compare", "sliding_window:window=2", "block_local:block=8", "--length", 64, "--layers", 2)
    rows = {line.split("│")[1].strip(): line.split("│")[2:4] for line in said.splitlines() if line.startswith("│")}
    assert [cell.strip() for cell in rows["depth to connect all"]] == ["none", "none"]
    assert [cell.strip() for cell in rows["hops to connect all"]] == ["63", "not known"]


def test_compare_as_json_is_the_analysis():
    found = json.loads(run("compare", *THREE, "--length", 64, "--layers", 4, "--heads", 2, "--json"))
    assert list(found) == THREE
    stack = [build(rule, 64) for rule in layer_rules(parsed(THREE[0]), 4, 2)]
    expected = coverage.analyse(stack, 64, heads=2).to_dict()
    assert found[THREE[0]] == json.loads(json.dumps(expected))


@pytest.mark.parametrize(("name", "start"), [("a.png", b"\x89PNG"), ("a.svg", b"<?xml")])
def test_compare_draws(tmp_path, name, start):
    five = [*THREE, "block_local:block=16", "random:window=2,keys=4"]
    run("compare", *five, "--length", 64, "--layers", 2, "--out", tmp_path / name)
    assert (tmp_path / name).read_bytes().startswith(start)


def test_compare_flags_a_boundary_that_nothing_crosses():
    said = run("compare", '{"pattern": "lines", "slashes": [0, 2]}', "--length", 16, "--layers", 12)
    assert "no layer reads the left neighbour of 15 positions, first that of 1: the two meet at no depth" in said


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["compare", "fib"], "farspan: pattern must be one of sliding_window"),
        (["compare", "fibonacci"], "farspan: a fibonacci rule needs window"),
        (["compare", "fibonacci:window"], "an argument of a pattern must be spelled key=value, got 'window'"),
        (["compare", "fibonacci:window=3,window=4"], "an argument of a pattern must be given once, got window twice"),
        (["compare", "fibonacci:window=3,widnow=4"], "a fibonacci rule takes"),
        (["compare", "fibonacci:window=3,schedule=up"], "schedule must be one of"),
        (["compare", '{"pattern":'], "a pattern in braces must be JSON, got"),
        (["compare", "sliding_window:window=3", "sliding_window:window=3"], "patterns must differ, got"),
        (["compare", "none.json"], "schedule file none.json cannot be read"),
        (["compare", "sliding_window:window=3", "--out", "a.jpg"], "out must be a .png or .svg file, got a.jpg"),
        (["compare", "sliding_window:window=3", "--heads", "4", "--kv-heads", "3"], "heads must be a multiple of"),
        (["show", "sliding_window", "--window"], "option --window needs a value"),
        (["show", "sliding_window:window=3", "--window", "3"], "must be given once, got window twice"),
        (["show", "sliding_window", "--window", "0"], "window must be an integer >= 1, got 0"),
        (["show", "none.json", "--window", "3"], "a schedule file must go without further arguments, got window"),
    ],
)
def test_bad_input_ends_in_one_sentence(arguments, words, capsys, monkeypatch):
    assert words in refused(capsys, monkeypatch, *arguments)


@pytest.mark.parametrize("command", ["show", "compare"])
def test_help_has_an_example(command):
    assert f"Example: farspan pattern {command}" in " ".join(run(command, "--help").split())
