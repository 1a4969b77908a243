"""Who is measured: the same attention computed by farspan and by everything else a PyTorch user would reach for."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import Tensor
from torch.nn.attention.flex_attention import BlockMask, flex_attention

from farspan import Lines, attention, patterns
from farspan._cpu import load_core
from farspan.attention import cpu_lines, torch_lines
from farspan.attention.outputs import new_lse, new_out

HEADS, HEAD_DIM = 8, 64
FLEX_BLOCKS = (128, 64, 32, 16)
# Keys that the gather contender copies at a time: its copies stay in the L2 cache instead of growing with T.
GATHERED_BYTES = 1 << 20

Call = Callable[[], Tensor]


def window_and_fibonacci(window: int, length: int) -> Lines:
    """Distances 0 .. window - 1 and every Fibonacci number from `window` up to below `length`."""
    distances, a, b = set(range(window)), 1, 2
    while a < length:
        if a >= window:
            distances.add(a)
        a, b = b, a + b
    return Lines(sorted(distances))


@dataclass(frozen=True)
class Column:
    """A column of the table of targets."""

    name: str
    title: str
    kv_heads: int
    lines: Callable[[int], Lines]


PAPER = patterns.fibonacci(window=13, alpha=1.0, rungs=15)
COLUMNS = (
    Column("w64_kv2", "window 64 + fib, Hkv=2", 2, lambda length: window_and_fibonacci(64, length)),
    Column("paper_kv2", "window 13 + 15 rungs (the paper), Hkv=2", 2, lambda length: PAPER),
    Column("w64_kv8", "window 64 + fib, Hkv=8", 8, lambda length: window_and_fibonacci(64, length)),
)


def qkv(
    q_len: int,
    kv_heads: int,
    *,
    k_len: int | None = None,
    heads: int = HEADS,
    head_dim: int = HEAD_DIM,
    dtype: torch.dtype = torch.float32,
    strided: bool = False,
    grad: bool = False,
    seed: int = 0,
) -> tuple[Tensor, Tensor, Tensor]:
    """`[1, H, Tq, D]`, `[1, Hkv, Tk, D]` twice; `strided` gives views of `[B, T, H, D]`, as a model has them."""
    generator = torch.Generator().manual_seed(seed)
    k_len = q_len if k_len is None else k_len
    tensors = []
    for number, length in ((heads, q_len), (kv_heads, k_len), (kv_heads, k_len)):
        tensor = torch.randn(1, number, length, head_dim, generator=generator).to(dtype)
        if strided:
            tensor = tensor.transpose(1, 2).contiguous().transpose(1, 2)
        tensors.append(tensor.requires_grad_(grad))
    return tensors[0], tensors[1], tensors[2]


def random_like(tensor: Tensor, seed: int = 1) -> Tensor:
    generator = torch.Generator().manual_seed(seed)
    return torch.randn(tensor.shape, generator=generator).to(tensor.dtype)


def ours(q: Tensor, k: Tensor, v: Tensor, lines: Lines, backend: str) -> Tensor:
    return attention(q, k, v, lines, backend=backend)


def dense(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    """Full causal attention; a single query reads the whole cache."""
    return F.scaled_dot_product_attention(q, k, v, is_causal=q.shape[2] > 1, enable_gqa=True)


def masked(q: Tensor, k: Tensor, v: Tensor, mask: Tensor) -> Tensor:
    return F.scaled_dot_product_attention(q, k, v, attn_mask=mask, enable_gqa=True)


class Gather:
    """Copies the keys of each query next to one another, then dense attention over them; queries go in chunks."""

    def __init__(self, lines: Lines, length: int, kv_heads: int) -> None:
        distance = torch.tensor([d for d in lines.slashes if d < length])
        key = torch.arange(length)[:, None] - distance
        rows = max(1, GATHERED_BYTES // (4 * HEAD_DIM * kv_heads * len(distance)))
        self.chunks = [(rows.clamp_min(0), rows < 0) for rows in key.split(rows)]

    def __call__(self, q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        batch, kv_heads, _, dim = k.shape
        grouped = q.unflatten(1, (kv_heads, -1)).transpose(2, 3)  # [B, Hkv, T, group, D]
        out, first = [], 0
        for index, missing in self.chunks:
            shape = (batch, kv_heads, *index.shape, dim)
            keys = k.index_select(2, index.flatten()).view(shape)
            values = v.index_select(2, index.flatten()).view(shape)
            queries = grouped[:, :, first : first + len(index)] * dim**-0.5
            scores = (queries @ keys.transpose(-1, -2)).masked_fill(missing[:, None], -torch.inf)
            out.append(scores.softmax(-1) @ values)
            first += len(index)
        return torch.cat(out, 2).transpose(2, 3).flatten(1, 2)


def block_mask(lines: Lines, length: int, block: int) -> BlockMask:
    """FlexAttention's mask from offset arithmetic: `create_block_mask` would write all `length ** 2` pairs.

    Whether a block of keys is read, in part or whole, depends only on how many blocks it lies back.
    """
    read = torch.zeros(2 * length, dtype=torch.bool)  # by distance + length, so that no index is negative
    read[[length + d for d in lines.slashes if d < length]] = True
    running = torch.cat([torch.zeros(1, dtype=torch.int64), read.long().cumsum(0)])
    blocks = length // block
    back = torch.arange(blocks) * block + length
    found = running[(back + block).clamp_max(2 * length)] - running[back - block + 1]
    whole = found == 2 * block - 1
    kinds = []
    for wanted in ((found > 0) & ~whole, whole):
        offsets = wanted.nonzero()[:, 0]
        key = torch.arange(blocks)[:, None] - offsets
        count = (key >= 0).sum(-1)
        # FlexAttention reads the first `count` of a row of `blocks` indices.
        table = torch.zeros(blocks, blocks, dtype=torch.int32)
        table[:, : len(offsets)] = key.clamp_min(0)
        kinds += [count.int()[None, None], table[None, None]]

    def reads(b: Tensor, h: Tensor, query: Tensor, key: Tensor) -> Tensor:
        return read[query - key + length]

    return BlockMask.from_kv_blocks(*kinds, BLOCK_SIZE=block, mask_mod=reads, seq_lengths=(length, length))


def compiled_flex() -> Callable[..., Tensor]:
    """A FlexAttention that raises where it would fall back to its eager form, which is dense."""
    torch._dynamo.config.recompile_limit = 64
    torch._dynamo.config.fail_on_recompile_limit_hit = True
    return torch.compile(flex_attention, fullgraph=True, dynamic=False)


class SelectedKeys:
    """Decoding in plain PyTorch: the keys that one query reads are copied out of the cache, then SDPA."""

    def __init__(self, lines: Lines, k_len: int) -> None:
        self.index = torch.tensor([k_len - 1 - d for d in reversed(lines.slashes) if d < k_len])

    def __call__(self, q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        return dense(q, k.index_select(2, self.index), v.index_select(2, self.index))


def kernel_only(q: Tensor, k: Tensor, v: Tensor, lines: Lines, backend: str) -> Call:
    """The forward without `attention` around it: for "cpu" one call of the C++ core into outputs that exist already."""
    inputs = (q, k, v, lines.slash_table, lines.vertical_table, None, q.shape[-1] ** -0.5)
    if backend == "torch":
        return lambda: torch_lines.forward(*inputs[:5], None, *inputs[5:])
    arguments, alive = cpu_lines.arguments_of(*inputs)
    out, lse = new_out(q, v.shape[3]), new_lse(q)
    arguments = (*arguments, out.data_ptr(), out.stride(), lse.data_ptr())
    call = load_core()[0].lines_forward
    return lambda: (call(*arguments), alive, out, lse)


def kernel_only_backward(q: Tensor, k: Tensor, v: Tensor, grad: Tensor, lines: Lines, backend: str) -> Call:
    """The backward likewise; `grad [B, H, Tq, Dv]` is that of the output."""
    inputs = (q, k, v, lines.slash_table, lines.vertical_table, None, q.shape[-1] ** -0.5)
    if backend == "torch":
        lse = torch_lines.forward(*inputs[:5], None, *inputs[5:])[1]
        return lambda: torch_lines.backward(grad, None, q, k, v, lse, *inputs[3:5], None, *inputs[5:])
    arguments, alive = cpu_lines.arguments_of(*inputs)
    grads = new_out(q, q.shape[3]), torch.empty_like(k), torch.empty_like(v)
    to_q, to_k, to_v = grads
    arguments = (
        *(*arguments, grad.data_ptr(), grad.stride(), 0),
        *(to_q.data_ptr(), to_q.stride(), to_k.data_ptr(), to_v.data_ptr()),
    )
    call = load_core()[0].lines_backward
    return lambda: (call(*arguments), alive, grad, grads)
