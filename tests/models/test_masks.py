"""Padding and packing: what a mask hides is not read, and a mask that cannot be followed is refused in words."""

from __future__ import annotations

import pytest
import torch
from transformers import DynamicCache, StaticCache
from transformers.masking_utils import causal_mask_function, create_causal_mask

from farspan.layers import LearnedSpacing
from farspan.models import FarspanConfig, FarspanForCausalLM
from farspan.models.start import start_from_mask

RULES = {
    "dense": {"pattern": "dense"},
    "window": {"pattern": "sliding_window", "window": 8},
    "fibonacci": {"pattern": "fibonacci", "window": 3, "alpha": 0.7},
    "powers grown": {"pattern": "powers_grown", "window": 3},
    "lines per head": {"pattern": "lines", "slashes": [[0, 1, 2, 3], [0, 5], [0, 13], [2, 30]]},
    "learned": {"pattern": "learned_spacing", "window": 3},
    "alibi": {"pattern": "sliding_window", "window": 9, "alibi": True, "heads": 4},
    "adaptive span": {"pattern": "adaptive_span", "max_span": 20, "ramp": 4, "init": 0.3},
    "dcls": {"pattern": "dcls", "window": 3, "positions": [4.3, 11.9], "reach": 16, "width": 1.5},
}
EVERY_RULE = pytest.mark.parametrize("rule", RULES.values(), ids=RULES)
LENGTHS = {"2 and 5": [2, 5], "1, 40, 17": [1, 40, 17]}
EVERY_BATCH = pytest.mark.parametrize("lengths", LENGTHS.values(), ids=LENGTHS)


def tiny(*rules):
    torch.manual_seed(0)
    shape = dict(vocab_size=64, hidden_size=32, num_attention_heads=4, num_key_value_heads=2)
    config = FarspanConfig(**shape, num_hidden_layers=len(rules), rules=list(rules), max_position_embeddings=32)
    model = FarspanForCausalLM(config).eval()
    for each in model.attentions:
        if isinstance(each.spacing, LearnedSpacing):
            each.spacing.theta.data.fill_(0.3)
    return model


def padded(lengths, side):
    """Texts of these lengths; their batch, its mask, and the positions of each text within its row."""
    generator = torch.Generator().manual_seed(0)
    texts = [torch.randint(1, 64, (length,), generator=generator) for length in lengths]
    longest = max(lengths)
    ids, mask = torch.full((len(texts), longest), 7), torch.zeros(len(texts), longest, dtype=torch.int64)
    places = [slice(longest - n, longest) if side == "left" else slice(0, n) for n in lengths]
    for row, (text, place) in enumerate(zip(texts, places, strict=True)):
        ids[row, place], mask[row, place] = text, 1
    return texts, ids, mask, places


def assert_close(a, b):
    torch.testing.assert_close(a, b, atol=1e-5, rtol=0)


@EVERY_RULE
@EVERY_BATCH
@pytest.mark.parametrize("side", ["left", "right"])
@pytest.mark.parametrize("filler", [None, 0, 1], ids=["without positions", "padding at 0", "padding at 1"])
def test_a_padded_text_reads_as_it_does_alone(rule, lengths, side, filler):
    """F04. RoPE knows differences of positions alone, so a text may begin anywhere; padding is no document."""
    model = tiny(rule, rule)
    texts, ids, mask, places = padded(lengths, side)
    positions = None if filler is None else (mask.cumsum(1) - 1).masked_fill(mask == 0, filler)
    logits = model(ids, attention_mask=mask, position_ids=positions).logits
    assert logits.isfinite().all()
    for row, (text, place) in enumerate(zip(texts, places, strict=True)):
        alone = model(text[None]).logits[0] if rule["pattern"] != "powers_grown" else longest_reads(model, text, ids)
        assert_close(logits[row, place], alone)


def longest_reads(model, text, ids):
    """`powers_grown` is built for the whole row, so alone the text is followed by what it cannot see."""
    tail = torch.full((ids.shape[1] - len(text),), 9)
    return model(torch.cat([text, tail])[None]).logits[0, : len(text)]


@EVERY_RULE
@pytest.mark.parametrize("side", ["left", "right"])
def test_padding_may_hold_anything(rule, side):
    model = tiny(rule, rule)
    _, ids, mask, places = padded([3, 40, 17], side)
    logits = [model(torch.where(mask.bool(), ids, filler), attention_mask=mask).logits for filler in (0, 63)]
    for row, place in enumerate(places):
        assert torch.equal(logits[0][row, place], logits[1][row, place])


@EVERY_RULE
@pytest.mark.parametrize("side", ["left", "right"])
def test_gradients_of_a_padded_batch_are_those_of_its_texts(rule, side):
    """F04: fully masked rows give no NaN, and padding gets no gradient."""
    model = tiny(rule, rule)
    texts, ids, mask, _ = padded([3, 32, 17], side)
    labels = ids.masked_fill(mask == 0, -100)
    if side == "left":  # the last padded row predicts the first token; alone nothing does
        for row, text in enumerate(texts):
            labels[row, labels.shape[1] - len(text)] = -100
    embeddings = model.get_input_embeddings()(ids).detach().requires_grad_()
    model(inputs_embeds=embeddings, attention_mask=mask, labels=labels).loss.backward()
    batch = {name: p.grad.clone() for name, p in model.named_parameters()}
    assert embeddings.grad.isfinite().all()
    assert not embeddings.grad[mask == 0].any()
    model.zero_grad()
    count = sum(len(text) - 1 for text in texts)
    for text in texts:
        loss = model(inputs_embeds=model.get_input_embeddings()(text[None]).detach(), labels=text[None]).loss
        (loss * (len(text) - 1) / count).backward()
    for name, parameter in model.named_parameters():
        assert_close(batch[name], parameter.grad)


@EVERY_RULE
@pytest.mark.parametrize("options", [{}, {"use_cache": False}], ids=["by default", "without a cache"])
def test_packed_documents_read_themselves_alone(rule, options):
    """Positions that restart, as transformers' padding-free collator gives them."""
    model = tiny(rule, rule)
    documents = [4, 1, 17, 9, 1]
    rows = [torch.randint(0, 64, (sum(documents),), generator=torch.Generator().manual_seed(seed)) for seed in (0, 1)]
    # The second row is cut elsewhere.
    cuts = [documents, documents[::-1]]
    positions = torch.stack([torch.cat([torch.arange(n) for n in cut]) for cut in cuts])
    logits = model(torch.stack(rows), position_ids=positions, **options).logits
    for row, cut, found in zip(rows, cuts, logits, strict=True):
        for document, part in zip(row.split(cut), found.split(cut), strict=True):
            assert_close(part, model(document[None]).logits[0])


HIDES_PACKING = {
    "a cache asked for": lambda model: {"use_cache": True},
    "a cache": lambda model: {"cache": DynamicCache(config=model.config)},
    "a cache by its old name": lambda model: {"past_key_values": DynamicCache(config=model.config)},
    "a cache that is not asked for": lambda model: {"cache": DynamicCache(config=model.config), "use_cache": False},
    "a mask": lambda model: {"attention_mask": torch.ones(1, 6)},
    "a mask of two rows": lambda model: {"attention_mask": torch.ones(2, 6), "use_cache": False},
    "a padding mask": lambda model: {"attention_mask": torch.tensor([[0, 1, 1, 1, 1, 1]])},
}


@pytest.mark.filterwarnings("ignore:`past_key_values` is deprecated:FutureWarning")
@pytest.mark.parametrize("options", HIDES_PACKING.values(), ids=HIDES_PACKING)
@pytest.mark.parametrize("positions", [[0, 1, 2, 0, 1, 2], [0, 1, 2, 2, 3, 4], [0, 1, 2, 9, 10, 11]], ids=str)
def test_packing_that_would_go_unseen_is_refused(options, positions):
    """transformers looks for packed documents only where there is neither a cache nor a mask."""
    model = tiny(RULES["window"])
    inputs = dict(input_ids=torch.arange(6).expand(2, -1), position_ids=torch.tensor([positions]), **options(model))
    for each in (model, model.model):
        with pytest.raises(ValueError, match=r"position_ids must rise one by one .* leave out cache, use_cache and"):
            each(**inputs)


@pytest.mark.parametrize("positions", [[3, 4, 5, 6], [0, 0, 0, 1], [7, 1, 0, 1]], ids=str)
def test_positions_that_rise_one_by_one_over_the_text_keep_the_cache(positions):
    model = tiny(RULES["window"])
    mask = torch.tensor([[1, 1, 1, 1] if positions[0] == 3 else [0, 0, 1, 1]])
    inputs = dict(input_ids=torch.arange(4)[None], position_ids=torch.tensor([positions]), attention_mask=mask)
    assert model(**inputs).cache.get_seq_length() == 4


def test_generation_from_packed_documents_is_refused():
    model = tiny(RULES["window"])
    with pytest.raises(ValueError, match="position_ids must rise one by one"):
        model.generate(torch.arange(6)[None], position_ids=torch.tensor([[0, 1, 2, 0, 1, 2]]), max_new_tokens=2)


@EVERY_RULE
@pytest.mark.parametrize("dtype", [torch.bool, torch.uint8, torch.float32], ids=str)
def test_a_mask_of_zeros_and_ones_means_the_same_in_any_dtype(rule, dtype):
    """F04: a float mask is not added to the scores."""
    model = tiny(rule, rule)
    _, ids, mask, _ = padded([3, 12], "left")
    assert torch.equal(model(ids, attention_mask=mask.to(dtype)).logits, model(ids, attention_mask=mask).logits)


@pytest.mark.parametrize("hidden", [-1e9, -torch.inf, torch.finfo(torch.float32).min, torch.nan, 0.5], ids=str)
def test_an_additive_mask_is_refused(hidden):
    """Its 0, which hides nothing, would be read as False."""
    model = tiny(RULES["window"])
    mask = torch.tensor([[hidden, 0.0, 0.0, 0.0]])
    words = r"attention_mask must be 1 for real tokens and 0 for padding, got other numbers"
    for inputs in (dict(attention_mask=mask), dict(attention_mask=mask, position_ids=torch.arange(4)[None])):
        for each in (model, model.model):
            with pytest.raises(ValueError, match=words):
                each(torch.arange(4)[None], **inputs)
    with pytest.raises(ValueError, match=words):
        model.generate(torch.arange(4)[None], attention_mask=mask, max_new_tokens=2)


@EVERY_RULE
def test_a_mask_of_ones_is_no_mask(rule):
    model = tiny(rule, rule)
    _, ids, mask, _ = padded([12, 12], "left")
    assert torch.equal(model(ids, attention_mask=mask).logits, model(ids).logits)


@EVERY_RULE
def test_a_row_of_padding_alone_gives_numbers(rule):
    model = tiny(rule, rule)
    _, ids, mask, _ = padded([12, 5], "left")
    mask[1] = 0
    assert model(ids, attention_mask=mask).logits.isfinite().all()
    assert_close(model(ids, attention_mask=mask).logits[0], model(ids[:1]).logits[0])


@pytest.mark.parametrize(
    "rule", [RULES["dense"], RULES["window"], RULES["learned"]], ids=["dense", "window", "learned"]
)
@pytest.mark.parametrize(
    ("mask", "words"),
    [
        ([1, 0, 1, 1, 1, 1], "got a gap between them"),
        ([0, 1, 1, 0, 0, 1], "got a gap between them"),
        ([[1] * 6] * 6, r"attention_mask must be \[B, 6\]"),
        ([[[1] * 6] * 6], r"attention_mask must be \[B, T\], padding only"),
    ],
    ids=["gap", "gap after padding", "3-D", "4-D"],
)
@pytest.mark.parametrize("dtype", [torch.bool, torch.int64, torch.float32], ids=str)
def test_a_mask_that_start_cannot_express_is_refused(rule, mask, words, dtype):
    model = tiny(rule)
    ids = torch.arange(6)[None]
    with pytest.raises(ValueError, match=words):
        model(ids, attention_mask=torch.tensor([mask], dtype=dtype))


@EVERY_RULE
def test_a_mask_shorter_than_the_cache_is_refused(rule):
    model = tiny(rule)
    cache = model(torch.arange(6)[None], use_cache=True).cache
    for mask in (torch.ones(1, 1), torch.zeros(1, 1), torch.ones(1, 6)):
        with pytest.raises(ValueError, match=r"attention_mask must be \[B, 7\], all keys, got"):
            model(torch.tensor([[3]]), cache=cache, attention_mask=mask)


@EVERY_RULE
def test_a_static_cache_is_refused_in_words(rule):
    model = tiny(rule)
    with pytest.raises(ValueError, match=r"must end at the last query \(position 6\), got 20 keys .*: use the dynamic"):
        model(torch.arange(6)[None], cache=StaticCache(model.config, max_cache_len=20))
    with pytest.raises(ValueError, match="use the dynamic cache"):
        model.generate(torch.arange(6)[None], max_new_tokens=3, cache_implementation="static")


ABSOLUTE = {
    "verticals": {"pattern": "lines", "slashes": [0, 1, 13], "verticals": [0]},
    "sinks": {"pattern": "streaming_llm", "sinks": 2, "window": 5},
    "blocks": {"pattern": "block_local", "block": 4},
    "tokens": {"pattern": "elastic", "keys": 3},
}


@pytest.mark.parametrize("rule", ABSOLUTE.values(), ids=ABSOLUTE)
def test_patterns_of_positions_refuse_padding_at_their_own_end(rule):
    """They count from the beginning of the row: behind padding, position 0 is no longer the first token of the text."""
    model = tiny(rule)
    texts, ids, mask, places = padded([3, 12], "right")
    logits = model(ids, attention_mask=mask).logits
    for row, (text, place) in enumerate(zip(texts, places, strict=True)):
        assert_close(logits[row, place], model(text[None]).logits[0])
    words = f"the {rule['pattern']} rule of layer 0 counts from the first position of a row.*: pad on the right"
    with pytest.raises(ValueError, match=words):
        model(ids, attention_mask=mask.flip(1))
    with pytest.raises(ValueError, match="or another document here"):
        model(ids[:1], position_ids=torch.tensor([[0, 1, 2, 0, 1, 2, 3, 4, 5, 6, 7, 8]]), use_cache=False)


def test_a_mask_function_of_the_callers_own_is_refused():
    model = tiny(RULES["window"])
    with pytest.raises(ValueError, match="a mask function of the caller's own"):
        create_causal_mask(
            config=model.config,
            inputs_embeds=torch.zeros(1, 6, 32),
            attention_mask=None,
            cache=DynamicCache(config=model.config),
            and_mask_function=lambda batch, head, query, key: key != 2,
        )


def call(mask, q_length, kv_length, **more):
    batch = 1 if mask is None else len(mask)
    mask = None if mask is None else torch.tensor(mask)
    offset = kv_length - q_length
    start = start_from_mask(
        batch_size=batch, q_length=q_length, kv_length=kv_length, q_offset=offset, attention_mask=mask, **more
    )
    return None if start is None else start.tolist()


@pytest.mark.parametrize(
    ("mask", "q_length", "expected"),
    [
        (None, 4, None),
        ([[1, 1, 1, 1]], 4, None),
        ([[0, 0, 1, 1], [1, 1, 1, 1]], 4, [[1, 2, 2, 2], [0, 0, 0, 0]]),
        ([[1, 1, 0, 0]], 4, [[0, 0, 3, 4]]),
        ([[0, 1, 1, 0]], 4, [[1, 1, 1, 4]]),
        ([[0, 0, 0, 0], [0, 0, 0, 1]], 4, [[1, 2, 3, 4], [1, 2, 3, 3]]),
        ([[0, 0, 1, 1], [1, 1, 1, 1]], 1, [[2], [0]]),
    ],
    ids=["none", "ones", "left", "right", "both", "all", "cache"],
)
def test_start_is_the_first_real_key_and_beyond_the_row_for_padding(mask, q_length, expected):
    assert call(mask, q_length, 4) == expected


@pytest.mark.parametrize("length", [1, 2, 3, 8, 9, 33], ids=lambda length: f"T={length}")
def test_start_finds_the_documents_of_a_mask_function(length):
    generator = torch.Generator().manual_seed(length)
    for _ in range(10):
        documents = (torch.rand(length, generator=generator) < 0.3).cumsum(0)
        expected = [documents.tolist().index(document) for document in documents.tolist()]

        def same_document(batch, head, query, key, documents=documents):
            return (key <= query) & (documents[query] == documents[key])

        assert call(None, length, length, mask_function=same_document) == [expected]


def test_start_follows_a_mask_function_and_a_mask_together():
    documents = torch.tensor([0, 0, 0, 1, 1, 2])

    def same_document(batch, head, query, key):
        return (key <= query) & (documents[query] == documents[key])

    assert call(None, 6, 6, mask_function=same_document) == [[0, 0, 0, 3, 3, 5]]
    assert call([[0, 1, 1, 1, 1, 0]], 6, 6, mask_function=same_document) == [[1, 1, 1, 3, 3, 6]]
    assert call(None, 6, 6, mask_function=causal_mask_function) is None
