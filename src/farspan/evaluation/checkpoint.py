"""Perplexity of a saved model, ours or any other causal LM of transformers, on a corpus."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
from transformers import AutoModelForCausalLM, AutoTokenizer

from farspan.data import cache_folder, prepare
from farspan.evaluation.length_curve import length_curve
from farspan.evaluation.perplexity import Progress


def checkpoint_perplexity(
    model: str,
    lengths: Sequence[int],
    *,
    corpus: str = "python-stdlib",
    tokens: int = 65_537,
    train_length: int | None = None,
    progress: Progress | None = None,
) -> dict[str, Any]:
    """Scores the first `tokens` held-out tokens of a corpus, by the model's own tokenizer, at each length.

    Args:
        model: folder of a transformers causal LM with its tokenizer, or the name of one on the hub.
        lengths: window lengths in tokens.
        corpus: see `farspan.data.open_corpus`; its held-out documents are the ones a study of ours holds out.
        train_length: from which context on a token counts as beyond training; `max_position_embeddings` by default.

    Returns:
        {"train_length": int, "tokens": int, "perplexity": {protocol: {length: entry}}}, entries as `summarise` has
        them.

    Raises:
        ValueError: the model, its tokenizer or the corpus cannot be read, or the corpus is too short.
    """
    if "/" not in model and not Path(model).exists():
        raise ValueError(f"model must be a folder that exists or a hub name such as owner/name, got {model!r}")
    try:
        tokenizer = AutoTokenizer.from_pretrained(model)
        loaded = AutoModelForCausalLM.from_pretrained(model)
    except OSError as error:
        reason = str(error).splitlines()[0]
        raise ValueError(f"model {model!r} cannot be loaded with its tokenizer: {reason}") from error
    most = tokens if corpus != "python-stdlib" else None
    prepared = prepare(
        corpus, None, cache_folder(), max_train_tokens=most, max_heldout_tokens=tokens, tokenizer=tokenizer
    )
    heldout = np.asarray(prepared.heldout.tokens[:tokens])
    trained = train_length or loaded.config.max_position_embeddings
    curve = length_curve(loaded, heldout, lengths, trained, progress=progress)
    return {"train_length": trained, "tokens": len(heldout), "perplexity": curve.perplexity}
