"""`torch.ops.farspan.lines` and `.blocks`: attention over `Lines`, and over `Blocks` and `Tokens`, as operators with
autograd and shapes for `torch.compile`.

Registered through `torch.library.Library` and not `custom_op`, whose Python wrapper costs about 15 microseconds a
call more.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from farspan.attention import cpu_lines, torch_blocks, torch_lines
from farspan.attention.outputs import new_lse, new_out

_library = torch.library.Library("farspan", "DEF")
_library.define(
    "lines(Tensor q, Tensor k, Tensor v, Tensor slashes, Tensor verticals, Tensor? alibi_slopes, Tensor? start,"
    " float scale, str backend) -> (Tensor, Tensor)"
)
_library.define(
    "lines_backward(Tensor grad_out, Tensor? grad_lse, Tensor q, Tensor k, Tensor v, Tensor lse,"
    " Tensor slashes, Tensor verticals, Tensor? alibi_slopes, Tensor? start, float scale, str backend)"
    " -> (Tensor, Tensor, Tensor)"
)
_library.define(
    "blocks(Tensor q, Tensor k, Tensor v, Tensor index, Tensor? bias, Tensor? alibi_slopes, Tensor? start,"
    " SymInt block_q, SymInt block_k, float scale, str backend) -> (Tensor, Tensor)"
)
# The gradient of a bias that is not there is an empty tensor.
_library.define(
    "blocks_backward(Tensor grad_out, Tensor? grad_lse, Tensor q, Tensor k, Tensor v, Tensor lse,"
    " Tensor index, Tensor? bias, Tensor? alibi_slopes, Tensor? start, SymInt block_q, SymInt block_k,"
    " float scale, str backend) -> (Tensor, Tensor, Tensor, Tensor)"
)

_LINES = {"cpu": cpu_lines, "torch": torch_lines}
_BLOCKS = {"torch": torch_blocks}


def _lines(*arguments: Any) -> tuple[Tensor, Tensor]:
    return _LINES[arguments[-1]].forward(*arguments[:-1])


def _lines_backward(*arguments: Any) -> tuple[Tensor, Tensor, Tensor]:
    return _LINES[arguments[-1]].backward(*arguments[:-1])


def _blocks(*arguments: Any) -> tuple[Tensor, Tensor]:
    return _BLOCKS[arguments[-1]].forward(*arguments[:-1])


def _blocks_backward(*arguments: Any) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    return _BLOCKS[arguments[-1]].backward(*arguments[:-1])


_library.impl("lines", _lines, "CompositeExplicitAutograd")
_library.impl("lines_backward", _lines_backward, "CompositeExplicitAutograd")
_library.impl("blocks", _blocks, "CompositeExplicitAutograd")
_library.impl("blocks_backward", _blocks_backward, "CompositeExplicitAutograd")


@torch.library.register_fake("farspan::lines", lib=_library)
@torch.library.register_fake("farspan::blocks", lib=_library)
def _fake(q: Tensor, k: Tensor, v: Tensor, *_: Any) -> tuple[Tensor, Tensor]:
    return new_out(q, v.shape[3]), new_lse(q)


@torch.library.register_fake("farspan::lines_backward", lib=_library)
def _lines_backward_fake(
    grad_out: Tensor, grad_lse: Tensor | None, q: Tensor, k: Tensor, v: Tensor, *_: Any
) -> tuple[Tensor, Tensor, Tensor]:
    return new_out(q, q.shape[3]), k.new_empty(k.shape), v.new_empty(v.shape)


@torch.library.register_fake("farspan::blocks_backward", lib=_library)
def _blocks_backward_fake(
    grad_out: Tensor,
    grad_lse: Tensor | None,
    q: Tensor,
    k: Tensor,
    v: Tensor,
    lse: Tensor,
    index: Tensor,
    bias: Tensor | None,
    *_: Any,
) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    grads = _lines_backward_fake(grad_out, grad_lse, q, k, v)
    return (*grads, q.new_empty(0) if bias is None else bias.new_empty(bias.shape))


def _keep_lines(ctx: Any, inputs: tuple[Any, ...], output: tuple[Tensor, Tensor]) -> None:
    q, k, v, slashes, verticals, alibi_slopes, start, ctx.scale, ctx.backend = inputs
    ctx.save_for_backward(q, k, v, output[1], slashes, verticals, alibi_slopes, start)
    ctx.set_materialize_grads(False)


def _lines_grads(ctx: Any, grad_out: Tensor | None, grad_lse: Tensor | None) -> tuple[Tensor | None, ...]:
    q, k, v, *rest = ctx.saved_tensors
    grad_out = q.new_zeros(*q.shape[:3], v.shape[3]) if grad_out is None else grad_out
    grads = torch.ops.farspan.lines_backward(grad_out, grad_lse, q, k, v, *rest, ctx.scale, ctx.backend)
    return (*grads, None, None, None, None, None, None)


def _keep_blocks(ctx: Any, inputs: tuple[Any, ...], output: tuple[Tensor, Tensor]) -> None:
    q, k, v, index, bias, alibi_slopes, start, *ctx.constants = inputs
    ctx.save_for_backward(q, k, v, output[1], index, bias, alibi_slopes, start)
    ctx.set_materialize_grads(False)


def _blocks_grads(ctx: Any, grad_out: Tensor | None, grad_lse: Tensor | None) -> tuple[Tensor | None, ...]:
    q, k, v, lse, index, bias, *rest = ctx.saved_tensors
    grad_out = q.new_zeros(*q.shape[:3], v.shape[3]) if grad_out is None else grad_out
    *grads, grad_bias = torch.ops.farspan.blocks_backward(
        grad_out, grad_lse, q, k, v, lse, index, bias, *rest, *ctx.constants
    )
    return (*grads, None, None if bias is None else grad_bias, None, None, None, None, None, None)


def _refuse(ctx: Any, *_: Tensor | None) -> None:
    raise NotImplementedError("attention is differentiable once; for second derivatives use backend='reference'")


torch.library.register_autograd("farspan::lines", _lines_grads, setup_context=_keep_lines, lib=_library)
torch.library.register_autograd("farspan::blocks", _blocks_grads, setup_context=_keep_blocks, lib=_library)
# Without this PyTorch would only warn, and take the gradients for constants.
torch.library.register_autograd("farspan::lines_backward", _refuse, lib=_library)
torch.library.register_autograd("farspan::blocks_backward", _refuse, lib=_library)
lines = torch.ops.farspan.lines.default
blocks = torch.ops.farspan.blocks.default
