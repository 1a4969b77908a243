"""Learnable positions, after dilated convolution with learnable spacings (arXiv 2112.03740 and 2306.00817)."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any, Literal

import torch
from torch import Tensor, nn

from farspan.attention import attention
from farspan.attention.precision import no_autocast
from farspan.layers.bands import add_bands, wide
from farspan.layers.learned import LearnedLayer
from farspan.patterns import sliding_window
from farspan.patterns.arguments import at_least, one_of, positive
from farspan.support import Lines

_SIGMAS = 3


class DCLS(LearnedLayer):
    """A window plus n distances that are real numbers and move while the model trains.

    A key at distance x counts by the sum of what the positions p give it, before the softmax is normalised. With
    "triangle" a position gives `max(0, 1 - |x - p|)`, so its two neighbours share one; its gradient sees no farther
    than they, and a better key ten positions away will not be found. With "gaussian" it gives
    `exp(-((x - p) / s)**2 / 2)` over three s to either side, normalised to one, and s shrinks geometrically from `width` to `final_width` over the
    first part of the training: wide it feels a better key from afar, narrow it reads one key. Keys inside the window
    count one, whatever positions are near.

    Args:
        heads: query heads.
        window: nearest keys read, the query itself included.
        positions: how many, spread geometrically from the window to `reach`, or the distances to start with.
        reach: the largest distance of a position.
        interpolation: "triangle" or "gaussian".
        per: "head" or "layer", whose own the positions are.
        width, final_width: s at the start and at the end; the authors do not go below 0.27.
        anneal: the share of the training over which s shrinks.

    Raises:
        TypeError, ValueError: an argument is out of range.
    """

    progress: Tensor

    def __init__(
        self,
        heads: int,
        window: int,
        positions: int | Sequence[float] = 8,
        reach: int = 1024,
        interpolation: Literal["triangle", "gaussian"] = "gaussian",
        per: Literal["head", "layer"] = "head",
        width: float = 8.0,
        final_width: float = 0.27,
        anneal: float = 0.8,
    ) -> None:
        super().__init__()
        self.near = sliding_window(window)
        self.window, self.reach = window, at_least("reach", reach, window + 1)
        self.begin = _spread(positions, window, reach)
        self.interpolation = one_of("interpolation", interpolation, ("triangle", "gaussian"))
        self.rows = at_least("heads", heads, 1) if one_of("per", per, ("head", "layer")) == "head" else 1
        self.width, self.final_width = positive("width", width), positive("final_width", final_width)
        if self.final_width > self.width:
            raise ValueError(f"final_width must be at most width, got {final_width} and {width}")
        self.anneal = positive("anneal", anneal)
        # Shares of the reach, for a step of the optimiser to be one of many tokens; and a vector, for decay to leave
        # them alone.
        self.share = nn.Parameter(torch.empty(self.rows * len(self.begin)))
        self.register_buffer("progress", torch.zeros(()))
        with torch.no_grad():
            self.share.copy_(self.initial()["share"])

    @property
    def positions(self) -> Tensor:
        """The distances `[1 or H, n]`, that gradients flow through."""
        distance = self.share.to(wide(self.share)) * self.reach
        # Roundings at the ends must not cost a position its gradient.
        distance = distance + (distance.clamp(self.window, self.reach) - distance).detach()
        return distance.unflatten(0, (self.rows, -1))

    @property
    def sigma(self) -> float:
        """s at this point of the training."""
        done = min(1.0, float(self.progress) / self.anneal)
        return self.width * (self.final_width / self.width) ** done

    def initial(self) -> dict[str, Tensor]:
        share = torch.tensor(self.begin, dtype=self.share.dtype, device=self.share.device) / self.reach
        return {"share": share.repeat(self.rows), "progress": torch.zeros_like(self.progress)}

    def reads(self) -> Lines:
        """The window and, for each head, the keys to which a position gives something."""
        first, weights = self._bands()
        distance = first[..., None] + torch.arange(weights.shape[-1], device=first.device)
        near = torch.arange(self.window, device=first.device).expand(self.rows, -1)
        far = distance.masked_fill(weights.detach() <= 0, -1)
        return Lines(torch.cat([near, far.flatten(1)], 1))

    def frozen_rule(self) -> dict[str, Any]:
        """The window and the positions rounded, half to even."""
        rounded = self.positions.detach().round().long().tolist()
        return {"pattern": "lines", "slashes": [sorted({*range(self.window), *row}) for row in rounded]}

    def readings(self) -> dict[str, Any]:
        return {"positions": self.positions.tolist()}

    @torch.no_grad()
    def after_step(self, progress: float) -> None:
        """Puts positions that left `window .. reach` back, and narrows s."""
        self.share.clamp_(self.window / self.reach, 1)
        self.progress.fill_(progress)

    def forward(
        self, q: Tensor, k: Tensor, v: Tensor, *, scale: float | None = None, start: Tensor | None = None
    ) -> Tensor:
        """See `LearnedLayer`; memory is linear in Tq, and in the number of positions times s.

        Raises:
            ValueError: q has another number of heads, where positions are per head.
        """
        if q.ndim == 4 and self.rows not in (1, q.shape[1]):
            raise ValueError(f"q must have the {self.rows} heads of the layer, got {q.shape[1]}")
        scale = q.shape[-1] ** -0.5 if scale is None else scale
        with no_autocast(q.device):
            near = attention(q, k, v, self.near, scale=scale, start=start, return_lse=True)
            first, weights = self._bands()
            return add_bands(q, k, v, near, first, weights.to(wide(q)), scale, start)

    def _bands(self) -> tuple[Tensor, Tensor]:
        """The first distance `[1 or H, n]` that each position gives something, and what it gives, `[1 or H, n, W]`."""
        positions = self.positions
        if self.interpolation == "triangle":
            lower = positions.detach().floor()
            fraction = positions - lower
            return lower.long(), torch.stack([1 - fraction, fraction], -1)
        half = math.ceil(_SIGMAS * self.sigma)
        first = (positions.detach().round().long() - half).clamp_min(self.window)
        distance = first[..., None] + torch.arange(2 * half + 1, device=first.device)
        weights = (-0.5 * ((distance - positions[..., None]) / self.sigma) ** 2).exp()
        return first, weights / weights.sum(-1, keepdim=True)


def _spread(positions: int | Sequence[float], window: int, reach: int) -> list[float]:
    if not isinstance(positions, int | str):
        begin = [positive("positions", each) for each in positions]
        if not begin or not all(window <= each <= reach for each in begin):
            raise ValueError(f"positions must lie in {window}..{reach}, the window and the reach, got {positions}")
        return begin
    count = at_least("positions", positions, 1)
    return [window * (reach / window) ** ((n + 0.5) / count) for n in range(count)]
