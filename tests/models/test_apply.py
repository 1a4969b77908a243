"""A rule on a transformers model: what it reads, what it leaves alone, and that it goes again (F03-F05, F16, F17)."""

from __future__ import annotations

import copy

import pytest
import torch
from transformers import (
    AutoModelForCausalLM,
    BertConfig,
    BertModel,
    BloomConfig,
    BloomForCausalLM,
    DynamicCache,
    Gemma2Config,
    Gemma2ForCausalLM,
    Gemma3ForCausalLM,
    Gemma3TextConfig,
    GptOssConfig,
    GptOssForCausalLM,
    LlamaConfig,
    LlamaForCausalLM,
    MistralConfig,
    MistralForCausalLM,
    Qwen3Config,
    Qwen3ForCausalLM,
    StaticCache,
)

import farspan
from farspan import Blocks, Lines, Tokens
from farspan.models import FarspanConfig, FarspanForCausalLM
from farspan.models.accounting import MOST_WAITING, Tally
from farspan.models.plugin import handles
from farspan.models.plugin_layer import NAME, STATE
from farspan.patterns import rules as patterns

SHAPE = dict(
    vocab_size=64,
    hidden_size=32,
    intermediate_size=48,
    num_hidden_layers=2,
    num_attention_heads=4,
    num_key_value_heads=2,
    max_position_embeddings=128,
    bos_token_id=None,
    eos_token_id=None,
    # Its embedding would be zero, and every key as good as any other to a selector.
    pad_token_id=None,
)
GEMMA = dict(head_dim=8, query_pre_attn_scalar=8, layer_types=["sliding_attention", "full_attention"], sliding_window=5)
MODELS = {
    "llama": lambda **more: LlamaForCausalLM(LlamaConfig(**SHAPE, **more)),
    "qwen3": lambda **more: Qwen3ForCausalLM(Qwen3Config(**SHAPE, head_dim=8, **more)),
    "mistral": lambda **more: MistralForCausalLM(MistralConfig(**SHAPE, sliding_window=None, **more)),
    "gemma3": lambda **more: Gemma3ForCausalLM(Gemma3TextConfig(**SHAPE, **GEMMA, **more)),
}
EVERY_MODEL = pytest.mark.parametrize("name", MODELS)
WINDOW = {"pattern": "sliding_window", "window": 4}
FIBONACCI = {"pattern": "fibonacci", "window": 3, "alpha": 0.7}
T = 20


def tiny(name="llama", **more):
    torch.manual_seed(0)
    model = MODELS[name](**more).eval()
    # Random weights of the usual size hardly attend: a wrong key would move the logits by less than the tolerance.
    for module in model.modules():
        for each in ("q_proj", "k_proj", "v_proj", "o_proj"):
            if hasattr(module, each):
                getattr(module, each).weight.data.mul_(15)
    return model


def tokens(batch=2, length=T):
    return torch.randint(1, 64, (batch, length), generator=torch.Generator().manual_seed(1))


def left_padding():
    mask = torch.ones(2, T, dtype=torch.int64)
    mask[1, :7] = 0
    return mask


def assert_close(a, b, atol=1e-4):
    torch.testing.assert_close(a, b, atol=atol, rtol=0)


def in_pieces(model, ids, pieces, cache=None, mask=None):
    cache = DynamicCache(config=model.config) if cache is None else cache
    logits, done = [], 0
    for piece in pieces:
        some = None if mask is None else mask[:, : done + piece]
        with torch.no_grad():
            logits.append(model(ids[:, done : done + piece], cache=cache, attention_mask=some).logits)
        done += piece
    return torch.cat(logits, 1)


class Everything:
    """A selector whose budget is all keys, as `Blocks` or as `Tokens`."""

    def __init__(self, block=0):
        self.block, self.seen = block, []

    def select(self, q, k, *, scale, start):
        self.seen.append((q.shape, k.shape, scale, start))
        rows, keys = q.shape[2], k.shape[2]
        if self.block:
            blocks = torch.arange(-(-keys // self.block)).expand(1, 1, -(-rows // self.block), -1)
            return Blocks(blocks, self.block, self.block)
        return Tokens(torch.arange(keys).expand(q.shape[0], k.shape[1], rows, -1))


class Best:
    """A causal selector: for each query the `keys` best of what it may read, by the scores of a key head's group."""

    def __init__(self, keys=3):
        self.keys, self.returned = keys, []

    def __repr__(self):
        return f"Best({self.keys})"

    def select(self, q, k, *, scale, start):
        (_, heads, rows, _), (_, kv_heads, length, _) = q.shape, k.shape
        grouped = q.detach().unflatten(1, (kv_heads, heads // kv_heads)).sum(2)
        scores = grouped @ k.detach().transpose(2, 3) * scale
        position = torch.arange(length - rows, length)[:, None]
        allowed = torch.arange(length) <= position
        if start is not None:
            allowed = allowed & (torch.arange(length) >= start[:, None, :, None])
        best = scores.masked_fill(~allowed, -torch.inf).topk(min(self.keys, length))
        support = Tokens(best.indices.masked_fill(best.values.isinf(), -1))
        self.returned.append((support, rows, length, start))
        return support


WHOLE = {"window": lambda: Lines(range(64)), "blocks": lambda: Everything(3), "tokens": Everything}
EVERY_WHOLE = pytest.mark.parametrize("whole", WHOLE.values(), ids=WHOLE)


@EVERY_MODEL
@EVERY_WHOLE
@pytest.mark.parametrize("padded", [False, True], ids=["whole rows", "left padding"])
def test_a_budget_of_everything_is_the_unpatched_model(name, whole, padded):
    """F24: prefill, chunks, decode; the layers of Gemma 3 that slide are passed by a cache and by padding."""
    model, ids = tiny(name), tokens()
    mask = left_padding() if padded else None
    real = slice(None) if mask is None else mask.bool()
    ways = [[T], [9, 1, 4, 6], [8] + [1] * (T - 8)]
    expected = [in_pieces(model, ids, way, mask=mask) for way in ways]
    with farspan.apply(model, whole()):
        for way, each in zip(ways, expected, strict=True):
            assert_close(in_pieces(model, ids, way, mask=mask)[real], each[real])


@EVERY_MODEL
@EVERY_WHOLE
def test_generation_with_both_caches_says_what_the_unpatched_model_says(name, whole):
    model, ids, mask = tiny(name), tokens(), left_padding()
    options = dict(attention_mask=mask, max_new_tokens=8, do_sample=False)
    expected = model.generate(ids, **options)
    with farspan.apply(model, whole()):
        assert torch.equal(model.generate(ids, **options), expected)
        assert torch.equal(model.generate(ids, **options, cache_implementation="static"), expected)


@pytest.mark.parametrize("rule", [WINDOW, FIBONACCI, Best()], ids=["window", "fibonacci", "selector"])
@EVERY_MODEL
def test_generation_is_the_same_with_both_caches(name, rule):
    """And the same as with none: a step of decoding reads what a prefill of its length reads (F16)."""
    model, ids, mask = tiny(name), tokens(), left_padding()
    options = dict(attention_mask=mask, max_new_tokens=8, do_sample=False)
    with farspan.apply(model, rule):
        dynamic = model.generate(ids, **options)
        assert torch.equal(model.generate(ids, **options, cache_implementation="static"), dynamic)
        assert torch.equal(model.generate(ids, **options, use_cache=False), dynamic)
    assert not torch.equal(model.generate(ids, **options), dynamic)


@pytest.mark.parametrize("rule", [{"pattern": "dense"}, WINDOW, FIBONACCI, Best()], ids=str)
@pytest.mark.parametrize("pieces", [[6] + [1] * 14, [2] + [1] * 18, [8, 1, 11], [5, 1, 14]], ids=str)
@pytest.mark.parametrize("name", ["llama", "gemma3"])
def test_pieces_with_either_cache_are_the_whole(name, rule, pieces):
    """F03, F17. What a static cache holds beyond its last key is never read: poison there changes nothing."""
    model, ids = tiny(name), tokens()
    with farspan.apply(model, rule):
        expected = in_pieces(model, ids, [T])
        assert_close(in_pieces(model, ids, pieces), expected, 1e-5)
        cache = StaticCache(config=model.config, max_cache_len=T + 9)
        cache.early_initialization(2, 2, 8, torch.float32, torch.device("cpu"))
        for layer in cache.layers:
            layer.keys.fill_(torch.nan), layer.values.fill_(torch.nan)
        assert_close(in_pieces(model, ids, pieces, cache), expected, 1e-5)


@pytest.mark.parametrize("name", ["llama", "qwen3", "mistral"])
@pytest.mark.parametrize("per_head", [False, True], ids=["shared", "per head"])
def test_a_rule_is_the_unpatched_model_under_its_mask(name, per_head):
    """The support's own booleans, as an additive mask of four dimensions for `eager`."""
    model, ids = tiny(name), tokens()
    lines = Lines([[0, 1, 2], [0, 3], [0, 5, 9], [0, 1, 13]] if per_head else range(5))
    allowed = lines.mask(T, T).expand(2, 4 if per_head else 1, T, T)
    model.set_attn_implementation("eager")
    expected = model(ids, attention_mask=torch.zeros(allowed.shape).masked_fill(~allowed, -torch.inf)).logits
    with farspan.apply(model, lines):
        assert_close(model(ids).logits, expected, 1e-5)
        assert_close(in_pieces(model, ids, [7, 3] + [1] * 10), expected, 1e-5)


@EVERY_MODEL
@pytest.mark.parametrize("rule", [WINDOW, Lines([0, 2], verticals=[1]), Best(), Best(64)], ids=str)
@pytest.mark.parametrize("batch", [1, 3])
def test_no_token_hears_of_a_later_one(name, rule, batch):
    """F05, F24: the LEAK probe, to the bit."""
    model, ids = tiny(name), tokens(batch, 12)
    with farspan.apply(model, rule), torch.no_grad():
        before = model(ids).logits
        for j in (1, 5, 11):
            changed = ids.clone()
            changed[:, j] = ids[:, j] % 63 + 1
            after = model(changed).logits
            assert torch.equal(after[:, :j], before[:, :j])
            assert not torch.equal(after[:, j:], before[:, j:])


@EVERY_MODEL
@pytest.mark.parametrize("rule", [{"pattern": "dense"}, WINDOW, FIBONACCI, Best()], ids=str)
def test_a_left_padded_text_reads_as_it_does_alone(name, rule):
    """F04."""
    model, ids, mask = tiny(name), tokens(), left_padding()
    positions = (mask.cumsum(1) - 1).clamp_min(0)
    with farspan.apply(model, rule):
        for pieces in ([T], [T - 5] + [1] * 5):
            logits = in_pieces(model, ids, pieces, mask=mask)
            assert logits.isfinite().all()
            assert_close(logits[0], model(ids[:1]).logits[0], 1e-5)
            assert_close(logits[1, 7:], model(ids[1:, 7:]).logits[0], 1e-5)
        assert_close(model(ids, attention_mask=mask, position_ids=positions).logits[mask.bool()], logits[mask.bool()])


@pytest.mark.parametrize("name", ["llama", "gemma3"])
@pytest.mark.parametrize("rule", [WINDOW, Best()], ids=str)
def test_packed_documents_read_themselves_alone(name, rule):
    model, ids = tiny(name), tokens()
    documents = [6, 1, 13]
    positions = torch.cat([torch.arange(n) for n in documents])[None]
    with farspan.apply(model, rule):
        logits = model(ids, position_ids=positions).logits
        for part, document in zip(logits.split(documents, 1), ids.split(documents, 1), strict=True):
            assert_close(part, model(document).logits, 1e-5)
        words = "position_ids must rise one by one over the real tokens beside a cache"
        for hides in (dict(use_cache=True), dict(attention_mask=torch.ones_like(ids))):
            with pytest.raises(ValueError, match=words):
                model(ids, position_ids=positions, **hides)
            with pytest.raises(ValueError, match=words):
                model.get_decoder()(ids, hides.get("attention_mask"), positions, use_cache=hides.get("use_cache"))


@pytest.mark.parametrize("phase", ["prefill", "decode"])
def test_a_phase_without_a_rule_is_dense(phase):
    model, ids = tiny(), tokens()
    dense = in_pieces(model, ids, [8] + [1] * (T - 8))
    with farspan.apply(model, WINDOW, phase=phase):
        found = in_pieces(model, ids, [8] + [1] * (T - 8))
        assert_close(found[:, :1], dense[:, :1])
        assert torch.allclose(found[:, :8], dense[:, :8], atol=1e-4) == (phase == "decode")
        if phase == "decode":
            assert not torch.allclose(found[:, 8], dense[:, 8], atol=1e-3)
        else:
            # With keys before them, several tokens are a prefill.
            assert not torch.allclose(in_pieces(model, ids, [8, T - 8])[:, 8:], found[:, 8:], atol=1e-3)


def test_one_token_is_decoded_if_a_key_is_before_it():
    model, ids = tiny(), tokens()
    with farspan.apply(model, WINDOW) as handle:
        for built in (None, StaticCache(config=model.config, max_cache_len=T)):
            handle.reset()
            in_pieces(model, ids, [1], built)
            assert [handle.account().total(phase).calls for phase in ("prefill", "decode")] == [2, 0]
            in_pieces(model, ids, [1, 1], None)
            assert [handle.account().total(phase).calls for phase in ("prefill", "decode")] == [4, 2]


def test_two_phases_combine_and_share_one_account():
    model, ids = tiny(), tokens()
    with farspan.apply(model, WINDOW, phase="both"):
        expected = in_pieces(model, ids, [8] + [1] * 12)
    first = farspan.apply(model, WINDOW, phase="prefill")
    second = farspan.apply(model, Lines(range(4)), phase="decode")
    assert_close(in_pieces(model, ids, [8] + [1] * 12), expected, 1e-6)
    assert first.account() == second.account()
    assert first.account().total("prefill").calls == 2
    assert second.account().total("decode").calls == 24
    with pytest.raises(ValueError, match=r"layer 0 must be without a rule for decode, got Lines\(.*applied already"):
        farspan.apply(model, WINDOW, phase="decode")
    with pytest.raises(ValueError, match=r"layer 0 must be without a rule for prefill, got .*sliding_window"):
        farspan.apply(model, WINDOW)
    assert handles(model) == (first, second)


def test_a_list_gives_each_layer_its_own():
    model, ids = tiny(), tokens()
    one = farspan.apply(model, [None, WINDOW])
    two = farspan.apply(model, (FIBONACCI, None))
    model(ids)
    counts = one.account().counts
    expected = [patterns.build(rule, T).pairs(T, T) * 8 for rule in (FIBONACCI, WINDOW)]
    assert [counts[n, "prefill"].pairs for n in range(2)] == expected
    two.remove()
    one.reset()
    model(ids)
    assert [one.account().counts[n, "prefill"].density for n in range(2)] == [1.0, pytest.approx(expected[1] / 1680)]


def attributes(model):
    return [(name, sorted(vars(module))) for name, module in model.named_modules()]


@pytest.mark.parametrize("order", [1, -1], ids=["first in, first out", "last in, first out"])
@EVERY_MODEL
def test_removal_restores_the_very_same_model(name, order):
    model, ids = tiny(name), tokens()
    model.set_attn_implementation("eager")
    before, config, expected = attributes(model), model.config, model(ids).logits
    one, two = (farspan.apply(model, WINDOW, phase=phase) for phase in ("prefill", "decode"))
    assert model.config._attn_implementation == NAME
    assert not torch.allclose(model(ids).logits, expected, atol=1e-3)
    model.config.use_cache = False
    first, last = (one, two)[::order]
    first.remove(), first.remove()
    assert torch.allclose(model(ids).logits, expected, atol=1e-4) == (first is one)
    last.remove(), first.remove(), last.remove()
    assert attributes(model) == before
    assert model.config is config
    assert config._attn_implementation == "eager"
    assert config.use_cache is False, "what was set meanwhile stays"
    assert not model.get_decoder()._forward_pre_hooks
    assert torch.equal(model(ids).logits, expected)
    with farspan.apply(model, WINDOW) as handle:
        model(ids)
    assert attributes(model) == before
    assert handle.account().total("prefill").density < 1
    farspan.apply(model, WINDOW).remove()


def test_models_of_one_config_do_not_touch_each_other():
    """F24."""
    config = LlamaConfig(**SHAPE)
    one, two = LlamaForCausalLM(config).eval(), LlamaForCausalLM(config).eval()
    ids, expected = tokens(), [two(tokens()).logits]
    with farspan.apply(one, WINDOW):
        windowed = one(ids).logits
        assert torch.equal(two(ids).logits, expected[0])
        with farspan.apply(two, FIBONACCI) as other:
            assert torch.equal(one(ids).logits, windowed)
            assert other.account().total("prefill").calls == 0
        assert torch.equal(two(ids).logits, expected[0])
        assert torch.equal(one(ids).logits, windowed)


def test_a_copy_is_patched_with_handles_of_its_own_and_nothing_is_saved(tmp_path):
    model, ids = tiny(), tokens()
    dense = model(ids).logits
    handle = farspan.apply(model, WINDOW)
    expected = model(ids).logits
    other = copy.deepcopy(model)
    handle.remove()
    assert torch.equal(model(ids).logits, dense)
    assert torch.equal(other(ids).logits, expected)
    other.save_pretrained(tmp_path)
    assert "farspan" not in (tmp_path / "config.json").read_text()
    assert_close(AutoModelForCausalLM.from_pretrained(tmp_path)(ids).logits, dense, 1e-6)
    (own,) = handles(other)
    assert own.account().total("prefill").calls == 4
    own.remove()
    assert torch.equal(other(ids).logits, dense)
    assert attributes(other) == attributes(model)


def test_layers_that_slide_stay_as_they_are():
    model, ids = tiny("gemma3"), tokens()
    with farspan.apply(model, WINDOW) as handle:
        model(ids)
        assert {layer for (layer, _), _ in handle.account()} == {1}
    with pytest.raises(ValueError, match="rule of layer 0 must be None: the layer slides over 5 keys"):
        farspan.apply(model, [WINDOW, None])
    torch.manual_seed(0)
    slides = MistralForCausalLM(MistralConfig(**SHAPE, sliding_window=5)).eval()
    options = dict(attention_mask=left_padding(), max_new_tokens=8, do_sample=False)
    expected, generated = slides(ids).logits, slides.generate(ids, **options)
    with farspan.apply(slides, [None, None]):
        assert_close(slides(ids).logits, expected, 1e-5)
        assert torch.equal(slides.generate(ids, **options), generated)
        assert torch.equal(slides.generate(ids, **options, cache_implementation="static"), generated)
    with pytest.raises(ValueError, match="must have a layer with full attention, got one whose layers all slide"):
        farspan.apply(slides, WINDOW)


@pytest.mark.parametrize("padded", [False, True], ids=["whole rows", "left padding"])
@pytest.mark.parametrize("cache", ["dynamic", "static"])
def test_the_account_is_the_sum_of_the_supports_pairs(padded, cache):
    model, ids = tiny(), tokens()
    mask = left_padding() if padded else torch.ones_like(ids)
    start = torch.tensor([0, 7])
    best, pieces = Best(), [9, 3] + [1] * 8
    with farspan.apply(model, [FIBONACCI, best]) as handle:
        built = StaticCache(config=model.config, max_cache_len=T + 3) if cache == "static" else None
        in_pieces(model, ids, pieces, built, mask)
    account, lines = handle.account(), patterns.build(FIBONACCI, T)
    spans, done = {"prefill": [], "decode": []}, 0
    for n in pieces:
        spans["decode" if n == 1 else "prefill"].append((n, done := done + n))
    for phase, lengths in spans.items():
        static, causal = account.counts[0, phase], 0
        rows = torch.arange(T).expand(2, -1)
        # Rows of padding themselves read nothing.
        first = torch.where(rows < start[:, None], rows + 1, start[:, None]) if padded else torch.zeros_like(rows)
        pairs = 0
        for n, length in lengths:
            here = first[:, length - n : length]
            pairs += int(lines.pairs(n, length, here).sum()) * 4
            causal += int((rows[:, length - n : length] + 1 - here).sum()) * 4
        assert (static.calls, static.queries) == (len(lengths), 2 * sum(n for n, _ in lengths))
        assert (static.pairs, static.causal) == (pairs, causal)
        chosen = [each for each in best.returned if (each[1] == 1) == (phase == "decode")]
        kept = sum(int(torch.as_tensor(s.pairs(n, length, a)).sum()) * 2 for s, n, length, a in chosen)
        assert account.counts[1, phase].pairs == kept
        assert account.counts[1, phase].causal == causal
        total = account.total(phase)
        assert (total.calls, total.pairs, total.causal) == (2 * len(lengths), pairs + kept, 2 * causal)
        assert total.density == pytest.approx((pairs + kept) / (2 * causal))
    assert not account.compiled
    handle.reset()
    assert all(count.calls == count.pairs == 0 for _, count in handle.account())
    with pytest.raises(ValueError, match="phase must be one of decode, prefill, got 'both'"):
        account.total("both")


def test_what_waits_to_be_counted_does_not_pile_up():
    tally = Tally(heads=2)
    for length in range(1, MOST_WAITING + 10):
        tally.record(Lines([0]), 1, length, 1)
        assert len(tally.waiting) < MOST_WAITING
    tally.settle(Lines([0]))
    assert (tally.count.calls, tally.count.pairs) == (MOST_WAITING + 9, 2 * (MOST_WAITING + 9))


@pytest.mark.parametrize("rule", [WINDOW, Lines(range(64)), Best()], ids=str)
def test_gradients_flow_in_training(rule):
    model, ids, mask = tiny(), tokens(), left_padding()
    model.train()
    labels = ids.masked_fill(mask == 0, -100)
    model(ids, attention_mask=mask, labels=labels).loss.backward()
    dense = [each.grad.clone() for each in model.parameters()]
    model.zero_grad()
    with farspan.apply(model, rule):
        model(ids, attention_mask=mask, labels=labels).loss.backward()
    found = [each.grad for each in model.parameters()]
    assert all(each.isfinite().all() and each.any() for each in found)
    same = all(torch.allclose(a, b, atol=1e-4) for a, b in zip(found, dense, strict=True))
    assert same == (isinstance(rule, Lines))


def test_beam_search_reorders_the_cache():
    model, ids, mask = tiny(), tokens(), left_padding()
    options = dict(attention_mask=mask, max_new_tokens=6, do_sample=False, num_beams=3)
    with farspan.apply(model, WINDOW):
        found = model.generate(ids, **options)
        assert torch.equal(model.generate(ids, **options, use_cache=False), found)
    assert not torch.equal(model.generate(ids, **options), found)


@pytest.mark.slow
def test_a_compiled_step_of_decoding_is_one_graph_for_all_lengths():
    """F23. Graphs do not count, and the account says so."""
    model, ids = tiny(), tokens()
    torch._dynamo.reset()
    torch._dynamo.utils.counters.clear()
    step = torch.compile(model, fullgraph=True, dynamic=True)
    with farspan.apply(model, FIBONACCI) as handle, torch.no_grad():
        expected, cache = model(ids).logits, DynamicCache(config=model.config)
        # Not 8, which is the head size too: dynamo would take the two for one number.
        found = [model(ids[:, :9], cache=cache).logits]
        assert not handle.account().compiled
        found += [step(input_ids=ids[:, t : t + 1], cache=cache).logits for t in range(9, T)]
    assert_close(torch.cat(found, 1), expected, 1e-5)
    assert torch._dynamo.utils.counters["stats"]["unique_graphs"] == 1
    assert handle.account().compiled


ZOO = {
    "streaming_llm": {"pattern": "streaming_llm", "sinks": 2, "window": 5},
    "block_local": {"pattern": "block_local", "block": 4},
    "elastic": {"pattern": "elastic", "keys": 5},
    "mswa": {"pattern": "mswa", "window": 8},
    "s2_attention": {"pattern": "s2_attention", "block": 4, "local_blocks": 1, "stride": 3},
    "sparse_strided": {"pattern": "sparse_strided", "stride": 5, "form": "merged"},
}


@pytest.mark.parametrize("rule", ZOO.values(), ids=ZOO)
def test_one_rule_is_told_its_place_and_decodes_as_it_prefills(rule):
    model, ids = tiny(), tokens()
    with farspan.apply(model, rule) as handle:
        expected = model(ids).logits
        counts = [handle.account().counts[n, "prefill"] for n in range(2)]
        for n, placed in enumerate(patterns.over_depth(rule, 2, 4)):
            support = patterns.build(placed, T)
            assert counts[n].pairs == int(torch.as_tensor(support.pairs(T, T)).sum()) * 2 * (4 // support.heads)
        assert_close(in_pieces(model, ids, [9, 4] + [1] * 7), expected, 1e-5)


def test_a_rule_that_counts_from_the_first_position_refuses_left_padding():
    model, ids = tiny(), tokens()
    for rule, name in ((ZOO["streaming_llm"], "streaming_llm"), (Lines([0, 1], verticals=[0]), "Lines")):
        with farspan.apply(model, rule):
            assert model(ids, attention_mask=left_padding().flip(1)).logits.isfinite().all()
            with pytest.raises(ValueError, match=f"the {name} rule of layer 0 counts from the first position of a row"):
                model(ids, attention_mask=left_padding())


def test_a_rule_that_grows_refuses_a_cache_where_it_would_be_wrong():
    model, ids = tiny(), tokens()
    with farspan.apply(model, {"pattern": "powers_grown", "window": 2}):
        assert in_pieces(model, ids, [17, 3]).isfinite().all()
        with pytest.raises(ValueError, match="layer 0 reads other keys at 17 tokens than at 16"):
            in_pieces(model, ids, [16, 1])
        options = dict(max_new_tokens=3, do_sample=False, use_cache=False)
        assert model.generate(ids[:, :15], **options).shape == (2, 18)


def farspan_model():
    shape = dict(vocab_size=64, hidden_size=32, num_attention_heads=4, num_key_value_heads=2, num_hidden_layers=2)
    return FarspanForCausalLM(FarspanConfig(**shape))


def bidirectional():
    model = tiny()
    model.model.layers[1].self_attn.is_causal = False
    return model


REFUSED_MODELS = {
    "no transformers model": (lambda: torch.nn.Linear(2, 2), TypeError, "must be a model of transformers, got Linear"),
    "ours": (farspan_model, ValueError, "must be without rules of its own, got FarspanForCausalLM"),
    "no attention interface": (
        lambda: BloomForCausalLM(BloomConfig(vocab_size=64, hidden_size=32, n_layer=1, n_head=2)),
        ValueError,
        "must use transformers' attention interface, got BloomForCausalLM",
    ),
    "an encoder": (
        lambda: BertModel(BertConfig(**{**SHAPE, "pad_token_id": 0})),
        ValueError,
        "must be causal, got BertModel with is_causal = False",
    ),
    "softcapping": (
        lambda: Gemma2ForCausalLM(Gemma2Config(**SHAPE, head_dim=8)),
        ValueError,
        "without softcapping of its scores, got Gemma2ForCausalLM with attn_logit_softcapping = 50.0",
    ),
    "sinks": (
        lambda: GptOssForCausalLM(GptOssConfig(**SHAPE, head_dim=8, num_local_experts=2, num_experts_per_tok=1)),
        ValueError,
        "without attention sinks, got GptOssForCausalLM, whose layers have sinks",
    ),
    "not causal": (bidirectional, ValueError, "must be causal, got LlamaForCausalLM with is_causal = False"),
}


@pytest.mark.parametrize(("build", "error", "words"), REFUSED_MODELS.values(), ids=REFUSED_MODELS)
def test_other_models_are_refused_by_the_name_of_what_is_missing(build, error, words):
    with pytest.raises(error, match=words):
        farspan.apply(build(), WINDOW)


REFUSED_RULES = {
    "unknown": ({"pattern": "nonsense"}, ValueError, "rule of layer 0: pattern must be one of dense, .*'nonsense'"),
    "a wrong argument": (
        {"pattern": "sliding_window", "window": 0},
        ValueError,
        "rule of layer 0: window must be an integer >= 1",
    ),
    "alibi": ({**WINDOW, "alibi": True, "heads": 4}, ValueError, "must be without alibi: the model has its own"),
    "alibi on lines": (Lines([0], alibi_slopes=[0.5] * 4), ValueError, "must be without alibi.*got slopes"),
    "learned": ({"pattern": "learned_spacing", "window": 3}, ValueError, "must be a pattern, got learned_spacing"),
    "heads of lines": (Lines([[0], [0, 1]]), ValueError, "must be Lines for 1 or 4 heads and 1 batch row, got 2 heads"),
    "heads of a rule": ({"pattern": "lines", "slashes": [[0], [0, 1]]}, ValueError, "must have 4 heads, as the model"),
    "rows of lines": (Lines(torch.zeros(2, 1, 1, dtype=torch.int64)), ValueError, "1 batch row, got 1 heads and 2"),
    "blocks": (Blocks(torch.zeros(1, 1, 1, 1, dtype=torch.int64), 4, 4), TypeError, "got Blocks, which fits one"),
    "a tensor": (torch.zeros(2), TypeError, "rule must be a dictionary, Lines or an object with a select method"),
    "nothing": (None, TypeError, "with a select method, got NoneType"),
    "too few": ([WINDOW], ValueError, r"rule must be one, or one per layer \(2\), got 1"),
}


@pytest.mark.parametrize(("rule", "error", "words"), REFUSED_RULES.values(), ids=REFUSED_RULES)
def test_other_rules_are_refused_and_leave_no_trace(rule, error, words):
    model = tiny()
    before = attributes(model)
    with pytest.raises(error, match=words):
        farspan.apply(model, rule)
    assert attributes(model) == before
    assert model.config._attn_implementation == "sdpa"


def test_calls_that_a_support_cannot_express_are_refused():
    model, ids = tiny(attention_dropout=0.1), tokens()
    with pytest.raises(ValueError, match="phase must be prefill, decode or both, got 'train'"):
        farspan.apply(model, WINDOW, phase="train")
    with farspan.apply(model, WINDOW):
        model(ids)
        with pytest.raises(ValueError, match=r"attention_dropout must be 0 in training, got 0.1"):
            model.train()(ids)
        model.eval()
        with pytest.raises(ValueError, match="output_attentions must be False"):
            model(ids, output_attentions=True)
        for mask in (torch.zeros(2, 1, T, T), torch.ones(2, 1, T, T, dtype=torch.bool)):
            with pytest.raises(ValueError, match=r"attention_mask must be \[B, T\], padding only"):
                model(ids, attention_mask=mask)
        gap = torch.ones_like(ids)
        gap[0, 4] = 0
        with pytest.raises(ValueError, match="got a gap between them"):
            model(ids, attention_mask=gap)
        with pytest.raises(ValueError, match=rf"attention_mask must be \[B, {T}\], all keys, got \[2, {T + 2}\]"):
            model(ids, attention_mask=torch.ones(2, T + 2))
        with pytest.raises(ValueError, match="got other numbers"):
            model(ids, attention_mask=torch.full((2, T), -1e9))
        model.set_attn_implementation("sdpa")
        with pytest.raises(ValueError, match=r"must stay 'farspan_apply' while rules are applied.*got 'sdpa'"):
            model(ids)
    stray = tiny()
    stray.set_attn_implementation(NAME)
    with pytest.raises(ValueError, match=r"must be set by farspan\.apply"):
        stray(ids)
    assert not hasattr(stray.model, STATE)


class Returns:
    def __init__(self, value):
        self.value = value

    def select(self, q, k, *, scale, start):
        return self.value


def test_what_a_selector_returns_is_checked():
    model, ids = tiny(), tokens()
    for value, error, words in (
        (None, TypeError, "select of layer 0 must return Lines, Blocks or Tokens, got NoneType"),
        (Lines([0], alibi_slopes=[0.5] * 4), ValueError, "without alibi_slopes"),
        (Tokens(torch.zeros(1, 1, 3, 1, dtype=torch.int64)), ValueError, f"index must list {T} blocks"),
    ):
        with farspan.apply(model, Returns(value)), pytest.raises(error, match=words):
            model(ids)


def test_a_selector_sees_all_keys_in_use_and_where_texts_begin():
    model, ids, mask = tiny(), tokens(), left_padding()
    for cache in (DynamicCache(config=model.config), StaticCache(config=model.config, max_cache_len=T + 5)):
        selector = Everything()
        with farspan.apply(model, [None, selector]):
            in_pieces(model, ids, [T - 2, 1, 1], cache, mask)
        assert [(tuple(q), tuple(k)) for q, k, _, _ in selector.seen] == [
            ((2, 4, n, 8), (2, 2, length, 8)) for n, length in ((T - 2, T - 2), (1, T - 1), (1, T))
        ]
        assert all(scale == 8**-0.5 for _, _, scale, _ in selector.seen)
        assert [start[:, -1].tolist() for *_, start in selector.seen] == [[0, 7]] * 3
