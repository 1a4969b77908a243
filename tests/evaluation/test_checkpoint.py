"""Judging saved models: only whole, causal ones, on as much text as was asked for."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from safetensors.torch import load_file, save_file
from transformers import BertConfig, BertLMHeadModel

from farspan.data.tokenizer import train_bpe, wrap
from farspan.evaluation.checkpoint import checkpoint_perplexity

VOCABULARY = 300


@pytest.fixture(scope="module")
def corpus(tmp_path_factory: pytest.TempPathFactory) -> str:
    folder = tmp_path_factory.mktemp("text")
    rng = np.random.default_rng(0)
    for number in range(10):
        (folder / f"{number}.txt").write_text(" ".join(rng.choice(["red", "green", "blue", "black"], 300)))
    return str(folder)


@pytest.fixture
def saved(tiny_llama, tmp_path: Path, corpus: str, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A plain transformers Llama with its tokenizer."""
    monkeypatch.setenv("FARSPAN_CACHE", str(tmp_path / "cache"))
    tiny_llama(VOCABULARY).save_pretrained(tmp_path / "model")
    text = " ".join(path.read_text() for path in sorted(Path(corpus).iterdir()))
    wrap(train_bpe([text], 260)).save_pretrained(tmp_path / "model")
    return tmp_path / "model"


def test_any_causal_model_of_transformers_is_scored(saved: Path, corpus: str) -> None:
    found = checkpoint_perplexity(str(saved), [16, 32], corpus=corpus, tokens=65)
    assert found["tokens"] == 65
    assert found["train_length"] == 2048
    # An untrained model guesses about evenly over its vocabulary.
    assert found["perplexity"]["disjoint"]["32"]["ppl"] == pytest.approx(VOCABULARY, rel=0.2)


def test_more_text_than_there_is_is_refused(saved: Path, corpus: str) -> None:
    with pytest.raises(ValueError, match=r"tokens must be at most the \d+ held-out tokens"):
        checkpoint_perplexity(str(saved), [16], corpus=corpus, tokens=10**7)


def test_missing_weights_are_refused(saved: Path, corpus: str) -> None:
    weights = load_file(saved / "model.safetensors")
    weights.pop("model.layers.0.mlp.up_proj.weight")
    save_file(weights, saved / "model.safetensors", metadata={"format": "pt"})
    with pytest.raises(ValueError, match=r"lacks 1 of its weights, such as model\.layers\.0\.mlp\.up_proj\.weight"):
        checkpoint_perplexity(str(saved), [16], corpus=corpus, tokens=65)


def test_a_damaged_file_is_refused_in_a_sentence(saved: Path, corpus: str) -> None:
    (saved / "model.safetensors").write_bytes((saved / "model.safetensors").read_bytes()[:500])
    with pytest.raises(ValueError, match="cannot be loaded as a causal LM"):
        checkpoint_perplexity(str(saved), [16], corpus=corpus, tokens=65)


def test_a_model_that_sees_the_future_is_refused(saved: Path, corpus: str) -> None:
    config = BertConfig(
        vocab_size=VOCABULARY, hidden_size=16, intermediate_size=32, num_hidden_layers=1, num_attention_heads=2
    )
    BertLMHeadModel(config).save_pretrained(saved)
    with pytest.raises(ValueError, match="must be causal"):
        checkpoint_perplexity(str(saved), [16], corpus=corpus, tokens=65)
