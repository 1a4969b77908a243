"""What a rule that looks at the content must be able to do."""

from __future__ import annotations

from typing import Protocol, runtime_checkable

from torch import Tensor

from farspan.support import Support


@runtime_checkable
class Selector(Protocol):
    """Chooses keys from queries and keys: scores, a budget, a support."""

    def select(self, q: Tensor, k: Tensor, *, scale: float, start: Tensor | None) -> Support:
        """The pairs that the last Tq of Tk tokens read.

        Args:
            q: `[B, H, Tq, D]`, after the rotary embedding.
            k: `[B, Hkv, Tk, D]`, every key so far, those in a cache included.
            scale: what multiplies the scores.
            start: int `[B, Tq]`, the first key each query may read, or None where that is the first of all.

        Returns a support for Tq query rows and Tk keys, for 1 or B batch rows. Causality and `start` hold on top of
        it, but a choice made from a later query would still tell an earlier one about it: it is for the selector to
        choose from what each query may read.
        """
        ...
