"""Exact softmax attention restricted to a support: one call, several backends that agree."""

from __future__ import annotations

from typing import Literal, overload

import torch
from torch import Tensor
from torch.autograd import forward_ad

from farspan.attention import backends, cpu_lines, op
from farspan.attention.dense import dense_attention
from farspan.attention.reference import reference_attention
from farspan.support import Blocks, Lines, Support

__all__ = ["attention", "backends", "dense_attention"]


@overload
def attention(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    support: Support,
    *,
    scale: float | None = None,
    start: Tensor | None = None,
    return_lse: Literal[False] = False,
    backend: str | None = None,
) -> Tensor: ...


@overload
def attention(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    support: Support,
    *,
    scale: float | None = None,
    start: Tensor | None = None,
    return_lse: Literal[True],
    backend: str | None = None,
) -> tuple[Tensor, Tensor]: ...


def attention(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    support: Support,
    *,
    scale: float | None = None,
    start: Tensor | None = None,
    return_lse: bool = False,
    backend: str | None = None,
) -> Tensor | tuple[Tensor, Tensor]:
    """Softmax attention of every query over the keys its support lists.

    Args:
        q: `[B, H, Tq, D]`. Query row i stands at position Tk - Tq + i, so a cache needs no further argument.
        k: `[B, Hkv, Tk, D]` with H a multiple of Hkv; query head h reads key head h // (H // Hkv). Keys are not copied.
        v: `[B, Hkv, Tk, Dv]`.
        support: which keys each query reads, and what is added to their scores: `Lines`, `Blocks` or `Tokens`.
            Causality always holds on top of it. Entries for Hkv heads are shared by the query heads of a group.
        scale: multiplies the scores; 1 / sqrt(D) by default.
        start: int `[B, Tq]`, the first key position each query may read (left padding, packed documents), or None.
        return_lse: also return the log-sum-exp of the scores, natural logarithm.
        backend: "reference", "torch", "cpu", "triton", or None for the fastest that runs here and takes the support.

    Returns:
        out `[B, H, Tq, Dv]` in the dtype of q, or (out, lse) with lse `[B, H, Tq]` in fp32 (fp64 for fp64 inputs).
        A query without any key gives zeros and lse = -inf, and passes no gradient. Scores and softmax run in fp32 or
        wider, under autocast too.
        Both outputs are differentiable once with respect to q, k, v and the support's bias. Inputs must be finite: a
        NaN in any key or value reaches the queries that read it, and may reach others.

    Raises:
        ValueError: shapes, devices or dtypes do not fit together, or the backend does not run here.
        TypeError: an argument has the wrong type.
    """
    _check(q, k, v, support, scale, start)
    chosen = backends.choose(backend, q, support)
    scale = q.shape[-1] ** -0.5 if scale is None else float(scale)
    if chosen == "reference":
        out, lse = reference_attention(q, k, v, support, scale, start)
    elif forward_ad._current_level >= 0 and any(
        x is not None and forward_ad.unpack_dual(x).tangent is not None
        for x in (q, k, v, support.bias if isinstance(support, Blocks) else None)
    ):
        raise NotImplementedError("attention has no forward-mode derivative; use backend='reference'")
    elif isinstance(support, Blocks):
        index, bias, slopes = (
            None if x is None else x.to(q.device) for x in (support.index, support.bias, support.alibi_slopes)
        )
        out, lse = op.blocks(q, k, v, index, bias, slopes, start, support.block_q, support.block_k, scale, chosen)
    else:
        assert isinstance(support, Lines)
        slashes, verticals = support.slash_table, support.vertical_table
        if chosen == "cpu" and _nothing_watches(q, k, v):
            out, lse = cpu_lines.forward(q, k, v, slashes, verticals, None, start, scale)
        else:
            slopes = None if support.alibi_slopes is None else support.alibi_slopes.to(q.device)
            out, lse = op.lines(q, k, v, slashes, verticals, slopes, start, scale, chosen)
    return (out, lse) if return_lse else out


def _nothing_watches(q: Tensor, k: Tensor, v: Tensor) -> bool:
    """Whether nothing records or transforms the call, so that the kernel can do without the operator's dispatch.

    That saves half of a small call, such as one decoding step.
    """
    return (
        not torch.compiler.is_compiling()
        and type(q) is type(k) is type(v) is Tensor
        and not (torch.is_grad_enabled() and (q.requires_grad or k.requires_grad or v.requires_grad))
        and torch._C._len_torch_dispatch_stack() == 0
        and torch._C._functorch.maybe_current_level() is None
        and not torch.jit.is_tracing()
        and not (q.is_neg() or k.is_neg() or v.is_neg())
        and not (q._is_zerotensor() or k._is_zerotensor() or v._is_zerotensor())
    )


_SHAPES = {"q": "[B, H, Tq, D]", "k": "[B, Hkv, Tk, D]", "v": "[B, Hkv, Tk, Dv]"}


def _check(q: Tensor, k: Tensor, v: Tensor, support: Support, scale: float | None, start: Tensor | None) -> None:
    for name, tensor in (("q", q), ("k", k), ("v", v)):
        if not isinstance(tensor, Tensor):
            raise TypeError(f"{name} must be a tensor {_SHAPES[name]}, got {type(tensor).__name__}")
        if tensor.layout is not torch.strided:
            raise ValueError(f"{name} must be a strided tensor {_SHAPES[name]}, got layout {tensor.layout}")
        if tensor.ndim != 4:
            raise ValueError(f"{name} must be {_SHAPES[name]}, got {list(tensor.shape)}")
    dtype, device = q.dtype, q.device
    for name, tensor in (("q", q), ("k", k), ("v", v)):
        if not tensor.is_floating_point():
            raise TypeError(f"{name} must be floating point, got {tensor.dtype}")
        if tensor.dtype != dtype or tensor.device != device:
            raise ValueError(
                f"{name} must have the dtype and device of q, {dtype} on {device},"
                f" got {tensor.dtype} on {tensor.device}"
            )
    if not isinstance(support, Lines | Blocks):
        raise TypeError(f"support must be Lines, Blocks or Tokens, got {type(support).__name__}")
    # A constructed support has its tables, or its index and bias, on one device.
    table = support.slash_table if isinstance(support, Lines) else support.index
    slopes = support.alibi_slopes
    for tensor in (table,) if slopes is None else (table, slopes):
        if tensor.device.type != "cpu" and tensor.device != device:
            raise ValueError(f"support must be on the CPU or on q's device {device}, got {tensor.device}")
    (batch, heads, q_len, head_dim), k_shape, v_shape = q.shape, k.shape, v.shape
    if k_shape[0] != batch or k_shape[3] != head_dim:
        raise ValueError(f"k must be [{batch}, Hkv, Tk, {head_dim}] to fit q, got {list(k_shape)}")
    if v_shape[:3] != k_shape[:3]:
        raise ValueError(f"v must be [{k_shape[0]}, {k_shape[1]}, {k_shape[2]}, Dv] to fit k, got {list(v_shape)}")
    if head_dim == 0:
        raise ValueError("q must have a head size of at least 1, got 0")
    if heads == 0 or k_shape[1] == 0 or heads % k_shape[1]:
        raise ValueError(f"q must have one or more times k's heads, got {heads} query heads and {k_shape[1]} key heads")
    if not support.fits(heads, k_shape[1]):
        counts = f"1, {k_shape[1]} or {heads}" if isinstance(support, Blocks) else f"1 or {heads}"
        raise ValueError(f"support must be for {counts} heads to fit q, got {support.heads}")
    if support.batch not in (1, batch):
        raise ValueError(f"support must be for 1 or {batch} batch rows to fit q, got {support.batch}")
    if slopes is not None and len(slopes) != heads:
        raise ValueError(f"alibi_slopes must be one number for each of {heads} query heads, got {len(slopes)}")
    if isinstance(support, Blocks):
        support.check_rows(q_len)
    if scale is not None and (isinstance(scale, bool) or not isinstance(scale, int | float)):
        raise TypeError(f"scale must be a number or None, got {scale!r}")
    # Not below also for NaN. Scores in units of log 2 must not overflow fp32.
    if scale is not None and not abs(scale) < 2.0**127:
        raise ValueError(f"scale must be finite and below 2**127, got {scale}")
    if start is not None:
        if not isinstance(start, Tensor) or start.dtype not in (torch.int32, torch.int64):
            kind = start.dtype if isinstance(start, Tensor) else type(start).__name__
            raise TypeError(f"start must be an int32 or int64 tensor, got {kind}")
        if start.shape != (batch, q_len):
            raise ValueError(f"start must be [{batch}, {q_len}], got {list(start.shape)}")
        if start.device != q.device:
            raise ValueError(f"start must be on q's device {q.device}, got {start.device}")
