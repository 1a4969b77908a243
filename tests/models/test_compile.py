"""The model under `torch.compile(fullgraph=True)`: equal to eager, padded too, few graphs for many lengths."""

from __future__ import annotations

import pytest
import torch
from torch._dynamo.utils import counters

from farspan.models import FarspanConfig, FarspanForCausalLM


@pytest.fixture
def model() -> FarspanForCausalLM:
    torch.manual_seed(0)
    rules = [{"pattern": "fibonacci", "window": 3}, {"pattern": "sliding_window", "window": 3}]
    config = FarspanConfig(
        vocab_size=64,
        hidden_size=32,
        num_hidden_layers=2,
        num_attention_heads=4,
        max_position_embeddings=32,
        rules=rules,
    )
    return FarspanForCausalLM(config)


@pytest.mark.slow
@pytest.mark.parametrize("batch", ["whole", "padded", "packed"])
def test_compiled_training_equals_eager_in_a_handful_of_graphs(model: FarspanForCausalLM, batch: str) -> None:
    torch._dynamo.reset()
    counters.clear()
    compiled = torch.compile(model, fullgraph=True)
    for length in range(20, 32):
        ids = torch.randint(1, 64, (2, length))
        mask = positions = None
        if batch == "padded":
            mask = torch.ones_like(ids)
            mask[0, :3] = 0
            positions = (mask.cumsum(1) - 1).clamp_min(0)
        if batch == "packed":
            positions = torch.cat([torch.arange(7), torch.arange(length - 7)]).expand(2, -1)
        losses, gradients = [], []
        for run in (model, compiled):
            model.zero_grad()
            loss = run(input_ids=ids, labels=ids, attention_mask=mask, position_ids=positions, use_cache=False).loss
            loss.backward()
            losses.append(loss.detach())
            gradients.append(model.model.layers[0].self_attn.q_proj.weight.grad.clone())
        torch.testing.assert_close(losses[1], losses[0], rtol=1e-5, atol=1e-6)
        torch.testing.assert_close(gradients[1], gradients[0], rtol=1e-4, atol=1e-5)
    assert counters["stats"]["unique_graphs"] <= 3


@pytest.mark.slow
@pytest.mark.parametrize(
    "rule",
    [
        {"pattern": "streaming_llm", "window": 3, "sinks": 2},
        {"pattern": "s2_attention", "block": 4, "local_blocks": 1, "stride": 3, "heads": 4, "alibi": True},
    ],
    ids=["lines", "blocks"],
)
def test_a_model_that_has_never_run_compiles_whole(rule: dict[str, object]) -> None:
    """Nothing has built its supports yet, and at the second length the lengths are symbols."""
    torch._dynamo.reset()
    torch.manual_seed(0)
    config = FarspanConfig(
        vocab_size=64, hidden_size=32, num_hidden_layers=1, num_attention_heads=4, num_key_value_heads=4, rules=[rule]
    )
    model = FarspanForCausalLM(config)
    compiled = torch.compile(model, fullgraph=True, backend="aot_eager")
    with torch.no_grad():
        found = {length: compiled(torch.arange(length)[None], use_cache=False).logits for length in (16, 17)}
        for length, logits in found.items():
            torch.testing.assert_close(logits, model(torch.arange(length)[None], use_cache=False).logits)


@pytest.mark.slow
@pytest.mark.parametrize("refused", ["packed", "additive"])
def test_what_eager_refuses_stops_a_compiled_model_too(model: FarspanForCausalLM, refused: str) -> None:
    """A graph cannot read a value back, so packed documents are found without a cache only where that is said."""
    torch._dynamo.reset()
    compiled = torch.compile(model, fullgraph=True)
    ids = torch.arange(6)[None]
    if refused == "packed":
        wrong, right = dict(position_ids=ids % 3), dict(position_ids=ids)
        words = "position_ids must rise one by one"
    else:
        wrong, right = dict(attention_mask=-1e9 * (ids == 0)), dict(attention_mask=(ids > 0).float())
        words = "attention_mask must be 1 for real tokens"
    with torch.no_grad():
        torch.testing.assert_close(compiled(ids, **right).logits, model(ids, **right).logits)
        with pytest.raises(RuntimeError, match=words):
            compiled(ids, **wrong)


@pytest.mark.parametrize("name", ["sdpa", "eager"])
def test_the_rules_cannot_be_switched_off_by_name(model: FarspanForCausalLM, name: str) -> None:
    model.config._attn_implementation = name
    with pytest.raises(ValueError, match=f"attn_implementation must be 'farspan'.*{name}"):
        model(input_ids=torch.ones(1, 5, dtype=torch.long))
