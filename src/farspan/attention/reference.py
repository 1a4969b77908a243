"""The definition of attention over a support: a boolean mask and a dense masked softmax.

Every faster path is compared with this one, outputs and gradients. Memory grows with q_len * k_len.
"""

from __future__ import annotations

import torch
from torch import Tensor

from farspan.attention.precision import no_autocast
from farspan.support import Lines


def allowed(support: Lines, q_len: int, k_len: int, start: Tensor | None) -> Tensor:
    """bool, broadcastable to `[B, H, q_len, k_len]`: the support, causality and `start` (int `[B, q_len]`) together."""
    mask = support.mask(q_len, k_len)
    if start is not None:
        mask = mask & (torch.arange(k_len, device=start.device) >= start[:, None, :, None])
    return mask


def reference_attention(
    q: Tensor, k: Tensor, v: Tensor, support: Lines, scale: float, start: Tensor | None
) -> tuple[Tensor, Tensor]:
    """`q [B, H, Tq, D]`, `k [B, Hkv, Tk, D]`, `v [B, Hkv, Tk, Dv]` -> out `[B, H, Tq, Dv]`, lse `[B, H, Tq]`.

    Computes in fp64 for fp64 inputs, else in fp32, under autocast too (call backward outside, as PyTorch asks). A query
    with no key gives zeros and lse = -inf.
    """
    with no_autocast(q.device):
        group = q.shape[1] // k.shape[1]
        wide = torch.float64 if q.dtype == torch.float64 else torch.float32
        keys = k.to(wide).repeat_interleave(group, dim=1)
        values = v.to(wide).repeat_interleave(group, dim=1)
        scores = (q.to(wide) * scale) @ keys.transpose(-1, -2)
        mask = allowed(support, q.shape[2], k.shape[2], start).to(scores.device)
        empty = ~mask.any(-1, keepdim=True)
        # Empty rows get a finite score so that no gradient meets inf - inf; their weights are then set to zero.
        scores = scores.masked_fill(~mask, -torch.inf).masked_fill(empty, 0.0)
        lse = scores.logsumexp(-1)
        weights = scores.softmax(-1).masked_fill(empty, 0.0)
        return (weights @ values).to(q.dtype), lse.masked_fill(empty[..., 0], -torch.inf)
