"""Perplexity of a saved model, ours or any other causal LM of transformers, on a corpus."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch
from safetensors import SafetensorError
from transformers import AutoModelForCausalLM, AutoTokenizer, PreTrainedModel

from farspan.data import cache_folder, prepare
from farspan.evaluation.inference import evaluating
from farspan.evaluation.length_curve import length_curve
from farspan.evaluation.perplexity import Progress


def checkpoint_perplexity(
    model: str,
    lengths: Sequence[int],
    *,
    corpus: str = "python-stdlib",
    tokens: int | None = None,
    train_length: int | None = None,
    progress: Progress | None = None,
) -> dict[str, Any]:
    """Scores held-out tokens of a corpus, by the model's own tokenizer, at each length.

    Args:
        model: folder of a transformers causal LM with its tokenizer, or the name of one on the hub.
        lengths: window lengths in tokens.
        tokens: how many held-out tokens, from the first; by default up to 65,537.
        corpus: see `farspan.data.open_corpus`; its held-out documents are the ones a study of ours holds out.
        train_length: from which context on a token counts as beyond training; `max_position_embeddings` by default.

    Returns:
        {"train_length": int, "tokens": int, "perplexity": {protocol: {length: entry}}}, entries as `summarise` has
        them.

    Raises:
        ValueError: the model, its tokenizer or the corpus cannot be read, weights are missing, the model sees future
            tokens, or the corpus holds fewer held-out tokens than asked for.
    """
    if "/" not in model and not Path(model).exists():
        raise ValueError(f"model must be a folder that exists or a hub name such as owner/name, got {model!r}")
    try:
        tokenizer = AutoTokenizer.from_pretrained(model)
        loaded, report = AutoModelForCausalLM.from_pretrained(model, output_loading_info=True)
    except (OSError, ValueError, KeyError, SafetensorError) as error:
        reason = " ".join(str(error).split())[:200]
        raise ValueError(f"model {model!r} cannot be loaded as a causal LM with its tokenizer: {reason}") from error
    if report["missing_keys"]:
        listed = ", ".join(sorted(report["missing_keys"])[:3])
        raise ValueError(f"model {model!r} lacks {len(report['missing_keys'])} of its weights, such as {listed}")
    _check_causal(loaded, model)
    trained = train_length or getattr(loaded.config, "max_position_embeddings", None)
    if trained is None:
        raise ValueError(f"train_length must be given: the config of {model!r} does not say how long it trained")
    most = tokens or 65_537
    prepared = prepare(
        corpus, None, cache_folder(), max_train_tokens=most, max_heldout_tokens=most, tokenizer=tokenizer
    )
    heldout = np.asarray(prepared.heldout.tokens[:most])
    if tokens is not None and len(heldout) < tokens:
        raise ValueError(f"tokens must be at most the {len(heldout)} held-out tokens of {corpus!r}, got {tokens}")
    curve = length_curve(loaded, heldout, lengths, trained, progress=progress)
    return {"train_length": trained, "tokens": len(heldout), "perplexity": curve.perplexity}


def _check_causal(model: PreTrainedModel, name: str) -> None:
    """Changes the last of some tokens: what the model says before it must stay."""
    ids = torch.arange(1, 17, device=model.device)[None] % model.get_input_embeddings().num_embeddings
    changed = ids.clone()
    changed[0, -1] = 0
    with evaluating(model):
        before, after = (model(input_ids=tokens).logits[0, :-1].float() for tokens in (ids, changed))
    # Rounding may differ between the two passes, by far less than an attention weight on the changed token.
    if float((before - after).abs().max()) > 1e-4 * float(before.abs().max()):
        raise ValueError(f"model {name!r} must be causal, but a later token changes what it says about earlier ones")
