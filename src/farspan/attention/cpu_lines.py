"""Attention over `Lines` by the C++ core: hands the addresses of plain CPU tensors to `farspan._core`."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from farspan import _cpu
from farspan.attention.outputs import new_lse, new_out
from farspan.support import Lines, Support

# The numbers of DType in csrc/lines.h.
DTYPES = {torch.float32: 0, torch.bfloat16: 1, torch.float16: 2}

_LARGE = 1 << 22

_core: Any
_core, _missing = _cpu.load_core()


def refusal(q: Tensor, support: Support) -> str | None:
    """Why the kernels cannot run `support` on tensors like `q`; None if they can."""
    if _missing is not None:
        return _missing
    if not isinstance(support, Lines):
        return f"its kernels take Lines, and support is {type(support).__name__}; use backend='torch'"
    if support.alibi_slopes is not None:
        return "its kernels take no alibi_slopes, and support has some; use backend='torch'"
    if q.dtype not in DTYPES:
        return f"its kernels take fp32, bf16 and fp16, and q is {q.dtype}; use backend='torch'"
    if q.device.type != "cpu":
        return f"its kernels take tensors on the CPU, and q is on {q.device}; use backend='torch'"
    return None


def forward(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    slashes: Tensor,
    verticals: Tensor,
    alibi_slopes: None,
    start: Tensor | None,
    scale: float,
) -> tuple[Tensor, Tensor]:
    """`q [B, H, Tq, D]`, `k [B, Hkv, Tk, D]`, `v [B, Hkv, Tk, Dv]`, int32 tables `[1|B, 1|H, n]` -> out, lse."""
    sign, scale = _sign_and_size(scale)
    arguments, alive = arguments_of(q if sign == 1 else q * sign, k, v, slashes, verticals, start, scale)
    out, lse = _fresh(new_out(q, v.shape[3])), new_lse(q)
    _core.lines_forward(*arguments, out.data_ptr(), out.stride(), lse.data_ptr())
    del alive
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
    alibi_slopes: None,
    start: Tensor | None,
    scale: float,
) -> tuple[Tensor, Tensor, Tensor]:
    """Gradients of q, k and v, accumulated in fp32 and returned in the dtype of q, k and v.

    `lse` is not needed: the sums are computed again, which costs little and is exact where scores are so large that
    lse has lost its digits.
    """
    sign, scale = _sign_and_size(scale)
    arguments, alive = arguments_of(q if sign == 1 else q * sign, k, v, slashes, verticals, start, scale)
    grad_out, strides = _rows(grad_out)
    grad_lse = None if grad_lse is None else grad_lse.float().contiguous()
    grad_q = _fresh(new_out(q, q.shape[3]))
    grad_k, grad_v = _padded(k), _padded(v)
    _core.lines_backward(
        *arguments,
        grad_out.data_ptr(),
        strides,
        0 if grad_lse is None else grad_lse.data_ptr(),
        grad_q.data_ptr(),
        grad_q.stride(),
        grad_k.data_ptr(),
        grad_v.data_ptr(),
    )
    del alive
    return grad_q if sign == 1 else grad_q * sign, _cut(grad_k, k), _cut(grad_v, v)


def arguments_of(
    q: Tensor, k: Tensor, v: Tensor, slashes: Tensor, verticals: Tensor, start: Tensor | None, scale: float
) -> tuple[tuple[Any, ...], tuple[Tensor | None, ...]]:
    """What the core's functions begin with, and the tensors that must live as long: some may be copies."""
    (q, q_strides), (k, k_strides), (v, v_strides) = _rows(q), _rows(k), _rows(v)
    if start is not None:
        start = start.clamp(0, k.shape[2]).to(torch.int32).contiguous()
    arguments = (
        DTYPES[q.dtype],
        q.shape,
        v.shape,
        scale,
        0 if start is None else start.data_ptr(),
        q.data_ptr(),
        q_strides,
        k.data_ptr(),
        k_strides,
        v.data_ptr(),
        v_strides,
        (slashes.data_ptr(), *slashes.shape),
        (verticals.data_ptr(), *verticals.shape),
    )
    return arguments, (q, k, v, start)


def _sign_and_size(scale: float) -> tuple[int, float]:
    """The kernels want a positive scale: the sign (or a zero) goes into q, and comes out of its gradient again."""
    return (1, scale) if scale > 0 else (-1, -scale) if scale < 0 else (0, 1.0)


def _rows(x: Tensor) -> tuple[Tensor, tuple[int, ...]]:
    """`x` and its strides; a copy if the elements of a row do not lie side by side."""
    strides = x.stride()
    if strides[3] == 1 or x.shape[3] == 1:
        return x, strides
    x = x.contiguous()
    return x, x.stride()


def _fresh(x: Tensor) -> Tensor:
    """`x`, whose memory nobody has touched, in huge pages if it is large."""
    if x.nbytes >= _LARGE:
        _core.prefer_huge_pages(x.data_ptr(), x.nbytes)
    return x


def _padded(x: Tensor) -> Tensor:
    """An fp32 gradient of `x` whose rows are whole vectors."""
    length = _core.vector_length()
    return _fresh(torch.empty((*x.shape[:3], -(-x.shape[3] // length) * length), dtype=torch.float32))


def _cut(grad: Tensor, x: Tensor) -> Tensor:
    return grad[..., : x.shape[3]].to(x.dtype).contiguous()
