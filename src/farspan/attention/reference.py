"""The definition of attention over a support: a boolean mask and a dense masked softmax.

Every faster path is compared with this one, outputs and gradients. Memory grows with q_len * k_len.
"""

from __future__ import annotations

import torch
from torch import Tensor

from farspan.attention.precision import no_autocast
from farspan.support import Blocks, Support


def allowed(support: Support, heads: int, q_len: int, k_len: int, start: Tensor | None) -> Tensor:
    """bool, broadcastable to `[B, heads, q_len, k_len]`: the support, causality and `start` (int `[B, q_len]`)."""
    mask = _per_head(support.mask(q_len, k_len), heads)
    if start is not None:
        mask = mask & (torch.arange(k_len, device=start.device) >= start[:, None, :, None])
    return mask


def shifted(support: Support, scores: Tensor) -> Tensor:
    """`scores [B, H, q_len, k_len]` with the bias of the support's entries and its ALiBi slopes added."""
    heads, q_len, k_len = scores.shape[1:]
    if isinstance(support, Blocks) and support.bias is not None:
        # One more block takes what lies beyond the keys, and the padding.
        blocks = -(-k_len // support.block_k)
        entries = support.index.long().masked_fill((support.index < 0) | (support.index >= blocks), blocks)
        tiles = support.bias.new_zeros(*entries.shape[:3], blocks + 1).scatter(3, entries, support.bias)
        tiles = tiles[:, :, torch.arange(q_len, device=tiles.device) // support.block_q]
        tiles = tiles[..., torch.arange(k_len, device=tiles.device) // support.block_k]
        scores = scores + _per_head(tiles, heads).to(scores)
    if support.alibi_slopes is not None:
        position = torch.arange(k_len - q_len, k_len, device=scores.device)[:, None]
        distance = (position - torch.arange(k_len, device=scores.device)).clamp_min(0)
        scores = scores - support.alibi_slopes.to(scores)[:, None, None] * distance
    return scores


def _per_head(x: Tensor, heads: int) -> Tensor:
    """Numbers for every key head, `[.., Hkv, q_len, k_len]`, repeated for the query heads; others as they are."""
    if x.ndim == 2 or x.shape[-3] == 1:
        return x
    return x.repeat_interleave(heads // x.shape[-3], -3)


def reference_attention(
    q: Tensor, k: Tensor, v: Tensor, support: Support, scale: float, start: Tensor | None
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
        scores = shifted(support, (q.to(wide) * scale) @ keys.transpose(-1, -2))
        mask = allowed(support, q.shape[1], q.shape[2], k.shape[2], start).to(scores.device)
        empty = ~mask.any(-1, keepdim=True)
        # Empty rows get a finite score so that no gradient meets inf - inf; their weights are then set to zero.
        scores = scores.masked_fill(~mask, -torch.inf).masked_fill(empty, 0.0)
        lse = scores.logsumexp(-1)
        weights = scores.softmax(-1).masked_fill(empty, 0.0)
        return (weights @ values).to(q.dtype), lse.masked_fill(empty[..., 0], -torch.inf)
