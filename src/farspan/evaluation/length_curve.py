"""Perplexity against length: both protocols at several lengths, in the form a study keeps them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray
from torch import Tensor

from farspan.evaluation.perplexity import Progress, position_bins, score_tokens, summarise
from farspan.evaluation.windows import Scored

if TYPE_CHECKING:
    from transformers import PreTrainedModel

PROTOCOLS = ("disjoint", "sliding")


@dataclass(frozen=True)
class LengthCurve:
    """`perplexity` and `position_bins` as `result.json` has them; `arrays` as `nll.npz` has them."""

    perplexity: dict[str, dict[str, dict[str, Any]]]
    position_bins: dict[str, list[Any]]
    arrays: dict[str, NDArray[Any]]


def length_curve(
    model: PreTrainedModel,
    tokens: NDArray[np.integer] | Tensor,
    lengths: Sequence[int],
    train_length: int,
    *,
    protocols: Sequence[str] = PROTOCOLS,
    batch_tokens: int = 16_384,
    progress: Progress | None = None,
) -> LengthCurve:
    """Score one stream at each length with each protocol ("sliding" strides by half the length).

    Every length and protocol scores the same `N - 1` tokens. Position bins are those of the longest length,
    disjoint (or the first protocol given, if disjoint is not among them). progress: (tokens scored, tokens to
    score) over all.
    """
    lengths = sorted(set(lengths))
    if not lengths or not protocols:
        raise ValueError(f"lengths and protocols must not be empty, got {lengths} and {list(protocols)}")
    unknown = [name for name in protocols if name not in PROTOCOLS]
    if unknown:
        raise ValueError(f"protocols must be among {', '.join(PROTOCOLS)}, got {unknown}")
    if len(tokens) < lengths[-1]:
        raise ValueError(f"lengths must be at most the number of tokens ({len(tokens)}), got {lengths[-1]}")
    runs = [(protocol, length) for protocol in protocols for length in lengths]
    total = len(runs) * (len(tokens) - 1)
    perplexity: dict[str, dict[str, dict[str, Any]]] = {protocol: {} for protocol in protocols}
    arrays: dict[str, NDArray[Any]] = {}
    bins: dict[str, list[Any]] = {}
    for number, (protocol, length) in enumerate(runs):
        before = number * (len(tokens) - 1)

        def report(done: int, _: int, before: int = before) -> None:
            if progress is not None:
                progress(before + done, total)

        scored = score_tokens(model, tokens, length, protocol, batch_tokens=batch_tokens, progress=report)
        perplexity[protocol][str(length)] = summarise(scored, train_length)
        arrays[f"{protocol}_{length}_nll"] = scored.nll.astype(np.float32)
        arrays[f"{protocol}_{length}_context"] = scored.context
        if length == lengths[-1] and (not bins or protocol == "disjoint"):
            bins = position_bins(scored)
    return LengthCurve(perplexity, bins, arrays)


def scored_from_arrays(arrays: Mapping[str, NDArray[Any]], protocol: str, length: int) -> Scored:
    """Read one curve point back from the arrays of `nll.npz` (an opened npz file will do)."""
    nll = arrays[f"{protocol}_{length}_nll"]
    context = arrays[f"{protocol}_{length}_context"]
    # The second window's first scored token, number `length` of the stream, has context `length - stride`.
    stride = length - int(context[length - 1]) if len(context) >= length else length - 1
    return Scored(nll, context, np.arange(1, len(nll) + 1, dtype=np.int64), length, stride)
