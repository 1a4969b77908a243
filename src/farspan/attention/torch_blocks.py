"""Attention over `Blocks` and `Tokens` in plain PyTorch: keys gathered block by block, gradients by recomputation.

Query blocks go in chunks, one batch row at a time, so a result does not depend on the rows beside it. A chunk gathers
the keys of its entries once for all query heads that share them and takes a matrix product per query block. What a
chunk holds is bounded, so memory is linear in T.

The gradient of a key is a sum over the entries that list it. A chunk sorts its entries by key block and sums them in
that order, without atomic additions; the chunks are added one after the other.

Scores are in units of log 2, as in `torch_lines`.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import Tensor

from farspan.attention.outputs import new_lse, new_out
from farspan.attention.precision import no_autocast

_LOG2_E = math.log2(math.e)
# Scores and gathered numbers worked on at a time: a share of the cache on a CPU, enough to fill a GPU elsewhere.
_CPU_NUMBERS = 1 << 20
_GPU_NUMBERS = 1 << 26


def forward(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    index: Tensor,
    bias: Tensor | None,
    alibi_slopes: Tensor | None,
    start: Tensor | None,
    block_q: int,
    block_k: int,
    scale: float,
) -> tuple[Tensor, Tensor]:
    """`q [B, H, Tq, D]`, `k [B, Hkv, Tk, D]`, `v [B, Hkv, Tk, Dv]`, `index [1|B, Hs, blocks, n]` -> out, lse."""
    # Rows before the first key stay as they are here.
    out, lse = new_out(q, v.shape[3]).zero_(), new_lse(q).fill_(-torch.inf)
    with no_autocast(q.device):
        for chunk in _chunks(q, k, v, index, bias, alibi_slopes, start, block_q, block_k):
            scores = chunk.scores(chunk.rows(q) * (scale * _LOG2_E), chunk.gather(k))
            top = scores.amax(-1, keepdim=True)
            weights = _exp2(scores, top)
            total = weights.sum(-1, keepdim=True)
            mean = weights @ chunk.gather(v) / total.masked_fill(total == 0, 1)
            chunk.store(out, mean)
            chunk.store(lse[..., None], (top + total.log2()) / _LOG2_E)
    return out, lse


def backward(
    grad_out: Tensor,
    grad_lse: Tensor | None,
    q: Tensor,
    k: Tensor,
    v: Tensor,
    lse: Tensor,
    index: Tensor,
    bias: Tensor | None,
    alibi_slopes: Tensor | None,
    start: Tensor | None,
    block_q: int,
    block_k: int,
    scale: float,
) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """Gradients of q, k, v and bias, accumulated in fp32 (fp64 for fp64 inputs) and returned in their dtypes.

    The gradient of a bias that is not there is an empty tensor.
    """
    wide = lse.dtype
    blocks = -(-k.shape[2] // block_k)
    grad_q = new_out(q, q.shape[3]).zero_()
    grad_k, grad_v = (
        torch.zeros((*x.shape[:2], blocks, block_k * x.shape[3]), dtype=wide, device=x.device) for x in (k, v)
    )
    grad_bias = q.new_empty(0) if bias is None else torch.zeros(bias.shape, dtype=wide, device=q.device)
    with no_autocast(q.device):
        for chunk in _chunks(q, k, v, index, bias, alibi_slopes, start, block_q, block_k):
            rows, grad = chunk.rows(q), chunk.rows(grad_out)
            keys, values = chunk.gather(k), chunk.gather(v)
            weights = _exp2(chunk.scores(rows * (scale * _LOG2_E), keys), chunk.rows(lse[..., None]) * _LOG2_E)
            # Large scores leave lse few digits; dividing by the sum takes that error out.
            total = weights.sum(-1, keepdim=True)
            weights.div_(total.masked_fill_(total == 0, 1))
            chunk.scatter(weights, grad, grad_v)
            grad_scores = grad @ values.transpose(-1, -2)
            # Summed from the probabilities, not from grad_out * out, which has been rounded to the dtype of q. The
            # gradient of lse joins in, because d lse / d score is the probability.
            delta = (grad_scores * weights).sum(-1, keepdim=True)
            if grad_lse is not None:
                delta -= chunk.rows(grad_lse[..., None])
            grad_scores.sub_(delta).mul_(weights)
            chunk.store(grad_q, grad_scores @ keys * scale)
            chunk.scatter(grad_scores, rows * scale, grad_k)
            if bias is not None:
                chunk.add_bias(grad_scores, grad_bias)
    return grad_q, _cut(grad_k, k), _cut(grad_v, v), grad_bias if bias is None else grad_bias.to(bias.dtype)


def _exp2(scores: Tensor, shift: Tensor) -> Tensor:
    # A row without keys is all -inf; subtracting 0 instead of -inf keeps exp2(-inf) = 0 and no NaN.
    return scores.sub_(shift.masked_fill(shift == -torch.inf, 0)).exp2_()


def _cut(grad: Tensor, x: Tensor) -> Tensor:
    return grad.unflatten(3, (-1, x.shape[3])).flatten(2, 3)[:, :, : x.shape[2]].to(x.dtype).contiguous()


@dataclass
class _Chunk:
    """Neighbouring query blocks of one batch row and of some heads.

    Shapes: `N` query blocks of `G` key heads (or query heads, where each has its own entries) with `R = r * block_q`
    rows each, `r` being the query heads of a key head; `n` entries, `M = n * block_k` keys.
    """

    batch: int
    heads: slice
    """Query heads, `G * r` of them."""
    span: slice
    """Query rows; the last block may be cut short."""
    kv_heads: Tensor
    """int64 `[G]`."""
    entries: Tensor
    """int64 `[1|G, N, n]`: key blocks, the number of key blocks where there is none."""
    add: Tensor
    """`[1|G, N, 1|r, block_q, M]`: added to the scores, -inf where the support, causality or `start` forbids."""
    in_bias: tuple[int, slice, slice, slice]
    """Where the entries stand in index and bias."""
    block_q: int
    block_k: int

    def rows(self, x: Tensor) -> Tensor:
        """`[B, H, Tq, D]` -> `[G, N, R, D]`, zero beyond the last query."""
        rows = x[self.batch, self.heads, self.span].to(self.add.dtype)
        missing = self.entries.shape[1] * self.block_q - rows.shape[1]
        if missing:
            rows = F.pad(rows, (0, 0, 0, missing))
        rows = rows.unflatten(1, (-1, self.block_q)).unflatten(0, (len(self.kv_heads), -1))
        # Contiguous, because the batched product walks over other strides matrix by matrix.
        return rows.transpose(1, 2).flatten(2, 3).contiguous()

    def store(self, target: Tensor, value: Tensor) -> None:
        """The reverse of `rows`."""
        rows = value.unflatten(2, (-1, self.block_q)).transpose(1, 2).flatten(0, 1).flatten(1, 2)
        target[self.batch, self.heads, self.span] = rows[:, : self.span.stop - self.span.start].to(target.dtype)

    def gather(self, x: Tensor) -> Tensor:
        """`[B, Hkv, Tk, D]` -> `[G, N, M, D]`; where there is no key, the last one."""
        keys = _keys(self.entries, self.block_k).clamp_max(x.shape[2] - 1)
        return _pick(x[self.batch], self.kv_heads[:, None, None], keys).to(self.add.dtype)

    def scores(self, rows: Tensor, keys: Tensor) -> Tensor:
        """`[G, N, R, D]` times `[G, N, M, D]` -> `[G, N, R, M]`, with what is added to them."""
        scores = rows @ keys.transpose(-1, -2)
        scores.unflatten(2, (-1, self.block_q)).add_(self.add)
        return scores

    def scatter(self, weights: Tensor, rows: Tensor, target: Tensor) -> None:
        """Adds to `target [B, Hkv, blocks, block_k * D]` what each key gets from the `rows` that read it."""
        shares = (weights.transpose(-1, -2) @ rows).reshape(-1, target.shape[3])
        bags, order = (self.kv_heads[:, None, None] * (target.shape[2] + 1) + self.entries).flatten().sort(stable=True)
        bags, counts = bags.unique_consecutive(return_counts=True)
        sums = F.embedding_bag(order, shares, counts.cumsum(0) - counts, mode="sum")
        head, block = bags // (target.shape[2] + 1), bags % (target.shape[2] + 1)
        some = block < target.shape[2]
        target[self.batch, head[some], block[some]] += sums[some]

    def add_bias(self, grad_scores: Tensor, target: Tensor) -> None:
        """Adds to `target [1|B, Hs, blocks, n]` the sums over the pairs of each entry."""
        sums = grad_scores.sum(2).unflatten(2, (-1, self.block_k)).sum(3)
        target[self.in_bias] += sums if self.entries.shape[0] == len(sums) else sums.sum(0, keepdim=True)


def _pick(x: Tensor, heads: Tensor, keys: Tensor) -> Tensor:
    """`x[heads, keys]` for `x [Hkv, Tk, D]`: whole rows, five times as fast, wherever they lie on a grid of rows."""
    dim = x.shape[2]
    if x.stride(2) != 1 or x.stride(0) % dim or x.stride(1) % dim:
        return x[heads, keys]
    by_head, by_key = x.stride(0) // dim, x.stride(1) // dim
    rows = x.as_strided((1 + (x.shape[0] - 1) * by_head + (x.shape[1] - 1) * by_key, dim), (dim, 1))
    places = heads * by_head + keys * by_key
    return rows.index_select(0, places.flatten()).unflatten(0, places.shape)


def _keys(entries: Tensor, block_k: int) -> Tensor:
    """The positions `[.., n * block_k]` of the keys in blocks `[.., n]`."""
    return (entries[..., None] * block_k + torch.arange(block_k, device=entries.device)).flatten(-2)


def _chunks(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    index: Tensor,
    bias: Tensor | None,
    alibi_slopes: Tensor | None,
    start: Tensor | None,
    block_q: int,
    block_k: int,
) -> Iterator[_Chunk]:
    batch, heads, q_len, _ = q.shape
    kv_heads, k_len = k.shape[1:3]
    device, wide = q.device, new_lse(q[:0]).dtype
    own = heads if index.shape[1] == heads else kv_heads
    group = heads // own
    blocks = -(-k_len // block_k)
    # Of one query block and one head: its scores, and the keys and values gathered for it.
    columns = max(1, index.shape[3] * block_k)
    numbers = columns * (group * block_q + k.shape[3] + v.shape[3])
    most = _CPU_NUMBERS if device.type == "cpu" else _GPU_NUMBERS
    some_heads = min(own, max(1, most // numbers))
    some_blocks = max(1, most // (numbers * some_heads))
    for own_row in range(index.shape[0]):
        for head in range(0, own, some_heads):
            these = slice(head, min(head + some_heads, own))
            for block in range(0, index.shape[2], some_blocks):
                these_blocks = slice(block, min(block + some_blocks, index.shape[2]))
                own_heads = these if index.shape[1] == own else slice(None)
                entries = index[own_row, own_heads, these_blocks].long()
                row = torch.arange(these_blocks.start * block_q, these_blocks.stop * block_q, device=device)
                beyond = (row >= q_len).unflatten(0, (-1, block_q))
                row = row.clamp_max(q_len - 1).unflatten(0, (-1, block_q))
                position = row + (k_len - q_len)
                # The padding and what begins after the last query of its block stand at the end, and go.
                absent = (entries < 0) | (entries * block_k > position[:, -1:])
                width = int((~absent).sum(-1).max()) if entries.numel() else 0
                if width == 0:
                    continue
                place = (own_row, own_heads, these_blocks, slice(width))
                entries = entries.masked_fill(absent, blocks)[..., :width]
                keys = _keys(entries, block_k)[:, :, None, None, :]
                behind = position[:, None, :, None] - keys
                # Rows beyond the last query read nothing, or a large bias would make them infinite in the backward.
                forbidden = (behind < 0) | beyond[:, None, :, None]
                add = torch.zeros(behind.shape, dtype=wide, device=device).masked_fill_(forbidden, -torch.inf)
                if bias is not None:
                    add += (bias[place].to(wide) * _LOG2_E).repeat_interleave(block_k, -1)[:, :, None, None, :]
                if alibi_slopes is not None:
                    slopes = alibi_slopes[these.start * group : these.stop * group].to(wide) * _LOG2_E
                    add = add - slopes.reshape(-1, 1, group, 1, 1) * behind.clamp_min(0)
                for batch_row in range(batch) if index.shape[0] == 1 else (own_row,):
                    here = add
                    if start is not None:
                        first = start[batch_row][row][:, None, :, None]
                        here = add.masked_fill(keys < first, -torch.inf)
                    yield _Chunk(
                        batch=batch_row,
                        heads=slice(these.start * group, these.stop * group),
                        span=slice(these_blocks.start * block_q, min(these_blocks.stop * block_q, q_len)),
                        kv_heads=torch.arange(these.start, these.stop, device=device) // (own // kv_heads),
                        entries=entries,
                        add=here,
                        in_bias=place,
                        block_q=block_q,
                        block_k=block_k,
                    )
