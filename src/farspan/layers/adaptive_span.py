"""Adaptive attention span: each head learns how far it looks back (arXiv 1905.07799)."""

from __future__ import annotations

import math
from typing import Any

import torch
from torch import Tensor, nn

from farspan.attention import attention
from farspan.attention.precision import no_autocast
from farspan.layers.bands import add_bands, wide
from farspan.layers.learned import LearnedLayer
from farspan.patterns.arguments import at_least, between
from farspan.support import Lines


class AdaptiveSpan(LearnedLayer):
    """A window for each head whose far end is a ramp that the head moves.

    A key at distance x counts by `m = clamp((ramp + z - x) / ramp, 0, 1)` before the softmax is normalised, with the
    span z = `share * max_span` and the share in 0 .. 1 a parameter of the head (section 2.2). Distances up to z are an
    ordinary window; those on the ramp, at most `ramp`, join its softmax. Only they have a gradient with respect to z,
    and at a whole z it is that of a longer span.

    Args:
        heads: query heads.
        max_span: the longest span; keys up to `max_span + ramp - 1` back are read.
        ramp: R of the paper.
        init: the share to start with.
        coefficient: of the penalty, `coefficient * max_span * mean(share)`. The authors take 5e-7 for a span of 8,192
            and 2e-6 for 1,024.

    Raises:
        TypeError, ValueError: an argument is out of range.
    """

    def __init__(self, heads: int, max_span: int, ramp: int = 32, init: float = 0.0, coefficient: float = 2e-6) -> None:
        super().__init__()
        self.heads, self.max_span = at_least("heads", heads, 1), at_least("max_span", max_span, 1)
        self.ramp, self.init = at_least("ramp", ramp, 1), between("init", init, 0, 1)
        self.coefficient = between("coefficient", coefficient, 0, math.inf)
        self.share = nn.Parameter(torch.full((self.heads,), self.init))

    @property
    def spans(self) -> Tensor:
        """z of each head, `[H]`, that gradients flow through."""
        return self.share.to(wide(self.share)).clamp(0, 1) * self.max_span

    def initial(self) -> dict[str, Tensor]:
        return {"share": torch.full_like(self.share, self.init)}

    def reads(self) -> Lines:
        """For each head the distances below z + ramp."""
        reach = (self.spans.detach() + self.ramp).ceil().long()
        return _windows(reach)

    def frozen_rule(self) -> dict[str, Any]:
        """For each head the keys that count by a half or more: a window of `floor(z + ramp / 2) + 1`."""
        windows = (self.spans.detach() + self.ramp / 2).floor().long() + 1
        return {"pattern": "lines", "slashes": [list(range(window)) for window in windows.tolist()]}

    def readings(self) -> dict[str, Any]:
        return {"spans": self.spans.tolist()}

    def penalty(self) -> Tensor:
        return self.coefficient * self.spans.mean()

    @torch.no_grad()
    def after_step(self, progress: float) -> None:
        """Puts shares that left 0 .. 1 back, so that their gradient lives on."""
        self.share.clamp_(0, 1)

    def forward(
        self, q: Tensor, k: Tensor, v: Tensor, *, scale: float | None = None, start: Tensor | None = None
    ) -> Tensor:
        """See `LearnedLayer`; memory is linear in Tq. The spans are read back to the host.

        Raises:
            ValueError: q has another number of heads.
        """
        if q.ndim == 4 and q.shape[1] != self.heads:
            raise ValueError(f"q must have the {self.heads} heads of the layer, got {q.shape[1]}")
        scale = q.shape[-1] ** -0.5 if scale is None else scale
        with no_autocast(q.device):
            spans = self.spans.to(wide(q))
            whole = spans.detach().floor().long()
            near = attention(
                q, k, v, _windows((whole + 1).clamp_max(k.shape[2])), scale=scale, start=start, return_lse=True
            )
            step = torch.arange(self.ramp, device=q.device)
            first = whole[:, None] + 1
            weights = (self.ramp + spans[:, None] - (first + step)) / self.ramp
            return add_bands(q, k, v, near, first, weights[:, None], scale, start)


def _windows(windows: Tensor) -> Lines:
    """The nearest `windows [H]` keys of each head."""
    distance = torch.arange(int(windows.max()), device=windows.device).expand(len(windows), -1)
    return Lines(distance.masked_fill(distance >= windows[:, None], -1))
