"""Bands of neighbouring distances whose keys count by weights that gradients flow through.

The softmax over them is `sum(m * exp(s) * v) / sum(m * exp(s))`: a weight m multiplies what a softmax would give a key,
before it is normalised, which is the same as adding log m to the score.
"""

from __future__ import annotations

import torch
from torch import Tensor
from torch.utils.checkpoint import checkpoint

_FEWEST_ROWS = 16
_HIGHEST = 60.0


def wide(x: Tensor) -> torch.dtype:
    """fp32, or the dtype of x where that is wider."""
    return torch.promote_types(x.dtype, torch.float32)


def add_bands(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    near: tuple[Tensor, Tensor],
    first: Tensor,
    weights: Tensor,
    scale: float,
    start: Tensor | None,
) -> Tensor:
    """The softmax over near keys, joined by weighted bands of farther ones.

    Memory is linear in Tq, and the backward pass computes the bands again.

    Args:
        q: `[B, H, Tq, D]`; k: `[B, Hkv, Tk, D]`; v: `[B, Hkv, Tk, Dv]`.
        near: output `[B, H, Tq, Dv]` and log-sum-exp `[B, H, Tq]` of attention over other keys. A query with none of
            those must have none in the bands.
        first: int64 `[1 or H, n]`, the smallest distance >= 1 of each band.
        weights: `[1 or H, n, W]` >= 0, in fp32 or wider, of the distances `first .. first + W - 1`. Bands that overlap
            add up.
        start: int `[B, Tq]`, the first key each query may read, or None.

    Returns:
        `[B, H, Tq, Dv]` in the dtype of q.
    """
    tensors = (q, k, v, *near, first, weights)
    if torch.is_grad_enabled():
        out = checkpoint(_add_bands, *tensors, scale, start, use_reentrant=False, preserve_rng_state=False)
        assert isinstance(out, Tensor)
        return out
    return _add_bands(*tensors, scale, start)


def _add_bands(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    near_out: Tensor,
    near_lse: Tensor,
    first: Tensor,
    weights: Tensor,
    scale: float,
    start: Tensor | None,
) -> Tensor:
    (_, heads, q_len, _), (_, kv_heads, k_len, _), width = q.shape, k.shape, weights.shape[-1]
    # Blocks of C rows read C + W - 1 neighbouring keys of each band. Axes: streams of keys (those of a key head, or of
    # each query head where bands differ), G heads to a stream, n bands, b blocks, C rows, L keys.
    streams = kv_heads if len(first) == 1 else heads
    rows = min(q_len, max(_FEWEST_ROWS, width))
    blocks = -(-q_len // rows)
    block = torch.arange(blocks, device=q.device) * rows
    row = torch.arange(rows, device=q.device)
    local = torch.arange(rows + width - 1, device=q.device)

    # Distance within the band of a row and a local key; the weights are the same in every block.
    within = row[:, None] + (width - 1) - local
    inside = (within >= 0) & (within < width)
    share = weights[..., within.clamp(0, width - 1)].masked_fill(~inside, 0.0)[:, None, :, None]

    key = (k_len - q_len - width + 1) + block[:, None] + local - first[..., None, None]
    stream = (torch.arange(streams, device=q.device) * kv_heads // streams)[:, None, None, None]
    held = key.clamp(0, k_len - 1)
    keys, values = (x[:, stream, held].to(wide(q)) for x in (k, v))
    allowed = (key >= 0)[None, :, None, :, :, None]
    if start is not None:
        padded = torch.nn.functional.pad(start, (0, blocks * rows - q_len)).unflatten(1, (blocks, rows))
        allowed = allowed & (key[:, None, :, :, None] >= padded[:, None, None, None, :, :, None])

    def by_block(x: Tensor) -> Tensor:
        """`[B, H, Tq, ...]` -> `[B, streams, G, 1, b, C, ...]`."""
        padding = (0, 0) * (x.ndim - 3) + (0, blocks * rows - q_len)
        x = torch.nn.functional.pad(x.to(wide(q)), padding)
        return x.unflatten(2, (blocks, rows)).unflatten(1, (streams, -1)).unsqueeze(3)

    scores = by_block(q) @ keys[:, :, None].transpose(-1, -2) * scale
    share = share * allowed
    near_lse = by_block(near_lse)[..., None]
    # Any finite score will do for a query without keys: its output stays zero.
    near_lse = near_lse.masked_fill(near_lse == -torch.inf, 0.0)
    with torch.no_grad():
        highest = torch.maximum((scores + share.log()).amax((3, 6), keepdim=True), near_lse)
    # The bound is met only where the share is 0; there is a gradient with respect to it, which must be finite.
    mass = share * (scores - highest).clamp_max(_HIGHEST).exp()
    near_mass = (near_lse - highest).exp()
    total = near_mass + mass.sum((3, 6), keepdim=True)
    out = near_mass * by_block(near_out) + (mass @ values[:, :, None]).sum(3, keepdim=True)
    return (out / total).squeeze(3).flatten(3, 4)[:, :, :, :q_len].flatten(1, 2).to(q.dtype)
