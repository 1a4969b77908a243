"""Perplexity of a causal language model on a stream of tokens, with the context that each token had.

The protocols (which window scores which token) are in `windows.py`; this file runs them on a model and sums
up.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
import torch.nn.functional as F
from numpy.typing import NDArray
from torch import Tensor

from farspan.evaluation.inference import accepted, check_length, embedding_weight, evaluating
from farspan.evaluation.windows import Scored, Window, assemble, resolve_stride, windows

if TYPE_CHECKING:
    from transformers import PreTrainedModel

Progress = Callable[[int, int], None]

# fp32 numbers: 256 MiB of logits in one forward pass, 16 MiB of them turned into losses at a time.
_MAX_LOGITS = 2**26
_LOSS_CHUNK = 2**22


def score_tokens(
    model: PreTrainedModel,
    tokens: NDArray[np.integer] | Tensor | Sequence[int],
    length: int,
    stride: int | str | None = None,
    *,
    batch_tokens: int = 16_384,
    progress: Progress | None = None,
) -> Scored:
    """Loss of each token of a stream under a transformers causal LM, in nats, fp32.

    tokens: `[N]` integer ids (a memory map is read window by window). length: tokens a window holds; it may
    exceed the model's `max_position_embeddings` where positions are rotary. stride: tokens between windows,
    or "disjoint" (the default, `length - 1`) or "sliding" (`length // 2`). batch_tokens: tokens in one
    forward pass; memory also holds at most 2**26 logits unless a single window needs more. It does not change
    the result beyond rounding. progress: called with (tokens scored, tokens to score) after each pass.

    Windows of unequal size are never batched together, so nothing is padded. Raises ValueError for ids the
    model does not know, for a protocol that would skip tokens and for a loss that is not finite.
    """
    stride = resolve_stride(length, stride)
    embedding = embedding_weight(model)
    stream = _as_stream(tokens, len(embedding))
    plan = windows(len(stream), length, stride)
    if batch_tokens < 1:
        raise ValueError(f"batch_tokens must be at least 1, got {batch_tokens}")
    check_length(model, length)
    options = accepted(model, use_cache=False, logits_to_keep=0)
    nll = np.empty(len(stream) - 1, dtype=np.float32)
    done = 0
    with evaluating(model):
        for batch in _batches(plan, batch_tokens, len(embedding), "logits_to_keep" in options):
            values = _batch_nll(model, stream, batch, embedding.device, options)
            for window, row in zip(batch, values, strict=True):
                nll[window.first - 1 : window.stop - 1] = row
                _check_finite(row, window)
            done += values.size
            if progress is not None:
                progress(done, len(nll))
    return assemble(nll, length, stride)


def summarise(scored: Scored, train_length: int) -> dict[str, Any]:
    """The entry of `result.json`: mean loss and perplexity, context, and the loss beyond the training length.

    A token is beyond it when its context is `train_length` or more, a distance training never showed;
    `beyond_nll` is None without such tokens. Sliding protocols also name their stride.
    """
    beyond = scored.nll[scored.context >= train_length]
    nll = float(scored.nll.mean(dtype=np.float64))
    summary: dict[str, Any] = {
        "ppl": math.exp(nll),
        "nll": nll,
        "tokens": len(scored),
        "mean_context": float(scored.context.mean(dtype=np.float64)),
        "beyond_nll": float(beyond.mean(dtype=np.float64)) if len(beyond) else None,
        "beyond_tokens": len(beyond),
    }
    if scored.stride != scored.length - 1:
        summary["stride"] = scored.stride
    return summary


def bin_edges(longest: int) -> list[int]:
    """0, 1, 2, 4, 8, ... up to the first power of two above `longest`; bin i is `[edge i, edge i+1)`."""
    edges = [0, 1]
    while edges[-1] <= longest:
        edges.append(2 * edges[-1])
    return edges


def position_bins(scored: Scored, edges: Sequence[int] | None = None) -> dict[str, list[Any]]:
    """Mean loss in bins of context, log-spaced unless `edges` are given. An empty bin has loss None.

    The bin of context 0 is always empty, as such tokens are not scored; it is there so that edges start at
    zero.
    """
    if edges is None:
        edges = bin_edges(int(scored.context.max()))
    tokens, _ = np.histogram(scored.context, bins=edges)
    sums, _ = np.histogram(scored.context, bins=edges, weights=scored.nll.astype(np.float64))
    if tokens.sum() != len(scored) or scored.context.max() == edges[-1]:
        raise ValueError(f"edges must cover every context (1 to {scored.context.max()}), got {list(edges)}")
    nll = [float(total / count) if count else None for total, count in zip(sums, tokens, strict=True)]
    return {"edges": [int(edge) for edge in edges], "nll": nll, "tokens": tokens.tolist()}


def token_nll(logits: Tensor, targets: Tensor) -> Tensor:
    """Loss `[B, K]` in nats, fp32, of logits `[B, K, V]` with targets `[B, K]` at the same positions.

    No shift happens here. Positions are taken in chunks, so that half-precision logits are never copied
    whole.
    """
    B, K, V = logits.shape
    step = max(1, _LOSS_CHUNK // (B * V))
    dtype = torch.promote_types(logits.dtype, torch.float32)
    parts = [
        F.cross_entropy(
            logits[:, at : at + step].reshape(-1, V).to(dtype),
            targets[:, at : at + step].reshape(-1),
            reduction="none",
        ).view(B, -1)
        for at in range(0, K, step)
    ]
    return torch.cat(parts, dim=1)


def _as_stream(tokens: NDArray[np.integer] | Tensor | Sequence[int], vocabulary: int) -> NDArray[np.integer]:
    stream = tokens.detach().cpu().numpy() if isinstance(tokens, Tensor) else np.asanyarray(tokens)
    if not np.issubdtype(stream.dtype, np.integer):
        raise TypeError(f"tokens must be integer ids, got {stream.dtype}")
    if stream.ndim != 1:
        raise ValueError(f"tokens must be one flat stream [N], got shape {list(stream.shape)}")
    if len(stream) and not 0 <= int(stream.min()) <= int(stream.max()) < vocabulary:
        raise ValueError(
            f"tokens must lie in 0..{vocabulary - 1}, the model's vocabulary, got {stream.min()}..{stream.max()}"
        )
    return stream


def _batches(
    plan: Iterator[Window], batch_tokens: int, vocabulary: int, keeps_few_logits: bool
) -> Iterator[list[Window]]:
    batch: list[Window] = []
    rows = 1
    for window in plan:
        width, scored = window.stop - window.begin, window.stop - window.first
        if batch:
            head = batch[0]
            alike = width == head.stop - head.begin and scored == head.stop - head.first
            if not alike or len(batch) == rows:
                yield batch
                batch = []
        if not batch:
            logits = (scored + 1 if keeps_few_logits else width) * vocabulary
            rows = max(1, min(batch_tokens // width, _MAX_LOGITS // logits))
        batch.append(window)
    if batch:
        yield batch


def _batch_nll(
    model: PreTrainedModel,
    stream: NDArray[np.integer],
    batch: list[Window],
    device: torch.device,
    options: dict[str, Any],
) -> NDArray[np.float32]:
    """Losses `[B, scored]` of windows that are alike in size and in number of tokens scored."""
    scored = batch[0].stop - batch[0].first
    ids = torch.from_numpy(np.stack([stream[w.begin : w.stop] for w in batch]).astype(np.int64)).to(device)
    if "logits_to_keep" in options:
        options = {**options, "logits_to_keep": scored + 1}
    logits = model(input_ids=ids, **options).logits
    # The logits of position t predict token t + 1, so the last ones have nothing to predict.
    logits = logits[:, -(scored + 1) : -1]
    nll = token_nll(logits, ids[:, -scored:].to(logits.device))
    return nll.float().cpu().numpy()


def _check_finite(row: NDArray[np.float32], window: Window) -> None:
    finite = np.isfinite(row)
    if not finite.all():
        where = window.first + int(np.argmin(finite))
        raise ValueError(f"model gave a loss that is not finite ({row[~finite][0]}) at token {where} of the stream")
