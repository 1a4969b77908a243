"""Any text comes back exactly, and the same text makes the same tokenizer."""

from __future__ import annotations

import pickle
import random
from collections.abc import Iterator
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tokenizers import Tokenizer, models
from transformers import AutoTokenizer, PreTrainedTokenizerFast

from farspan.data import tokenizer as module
from farspan.data.corpora import Document
from farspan.data.tokenizer import (
    BOUNDARY,
    boundary_id,
    encode_documents,
    tokenizer_sha256,
    train_bpe,
    training_text,
    wrap,
)

TEXTS = [
    "def half(number):\n    return number / 2\n" * 3,
    "the other one, the third one and the rest\r\n" * 3,
]


@pytest.fixture(scope="module")
def tokenizer() -> PreTrainedTokenizerFast:
    return wrap(train_bpe(TEXTS, 290))


def encode(text: str, tokenizer: PreTrainedTokenizerFast) -> list[int]:
    (ids,) = encode_documents([Document("a", text)], tokenizer)
    return ids.tolist()


@settings(max_examples=200, deadline=None)
@given(text=st.text())
def test_any_text_comes_back_exactly(tokenizer: PreTrainedTokenizerFast, text: str) -> None:
    assert tokenizer.decode(encode(text, tokenizer)[1:]) == text
    assert tokenizer.decode(tokenizer(text)["input_ids"], skip_special_tokens=True) == text


@pytest.mark.parametrize(
    "text",
    [
        "",
        "  a , b . c 's don 't",
        "\r\n\t\x00\x1b",
        "e\u0301 \u00e9 \u202e \U0001f469\u200d\U0001f4bb",
        "\ufeffx",
    ],
    ids=["nothing", "spaces", "controls", "unicode", "byte order mark"],
)
def test_awkward_text_comes_back_exactly(tokenizer: PreTrainedTokenizerFast, text: str) -> None:
    assert tokenizer.decode(encode(text, tokenizer)[1:]) == text


def test_document_begins_with_the_one_boundary(tokenizer: PreTrainedTokenizerFast) -> None:
    ids = encode(f"one {BOUNDARY} two", tokenizer)
    assert boundary_id(tokenizer) == 0 == tokenizer.bos_token_id == tokenizer.eos_token_id
    assert ids[0] == 0
    assert 0 not in ids[1:], "a text that spells the special token makes no boundary"
    assert tokenizer("one")["input_ids"] == encode("one", tokenizer), "a prompt looks like a document"


def test_order_of_documents_is_kept_over_batches(tokenizer: PreTrainedTokenizerFast) -> None:
    documents = [Document(str(i), f"number {i}") for i in range(150)]
    texts = [tokenizer.decode(ids[1:]) for ids in encode_documents(documents, tokenizer)]
    assert texts == [document.text for document in documents]


def test_long_document_is_cut_without_a_trace(
    tokenizer: PreTrainedTokenizerFast, monkeypatch: pytest.MonkeyPatch
) -> None:
    words = ["the", "one,", "a_b", "x1", "  ", "\n", "number", "\u00e9t\u00e9", "(half)", "7"]
    text = " ".join(random.Random(0).choices(words, k=3000))
    whole = encode(text, tokenizer)
    monkeypatch.setattr(module, "_PIECE", 50)
    assert len(list(module._pieces(text))) > 100
    assert encode(text, tokenizer) == whole
    assert encode("x" * 1000, tokenizer)[1:] == tokenizer("x" * 1000, add_special_tokens=False)["input_ids"]


def test_hash_is_of_the_rules_and_not_of_the_last_call(tokenizer: PreTrainedTokenizerFast, tmp_path: Path) -> None:
    before = tokenizer_sha256(tokenizer)
    tokenizer(["a", "longer text"], padding=True, truncation=True, max_length=5)
    assert tokenizer_sha256(tokenizer) == before
    tokenizer.save_pretrained(tmp_path)
    assert tokenizer_sha256(AutoTokenizer.from_pretrained(tmp_path)) == before
    assert tokenizer_sha256(pickle.loads(pickle.dumps(tokenizer))) == before
    assert tokenizer_sha256(wrap(train_bpe(TEXTS, 289))) != before


def test_batch_pads_on_the_left(tokenizer: PreTrainedTokenizerFast) -> None:
    batch = tokenizer(["a", "number half"], padding=True)
    assert batch["attention_mask"][0][0] == 0
    assert batch["attention_mask"][0][-1] == 1


def test_vocabulary_has_the_size_asked_for_or_says_so() -> None:
    assert train_bpe(TEXTS, 280).get_vocab_size() == 280
    with pytest.warns(UserWarning, match="the text supports 2.. of vocab_size=5000"):
        train_bpe(["abab"], 5000)
    with pytest.raises(ValueError, match="vocab_size should be at least 257"):
        train_bpe(TEXTS, 256)


def test_sample_is_the_first_documents_and_no_more_than_needed() -> None:
    def documents() -> Iterator[Document]:
        for i in range(10):
            yield Document(str(i), str(i) * 300_000)

    sample = list(training_text(documents(), 300))
    assert [text[0] for text in sample] == ["0", "1", "2"], "300 * 2048 bytes are reached in the third"


def test_tokenizer_without_a_boundary_or_an_inner_one_is_refused() -> None:
    with pytest.raises(ValueError, match="should have a bos or an eos token"):
        boundary_id(PreTrainedTokenizerFast(tokenizer_object=Tokenizer(models.BPE())))
    with pytest.raises(TypeError, match="should be a fast transformers tokenizer, got str"):
        list(encode_documents([Document("a", "x")], "gpt2"))
