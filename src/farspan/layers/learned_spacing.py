"""Fibonacci spacing with a trained alpha: keys between two positions are interpolated (arXiv 2606.28560, section
3.3)."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn

from farspan.attention import attention
from farspan.attention.precision import no_autocast
from farspan.layers.bands import wide
from farspan.layers.learned import LearnedLayer
from farspan.patterns import sliding_window
from farspan.patterns.arguments import positive
from farspan.patterns.fibonacci import base
from farspan.support import Lines


class LearnedSpacing(LearnedLayer):
    """A window plus the rungs `alpha * f`, with `alpha = low + (high - low) * sigmoid(theta)` trained.

    A rung at distance `d = alpha * f` reads `(1 - frac) * K[t - lo] + frac * K[t - lo - 1]` with `lo = floor(d)` and
    `frac = d - lo`, and the values likewise, so alpha has a gradient, one position wide. A rung is left out where
    `round(d)` falls inside the window, where `lo` lies before the first key, or where a shorter rung has the same `lo`;
    where `lo` is the first key, that key counts whole. No value is read back to the host.

    Args:
        window: nearest keys read, the query itself included.
        rungs: how many Fibonacci numbers 1, 2, 3, 5, ... are stretched.
        low, high: the range of alpha. theta starts at 0, alpha in the middle of the range.

    Raises:
        TypeError, ValueError: an argument is out of range.
    """

    base: Tensor

    def __init__(self, window: int, rungs: int = 15, low: float = 0.5, high: float = 1.5) -> None:
        super().__init__()
        if positive("high", high) <= positive("low", low):
            raise ValueError(f"high must be above low, got {high} and {low}")
        self.near = sliding_window(window)
        self.window, self.rungs, self.low, self.high = window, rungs, float(low), float(high)
        self.sequence = base(rungs)
        self.theta = nn.Parameter(torch.zeros(1))

    @property
    def alpha(self) -> Tensor:
        """The stretch, a tensor `[1]` that gradients flow through."""
        return self.low + (self.high - self.low) * torch.sigmoid(self.theta.to(wide(self.theta)))

    def initial(self) -> dict[str, Tensor]:
        return {"theta": torch.zeros_like(self.theta)}

    def frozen_rule(self) -> dict[str, Any]:
        """The Fibonacci rule of the alpha learned: rungs round to integers."""
        alpha = float(self.alpha.detach())
        return {"pattern": "fibonacci", "window": self.window, "rungs": self.rungs, "alpha": alpha}

    def readings(self) -> dict[str, Any]:
        return {"alphas": float(self.alpha.detach())}

    def reads(self) -> Lines:
        """The keys the layer reads at its present alpha: the window, and two neighbours for each rung."""
        distance = (self.alpha.detach() * torch.tensor(self.sequence, device=self.theta.device)).cpu()
        lower = distance.floor().long()
        used = lower[self._used(distance, lower)].tolist()
        return Lines([*range(self.window), *used, *(d + 1 for d in used)])

    def forward(
        self, q: Tensor, k: Tensor, v: Tensor, *, scale: float | None = None, start: Tensor | None = None
    ) -> Tensor:
        """`q [B, H, Tq, D]`, `k [B, Hkv, Tk, D]`, `v [B, Hkv, Tk, Dv]`, `start` int `[B, Tq]` or None
        -> `[B, H, Tq, Dv]`.

        Memory is linear in Tq (times the number of rungs). Computes in fp32 (fp64 for fp64 inputs), under autocast
        too. A query without any key gives zeros.
        """
        scale = q.shape[-1] ** -0.5 if scale is None else scale
        with no_autocast(q.device):
            near_out, near_lse = attention(q, k, v, self.near, scale=scale, start=start, return_lse=True)
            return self._add_rungs(q, k, v, near_out, near_lse, scale, start) if self.rungs else near_out

    def _add_rungs(
        self, q: Tensor, k: Tensor, v: Tensor, near_out: Tensor, near_lse: Tensor, scale: float, start: Tensor | None
    ) -> Tensor:
        """`near_out [B, H, Tq, Dv]`, `near_lse [B, H, Tq]` of the window -> `[B, H, Tq, Dv]` with the rungs added."""
        q_len, k_len, group = q.shape[2], k.shape[2], q.shape[1] // k.shape[1]
        distance = self.alpha.to(wide(q)) * torch.tensor(self.sequence, device=q.device)
        lower = distance.detach().floor().long()
        position = torch.arange(k_len - q_len, k_len, device=q.device)[:, None]
        key = position - lower
        first = torch.zeros_like(position)[None] if start is None else start.clamp_min(0)[..., None]
        # What follows is `[B or 1, Tq, rungs]`, and then gets axes for the heads.
        allowed = ((key >= first) & self._used(distance.detach(), lower))[:, None, None]
        # The first key has no further neighbour, or one that the query may not read.
        fraction = torch.where(key > first, distance - lower, 0.0)[:, None, ..., None]

        def interpolated(x: Tensor) -> Tensor:
            """`[B, Hkv, Tk, D]` at the rungs of every query: `[B, Hkv, Tq, rungs, D]`."""
            near = x.index_select(2, key.clamp_min(0).flatten()).unflatten(2, key.shape)
            far = x.index_select(2, (key - 1).clamp_min(0).flatten()).unflatten(2, key.shape)
            return torch.lerp(near.to(wide(x)), far.to(wide(x)), fraction)

        # The window takes part as one more column: its log-sum-exp is the score, its output the value.
        grouped = q.to(wide(q)).unflatten(1, (-1, group)).transpose(2, 3)
        scores = (grouped @ interpolated(k).transpose(-1, -2)).transpose(2, 3) * scale
        scores = scores.masked_fill(~allowed, -torch.inf)
        near_lse = near_lse.unflatten(1, (-1, group))[..., None]
        # A query whose window is empty has no rungs either; any finite score leaves its zeros as they are.
        near_lse = near_lse.masked_fill(near_lse == -torch.inf, 0.0)
        weights = torch.cat([near_lse, scores], -1).softmax(-1)
        far_out = (weights[..., 1:].transpose(2, 3) @ interpolated(v)).transpose(2, 3)
        out = weights[..., :1] * near_out.to(wide(q)).unflatten(1, (-1, group)) + far_out
        return out.flatten(1, 2).to(q.dtype)

    def _used(self, distance: Tensor, lower: Tensor) -> Tensor:
        """bool `[rungs]`: outside the window, and no shorter rung outside the window reads the same key."""
        outside = distance.round() >= self.window
        same = (lower[:, None] == lower) & outside
        return outside & ~same.tril(-1).any(-1)
