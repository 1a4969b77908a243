"""Patterns by name: what a config or a study file holds."""

from __future__ import annotations

import json
import tomllib

import pytest

from farspan import Lines, patterns, schedules
from farspan.patterns.card import Card
from farspan.patterns.rules import HEAD_SCHEDULES, PATTERNS, SCHEDULES, build, grows, needs, over_depth

RULES = [
    ({"pattern": "sliding_window", "window": 5}, patterns.sliding_window(5)),
    ({"pattern": "fibonacci", "window": 13}, patterns.fibonacci(13)),
    ({"pattern": "fibonacci", "window": 13, "alpha": 0.5, "rungs": 10}, patterns.fibonacci(13, 0.5, 10)),
    ({"pattern": "powers", "window": 9, "alpha": 1.5, "reach": 256}, patterns.powers(9, 1.5, 256)),
    ({"pattern": "powers_grown", "window": 9, "alpha": 0.5}, patterns.powers_grown(9, 2048, 0.5)),
    ({"pattern": "lines", "slashes": [0, 5], "verticals": [0]}, Lines([0, 5], [0])),
    ({"pattern": "lines", "slashes": [[0], [0, 5]]}, Lines([[0], [0, 5]])),
]
rules = pytest.mark.parametrize(("rule", "support"), RULES, ids=[json.dumps(rule) for rule, _ in RULES])


@rules
def test_a_rule_builds_its_pattern(rule, support):
    assert build(rule, 2048) == support


@rules
def test_a_rule_survives_json_and_toml(rule, support):
    assert build(json.loads(json.dumps(rule)), 2048) == support
    toml = "\n".join(f"{key} = {json.dumps(value)}" for key, value in rule.items())
    assert build(tomllib.loads(toml), 2048) == support


def test_any_rule_may_carry_alibi_for_the_heads_it_names():
    rule = {"pattern": "block_local", "block": 4, "alibi": True, "heads": 3}
    assert build(rule, 20, 7) == patterns.with_alibi(patterns.block_local(4, 20, 7), 3)
    own = {"pattern": "elastic", "keys": 3, "heads": 4}
    assert build({**own, "alibi": True}, 20) == patterns.with_alibi(build(own, 20), 4)
    assert build({"pattern": "block_local", "block": 4, "alibi": False}, 20) == patterns.block_local(4, 20)
    written = over_depth({"pattern": "fibonacci", "window": 3, "alibi": True}, 2, 8, "stagger")
    assert [one["heads"] for one in written] == [8, 8]
    assert build(written[0], 20) == patterns.with_alibi(patterns.fibonacci(3, 0.5), 8)


def test_needs_says_what_of_a_sequence_decides_the_support():
    given = {"sliding_window": set(), "powers_grown": {"length"}, "bigbird": {"length", "queries"}}
    assert {name: needs({"pattern": name}) for name in given} == given


def test_every_pattern_has_a_card():
    assert all(isinstance(family.card, Card) and family.card.source for family in PATTERNS.values())


@rules
def test_only_a_growing_rule_depends_on_the_length(rule, support):
    assert grows(rule) == (rule["pattern"] == "powers_grown")
    assert (build(rule, 2048) == build(rule, 4096)) != grows(rule)


def test_building_leaves_the_rule_alone():
    rule = {"pattern": "powers_grown", "window": 9}
    build(rule, 64)
    assert rule == {"pattern": "powers_grown", "window": 9}


@pytest.mark.parametrize(
    ("rule", "words"),
    [
        ({}, "pattern must be one of sliding_window, fibonacci, .*, lines, got None"),
        ({"pattern": "fib"}, "pattern must be one of .*, got 'fib'"),
        ({"pattern": "fibonacci"}, "a fibonacci rule needs window, got .*'fibonacci'"),
        ({"pattern": "lines"}, "a lines rule needs slashes"),
        ({"pattern": "fibonacci", "window": 9, "W": 8}, "a fibonacci rule takes alpha, rungs, sinks, window, got W"),
        ({"pattern": "sliding_window", "window": 9, "alpha": 1.0}, "a sliding_window rule takes window, got alpha"),
        ({"pattern": "powers_grown", "window": 9, "reach": 8}, "a powers_grown rule takes alpha, window, got reach"),
        ({"pattern": "powers_grown", "window": 9, "length": 64}, "length is not part of a powers_grown rule"),
        ({"pattern": "fibonacci", "window": 0}, "window must be an integer >= 1, got 0"),
        ({"pattern": "lines", "slashes": [-1]}, "slashes must lie in .*, got -1"),
    ],
    ids=json.dumps,
)
def test_a_wrong_rule_is_refused(rule, words):
    with pytest.raises(ValueError, match=f"^{words}"):
        build(rule, 64)


@pytest.mark.parametrize("schedule", SCHEDULES)
def test_a_schedule_sets_the_alpha_of_each_layer(schedule):
    rule = {"pattern": "fibonacci", "window": 13}
    layers = over_depth(rule, 16, 4, schedule)
    assert [layer["alpha"] for layer in layers] == getattr(schedules, schedule)(16)
    assert [build(layer, 64) for layer in layers] == [patterns.fibonacci(13, layer["alpha"]) for layer in layers]
    assert rule == {"pattern": "fibonacci", "window": 13}
    assert json.loads(json.dumps(layers)) == layers


@pytest.mark.parametrize("schedule", HEAD_SCHEDULES)
def test_a_schedule_over_heads_sets_one_alpha_a_head(schedule):
    layers = over_depth({"pattern": "fibonacci", "window": 13}, 16, 4, schedule, low=0.25)
    assert [layer["alpha"] for layer in layers] == getattr(schedules, schedule)(16, 4, low=0.25)
    assert build(layers[3], 64) == Lines([patterns.fibonacci(13, alpha).slashes for alpha in layers[3]["alpha"]])
    assert json.loads(json.dumps(layers)) == layers


def test_bounds_reach_the_schedule():
    layers = over_depth({"pattern": "powers", "window": 3}, 3, 4, "stagger", low=1.0, high=2.0)
    assert [layer["alpha"] for layer in layers] == [1.0, 1.5, 2.0]


def test_layers_do_not_share_a_dictionary():
    first, second = over_depth({"pattern": "powers", "window": 3}, 2, 4, "fixed")
    first["alpha"] = 9
    assert second["alpha"] == 1.0


@pytest.mark.parametrize(
    ("rule", "schedule", "words"),
    [
        ({"pattern": "fibonacci", "window": 9}, "ramp", "schedule must be one of fixed, stagger, .*, got 'ramp'"),
        (
            {"pattern": "fibonacci", "window": 9, "alpha": 2},
            "fixed",
            "a scheduled rule must leave alpha .* got alpha = 2",
        ),
        ({"pattern": "sliding_window", "window": 9}, "stagger", "a sliding_window rule has no alpha"),
        ({"pattern": "lines", "slashes": [0]}, "stagger", "a lines rule has no alpha"),
        ({"pattern": "fib", "window": 9}, "stagger", "pattern must be one of .*, got 'fib'"),
    ],
    ids=["schedule", "alpha twice", "window", "lines", "pattern"],
)
def test_a_schedule_that_does_not_fit_is_refused(rule, schedule, words):
    with pytest.raises(ValueError, match=f"^{words}"):
        over_depth(rule, 8, 4, schedule)
