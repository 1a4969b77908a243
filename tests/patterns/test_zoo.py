"""What every pattern of the zoo must be: its paper's definition, blind to the future, and the same at every length.

A new pattern is tested by one more entry in a list of (rule, definition) that `ZOO` is made of.
"""

from __future__ import annotations

import inspect
import itertools
import json
import math
import tomllib

import pytest
import torch

from farspan.patterns.rules import PATTERNS, build, grows
from patterns import zoo_blocks, zoo_lines

ZOO = [*zoo_lines.ZOO, *zoo_blocks.ZOO]
LENGTHS = [1, 2, 17, 64, 200, 1000]


def own(rule):
    """The rule without the heads that only the definition asks for."""
    known = inspect.signature(PATTERNS[rule["pattern"]].build).parameters
    return {key: value for key, value in rule.items() if key in known or key == "pattern"}


zoo = pytest.mark.parametrize(("rule", "definition"), ZOO, ids=[json.dumps(rule) for rule, _ in ZOO])
all_rules = pytest.mark.parametrize("rule", [own(rule) for rule, _ in ZOO], ids=[json.dumps(rule) for rule, _ in ZOO])


@pytest.mark.parametrize("length", LENGTHS)
@zoo
def test_the_mask_is_the_definition(rule, definition, length):
    heads = rule.get("heads", 1)
    support = build(own(rule), length)
    head, query, key = torch.arange(heads)[:, None, None], torch.arange(length)[:, None], torch.arange(length)
    expected = definition(head, query, key) & (key <= query)
    assert support.fits(heads, 1)
    assert torch.equal(support.mask(length, length).expand(heads, length, length), expected.expand(heads, -1, -1))


@all_rules
def test_a_query_reads_the_same_keys_in_a_longer_sequence_unless_declared(rule):
    masks = [build(rule, length).mask(length, length) for length in (1, 63, 64, 200, 1000)]
    stable = [torch.equal(a, b[..., : a.shape[-1], : a.shape[-1]]) for a, b in itertools.pairwise(masks)]
    assert all(stable) != grows(rule)


@pytest.mark.parametrize(
    ("queries", "length"), [(0, 17), (1, 1), (1, 64), (1, 200), (5, 64), (48, 64), (40, 200), (70, 200)]
)
@all_rules
def test_the_last_queries_read_what_they_read_among_all(rule, queries, length):
    last = build(rule, length).mask(length, length)[..., length - queries :, :]
    assert torch.equal(build(rule, length, queries).mask(queries, length), last)


@all_rules
def test_a_rule_survives_json_and_toml(rule):
    toml = "\n".join(f"{key} = {json.dumps(value)}" for key, value in rule.items())
    assert build(json.loads(json.dumps(rule)), 200) == build(rule, 200) == build(tomllib.loads(toml), 200)


def nonsense(value):
    """What must be refused in the place of such a value."""
    if isinstance(value, bool):
        return [1, "true", None]
    if isinstance(value, int):
        return [-1, 1.5, 2.0, True, "3", None, [1]]
    if isinstance(value, float):
        return [-1.0, 0, math.nan, math.inf, True, "1", None]
    if isinstance(value, str):
        return ["x", 1, None]
    return [-1, "12", None, [], [-1], [True], ["1"], [None]]


def wrong_arguments():
    seen = {}
    for rule, _ in ZOO:
        parameters = inspect.signature(PATTERNS[rule["pattern"]].build).parameters
        for name, parameter in parameters.items():
            value = rule.get(name, parameter.default)
            if name in ("length", "queries") or value is None or value is parameter.empty:
                continue
            for wrong in nonsense(value):
                if wrong is not parameter.default:
                    case = rule["pattern"], name, repr(wrong)
                    seen[case] = pytest.param(own(rule), name, wrong, id=" ".join(case))
    return list(seen.values())


@pytest.mark.parametrize(("rule", "name", "wrong"), wrong_arguments())
def test_an_argument_without_meaning_is_refused_by_name(rule, name, wrong):
    with pytest.raises((TypeError, ValueError), match=f"^{name} must "):
        build({**rule, name: wrong}, 64)


def test_every_pattern_is_in_the_zoo():
    """Except lines given one by one."""
    assert {rule["pattern"] for rule, _ in ZOO} == set(PATTERNS) - {"lines", "block_lines"}
