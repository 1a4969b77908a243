"""One static rule at any length: its supports, kept, and what it cannot run beside."""

from __future__ import annotations

import operator
from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor

from farspan.models.configuration import LAYER_RULES
from farspan.models.start import insist
from farspan.patterns import rules as patterns
from farspan.support import Lines, Support

MOST_SUPPORTS = 4
"""Supports that a layer keeps: those of training, of evaluation, of a prefill and of the step being decoded."""


class StaticRule:
    """A rule by name, and what its queries read at the lengths asked for.

    Args:
        rule: a dictionary as in `farspan.patterns.rules`, or one of `LAYER_RULES`, which has no support.
        trained_length: a rule that grows reads, up to this length, what it reads there.
    """

    def __init__(self, rule: Mapping[str, Any], trained_length: int = 1) -> None:
        self.rule = rule
        self.name = rule["pattern"]
        self.trained_length = trained_length
        # Built when asked for, not here: `from_pretrained` builds modules on the meta device.
        self.supports: dict[tuple[int, int], Support] = {}

    def support(self, q_len: int, k_len: int) -> Support | None:
        """What the last `q_len` of `k_len` tokens read; None for dense and learned layers."""
        if self.name in LAYER_RULES:
            return None
        needs = patterns.needs(self.rule)
        if "queries" in needs:
            key = q_len, k_len
        elif "length" in needs:
            # Lines up to a length. Where they do not grow, some longer ones change nothing and serve many lengths.
            length = max(k_len, self.trained_length)
            key = 0, length if patterns.grows(self.rule) else 1 << (length - 1).bit_length()
        else:
            key = 0, 0
        if key not in self.supports:
            # Decoding asks for other lengths at every step: what it has asked for must not pile up.
            if len(self.supports) == MOST_SUPPORTS:
                del self.supports[next(iter(self.supports))]
            # `index`, because a graph in which lengths are symbols must be told that this one is for these lengths.
            self.supports[key] = _build(self.rule, operator.index(key[1]), operator.index(key[0]))
        return self.supports[key]

    def check_cache(self, layer: int, cached: int, length: int) -> None:
        """Refuses keys in a cache whose layers below read other keys when they were made.

        Raises:
            ValueError: the rule grows, and `layer` reads other keys at `length` than at `cached` tokens.
        """
        if not patterns.grows(self.rule) or not cached:
            return
        if "queries" in patterns.needs(self.rule) or self.support(0, cached) != self.support(0, length):
            raise ValueError(
                f"layer {layer} reads other keys at {length} tokens than at {cached}, so a cache from the"
                " shorter length is wrong: use a rule that does not grow (the powers rule has a fixed reach) or"
                " generate with use_cache=False"
            )


def check_start(support: Support, name: str, layer: int, start: Tensor | None, k_len: int) -> None:
    """Refuses a text that begins within its row, under a rule that counts from the first position of the row.

    Raises:
        ValueError: `start [B, Tq]` moves the beginning, and keys are not chosen by their distance alone.
    """
    if start is None or (isinstance(support, Lines) and not support.vertical_table.shape[-1]):
        return
    position = torch.arange(k_len - start.shape[1], k_len, device=start.device)
    insist(
        ~((start > 0) & (start <= position)).any(),
        f"the {name} rule of layer {layer} counts from the first position of a row,"
        " which is padding or another document here: pad on the right, or run the texts one by one",
    )


@torch.compiler.assume_constant_result
def _build(rule: Mapping[str, Any], length: int, queries: int) -> Support:
    """`patterns.build`, which a compiled graph takes as it is: building reads numbers back, which a graph cannot."""
    return patterns.build(rule, length, queries)
