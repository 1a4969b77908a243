"""`torch.ops.farspan.lines`: attention over `Lines` as one operator with autograd and shapes for `torch.compile`.

Registered through `torch.library.Library` and not `custom_op`, whose Python wrapper costs about 15 microseconds a
call more.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from farspan.attention import cpu_lines, torch_lines
from farspan.attention.outputs import new_lse, new_out

_library = torch.library.Library("farspan", "DEF")
_library.define(
    "lines(Tensor q, Tensor k, Tensor v, Tensor slashes, Tensor verticals, Tensor? start, float scale, str backend)"
    " -> (Tensor, Tensor)"
)
_library.define(
    "lines_backward(Tensor grad_out, Tensor? grad_lse, Tensor q, Tensor k, Tensor v, Tensor lse,"
    " Tensor slashes, Tensor verticals, Tensor? start, float scale, str backend) -> (Tensor, Tensor, Tensor)"
)

_BACKENDS = {"cpu": cpu_lines, "torch": torch_lines}


def _lines(*arguments: Any) -> tuple[Tensor, Tensor]:
    return _BACKENDS[arguments[-1]].forward(*arguments[:-1])


def _lines_backward(*arguments: Any) -> tuple[Tensor, Tensor, Tensor]:
    return _BACKENDS[arguments[-1]].backward(*arguments[:-1])


_library.impl("lines", _lines, "CompositeExplicitAutograd")
_library.impl("lines_backward", _lines_backward, "CompositeExplicitAutograd")


@torch.library.register_fake("farspan::lines", lib=_library)
def _lines_fake(q: Tensor, k: Tensor, v: Tensor, *_: Any) -> tuple[Tensor, Tensor]:
    return new_out(q, v.shape[3]), new_lse(q)


@torch.library.register_fake("farspan::lines_backward", lib=_library)
def _lines_backward_fake(
    grad_out: Tensor, grad_lse: Tensor | None, q: Tensor, k: Tensor, v: Tensor, *_: Any
) -> tuple[Tensor, Tensor, Tensor]:
    return new_out(q, q.shape[3]), k.new_empty(k.shape), v.new_empty(v.shape)


def _keep(ctx: Any, inputs: tuple[Any, ...], output: tuple[Tensor, Tensor]) -> None:
    q, k, v, slashes, verticals, start, ctx.scale, ctx.backend = inputs
    ctx.save_for_backward(q, k, v, output[1], slashes, verticals, start)
    ctx.set_materialize_grads(False)


def _backward(ctx: Any, grad_out: Tensor | None, grad_lse: Tensor | None) -> tuple[Tensor | None, ...]:
    q, k, v, lse, slashes, verticals, start = ctx.saved_tensors
    grad_out = q.new_zeros(*q.shape[:3], v.shape[3]) if grad_out is None else grad_out
    grads = torch.ops.farspan.lines_backward(
        grad_out, grad_lse, q, k, v, lse, slashes, verticals, start, ctx.scale, ctx.backend
    )
    return (*grads, None, None, None, None, None)


def _refuse(ctx: Any, *_: Tensor | None) -> None:
    raise NotImplementedError("attention is differentiable once; for second derivatives use backend='reference'")


torch.library.register_autograd("farspan::lines", _backward, setup_context=_keep, lib=_library)
# Without this PyTorch would only warn, and take the gradients for constants.
torch.library.register_autograd("farspan::lines_backward", _refuse, lib=_library)
lines = torch.ops.farspan.lines.default
