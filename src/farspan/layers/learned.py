"""What every attention layer with parameters of its own can do, and what it asks of whoever trains it."""

from __future__ import annotations

from abc import ABC, abstractmethod
from typing import Any

from torch import Tensor, nn

from farspan.patterns import rules
from farspan.support import Lines


class LearnedLayer(nn.Module, ABC):
    """Attention whose keys are learned with the model.

    Training it takes two calls, which do nothing unless a layer has a use for them: `penalty` joins the loss of every
    step, and `after_step` follows every step of the optimiser. All that they change is in the `state_dict`, so a
    training can stop and go on.
    """

    @abstractmethod
    def forward(
        self, q: Tensor, k: Tensor, v: Tensor, *, scale: float | None = None, start: Tensor | None = None
    ) -> Tensor:
        """`q [B, H, Tq, D]`, `k [B, Hkv, Tk, D]`, `v [B, Hkv, Tk, Dv]`, `start` int `[B, Tq]` or None
        -> `[B, H, Tq, Dv]`."""

    @abstractmethod
    def initial(self) -> dict[str, Tensor]:
        """The values with which parameters and buffers start, by name. Nothing is drawn."""

    @abstractmethod
    def reads(self) -> Lines:
        """The keys that the layer reads at present."""

    @abstractmethod
    def frozen_rule(self) -> dict[str, Any]:
        """The rule of the static pattern nearest to what has been learned."""

    @abstractmethod
    def readings(self) -> dict[str, Any]:
        """What has been learned, in the units of its paper, by the (plural) name of it: plain numbers or lists."""

    def freeze(self) -> Lines:
        """The static pattern nearest to what has been learned: from here on the layer costs what a static one costs."""
        support = rules.build(self.frozen_rule(), length=1)
        assert isinstance(support, Lines)
        return support

    def penalty(self) -> Tensor | None:
        """What the layer adds to the loss, a scalar, or None for nothing."""
        return None

    def after_step(self, progress: float) -> None:
        """Called after each optimiser step, with the share of the training that is done by then, in 0 .. 1."""
