"""Saving, loading, casting and freezing keep what a model says; other models in the process do not notice ours."""

from __future__ import annotations

import copy
import math
import subprocess
import sys

import pytest
import torch
from transformers import AttentionInterface, AutoModel, AutoModelForCausalLM, LlamaConfig, LlamaForCausalLM
from transformers.masking_utils import AttentionMaskInterface

from farspan import Lines, patterns
from farspan.layers import LearnedSpacing
from farspan.models import FarspanConfig, FarspanForCausalLM, FarspanModel

RULES = {
    "dense": {"pattern": "dense"},
    "window": {"pattern": "sliding_window", "window": 8},
    "fibonacci": {"pattern": "fibonacci", "window": 3, "alpha": 0.7},
    "powers": {"pattern": "powers", "window": 3, "alpha": 1.3, "reach": 64},
    "powers grown": {"pattern": "powers_grown", "window": 3},
    "lines per head": {"pattern": "lines", "slashes": [[0, 1, 2], [0, 5], [0, 13], [2, 15]]},
    "learned": {"pattern": "learned_spacing", "window": 3},
    "adaptive span": {"pattern": "adaptive_span", "max_span": 20, "ramp": 4, "init": 0.3},
    "dcls": {"pattern": "dcls", "window": 3, "positions": [4.3, 11.9], "reach": 16, "width": 1.5},
    "tokens": {"pattern": "elastic", "keys": 3, "layer": 0, "layers": 8, "heads": 4},
    "alibi": {"pattern": "fibonacci", "window": 3, "alibi": True, "heads": 4},
}
EVERY_RULE = pytest.mark.parametrize("rule", RULES.values(), ids=RULES)
SHAPE = dict(vocab_size=64, hidden_size=32, num_attention_heads=4, num_key_value_heads=2, max_position_embeddings=32)


def tiny(*rules, theta=0.3, **more):
    torch.manual_seed(0)
    model = FarspanForCausalLM(FarspanConfig(**SHAPE, num_hidden_layers=len(rules), rules=list(rules), **more)).eval()
    for layer, each in enumerate(model.attentions):
        if isinstance(each.spacing, LearnedSpacing):
            each.spacing.theta.data.fill_(theta - 0.4 * layer)
    return model


IDS = torch.randint(0, 64, (2, 50), generator=torch.Generator().manual_seed(0))


@EVERY_RULE
@pytest.mark.parametrize("tied", [True, False], ids=["tied", "untied"])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=str)
def test_a_saved_model_loads_to_the_same_bits(tmp_path, rule, tied, dtype):
    model = tiny(rule, rule, tie_word_embeddings=tied).to(dtype)
    model.save_pretrained(tmp_path)
    loaded, info = AutoModelForCausalLM.from_pretrained(tmp_path, output_loading_info=True)
    assert type(loaded) is FarspanForCausalLM
    assert not any(info.values()), info
    assert (loaded.dtype, loaded.config.rules) == (dtype, model.config.rules)
    assert torch.equal(loaded(IDS).logits, model(IDS).logits)
    again = copy.deepcopy(loaded)
    assert torch.equal(again(IDS).logits, model(IDS).logits)


def test_the_decoder_without_a_head_round_trips(tmp_path):
    model = tiny(RULES["learned"], RULES["fibonacci"]).model
    model.save_pretrained(tmp_path)
    loaded = FarspanModel.from_pretrained(tmp_path)
    assert torch.equal(loaded(IDS).last_hidden_state, model(IDS).last_hidden_state)


def test_a_loaded_model_runs_beyond_its_training_length(tmp_path):
    tiny(RULES["fibonacci"], RULES["powers grown"]).save_pretrained(tmp_path)
    loaded = AutoModelForCausalLM.from_pretrained(tmp_path)
    assert loaded(torch.arange(300)[None] % 64).logits.isfinite().all()


@pytest.mark.slow
def test_importing_farspan_is_enough_to_load_a_checkpoint(tmp_path):
    model = tiny(RULES["learned"], RULES["fibonacci"])
    model.save_pretrained(tmp_path)
    torch.save(model(IDS).logits, tmp_path / "logits.pt")
    program = f"""
import torch
import farspan
from transformers import AutoModelForCausalLM
model = AutoModelForCausalLM.from_pretrained({str(tmp_path)!r})
ids = torch.randint(0, 64, (2, 50), generator=torch.Generator().manual_seed(0))
assert torch.equal(model(ids).logits, torch.load({str(tmp_path / "logits.pt")!r}))
"""
    subprocess.run([sys.executable, "-c", program], check=True)


def cosines(model):
    """cos of position 15,962 at each frequency, as the model applies it to fp32 and to bf16 inputs."""
    position = torch.tensor([[15_962]])
    rotary = model.model.rotary_emb
    return [rotary(torch.zeros(1, dtype=d), position)[0][0, 0, :4].float() for d in (torch.float32, torch.bfloat16)]


@pytest.mark.parametrize("cast", ["to", "bfloat16", "half", "loaded"])
def test_rotary_tables_stay_exact_in_a_narrow_model(tmp_path, cast):
    """F25: neither positions nor frequencies are rounded; at frequency 1 bf16 positions would give -0.268."""
    model = tiny(RULES["window"])
    if cast == "loaded":
        model.to(torch.bfloat16).save_pretrained(tmp_path)
        model = AutoModelForCausalLM.from_pretrained(tmp_path)
    else:
        getattr(model, cast)(*([torch.bfloat16] if cast == "to" else []))
    assert model.dtype in (torch.bfloat16, torch.float16)
    exact = torch.tensor([math.cos(15_962 * 10_000 ** (-n / 4)) for n in range(4)])
    assert exact[0].item() == pytest.approx(-0.908, abs=5e-3)
    wide, narrow = cosines(model)
    torch.testing.assert_close(wide, exact, atol=2e-3, rtol=0)
    torch.testing.assert_close(narrow, exact, atol=5e-3, rtol=0)


def test_a_cast_model_and_its_reload_are_the_same(tmp_path):
    """Casting in memory must not lose what loading keeps."""
    model = tiny(RULES["fibonacci"], RULES["dense"]).to(torch.bfloat16)
    model.save_pretrained(tmp_path)
    far = 15_900 + torch.arange(50)[None]
    loaded = AutoModelForCausalLM.from_pretrained(tmp_path)
    assert torch.equal(model(IDS, position_ids=far).logits, loaded(IDS, position_ids=far).logits)


def test_a_model_moves_between_devices_with_its_rotary_tables():
    model = tiny(RULES["window"]).to("meta")
    assert {buffer.device.type for buffer in model.model.rotary_emb.buffers()} == {"meta"}
    assert model.to_empty(device="cpu").model.rotary_emb.inv_freq.device.type == "cpu"


def test_frozen_is_the_model_with_those_integer_patterns():
    model = tiny(RULES["learned"], RULES["dense"], {**RULES["learned"], "rungs": 5, "low": 0.8}, theta=0.6)
    frozen = model.freeze()
    alphas = [0.5 + 1 / (1 + math.exp(-0.6)), 0.8 + 0.7 / (1 + math.exp(0.2))]
    assert frozen.config.rules[1] == {"pattern": "dense"}
    assert [frozen.config.rules[layer]["alpha"] for layer in (0, 2)] == pytest.approx(alphas, rel=1e-6)
    assert frozen.attentions[0].support(50, 50) == patterns.fibonacci(3, alphas[0])
    assert frozen.attentions[2].support(50, 50) == patterns.fibonacci(3, alphas[1], rungs=5)
    assert not any("theta" in name for name in frozen.state_dict())
    built = tiny({"pattern": "fibonacci", "window": 3, "alpha": alphas[0]}, RULES["dense"], frozen.config.rules[2])
    built.load_state_dict(frozen.state_dict())
    assert torch.equal(frozen(IDS).logits, built(IDS).logits)
    assert [each.rule["pattern"] for each in model.attentions] == ["learned_spacing", "dense", "learned_spacing"]


def test_spans_and_positions_freeze_to_lines_per_head():
    model = tiny(RULES["adaptive span"], RULES["dcls"])
    span, dcls = (each.spacing for each in model.attentions)
    span.share.data.copy_(torch.tensor([0.0, 0.3, 0.5, 1.0]))
    dcls.share.data[:2] = torch.tensor([7.2, 16.0]) / 16
    frozen = model.freeze()
    assert [each.spacing for each in frozen.attentions] == [None, None]
    assert frozen.attentions[0].support(50, 50) == Lines([range(window) for window in (3, 9, 13, 23)])
    assert frozen.attentions[1].support(50, 50) == Lines([[0, 1, 2, 7, 16], *[[0, 1, 2, 4, 12]] * 3])
    assert frozen(IDS).logits.isfinite().all()


def test_a_loaded_layer_is_as_far_in_its_training_as_the_saved_one(tmp_path):
    model = tiny(RULES["dcls"])
    model.attentions[0].spacing.after_step(0.6)
    model.save_pretrained(tmp_path)
    loaded = AutoModelForCausalLM.from_pretrained(tmp_path)
    assert loaded.attentions[0].spacing.sigma == model.attentions[0].spacing.sigma < 0.5
    assert torch.equal(loaded(IDS).logits, model(IDS).logits)


def test_freezing_an_integer_alpha_changes_nothing():
    rule = {"pattern": "learned_spacing", "window": 3, "low": 1.0, "high": 3.0}
    model = tiny(rule, rule)
    for each in model.attentions:
        each.spacing.theta.data.zero_()
    torch.testing.assert_close(model.freeze()(IDS).logits, model(IDS).logits, atol=1e-5, rtol=0)


def test_freezing_moves_logits_in_proportion_to_how_far_rungs_are_from_positions():
    """A frozen rung reads the nearer of the two neighbours that the learned one mixes."""
    steps = []
    for theta in (1e-4, 1e-3, 1e-2):
        model = tiny({"pattern": "learned_spacing", "window": 3, "rungs": 6}, theta=theta)
        steps.append((model.freeze()(IDS).logits - model(IDS).logits).abs().max().item() / theta)
    assert steps[0] > 1
    assert steps == pytest.approx([steps[0]] * 3, rel=0.1)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=str)
def test_a_frozen_model_saves_keeps_its_dtype_and_shares_no_weight(tmp_path, dtype):
    model = tiny(RULES["learned"], RULES["window"]).to(dtype)
    frozen = model.freeze()
    assert frozen.dtype == dtype
    assert not frozen.training
    assert model.train().freeze().training
    model.eval()
    before = model(IDS).logits
    frozen.save_pretrained(tmp_path)
    assert torch.equal(AutoModelForCausalLM.from_pretrained(tmp_path)(IDS).logits, frozen(IDS).logits)
    for parameter in frozen.parameters():
        parameter.data.zero_()
    assert torch.equal(model(IDS).logits, before)


def test_freezing_a_static_model_is_a_copy():
    model = tiny(RULES["fibonacci"], RULES["dense"])
    assert torch.equal(model.freeze()(IDS).logits, model(IDS).logits)


def test_a_frozen_model_generates_with_the_same_settings_of_its_own():
    model = tiny(RULES["learned"])
    model.generation_config.update(max_new_tokens=7, eos_token_id=[3, 5], temperature=0.3)
    frozen = model.freeze()
    assert frozen.generation_config.to_dict() == model.generation_config.to_dict()
    frozen.generation_config.eos_token_id.append(8)
    assert model.generation_config.eos_token_id == [3, 5]


def test_other_models_in_the_process_do_not_notice():
    """F24: a plain Llama, and one of ours with other rules, say the same before and after."""
    torch.manual_seed(1)
    config = LlamaConfig(**SHAPE, intermediate_size=48, num_hidden_layers=2)
    llama = LlamaForCausalLM(config).eval()
    ours = tiny(RULES["window"], RULES["window"])
    before = llama(IDS).logits, ours(IDS).logits
    others = [tiny(RULES["fibonacci"], RULES["learned"]), tiny(RULES["dense"], RULES["lines per head"])]
    for other in others:
        other(IDS)
    assert (config._attn_implementation, type(llama.model.layers[0].self_attn).__name__) == ("sdpa", "LlamaAttention")
    assert torch.equal(llama(IDS).logits, before[0])
    assert torch.equal(ours(IDS).logits, before[1])
    assert type(AutoModel.from_config(config)).__name__ == "LlamaModel"


@pytest.mark.parametrize("interface", [AttentionInterface(), AttentionMaskInterface()], ids=["attention", "masks"])
def test_importing_us_adds_two_names_and_replaces_none(interface):
    """F24."""
    ours = {name for name in interface if not interface[name].__module__.startswith("transformers.")}
    assert ours == {"farspan", "farspan_apply"}


def test_two_models_of_one_config_do_not_share_their_patterns():
    config = FarspanConfig(**SHAPE, num_hidden_layers=1, rules=[RULES["fibonacci"]])
    one, two = FarspanForCausalLM(config), FarspanForCausalLM(config)
    one(IDS), two(IDS)
    assert one.attentions[0].static.supports is not two.attentions[0].static.supports


@pytest.mark.parametrize("implementation", ["eager", "sdpa", "flash_attention_2", "flex_attention", "nonsense"])
def test_another_attention_implementation_is_refused(tmp_path, implementation):
    """F24: it would ignore the rules, silently."""
    words = f"attn_implementation must be left out: the rules of the config decide, got '{implementation}'"
    model = tiny(RULES["window"])
    before = model(IDS).logits
    with pytest.raises(ValueError, match=words):
        model.set_attn_implementation(implementation)
    assert torch.equal(model(IDS).logits, before)
    with pytest.raises(ValueError, match=words):
        tiny(RULES["window"], attn_implementation=implementation)
    model.save_pretrained(tmp_path)
    with pytest.raises(ValueError, match=words):
        AutoModelForCausalLM.from_pretrained(tmp_path, attn_implementation=implementation)


def test_attention_weights_are_refused_and_not_none():
    model = tiny(RULES["window"])
    words = "output_attentions must be False: the attention weights are never stored"
    with pytest.raises(ValueError, match=words):
        model(IDS, output_attentions=True)
    with pytest.raises(ValueError, match=words):
        model.generate(IDS, max_new_tokens=2, output_attentions=True, return_dict_in_generate=True)


def test_hidden_states_are_given():
    model = tiny(RULES["window"], RULES["learned"])
    output = model(IDS, output_hidden_states=True)
    assert [tuple(x.shape) for x in output.hidden_states] == [(2, 50, 32)] * 3
    assert torch.equal(output.hidden_states[0], model.get_input_embeddings()(IDS))
