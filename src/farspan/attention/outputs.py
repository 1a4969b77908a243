"""The tensors that attention returns, before they hold anything: one rule for every backend and for `torch.compile`."""

from __future__ import annotations

import torch
from torch import Tensor


def new_out(q: Tensor, dim: int) -> Tensor:
    """`[B, H, Tq, dim]` laid out as q is, so that a model's transposed heads go back without a copy."""
    if dim == q.shape[3]:
        # For a q that overlaps itself the copy's layout can differ: what counts is that rows are whole.
        out = torch.empty_like(q)
        if out.stride(3) == 1:
            return out
    batch, heads, q_len, _ = q.shape
    return torch.empty(batch, heads, q_len, dim, dtype=q.dtype, device=q.device)


def new_lse(q: Tensor) -> Tensor:
    """`[B, H, Tq]` in fp32, or fp64 for fp64 inputs."""
    batch, heads, q_len, _ = q.shape
    wide = torch.float64 if q.dtype == torch.float64 else torch.float32
    return torch.empty(batch, heads, q_len, dtype=wide, device=q.device)
