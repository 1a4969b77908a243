"""`torch.ops.farspan.lines`: attention over `Lines` as one operator with autograd and shapes for `torch.compile`.

Registered through `torch.library.Library` and not `custom_op`, whose Python wrapper costs about 15 microseconds a
call more.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from farspan.attention import torch_lines

_library = torch.library.Library("farspan", "DEF")
_library.define(
    "lines(Tensor q, Tensor k, Tensor v, Tensor slashes, Tensor verticals, Tensor? start, float scale)"
    " -> (Tensor, Tensor)"
)
_library.define(
    "lines_backward(Tensor grad_out, Tensor grad_lse, Tensor q, Tensor k, Tensor v, Tensor lse,"
    " Tensor slashes, Tensor verticals, Tensor? start, float scale) -> (Tensor, Tensor, Tensor)"
)
_library.impl("lines", torch_lines.forward, "CompositeExplicitAutograd")
_library.impl("lines_backward", torch_lines.backward, "CompositeExplicitAutograd")


@torch.library.register_fake("farspan::lines", lib=_library)
def _lines_fake(q: Tensor, k: Tensor, v: Tensor, *_: Any) -> tuple[Tensor, Tensor]:
    lse_dtype = torch.float64 if q.dtype == torch.float64 else torch.float32
    return q.new_empty(*q.shape[:3], v.shape[3]), q.new_empty(q.shape[:3], dtype=lse_dtype)


@torch.library.register_fake("farspan::lines_backward", lib=_library)
def _lines_backward_fake(
    grad_out: Tensor, grad_lse: Tensor, q: Tensor, k: Tensor, v: Tensor, *_: Any
) -> tuple[Tensor, Tensor, Tensor]:
    return q.new_empty(q.shape), k.new_empty(k.shape), v.new_empty(v.shape)


def _keep(ctx: Any, inputs: tuple[Any, ...], output: tuple[Tensor, Tensor]) -> None:
    q, k, v, slashes, verticals, start, ctx.scale = inputs
    ctx.save_for_backward(q, k, v, output[1], slashes, verticals, start)


def _backward(ctx: Any, grad_out: Tensor | None, grad_lse: Tensor | None) -> tuple[Tensor | None, ...]:
    q, k, v, lse, slashes, verticals, start = ctx.saved_tensors
    grad_out = q.new_zeros(*q.shape[:3], v.shape[3]) if grad_out is None else grad_out
    grad_lse = torch.zeros_like(lse) if grad_lse is None else grad_lse
    grads = torch.ops.farspan.lines_backward(grad_out, grad_lse, q, k, v, lse, slashes, verticals, start, ctx.scale)
    return (*grads, None, None, None, None)


def _refuse(ctx: Any, *_: Tensor | None) -> None:
    raise NotImplementedError("attention is differentiable once; for second derivatives use backend='reference'")


torch.library.register_autograd("farspan::lines", _backward, setup_context=_keep, lib=_library)
# Without this PyTorch would only warn, and take the gradients for constants.
torch.library.register_autograd("farspan::lines_backward", _refuse, lib=_library)
lines = torch.ops.farspan.lines.default
