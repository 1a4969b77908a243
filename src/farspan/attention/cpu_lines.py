"""Attention over `Lines` by the C++ core: hands the addresses of plain CPU tensors to `farspan._core`."""

from __future__ import annotations

import torch
from torch import Tensor

from farspan import _cpu

# The numbers of DType in csrc/lines.h.
DTYPES = {torch.float32: 0, torch.bfloat16: 1, torch.float16: 2}

_core, _missing = _cpu.load_core()


def refusal(q: Tensor) -> str | None:
    """Why the kernels cannot run on tensors like `q`; None if they can."""
    if _missing is not None:
        return _missing
    if q.dtype not in DTYPES:
        return f"its kernels take fp32, bf16 and fp16, and q is {q.dtype}; use backend='torch'"
    if q.device.type != "cpu":
        return f"its kernels take tensors on the CPU, and q is on {q.device}; use backend='torch'"
    return None


def forward(
    q: Tensor, k: Tensor, v: Tensor, slashes: Tensor, verticals: Tensor, start: Tensor | None, scale: float
) -> tuple[Tensor, Tensor]:
    """`q [B, H, Tq, D]`, `k [B, Hkv, Tk, D]`, `v [B, Hkv, Tk, Dv]`, int32 tables `[1|B, 1|H, n]` -> out, lse."""
    sign, scale = _sign_and_size(scale)
    q, k, v = _rows(q if sign == 1 else q * sign), _rows(k), _rows(v)
    shape = q.shape
    out = q.new_empty((*shape[:3], v.shape[3]))
    lse = torch.empty(shape[:3], dtype=torch.float32)
    start = _start(start, k)
    _core.lines_forward(
        DTYPES[q.dtype],
        tuple(shape),
        tuple(v.shape),
        scale,
        0 if start is None else start.data_ptr(),
        q.data_ptr(),
        q.stride(),
        k.data_ptr(),
        k.stride(),
        v.data_ptr(),
        v.stride(),
        (slashes.data_ptr(), *slashes.shape),
        (verticals.data_ptr(), *verticals.shape),
        out.data_ptr(),
        out.stride(),
        lse.data_ptr(),
    )
    return out, lse


def backward(
    grad_out: Tensor,
    grad_lse: Tensor | None,
    q: Tensor,
    k: Tensor,
    v: Tensor,
    lse: Tensor,
    slashes: Tensor,
    verticals: Tensor,
    start: Tensor | None,
    scale: float,
) -> tuple[Tensor, Tensor, Tensor]:
    """Gradients of q, k and v, accumulated in fp32 and returned in the dtype of q, k and v."""
    sign, scale = _sign_and_size(scale)
    q, k, v, grad_out = _rows(q if sign == 1 else q * sign), _rows(k), _rows(v), _rows(grad_out)
    lse = lse.contiguous()
    grad_lse = None if grad_lse is None else grad_lse.float().contiguous()
    grad_q = q.new_empty(q.shape)
    grad_k, grad_v = _padded(k), _padded(v)
    start = _start(start, k)
    _core.lines_backward(
        DTYPES[q.dtype],
        tuple(q.shape),
        tuple(v.shape),
        scale,
        0 if start is None else start.data_ptr(),
        q.data_ptr(),
        q.stride(),
        k.data_ptr(),
        k.stride(),
        v.data_ptr(),
        v.stride(),
        (slashes.data_ptr(), *slashes.shape),
        (verticals.data_ptr(), *verticals.shape),
        grad_out.data_ptr(),
        grad_out.stride(),
        lse.data_ptr(),
        0 if grad_lse is None else grad_lse.data_ptr(),
        grad_q.data_ptr(),
        grad_k.data_ptr(),
        grad_v.data_ptr(),
    )
    return grad_q if sign == 1 else grad_q * sign, _cut(grad_k, k), _cut(grad_v, v)


def _sign_and_size(scale: float) -> tuple[int, float]:
    """The kernels want a positive scale: the sign (or a zero) goes into q, and comes out of its gradient again."""
    return (1, scale) if scale > 0 else (-1, -scale) if scale < 0 else (0, 1.0)


def _rows(x: Tensor) -> Tensor:
    """`x`, copied if the elements of a row do not lie side by side."""
    return x if x.stride(3) == 1 or x.shape[3] == 1 else x.contiguous()


def _start(start: Tensor | None, k: Tensor) -> Tensor | None:
    return None if start is None else start.clamp(0, k.shape[2]).to(torch.int32).contiguous()


def _padded(x: Tensor) -> Tensor:
    """An fp32 gradient of `x` whose rows are whole vectors."""
    length = _core.vector_length()
    return torch.empty((*x.shape[:3], -(-x.shape[3] // length) * length), dtype=torch.float32)


def _cut(grad: Tensor, x: Tensor) -> Tensor:
    return grad[..., : x.shape[3]].to(x.dtype).contiguous()
