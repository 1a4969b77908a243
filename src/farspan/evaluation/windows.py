"""The two perplexity protocols as plain code: which window scores which token, with how much context.

A window reads tokens `begin .. stop - 1`; token t of it has context `t - begin`, the number of tokens before
it that the model could read. Windows start every `stride` tokens and each token is scored by the first window
that reads it with at least one token of context. The first token of a stream has none and is never scored;
every other token is scored exactly once, so curves over length compare the same tokens.

*disjoint* is `stride = length - 1`: windows share one token, or their first tokens would be skipped.
*sliding* is any smaller stride: dearer, and no token but the first few has less than `length - stride` of
context.

Source: ALiBi (arXiv 2108.12409, appendix B); the faults to avoid are transformers issues 34138, 30975 and
18887.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import NamedTuple, TypeVar

import numpy as np
from numpy.typing import ArrayLike, NDArray

Document = TypeVar("Document", bound=Sequence[int] | NDArray[np.generic])


class Window(NamedTuple):
    """Tokens `begin .. stop - 1` are read, tokens `first .. stop - 1` are scored."""

    begin: int
    first: int
    stop: int


@dataclass(frozen=True, eq=False)
class Scored:
    """Loss of every scored token of a stream, in stream order.

    nll: `[n]` float, nats. context: `[n]` int32, tokens the model could read before it. position: `[n]`
    int64, index in the stream, increasing. length, stride: the protocol it was scored with, in tokens.
    """

    nll: NDArray[np.floating]
    context: NDArray[np.int32]
    position: NDArray[np.int64]
    length: int
    stride: int

    def __post_init__(self) -> None:
        if not self.nll.ndim == 1 or not self.nll.shape == self.context.shape == self.position.shape:
            raise ValueError(
                "nll, context and position must be flat and equally long, "
                f"got shapes {self.nll.shape}, {self.context.shape} and {self.position.shape}"
            )

    def __len__(self) -> int:
        return len(self.nll)


@dataclass(frozen=True)
class DocumentScores:
    """`scored` joins the kept documents; `dropped` lists the indices of documents too short to be scored."""

    scored: Scored
    kept: list[int]
    dropped: list[int]


def resolve_stride(length: int, stride: int | str | None) -> int:
    """Stride in tokens: None or "disjoint" is `length - 1`, "sliding" is `length // 2`, an int is itself."""
    if stride is None or stride == "disjoint":
        return length - 1
    if stride == "sliding":
        return max(1, length // 2)
    if isinstance(stride, str):
        raise ValueError(f"stride must be 'disjoint', 'sliding' or a number of tokens, got {stride!r}")
    return stride


def windows(n_tokens: int, length: int, stride: int) -> Iterator[Window]:
    """Windows that score tokens `1 .. n_tokens - 1` once each. Only the last may be shorter than `length`.

    Raises ValueError for a stream shorter than `length`: its loss would be reported for a length it never
    had.
    """
    if n_tokens < 2:
        raise ValueError(f"n_tokens must be at least 2 because the first token is never scored, got {n_tokens}")
    if length < 2:
        raise ValueError(f"length must be at least 2 tokens, got {length}")
    if not 1 <= stride <= length - 1:
        raise ValueError(
            f"stride must be between 1 and length - 1 = {length - 1}, got {stride}; "
            "a larger stride leaves the first token of each window unscored"
        )
    if n_tokens < length:
        raise ValueError(f"length must be at most the number of tokens ({n_tokens}), got {length}")
    return _windows(n_tokens, length, stride)


def _windows(n_tokens: int, length: int, stride: int) -> Iterator[Window]:
    begin, end = 0, 1
    while end < n_tokens:
        stop = min(begin + length, n_tokens)
        yield Window(begin, end, stop)
        begin, end = begin + stride, stop


def assemble(nll: NDArray[np.floating], length: int, stride: int) -> Scored:
    """Attach context and position to `nll` `[n_tokens - 1]`, the loss of tokens `1 .. n_tokens - 1`."""
    position = np.arange(1, len(nll) + 1, dtype=np.int64)
    context = np.empty(len(nll), dtype=np.int32)
    for begin, first, stop in windows(len(nll) + 1, length, stride):
        context[first - 1 : stop - 1] = position[first - 1 : stop - 1] - begin
    return Scored(nll, context, position, length, stride)


def score_stream(nll_of_window: Callable[[Window], ArrayLike], n_tokens: int, length: int, stride: int) -> Scored:
    """Score a stream with any model: `nll_of_window(window)` gives `[stop - first]` losses in nats; fp64."""
    nll = np.empty(max(n_tokens - 1, 0), dtype=np.float64)
    for window in windows(n_tokens, length, stride):
        values = np.asarray(nll_of_window(window), dtype=np.float64)
        if values.shape != (window.stop - window.first,):
            raise ValueError(
                f"nll_of_window must give one loss for each of the {window.stop - window.first} tokens "
                f"scored in {window}, got shape {values.shape}"
            )
        nll[window.first - 1 : window.stop - 1] = values
    return assemble(nll, length, stride)


def score_documents(score: Callable[[Document], Scored], documents: Sequence[Document], minimum: int) -> DocumentScores:
    """Score separate documents apart; those of fewer than `minimum` tokens are dropped and listed.

    `score(tokens)` scores one document, for example `lambda t: score_tokens(model, t, 512)`. For a curve over
    lengths pass the longest length as `minimum` everywhere, so that every length scores the same documents.
    Positions count from the start of the first document, dropped ones included.
    """
    kept: list[int] = []
    dropped: list[int] = []
    parts: list[Scored] = []
    positions: list[NDArray[np.int64]] = []
    offset = 0
    for number, document in enumerate(documents):
        if len(document) < minimum:
            dropped.append(number)
        else:
            part = score(document)
            if part.length > minimum:
                raise ValueError(
                    f"minimum must be at least the evaluation length ({part.length}), got {minimum}: "
                    "shorter documents would be scored short"
                )
            kept.append(number)
            parts.append(part)
            positions.append(part.position + offset)
        offset += len(document)
    if not parts:
        raise ValueError(f"documents must hold one of at least {minimum} tokens, got {len(dropped)} shorter ones")
    scored = Scored(
        np.concatenate([part.nll for part in parts]),
        np.concatenate([part.context for part in parts]),
        np.concatenate(positions),
        parts[0].length,
        parts[0].stride,
    )
    return DocumentScores(scored, kept, dropped)
