"""FarspanConfig: the paper's model by default, one checked rule per layer, unchanged by JSON."""

from __future__ import annotations

import copy
import json

import pytest
import torch
from huggingface_hub.errors import StrictDataclassError
from transformers import AutoConfig

from farspan import schedules
from farspan.models import FarspanConfig, FarspanForCausalLM
from farspan.models.configuration import COUNTS

RULES = {
    "dense": {"pattern": "dense"},
    "window": {"pattern": "sliding_window", "window": 8},
    "fibonacci": {"pattern": "fibonacci", "window": 3, "alpha": 0.1 + 0.2, "rungs": 9},
    "powers": {"pattern": "powers", "window": 3, "alpha": 1 / 3, "reach": 64},
    "powers grown": {"pattern": "powers_grown", "window": 3},
    "lines": {"pattern": "lines", "slashes": [[0, 1], [0, 13], *([d] for d in range(6))], "verticals": [0]},
    "learned": {"pattern": "learned_spacing", "window": 3, "rungs": 9, "low": 0.7, "high": 1.1},
    "adaptive span": {"pattern": "adaptive_span", "max_span": 20, "ramp": 4, "init": 0.3, "coefficient": 1 / 3},
    "dcls": {"pattern": "dcls", "window": 3, "positions": [4.3, 11.9], "reach": 16, "per": "layer"},
    "blocks": {"pattern": "bigbird", "block": 4, "seed": 3, "layer": 1, "heads": 8},
    "tokens": {"pattern": "elastic", "keys": 3, "layer": 0, "layers": 8, "heads": 8},
    "tiles": {"pattern": "fibonacci_blocks", "window": 3, "block": 4},
    "alibi": {"pattern": "fibonacci", "window": 3, "alibi": True, "heads": 8},
}


def test_by_default_it_is_the_best_model_of_the_paper():
    config = FarspanConfig()
    with torch.device("meta"):
        model = FarspanForCausalLM(config)
    assert sum(p.numel() for p in model.parameters()) == 60_850_688
    assert model.lm_head.weight is model.model.embed_tokens.weight
    assert (config.intermediate_size, config.head_dim, config.max_position_embeddings) == (1366, 64, 1024)
    assert (config.rms_norm_eps, config.rope_parameters["rope_theta"], config.vocab_size) == (1e-6, 1e4, 32768)
    alphas = schedules.stagger(16)
    assert config.rules == [{"pattern": "fibonacci", "window": 13, "alpha": alpha} for alpha in alphas]
    assert [each.rule for each in model.attentions] == config.rules


@pytest.mark.parametrize(("hidden", "intermediate"), [(512, 1366), (128, 342), (96, 256)])
def test_the_inner_width_is_8_thirds_rounded_to_even(hidden, intermediate):
    assert FarspanConfig(hidden_size=hidden).intermediate_size == intermediate
    assert FarspanConfig(hidden_size=hidden, intermediate_size=77).intermediate_size == 77


@pytest.mark.parametrize(("given", "std"), [(None, 128**-0.5), (0.05, 0.05)], ids=["width ** -0.5", "given"])
def test_weights_are_drawn_as_in_the_paper(given, std):
    torch.manual_seed(0)
    config = FarspanConfig(vocab_size=256, hidden_size=128, num_hidden_layers=8, initializer_range=given)
    model = FarspanForCausalLM(config)
    for name, parameter in model.named_parameters():
        if name.endswith("norm.weight"):
            assert (parameter == 1).all(), name
            continue
        residual = name.endswith(("o_proj.weight", "down_proj.weight"))
        expected = std * 16**-0.5 if residual else std
        assert parameter.std().item() == pytest.approx(expected, rel=0.03), name
        assert abs(parameter.mean().item()) < 0.05 * expected, name


def test_equal_seeds_give_equal_weights_whatever_the_rules():
    states = []
    for name in ("dense", "learned", "fibonacci", "adaptive span", "dcls", "blocks"):
        rule = RULES[name]
        torch.manual_seed(7)
        config = FarspanConfig(vocab_size=64, hidden_size=32, num_hidden_layers=2, rules=[rule] * 2)
        state = FarspanForCausalLM(config).state_dict()
        states.append({name: value for name, value in state.items() if ".spacing." not in name})
    for state in states[1:]:
        assert state.keys() == states[0].keys()
        assert all(torch.equal(value, states[0][name]) for name, value in state.items())


def test_theta_starts_at_zero():
    config = FarspanConfig(vocab_size=64, hidden_size=32, num_hidden_layers=2, rules=[RULES["learned"]] * 2)
    model = FarspanForCausalLM(config)
    assert [each.spacing.theta.tolist() for each in model.attentions] == [[0.0], [0.0]]
    assert all(each.spacing.alpha.item() == pytest.approx(0.9) for each in model.attentions)


def test_spans_and_positions_start_where_the_rule_says():
    rules = [RULES["adaptive span"], RULES["dcls"]]
    model = FarspanForCausalLM(FarspanConfig(vocab_size=64, hidden_size=32, num_hidden_layers=2, rules=rules))
    span, dcls = (each.spacing for each in model.attentions)
    assert span.spans.tolist() == pytest.approx([6.0] * 8)
    assert dcls.positions.tolist() == [pytest.approx([4.3, 11.9])]
    assert dcls.progress == 0


@pytest.mark.parametrize("name", ["blocks", "tokens", "tiles", "alibi", "adaptive span", "dcls"])
def test_models_are_built_under_the_meta_device(name):
    """As `from_pretrained` builds them."""
    with torch.device("meta"):
        config = FarspanConfig(vocab_size=64, hidden_size=32, num_hidden_layers=1, rules=[RULES[name]])
        assert FarspanForCausalLM(config).device.type == "meta"


def test_json_keeps_every_rule_to_the_last_digit(tmp_path):
    rules = [*RULES.values()]
    config = FarspanConfig(num_hidden_layers=len(rules), rules=rules)
    config.save_pretrained(tmp_path)
    saved = json.loads((tmp_path / "config.json").read_text())
    assert saved["model_type"] == "farspan"
    assert saved["rules"] == rules
    for loaded in (AutoConfig.from_pretrained(tmp_path), FarspanConfig(**config.to_dict()), copy.deepcopy(config)):
        assert type(loaded) is FarspanConfig
        assert {**loaded.to_dict(), "_name_or_path": ""} == config.to_dict()


def test_configs_share_no_rule():
    rules = [copy.deepcopy(RULES["lines"]), {"pattern": "dense"}]
    one, two = FarspanConfig(num_hidden_layers=2, rules=rules), FarspanConfig(num_hidden_layers=2, rules=rules)
    rules[0]["verticals"].append(5)
    rules[1]["pattern"] = "nonsense"
    one.rules[0]["slashes"][0].append(3)
    assert two.rules == [RULES["lines"], {"pattern": "dense"}]
    assert one.rules[1] == {"pattern": "dense"}


REFUSED = {
    "unknown pattern": ([{"pattern": "fibo"}] * 2, r"rules\[0\]: pattern must be one of dense, .*, got 'fibo'"),
    "no pattern": ([{"window": 3}] * 2, r"rules\[0\]: pattern must be one of .* got None"),
    "too few": ([{"pattern": "dense"}], r"rules must be one per layer \(2\), got 1"),
    "too many": ([{"pattern": "dense"}] * 3, r"rules must be one per layer \(2\), got 3"),
    "none at all": ([], r"rules must be one per layer \(2\), got 0"),
    "dense with arguments": ([{"pattern": "dense", "window": 3}] * 2, "a dense rule takes no arguments, got window"),
    "second layer": (
        [{"pattern": "dense"}, {"pattern": "sliding_window", "window": 0}],
        r"rules\[1\]: window must be an integer >= 1, got 0",
    ),
    "unknown argument": (
        [{"pattern": "fibonacci", "window": 3, "width": 5}] * 2,
        r"rules\[0\]: a fibonacci rule takes alpha, rungs, sinks, window, got width",
    ),
    "missing argument": ([{"pattern": "fibonacci"}] * 2, r"rules\[0\]: a fibonacci rule needs window"),
    "alpha": ([{"pattern": "powers", "window": 3, "alpha": 0}] * 2, r"rules\[0\]: alpha must be .* got 0"),
    "length": (
        [{"pattern": "powers_grown", "window": 3, "length": 5}] * 2,
        r"rules\[0\]: length is not part of a powers_grown rule",
    ),
    "learned, unknown": (
        [{"pattern": "learned_spacing", "window": 3, "alpha": 1}] * 2,
        r"rules\[0\]: .*takes window, rungs, low, high, got alpha",
    ),
    "learned, missing": (
        [{"pattern": "learned_spacing"}] * 2,
        r"rules\[0\]: a rule of learned_spacing needs window, got",
    ),
    "learned, range": (
        [{"pattern": "learned_spacing", "window": 3, "low": 2}] * 2,
        r"rules\[0\]: high must be above low, got 1.5 and 2",
    ),
    "lines of another number of heads": (
        [{"pattern": "lines", "slashes": [[0], [1], [2]]}] * 2,
        r"rules\[0\]: a rule with keys per head must have 8 heads, as the model, got 3",
    ),
    "blocks of another number of heads": (
        [{"pattern": "bigbird", "block": 4, "heads": 4}] * 2,
        r"rules\[0\]: a rule with keys per head must have 8 heads, as the model, got 4",
    ),
    "what a builder refuses": (
        [{"pattern": "elastic", "keys": 0}] * 2,
        r"rules\[0\]: keys must be an integer >= 1, got 0",
    ),
    "alibi without heads": (
        [{"pattern": "fibonacci", "window": 3, "alibi": True}] * 2,
        r"rules\[0\]: a rule with alibi needs heads, the number of query heads",
    ),
    "alibi for other heads": (
        [{"pattern": "fibonacci", "window": 3, "alibi": True, "heads": 4}] * 2,
        r"rules\[0\]: a rule with ALiBi must have 8 slopes, one a head of the model, got 4",
    ),
    "alibi in words": (
        [{"pattern": "fibonacci", "window": 3, "alibi": "yes", "heads": 8}] * 2,
        r"rules\[0\]: alibi must be true or false, got 'yes'",
    ),
    "span, unknown": (
        [{"pattern": "adaptive_span", "max_span": 3, "heads": 8}] * 2,
        r"rules\[0\]: a rule of adaptive_span takes max_span, ramp, init, coefficient, got heads",
    ),
    "dcls, range": (
        [{"pattern": "dcls", "window": 8, "reach": 8}] * 2,
        r"rules\[0\]: reach must be an integer >= 9, got 8",
    ),
    "words for rules": (["dense"] * 2, "rules"),
    "one rule for all": ({"pattern": "dense"}, "rules"),
}


@pytest.mark.parametrize(("rules", "words"), REFUSED.values(), ids=REFUSED)
def test_wrong_rules_are_refused_by_layer_and_name(rules, words):
    with pytest.raises(StrictDataclassError, match=words):
        FarspanConfig(num_hidden_layers=2, rules=rules)


@pytest.mark.parametrize("name", COUNTS)
@pytest.mark.parametrize("count", [0, -2])
def test_counts_below_one_are_refused_by_name(name, count):
    """Not in a division by zero or a negative width further on."""
    with pytest.raises(ValueError, match=f"^{name} must be >= 1, got {count}$"):
        FarspanConfig(**{name: count})


def test_head_counts_that_do_not_fit_are_refused():
    with pytest.raises(StrictDataclassError, match="must be a multiple of num_key_value_heads = 4, got 6"):
        FarspanConfig(hidden_size=48, num_attention_heads=6, num_key_value_heads=4)


def test_dropout_is_refused_and_not_ignored():
    with pytest.raises(StrictDataclassError, match=r"attention_dropout must be 0, got 0\.1"):
        FarspanConfig(attention_dropout=0.1)
