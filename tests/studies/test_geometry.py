"""What a result says of its layers: distances, pairs and FLOPs, for every kind of rule."""

from __future__ import annotations

import pytest

from farspan import Lines, patterns
from farspan.models import FarspanConfig, FarspanForCausalLM
from farspan.studies.geometry import cost, layers

SPAN = {"pattern": "adaptive_span", "max_span": 8, "ramp": 2, "init": 0.5}
RULES = {
    "dense": ({"pattern": "dense"}, lambda length: patterns.sliding_window(length)),
    "fibonacci": ({"pattern": "fibonacci", "window": 3, "alpha": 0.7}, lambda _: patterns.fibonacci(3, 0.7)),
    "adaptive span": (SPAN, lambda _: Lines(range(6))),
    "dcls": (
        {"pattern": "dcls", "window": 2, "positions": [5.25], "reach": 8, "interpolation": "triangle"},
        lambda _: Lines([0, 1, 5, 6]),
    ),
    "blocks": ({"pattern": "block_local", "block": 4}, lambda length: patterns.block_local(4, length)),
}


@pytest.mark.parametrize(("rule", "support"), RULES.values(), ids=RULES)
def test_cost_counts_the_pairs_that_the_layer_reads(rule, support):
    shape = dict(vocab_size=8, hidden_size=32, num_attention_heads=4, num_key_value_heads=2, num_hidden_layers=2)
    model = FarspanForCausalLM(FarspanConfig(**shape, rules=[rule, {"pattern": "sliding_window", "window": 1}]))
    pairs = support(20).pairs(20, 20)
    assert cost(model, [20])["pairs_per_token"] == {"20": pytest.approx((pairs + 20) / 40)}
    # Two products of 8 numbers per pair and head, a multiply-add counted as two.
    assert cost(model, [20])["attention_flops_per_token"] == {"20": pytest.approx((pairs + 20) * 4 * 8 * 4 / 20)}
    described = layers(model, 20)
    slashes = support(20).slashes if isinstance(support(20), Lines) and rule["pattern"] != "dense" else ()
    assert described[0]["slashes"] == [d for d in slashes if d < 20]
    assert [each["pattern"] for each in described] == [rule["pattern"], "sliding_window"]
    assert described[0]["alpha"] == rule.get("alpha")
