"""With a cache, token by token or in pieces, a model says what it says without one (F16, F17)."""

from __future__ import annotations

import dataclasses

import pytest
import torch
from transformers import DynamicCache

from farspan.layers import LearnedSpacing
from farspan.models import FarspanConfig, FarspanForCausalLM
from farspan.models.static_rule import MOST_SUPPORTS
from farspan.patterns import rules as patterns

RULES = {
    "dense": [{"pattern": "dense"}] * 2,
    "window": [{"pattern": "sliding_window", "window": 8}] * 2,
    "fibonacci": [{"pattern": "fibonacci", "window": 3, "alpha": 0.7}] * 2,
    "powers": [{"pattern": "powers", "window": 3, "alpha": 1.3, "reach": 64}] * 2,
    "verticals": [{"pattern": "lines", "slashes": [0, 1, 13], "verticals": [0, 2]}] * 2,
    "lines per head": [{"pattern": "lines", "slashes": [[0, 1, 2], [0, 5], [0, 13], [2, 15]]}] * 2,
    "learned": [{"pattern": "learned_spacing", "window": 3}] * 2,
    "sinks": [{"pattern": "streaming_llm", "sinks": 2, "window": 5}] * 2,
    "strides": [{"pattern": "sparse_strided", "stride": 5, "form": "merged"}] * 2,
    "blocks": [
        {"pattern": "block_local", "block": 6, "bridge": 2},
        {"pattern": "fibonacci_blocks", "window": 3, "block": 4},
    ],
    "blocks per head": [{"pattern": "s2_attention", "block": 4, "local_blocks": 1, "stride": 3, "heads": 4}] * 2,
    "tokens": [{"pattern": "random", "window": 3, "keys": 6, "layer": layer} for layer in range(2)],
    "tokens per head": [{"pattern": "elastic", "keys": 5, "layer": n, "layers": 2, "heads": 4} for n in range(2)],
    "alibi": [{"pattern": "sliding_window", "window": 9, "alibi": True, "heads": 4}] * 2,
    "alibi on blocks": [{"pattern": "block_local", "block": 6, "bridge": 2, "alibi": True, "heads": 4}] * 2,
    "adaptive span": [{"pattern": "adaptive_span", "max_span": 20, "ramp": 4, "init": 0.3}] * 2,
    "dcls": [{"pattern": "dcls", "window": 3, "positions": [4.3, 11.9], "reach": 16, "width": 1.5}] * 2,
    "window, then 13 back": [{"pattern": "sliding_window", "window": 8}, {"pattern": "lines", "slashes": [0, 13]}],
    "one of each": [
        {"pattern": "learned_spacing", "window": 2},
        {"pattern": "dense"},
        {"pattern": "powers_grown", "window": 2},
        {"pattern": "sliding_window", "window": 4},
    ],
}
EVERY_RULE = pytest.mark.parametrize("rules", RULES.values(), ids=RULES)
# What counts from the first position of a row refuses padding there (tests/models/test_masks.py).
ABSOLUTE = ("verticals", "sinks", "blocks", "blocks per head", "tokens", "tokens per head", "alibi on blocks")
LEFT_PADDABLE = {name: rules for name, rules in RULES.items() if name not in ABSOLUTE}
EVERY_LEFT_PADDABLE_RULE = pytest.mark.parametrize("rules", LEFT_PADDABLE.values(), ids=LEFT_PADDABLE)
GROWN = {"pattern": "powers_grown", "window": 3}


def tiny(rules, trained=64):
    torch.manual_seed(0)
    shape = dict(vocab_size=64, hidden_size=32, num_attention_heads=4, num_key_value_heads=2)
    config = FarspanConfig(**shape, num_hidden_layers=len(rules), rules=rules, max_position_embeddings=trained)
    model = FarspanForCausalLM(config).eval()
    for each in model.attentions:
        if isinstance(each.spacing, LearnedSpacing):
            each.spacing.theta.data.fill_(0.3)
    return model


def tokens(length, batch=1):
    return torch.randint(1, 64, (batch, length), generator=torch.Generator().manual_seed(0))


def in_pieces(model, ids, pieces, mask=None, positions=None):
    """Logits of `ids` given to the model piece by piece, with one cache."""
    cache, logits, done = DynamicCache(config=model.config), [], 0
    for piece in pieces:
        seen = done + piece
        some = None if mask is None else mask[:, :seen]
        places = None if positions is None else positions[:, done:seen]
        with torch.no_grad():
            logits.append(model(ids[:, done:seen], cache=cache, attention_mask=some, position_ids=places).logits)
        done = seen
        assert cache.get_seq_length() == done
    return torch.cat(logits, 1)


def assert_close(a, b):
    torch.testing.assert_close(a, b, atol=1e-5, rtol=0)


PIECES = {
    "prefill 6, decode to 12": [6] + [1] * 6,
    "prefill 2, decode to 20": [2] + [1] * 18,
    "prefill 8": [8, 1, 1],
    "prefill 9": [9, 1, 1],
    "prefill 16": [16, 1, 1],
    "chunks 5, 1, 11": [5, 1, 11],
    "chunks 3, 20, 2, 7": [3, 20, 2, 7],
}


@EVERY_RULE
@pytest.mark.parametrize("pieces", PIECES.values(), ids=PIECES)
def test_pieces_give_the_logits_of_the_whole(rules, pieces):
    model = tiny(rules)
    ids = tokens(sum(pieces), batch=2)
    assert_close(in_pieces(model, ids, pieces), model(ids).logits)


@EVERY_LEFT_PADDABLE_RULE
@pytest.mark.parametrize("pieces", [[12] + [1] * 8, [5, 10, 5]], ids=["decode", "chunks"])
@pytest.mark.parametrize("with_positions", [False, True], ids=["without positions", "with positions"])
def test_left_padded_pieces_give_the_logits_of_each_text_alone(rules, pieces, with_positions):
    """F17: a batch that runs past its window, with padding at its left edge."""
    model = tiny(rules)
    ids = tokens(20, batch=3)
    mask = torch.ones(3, 20, dtype=torch.int64)
    mask[1, :9], mask[2, :3] = 0, 0
    positions = (mask.cumsum(1) - 1).clamp_min(0) if with_positions else None
    logits = in_pieces(model, ids, pieces, mask, positions)
    for row, padding in enumerate((0, 9, 3)):
        assert_close(logits[row, padding:], model(ids[row : row + 1, padding:]).logits[0])


def test_the_cache_keeps_what_an_upper_layer_reads():
    """F17: the window of layer 0 is full, and layer 1 still finds the key 13 back at its true position."""
    model, ids = tiny(RULES["window, then 13 back"]), tokens(30)

    def last_logits(layer=0, changed=slice(0, 0)):
        cache = DynamicCache(config=model.config)
        model(ids[:, :29], cache=cache)
        assert [each.keys.shape[2] for each in cache.layers] == [29, 29]
        cache.layers[layer].keys[:, :, changed] += 1
        cache.layers[layer].values[:, :, changed] += 1
        return model(ids[:, 29:], cache=cache).logits

    expected = last_logits()
    assert_close(expected, model(ids).logits[:, 29:])
    for layer, unread in ((0, slice(0, 22)), (1, slice(0, 16)), (1, slice(17, 29))):
        assert torch.equal(last_logits(layer, unread), expected)
    for layer, read in ((0, slice(22, 23)), (1, slice(16, 17))):
        assert not torch.equal(last_logits(layer, read), expected)


@EVERY_RULE
def test_greedy_generation_with_a_cache_is_recomputation(rules):
    model, ids = tiny(rules), tokens(5, batch=2)
    settings = dict(max_new_tokens=14, do_sample=False, output_logits=True, return_dict_in_generate=True)
    cached, recomputed = (model.generate(ids, use_cache=use, **settings) for use in (True, False))
    assert torch.equal(cached.sequences, recomputed.sequences)
    assert cached.sequences.shape == (2, 19)
    assert_close(torch.stack(cached.logits), torch.stack(recomputed.logits))
    assert torch.equal(cached.sequences[:, 5:], model(cached.sequences).logits[:, 4:-1].argmax(-1))


@EVERY_LEFT_PADDABLE_RULE
def test_a_left_padded_batch_generates_what_its_prompts_do_alone(rules):
    """F04, F24."""
    model = tiny(rules)
    prompts = [tokens(9)[0], tokens(2)[0]]
    ids = torch.stack([torch.cat([torch.zeros(9 - len(p), dtype=torch.int64), p]) for p in prompts])
    mask = torch.stack([(torch.arange(9) >= 9 - len(p)).long() for p in prompts])
    settings = dict(max_new_tokens=8, do_sample=False, pad_token_id=0)
    together = model.generate(ids, attention_mask=mask, **settings)
    for row, prompt in zip(together, prompts, strict=True):
        assert torch.equal(row[9:], model.generate(prompt[None], **settings)[0, len(prompt) :])


@EVERY_RULE
def test_beam_search_reorders_the_cache(rules):
    model, ids = tiny(rules), tokens(5, batch=2)
    settings = dict(max_new_tokens=6, do_sample=False, num_beams=3)
    assert torch.equal(model.generate(ids, **settings), model.generate(ids, use_cache=False, **settings))


def test_growing_powers_refuse_a_cache_that_they_would_contradict():
    """At 65 tokens there is a rung that was not read at 64, so cached keys of the layers above are stale."""
    model, ids = tiny([GROWN, GROWN], trained=32), tokens(70)
    cache = DynamicCache(config=model.config)
    model(ids[:, :60], cache=cache)
    model(ids[:, 60:64], cache=cache)
    with pytest.raises(ValueError, match=r"layer 0 reads other keys at 65 tokens than at 64.*use_cache=False"):
        model(ids[:, 64:65], cache=cache)
    with pytest.raises(ValueError, match="reads other keys at 65 tokens"):
        model.generate(ids[:, :60], max_new_tokens=10, do_sample=False)


def test_decoding_does_not_pile_up_supports():
    """Blocks and tokens are made anew for every length; fixed lines once; long lines for a power of two at a time."""
    rules = [RULES["tokens"][0], RULES["fibonacci"][0], RULES["strides"][0]]
    model, ids = tiny(rules, trained=16), tokens(40)
    built = []
    for each in model.attentions:
        each.static.supports = _Recorded(built)
    in_pieces(model, ids, [10] + [1] * 30)
    assert [len(each.static.supports) for each in model.attentions] == [MOST_SUPPORTS, 1, 3]
    assert [key for key in built if key[0] == 0] == [(0, 0), (0, 16), (0, 32), (0, 64)]
    assert len([key for key in built if key[0]]) == 31


class _Recorded(dict):
    def __init__(self, built):
        super().__init__()
        self.built = built

    def __setitem__(self, key, support):
        self.built.append(key)
        super().__setitem__(key, support)


def test_a_support_is_built_once_for_training_and_evaluation_in_turns():
    (attention,) = tiny([RULES["tokens"][0]]).attentions
    once = [attention.support(length, length) for length in (16, 32, 24)]
    assert all(attention.support(length, length) is each for length, each in zip((16, 32, 24), once, strict=True))


def test_growing_tokens_refuse_any_cache(monkeypatch):
    """Nothing says that a shorter sequence reads the same keys."""
    family = dataclasses.replace(patterns.PATTERNS["random"], grows=True)
    monkeypatch.setitem(patterns.PATTERNS, "random", family)
    model, ids = tiny(RULES["tokens"]), tokens(12)
    with pytest.raises(ValueError, match=r"layer 0 reads other keys at 12 tokens than at 11.*use_cache=False"):
        in_pieces(model, ids, [11, 1])
    assert model.generate(ids, max_new_tokens=3, do_sample=False, use_cache=False).shape == (1, 15)


def test_growing_powers_take_a_cache_between_two_powers_of_two():
    model, ids = tiny([GROWN, GROWN], trained=32), tokens(64)
    assert_close(in_pieces(model, ids, [33] + [1] * 31), model(ids).logits)
    assert_close(in_pieces(model, ids[:, :32], [1] * 32), model(ids[:, :32]).logits)


def test_growing_powers_generate_without_a_cache():
    model, ids = tiny([GROWN, GROWN], trained=32), tokens(60)
    longer = model.generate(ids, max_new_tokens=10, do_sample=False, use_cache=False)
    for t in range(60, 70):
        assert longer[0, t] == model(longer[:, :t]).logits[0, -1].argmax()
