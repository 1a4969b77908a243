"""Full causal attention, the yardstick: PyTorch's own `scaled_dot_product_attention` with farspan's conventions."""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor

from farspan.attention.precision import no_autocast


def dense_attention(
    q: Tensor, k: Tensor, v: Tensor, *, scale: float | None = None, start: Tensor | None = None
) -> Tensor:
    """`q [B, H, Tq, D]`, `k [B, Hkv, Tk, D]`, `v [B, Hkv, Tk, Dv]` -> `[B, H, Tq, Dv]`, every earlier key read.

    Alignment is bottom-right. `start` (int `[B, Tq]`) or q_len not in {1, k_len} makes the mask explicit, at the cost
    of `B * Tq * Tk` booleans. A query without any key gives zeros. Autocast does not narrow the inputs.
    """
    with no_autocast(q.device):
        q_len, k_len = q.shape[2], k.shape[2]
        if start is None and q_len in (1, k_len):
            return F.scaled_dot_product_attention(
                q, k, v, is_causal=q_len == k_len and q_len > 1, scale=scale, enable_gqa=True
            )
        position = torch.arange(k_len - q_len, k_len, device=q.device)[:, None]
        key = torch.arange(k_len, device=q.device)
        mask = (key <= position) if start is None else (key <= position) & (key >= start[:, None, :, None])
        empty = ~mask.any(-1, keepdim=True)
        # Empty rows read something finite and are zeroed afterwards: what SDPA returns for them differs by kernel.
        out = F.scaled_dot_product_attention(q, k, v, attn_mask=mask | empty, scale=scale, enable_gqa=True)
        return out.masked_fill(empty, 0.0)
