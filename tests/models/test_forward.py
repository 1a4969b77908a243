"""One forward pass: the same model in plain transformers, causality, every length, labels, autocast."""

from __future__ import annotations

import pytest
import torch
from transformers import AttentionInterface, LlamaConfig, LlamaForCausalLM

from farspan import Lines, patterns
from farspan.layers import LearnedSpacing
from farspan.models import FarspanConfig, FarspanForCausalLM

TRAINED = 32
STATIC = {
    "window": {"pattern": "sliding_window", "window": 8},
    "fibonacci": {"pattern": "fibonacci", "window": 3, "alpha": 0.7},
    "powers": {"pattern": "powers", "window": 2, "alpha": 1.3, "reach": 64},
    "powers grown": {"pattern": "powers_grown", "window": 3},
    "verticals": {"pattern": "lines", "slashes": [0, 1, 13], "verticals": [0, 2]},
    "lines per head": {"pattern": "lines", "slashes": [[0, 1, 2, 3], [0, 5], [0, 13], [2, 30]]},
}
BLOCKED = {
    "blocks": {"pattern": "block_local", "block": 6, "bridge": 2},
    "blocks per key head": {"pattern": "s2_attention", "block": 4, "local_blocks": 1, "stride": 3, "heads": 4},
    "tokens per head": {"pattern": "elastic", "keys": 5, "layer": 1, "layers": 3, "heads": 4},
}
LEARNED = {
    "learned": {"pattern": "learned_spacing", "window": 3},
    "adaptive span": {"pattern": "adaptive_span", "max_span": 20, "ramp": 4, "init": 0.3},
    "dcls": {"pattern": "dcls", "window": 3, "positions": [4.3, 11.9], "reach": 16, "width": 1.5},
}
ALIBI = {
    "alibi": {"pattern": "sliding_window", "window": 9, "alibi": True, "heads": 4},
    "alibi on blocks": {"pattern": "block_local", "block": 6, "bridge": 2, "alibi": True, "heads": 4},
}
RULES = {"dense": {"pattern": "dense"}, **STATIC, **BLOCKED, **LEARNED, **ALIBI}
EVERY_RULE = pytest.mark.parametrize("rule", RULES.values(), ids=RULES)

SHAPE = dict(
    vocab_size=64,
    hidden_size=32,
    intermediate_size=48,
    num_attention_heads=4,
    num_key_value_heads=2,
    max_position_embeddings=TRAINED,
    tie_word_embeddings=True,
)


def tiny(*rules):
    torch.manual_seed(0)
    model = FarspanForCausalLM(FarspanConfig(**SHAPE, num_hidden_layers=len(rules), rules=list(rules))).eval()
    for each in model.attentions:
        if isinstance(each.spacing, LearnedSpacing):
            each.spacing.theta.data.fill_(0.3)
    return model


def llama_like(model):
    """Plain transformers with the same weights."""
    config = LlamaConfig(**SHAPE, num_hidden_layers=model.config.num_hidden_layers, attn_implementation="eager")
    llama = LlamaForCausalLM(config).eval()
    llama.load_state_dict({name: value for name, value in model.state_dict().items() if ".spacing." not in name})
    return llama


def tokens(length, batch=1, seed=0):
    return torch.randint(0, 64, (batch, length), generator=torch.Generator().manual_seed(seed))


def assert_close(a, b, tolerance=1e-5):
    torch.testing.assert_close(a, b, atol=tolerance, rtol=0)


@pytest.mark.parametrize("length", [1, 2, 17, TRAINED, 50], ids=lambda length: f"T={length}")
def test_dense_is_llama(length):
    model = tiny(RULES["dense"], RULES["dense"])
    ids = tokens(length, batch=2)
    assert_close(model(ids).logits, llama_like(model)(ids).logits)


@pytest.mark.parametrize("length", [1, 5, TRAINED, 50], ids=lambda length: f"T={length}")
@pytest.mark.parametrize("rule", [*STATIC.values(), *BLOCKED.values()], ids=[*STATIC, *BLOCKED])
def test_every_static_rule_is_llama_under_its_mask(rule, length):
    """The mask is written down here, from the pattern's own function, and never by the model."""
    name, arguments = rule["pattern"], {key: value for key, value in rule.items() if key != "pattern"}
    if name == "lines":
        support = Lines(**arguments)
    elif name == "powers_grown":
        support = patterns.powers_grown(**arguments, length=max(length, TRAINED))
    elif rule in BLOCKED.values():
        support = getattr(patterns, name)(**arguments, length=length)
    else:
        support = getattr(patterns, name)(**arguments)
    mask = support.mask(length, length)
    mask = mask.expand(1, *(mask.shape if mask.ndim == 3 else (1, *mask.shape)))
    empty = ~mask.any(-1, keepdim=True)
    additive = torch.zeros(mask.shape).masked_fill(~mask & ~empty, -torch.inf)
    model = tiny(rule, rule)
    ids = tokens(length, batch=2)
    llama = llama_like(model)
    if empty.any():
        # Only a mask of ours has rows without keys; Llama would give the mean of all values there, and not zeros.
        llama = zero_where(llama, empty)
    assert_close(model(ids).logits, llama(ids, attention_mask=additive.expand(2, *additive.shape[1:])).logits)


@pytest.mark.parametrize("length", [1, 5, 50], ids=lambda length: f"T={length}")
@pytest.mark.parametrize("rule", ALIBI.values(), ids=ALIBI)
def test_alibi_is_llama_without_rotary_embedding_under_a_penalty_on_distance(rule, length):
    """arXiv 2108.12409: slopes 1/4, 1/16, 1/64, 1/256 for four heads, and no position embedding."""
    builder = getattr(patterns, rule["pattern"])
    more = {"length": length} if rule["pattern"] == "block_local" else {}
    arguments = {key: value for key, value in rule.items() if key not in ("pattern", "alibi", "heads")}
    mask = builder(**arguments, **more).mask(length, length)
    distance = (torch.arange(length)[:, None] - torch.arange(length)).float()
    slopes = torch.tensor([4.0**-n for n in range(1, 5)])
    additive = (-slopes[:, None, None] * distance).masked_fill(~mask, -torch.inf)
    model = tiny(rule, rule)
    llama, ids = llama_like(model), tokens(length, batch=2)
    llama.model.rotary_emb.inv_freq.zero_()
    assert_close(model(ids).logits, llama(ids, attention_mask=additive.expand(2, -1, -1, -1)).logits)


@pytest.mark.parametrize(("rule", "feels"), [("window", True), ("alibi", False)])
def test_rotary_embedding_goes_only_where_alibi_is(rule, feels):
    model, hidden = tiny(RULES[rule]), torch.randn(1, 30, 32)
    outputs = [
        model.attentions[0](hidden, model.model.rotary_emb(hidden, stretch * torch.arange(30)[None]))[0]
        for stretch in (1, 3)
    ]
    assert torch.equal(*outputs) != feels


def zero_where(llama, empty):
    """Makes Llama's attention give zeros for the `empty [1, H, T, 1]` rows."""
    for layer in llama.model.layers:
        layer.self_attn.o_proj.register_forward_pre_hook(
            lambda _, inputs: inputs[0].unflatten(-1, (4, 8)).masked_fill(empty.transpose(1, 2), 0).flatten(2)
        )
    return llama


@pytest.mark.parametrize("length", [1, 7, 50], ids=lambda length: f"T={length}")
@pytest.mark.parametrize(
    "rule",
    ["sliding_window", "fibonacci", "powers", "learned_spacing"],
)
def test_a_window_over_everything_is_dense(rule, length):
    rule = {"pattern": rule, "window": 50}
    model, dense = tiny(rule, rule), tiny(RULES["dense"], RULES["dense"])
    ids = tokens(length, batch=2)
    assert_close(model(ids).logits, dense(ids).logits)


@EVERY_RULE
def test_the_future_changes_no_bit(rule):
    """F05, with the whole model."""
    model = tiny(rule, rule, rule)
    ids = tokens(45, batch=3)
    before = model(ids).logits
    for j in (1, 22, 44):
        changed = ids.clone()
        changed[:, j:] = (changed[:, j:] + 1 + j) % 64
        after = model(changed).logits
        assert torch.equal(after[:, :j], before[:, :j])
        assert not torch.equal(after[:, j], before[:, j])


@EVERY_RULE
def test_a_text_reads_alike_at_any_length(rule):
    """F08: lengths below, at and beyond training, in one module, in any order."""
    model = tiny(rule, rule)
    ids = tokens(70)
    for length in (70, TRAINED, 1, TRAINED + 1):
        logits = model(ids[:, :length]).logits
        assert torch.equal(logits, tiny(rule, rule)(ids[:, :length]).logits)
        if rule["pattern"] != "powers_grown":
            assert_close(logits, model(ids).logits[:, :length])


def test_powers_grown_reads_farther_in_a_longer_text():
    """The paper's control is rebuilt at every length; up to the training length it stays as it was trained."""
    (attention,) = tiny(RULES["powers grown"]).attentions
    expected = {1: 16, 20: 16, TRAINED: 16, TRAINED + 1: 32, 64: 32, 65: 64, 1000: 512}
    assert {length: max(attention.support(length, length).slashes) for length in expected} == expected


@EVERY_RULE
def test_batch_mates_do_not_matter(rule):
    """F04."""
    model = tiny(rule, rule)
    ids = tokens(40, batch=5)
    alone = model(ids[:1]).logits
    for batch in (1, 4, 5):
        assert_close(model(ids[:batch]).logits[:1], alone)


def test_layers_follow_their_own_rules():
    rules = [RULES["window"], RULES["learned"], RULES["dense"], RULES["fibonacci"]]
    model, ids = tiny(*rules), tokens(40)
    base = model(ids).logits
    for layer in range(4):
        other = [*rules]
        other[layer] = {"pattern": "sliding_window", "window": 2}
        changed = tiny(*other)
        changed.load_state_dict(model.state_dict(), strict=False)
        assert (changed(ids).logits - base).abs().max() > 1e-3


@EVERY_RULE
def test_gradient_checkpointing_changes_no_gradient(rule):
    ids, grads = tokens(20, batch=2), []
    for checkpointing in (False, True):
        model = tiny(rule, rule).train()
        if checkpointing:
            model.activation_checkpointing_enable()
        model(ids, labels=ids, use_cache=False).loss.backward()
        grads.append({name: p.grad for name, p in model.named_parameters()})
    assert grads[0].keys() == grads[1].keys()
    for name, grad in grads[0].items():
        assert grad is not None, name
        assert torch.equal(grad, grads[1][name]), name


@pytest.mark.parametrize("rule", [r for n, r in RULES.items() if n not in ("adaptive span", "dcls")])
def test_shapes_are_known_without_data(rule):
    """But for those whose work depends on what they have learned."""
    model = tiny(rule).to("meta")
    assert model(tokens(20, batch=2).to("meta")).logits.shape == (2, 20, 64)


def test_the_whole_model_compiles_in_one_graph():
    """Each layer keeps its own rule in it, and theta its gradient."""
    model = tiny(RULES["fibonacci"], RULES["learned"])
    ids, results = tokens(45, batch=2), []
    for call in (model, torch.compile(model, fullgraph=True, backend="aot_eager")):
        model.zero_grad()
        loss = call(ids, labels=ids, use_cache=False).loss
        loss.backward()
        results.append([loss.detach(), *(p.grad.clone() for p in model.parameters())])
    for a, b in zip(*results, strict=True):
        assert_close(a, b)


class _Answers(torch.nn.Module):
    """A head that says `ids[t]` at position t, or the token after it."""

    def __init__(self, ids):
        super().__init__()
        self.weight = torch.nn.Parameter(100 * torch.nn.functional.one_hot(ids, 64).float())

    def forward(self, hidden):
        return self.weight


def test_labels_are_shifted_once():
    """F33."""
    model, ids = tiny(RULES["window"]), tokens(12, batch=2)
    model.lm_head = _Answers(ids.roll(-1, 1))
    assert model(ids, labels=ids).loss < 1e-6
    model.lm_head = _Answers(ids)
    assert model(ids, labels=ids).loss > 10
    assert model(ids, labels=ids, shift_labels=ids).loss < 1e-6


def test_labels_do_not_cross_rows():
    """F33: the last position of a row has no target, and a row's loss is its own."""
    model, ids = tiny(RULES["window"]), tokens(12, batch=2)
    model.lm_head = _Answers(ids.roll(3, 1))
    model(ids, labels=ids).loss.backward()
    grad = model.lm_head.weight.grad
    assert not grad[:, -1].any()
    assert grad[:, :-1].any(-1).all()
    first = model(ids, labels=torch.stack([ids[0], torch.full((12,), -100)])).loss
    for labels in (ids[1], ids[1].roll(4)):
        both, second = (model(ids, labels=torch.stack([row, labels])).loss for row in (ids[0], torch.full((12,), -100)))
        assert_close(both, (first + second) / 2)


@EVERY_RULE
def test_autocast_runs_forward_and_backward_near_fp32(rule):
    model, ids = tiny(rule, rule), tokens(40, batch=2)
    expected = model(ids, labels=ids).loss
    with torch.autocast("cpu", torch.bfloat16):
        loss = model(ids, labels=ids).loss
    assert loss.item() == pytest.approx(expected.item(), rel=2e-2)
    loss.backward()
    assert all(p.grad.isfinite().all() for p in model.parameters())


@EVERY_RULE
def test_autocast_narrows_the_inputs_of_attention_and_not_its_scores(rule):
    """Rotated queries and keys arrive in fp32, values in bf16; scores and softmax stay in fp32 (design.md)."""
    (module,) = tiny(rule).attentions
    function = AttentionInterface()["farspan"]
    q, k, v = (torch.randn(2, heads, 40, 8) for heads in (4, 2, 2))
    exact = [x.bfloat16().float() for x in (q, k, v)]
    expected, _ = function(module, *exact, None, scaling=0.4)
    with torch.autocast("cpu", torch.bfloat16):
        out, _ = function(module, q, k, v.bfloat16(), None, scaling=0.4)
    assert out.dtype == torch.bfloat16
    if rule["pattern"] != "dense":  # there PyTorch decides
        # bf16 keeps 8 bits: one rounding of the result, and where the spacing is learned one of the window's share.
        assert_close(out.float(), expected, 2**-8 * v.abs().max().item())
