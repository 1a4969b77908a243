"""Copying from a distance: the cheapest task that tells attention patterns apart.

*Shift-copy*: random tokens; at position t the right answer is the token at t - distance. A model solves it
only if its layers connect that distance, whatever its perplexity. *Marked copy*: each token carries a mark
that says which of several distances applies at its own position, so that one model must reach all of them at
once.

`targets[t]` answers position t itself: the loss is the cross-entropy of `logits[t]` with `targets[t]`
(`copy_loss`). They are not the `labels` of a transformers model, which would shift them once more: compute
the loss from `model(input_ids).logits`.

Source: retrieval probes of "Depth-Staggered Fibonacci Spacing for Sparse Attention" (arXiv 2606.28560):
shift-copy at T = 1024 with 256 tokens, marked copy of {200, 350} at T = 512 with 2 x 256 tokens.
"""

from __future__ import annotations

import copy
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Self

import numpy as np
import torch
import torch.nn.functional as F
from numpy.typing import NDArray
from torch import Tensor
from torch.utils.data import Dataset

from farspan.evaluation.inference import embedding_weight, evaluating

if TYPE_CHECKING:
    from transformers import PreTrainedModel

IGNORE = -100
_SPLITS = ("train", "held-out")


class CopyTask(Dataset[dict[str, Tensor]]):
    """Map-style dataset of `size` samples; sample i is a pure function of (seed, split, i, length, alphabet).

    An item is `{"input_ids": [length], "targets": [length]}`, int64, targets -100 where nothing is asked.
    Distances do not change the tokens drawn, so cells that differ in distance see the same sequences.
    """

    def __init__(self, distances: Sequence[int], length: int, alphabet: int, size: int, seed: int, split: str) -> None:
        if length < 2:
            raise ValueError(f"length must be at least 2 tokens, got {length}")
        for distance in distances:
            if not 1 <= distance < length:
                raise ValueError(f"distance must be between 1 and length - 1 = {length - 1}, got {distance}")
        if alphabet < 2:
            raise ValueError(f"alphabet must be at least 2 tokens, got {alphabet}")
        if size < 1:
            raise ValueError(f"size must be at least 1 sample, got {size}")
        if not 0 <= seed < 2**64:
            raise ValueError(f"seed must be between 0 and 2**64 - 1, got {seed}")
        if split not in _SPLITS:
            raise ValueError(f"split must be one of {', '.join(_SPLITS)}, got {split!r}")
        self.distances = tuple(distances)
        self.length = length
        self.alphabet = alphabet
        self.size = size
        self.seed = seed
        self.split = split

    @property
    def vocab_size(self) -> int:
        """Token ids in use: one alphabet for each distance."""
        return self.alphabet * len(self.distances)

    @property
    def chance(self) -> float:
        """Accuracy of guessing."""
        return 1 / self.vocab_size

    def __len__(self) -> int:
        return self.size

    def __getitem__(self, index: int) -> dict[str, Tensor]:
        if not 0 <= index < self.size:
            raise IndexError(f"index must be between 0 and {self.size - 1}, got {index}")
        ids = self._tokens(index)
        targets = np.full(self.length, IGNORE, dtype=np.int64)
        asked = ids // self.alphabet
        for number, distance in enumerate(self.distances):
            here = asked[distance:] == number
            targets[distance:][here] = ids[:-distance][here]
        return {"input_ids": torch.from_numpy(ids), "targets": torch.from_numpy(targets)}

    def held_out(self, size: int) -> Self:
        """The same task with `size` samples from a stream that training never draws from."""
        if size < 1:
            raise ValueError(f"size must be at least 1 sample, got {size}")
        fresh = copy.copy(self)
        fresh.size, fresh.split = size, "held-out"
        return fresh

    def _tokens(self, index: int) -> NDArray[np.int64]:
        # Counting from index * 2**128 under the key (split, seed), samples share no words. They are used raw
        # because numpy may change its Generator methods; the bias of a remainder of 64 bits is nil.
        key = (_SPLITS.index(self.split) << 64) | self.seed
        raw = np.random.Philox(key=key, counter=index << 128).random_raw(self.length)
        return (raw % np.uint64(self.vocab_size)).astype(np.int64)


class ShiftCopy(CopyTask):
    """`targets[t] = input_ids[t - distance]` for t >= distance; tokens uniform over `alphabet` ids."""

    def __init__(
        self,
        distance: int,
        length: int,
        alphabet: int = 16,
        *,
        size: int,
        seed: int = 0,
        split: str = "train",
    ) -> None:
        super().__init__((distance,), length, alphabet, size, seed, split)


class MarkedCopy(CopyTask):
    """`targets[t] = input_ids[t - distances[mark of t]]` where that position exists.

    The mark is part of the token: `input_ids = payload + alphabet * mark`, payload uniform over `alphabet`
    ids and mark uniform over the distances, so the vocabulary is `alphabet * len(distances)` ids. The answer
    is the whole id at the source, mark included, as in the paper's probe (`MarkedCopy((200, 350), 512, 256,
    size=...)`).
    """

    def __init__(
        self,
        distances: Sequence[int],
        length: int,
        alphabet: int = 16,
        *,
        size: int,
        seed: int = 0,
        split: str = "train",
    ) -> None:
        if len(set(distances)) != len(distances) or len(distances) < 2:
            raise ValueError(f"distances must be two or more different ones, got {list(distances)}")
        super().__init__(distances, length, alphabet, size, seed, split)


@dataclass(frozen=True)
class CopyAccuracy:
    """`accuracies[i]` over the `asked[i]` positions that call for `distances[i]`; `chance`: by guessing."""

    distances: tuple[int, ...]
    accuracies: tuple[float, ...]
    asked: tuple[int, ...]
    chance: float


def copy_loss(logits: Tensor, targets: Tensor) -> Tensor:
    """Mean cross-entropy in fp32 of `logits[:, t]` with `targets[:, t]`, unshifted, where something is asked.

    logits: `[B, T, V]`. targets: `[B, T]`, -100 where nothing is asked.
    """
    return F.cross_entropy(
        logits.flatten(0, -2).to(torch.promote_types(logits.dtype, torch.float32)),
        targets.flatten(),
        ignore_index=IGNORE,
    )


def accuracy(model: PreTrainedModel, task: CopyTask, *, samples: int = 128, batch_tokens: int = 16_384) -> CopyAccuracy:
    """How often the likeliest token is right, on `samples` fresh sequences of the task's held-out stream."""
    known = len(embedding_weight(model))
    if known < task.vocab_size:
        raise ValueError(f"model must know the task's {task.vocab_size} tokens, got a vocabulary of {known}")
    fresh = task.held_out(samples)
    rows = max(1, batch_tokens // task.length)
    right = np.zeros(len(task.distances), dtype=np.int64)
    asked = np.zeros(len(task.distances), dtype=np.int64)
    device = embedding_weight(model).device
    with evaluating(model):
        for begin in range(0, samples, rows):
            items = [fresh[index] for index in range(begin, min(begin + rows, samples))]
            ids = torch.stack([item["input_ids"] for item in items])
            targets = torch.stack([item["targets"] for item in items])
            guesses = model(input_ids=ids.to(device)).logits.argmax(dim=-1).cpu()
            counts = targets != IGNORE
            for number in range(len(task.distances)):
                here = counts & (ids // task.alphabet == number)
                asked[number] += int(here.sum())
                right[number] += int((here & (guesses == targets)).sum())
    if not asked.all():
        raise ValueError(f"samples must be enough that every distance is asked for, got {samples}")
    accuracies = right / asked
    return CopyAccuracy(task.distances, tuple(accuracies.tolist()), tuple(asked.tolist()), task.chance)
