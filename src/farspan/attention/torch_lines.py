"""Attention over `Lines` in plain PyTorch: memory linear in T, no T x T tensor, gradients by recomputation.

Queries go in chunks. A chunk reads its keys in up to three blocks of columns:

- near: all slashes shorter than a cut, as one matrix product with a mask;
- far: the other slashes, one column each; the keys are a shifted view, so scores are row-wise dot products;
- verticals: a matrix product with the picked keys.

The backward recomputes the probabilities of a chunk from the log-sum-exp, as FlashAttention does (arXiv 2205.14135).
Scores are in units of log 2: on a CPU `exp` was measured 40 times slower on inputs that underflow, `exp2` was not.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass

import torch
from torch import Tensor

from farspan.attention.outputs import new_lse, new_out
from farspan.attention.precision import no_autocast

_LOG2_E = math.log2(math.e)
_CHUNK = 128
# What one far slash costs, in near columns: row-wise products move memory, near ones run at the speed of a matrix
# product.
_SLASH_IN_COLUMNS = 48
# Scores worked on at a time, in elements: a share of the L2 cache on a CPU, enough to fill a GPU elsewhere.
_CPU_SCORES = 1 << 19
_GPU_SCORES = 1 << 26

Index = slice | list[int]


def forward(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    slashes: Tensor,
    verticals: Tensor,
    alibi_slopes: Tensor | None,
    start: Tensor | None,
    scale: float,
) -> tuple[Tensor, Tensor]:
    """`q [B, H, Tq, D]`, `k [B, Hkv, Tk, D]`, `v [B, Hkv, Tk, Dv]`, int32 tables `[1|B, 1|H, n]` -> out, lse."""
    wide = _wide(q.dtype)
    # Rows before the first key stay as they are here.
    out, lse = new_out(q, v.shape[3]).zero_(), new_lse(q).fill_(-torch.inf)
    with no_autocast(q.device):
        for part in _parts(q, k, slashes, verticals, alibi_slopes):
            qs, ks, vs = part.queries(q), part.keys(k), part.keys(v)
            for chunk in part.chunks(start):
                scores = chunk.mask(chunk.products(qs[..., chunk.rows, :].to(wide) * (scale * _LOG2_E), ks))
                top = torch.stack([block.amax(-1) for block in scores if block.shape[-1]]).amax(0)
                weights = _exp2(scores, top)
                total = _total(weights)
                mean = chunk.mix(weights, vs) / _finite(total, 0.0, 1.0)[..., None]
                part.store(out, chunk.rows, mean.to(out.dtype))
                part.store(lse, chunk.rows, (top + total.log2()) / _LOG2_E)
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
    alibi_slopes: Tensor | None,
    start: Tensor | None,
    scale: float,
) -> tuple[Tensor, Tensor, Tensor]:
    """Gradients of q, k and v, accumulated in fp32 (fp64 for fp64 inputs) and returned in the dtype of q, k and v."""
    wide = _wide(q.dtype)
    grad_q = new_out(q, q.shape[3]).zero_()
    grad_k = torch.zeros(k.shape, dtype=wide, device=k.device)
    grad_v = torch.zeros(v.shape, dtype=wide, device=v.device)
    with no_autocast(q.device):
        for part in _parts(q, k, slashes, verticals, alibi_slopes):
            qs, ks, vs = part.queries(q), part.keys(k), part.keys(v)
            grads, lses = part.queries(grad_out), part.queries(lse[..., None])
            grad_ks, grad_vs = torch.zeros_like(ks, dtype=wide), torch.zeros_like(vs, dtype=wide)
            for chunk in part.chunks(start):
                rows = qs[..., chunk.rows, :].to(wide)
                grad = grads[..., chunk.rows, :].to(wide)
                scores = chunk.mask(chunk.products(rows * (scale * _LOG2_E), ks))
                weights = _exp2(scores, lses[..., chunk.rows, 0] * _LOG2_E)
                # Large scores leave lse few digits (steps of 0.004 near 5e4); dividing by the sum takes that error out.
                total = _finite(_total(weights), 0.0, 1.0)[..., None]
                weights = [block.div_(total) for block in weights]
                chunk.scatter(weights, grad, grad_vs)
                grad_scores = chunk.products(grad, vs)
                # Summed from the probabilities, not from grad_out * out: out has been rounded to the dtype of q. The
                # gradient of lse joins in, because d lse / d score is the probability.
                delta = _total([block * weight for block, weight in zip(grad_scores, weights, strict=True)])[..., None]
                if grad_lse is not None:
                    delta -= part.queries(grad_lse.to(wide)[..., None])[..., chunk.rows, :]
                for block, weight in zip(grad_scores, weights, strict=True):
                    block.sub_(delta).mul_(weight)
                part.store(grad_q, chunk.rows, (chunk.mix(grad_scores, ks) * scale).to(grad_q.dtype))
                chunk.scatter(grad_scores, rows * scale, grad_ks)
            part.add_keys(grad_k, grad_ks)
            part.add_keys(grad_v, grad_vs)
    return grad_q, grad_k.to(k.dtype), grad_v.to(v.dtype)


def _wide(dtype: torch.dtype) -> torch.dtype:
    return torch.float64 if dtype == torch.float64 else torch.float32


def _finite(x: Tensor, where: float, instead: float) -> Tensor:
    return x.masked_fill(x == where, instead)


def _exp2(scores: list[Tensor], shift: Tensor) -> list[Tensor]:
    # A row without keys is all -inf; subtracting 0 instead of -inf keeps exp2(-inf) = 0 and no NaN.
    shift = _finite(shift, -torch.inf, 0.0)[..., None]
    return [block.sub_(shift).exp2_() for block in scores]


def _total(weights: list[Tensor]) -> Tensor:
    return torch.stack([block.sum(-1) for block in weights]).sum(0)


@dataclass
class _Part:
    """Batch rows and heads that share the same lines. Queries are viewed as `[b, g, r, Tq, D]` with keys `[b, g, Tk,
    D]`."""

    batch: slice
    heads: Index
    group: int
    slashes: list[int]
    verticals: Tensor
    alibi_slopes: Tensor | None
    q_len: int
    k_len: int

    def queries(self, x: Tensor) -> Tensor:
        return x[self.batch][:, self.heads].unflatten(1, (-1, self.group if isinstance(self.heads, slice) else 1))

    def keys(self, x: Tensor) -> Tensor:
        return x[self.batch][:, self._kv_heads]

    def store(self, target: Tensor, rows: slice, value: Tensor) -> None:
        target[self.batch, self.heads, rows] = value.flatten(1, 2)

    def add_keys(self, target: Tensor, value: Tensor) -> None:
        if isinstance(self._kv_heads, slice):
            target[self.batch] += value
        else:
            # One at a time: two query heads of this part may share a key head.
            for position, head in enumerate(self._kv_heads):
                target[self.batch, head] += value[:, position]

    @property
    def _kv_heads(self) -> Index:
        return slice(None) if isinstance(self.heads, slice) else [head // self.group for head in self.heads]

    def chunks(self, start: Tensor | None) -> Iterator[_Chunk]:
        offset = self.k_len - self.q_len
        near = _near(self.slashes)
        device = self.verticals.device
        member = torch.zeros(near + 1, dtype=torch.bool, device=device)
        member[[d for d in self.slashes if d < near]] = True
        slashes = torch.tensor(self.slashes, dtype=torch.int64, device=device)
        far = [d for d in self.slashes if near <= d < self.k_len]
        slopes = None
        if self.alibi_slopes is not None:
            slopes = self.alibi_slopes[self.heads].reshape(-1, self.group if isinstance(self.heads, slice) else 1, 1, 1)
        # Rows before the first key stand at negative positions and read nothing.
        for row in range(max(0, -offset), self.q_len, _CHUNK):
            rows = slice(row, min(row + _CHUNK, self.q_len))
            first, last = rows.start + offset, rows.stop + offset
            low = max(0, first - near + 1)
            position = torch.arange(first, last, device=device)[:, None]
            distance = position - torch.arange(low, last, device=device)
            behind = position - self.verticals
            yield _Chunk(
                rows=rows,
                first=first,
                near=slice(low, last),
                far=[d for d in far if d < last],
                verticals=self.verticals,
                near_mask=member[distance.clamp(0, near)] & (distance >= 0),
                vertical_mask=(behind >= 0) & ~torch.isin(behind, slashes),
                start=None if start is None else start[self.batch, rows],
                slopes=slopes,
            )


@dataclass
class _Chunk:
    """`rows` consecutive queries from position `first`, and the keys they read: a range, shifted views, picked ones."""

    rows: slice
    first: int
    near: slice
    far: list[int]
    verticals: Tensor
    near_mask: Tensor
    vertical_mask: Tensor
    start: Tensor | None
    slopes: Tensor | None
    """`[g, r, 1, 1]`, of the query heads."""

    def products(self, rows: Tensor, keys: Tensor) -> list[Tensor]:
        """`rows [b, g, r, C, D]` times `keys [b, g, Tk, D]`: near `[b, g, r, C, n]`, far and vertical columns
        likewise."""
        far = rows.new_zeros((*rows.shape[:4], len(self.far)))
        for column, some, seen in self._far():
            far[..., some, column] = (rows[..., some, :] * keys[:, :, None, seen].to(rows.dtype)).sum(-1)
        return [
            _product(rows, keys[..., self.near, :].to(rows.dtype).transpose(-1, -2)),
            far,
            _product(rows, keys[..., self.verticals, :].to(rows.dtype).transpose(-1, -2)),
        ]

    def mask(self, blocks: list[Tensor]) -> list[Tensor]:
        """Adds ALiBi and sets to -inf, in place, what the support, causality or `start` forbids."""
        near, far, vertical = blocks
        position = torch.arange(self.first, self.first + far.shape[3], device=far.device)[:, None]
        far_keys = position - torch.tensor(self.far, dtype=torch.int64, device=far.device)
        near_keys = torch.arange(self.near.start, self.near.stop, device=far.device)
        for block, allowed, keys in (
            (near, self.near_mask, near_keys),
            (far, far_keys >= 0, far_keys),
            (vertical, self.vertical_mask, self.verticals),
        ):
            if self.start is not None:
                allowed = (allowed & (keys >= self.start[..., None]))[:, None, None]
            if self.slopes is not None:
                block -= self.slopes.to(far.dtype) * _LOG2_E * (position - keys).clamp_min(0)
            # Adding a broadcast 0 / -inf is vectorised where masked_fill_ with a broadcast mask is not.
            block += torch.zeros(allowed.shape, dtype=far.dtype, device=far.device).masked_fill_(~allowed, -torch.inf)
        return blocks

    def mix(self, weights: list[Tensor], values: Tensor) -> Tensor:
        """Sums `values [b, g, Tk, Dv]` over the columns with `weights` -> `[b, g, r, C, Dv]`."""
        near, far, vertical = weights
        out = _product(near, values[..., self.near, :].to(near.dtype))
        for column, some, seen in self._far():
            out[..., some, :].addcmul_(far[..., some, column, None], values[:, :, None, seen].to(near.dtype))
        if len(self.verticals):
            out += _product(vertical, values[..., self.verticals, :].to(near.dtype))
        return out

    def scatter(self, weights: list[Tensor], rows: Tensor, target: Tensor) -> None:
        """Adds the transpose of `mix` to `target [b, g, Tk, D]`: what each key gets from the `rows` reading it."""
        near, far, vertical = weights
        target[..., self.near, :] += near.flatten(2, 3).transpose(-1, -2) @ rows.flatten(2, 3)
        for column, some, seen in self._far():
            target[..., seen, :] += (far[..., some, column, None] * rows[..., some, :]).sum(2)
        if len(self.verticals):
            target[..., self.verticals, :] += vertical.flatten(2, 3).transpose(-1, -2) @ rows.flatten(2, 3)

    def _far(self) -> Iterator[tuple[int, slice, slice]]:
        """For each far column: the rows of the chunk that have the key, and those keys."""
        last = self.near.stop
        for column, distance in enumerate(self.far):
            skip = max(0, distance - self.first)
            yield column, slice(skip, last - self.first), slice(self.first + skip - distance, last - distance)


def _product(rows: Tensor, columns: Tensor) -> Tensor:
    """`[b, g, r, C, n] @ [b, g, n, m]` as one matrix product per key head, the query heads of a group stacked."""
    return (rows.flatten(2, 3) @ columns).unflatten(2, rows.shape[2:4])


def _near(slashes: list[int]) -> int:
    """Where near columns end (at least one): the cheapest cut between a wider block and one more far slash."""
    costs = {1: 1 + _SLASH_IN_COLUMNS * sum(d > 0 for d in slashes)}
    for below, distance in enumerate(slashes, start=1):
        costs[distance + 1] = distance + 1 + _SLASH_IN_COLUMNS * (len(slashes) - below)
    return min(costs, key=costs.__getitem__)


def _parts(q: Tensor, k: Tensor, slashes: Tensor, verticals: Tensor, alibi_slopes: Tensor | None) -> Iterator[_Part]:
    """Groups batch rows and heads by equal lines, few enough at a time that their scores stay in cache."""
    own_rows, own_heads = max(slashes.shape[0], verticals.shape[0]), max(slashes.shape[1], verticals.shape[1])
    heads = q.shape[1]
    slash_rows = slashes.expand(own_rows, own_heads, -1).tolist()
    vertical_rows = verticals.expand(own_rows, own_heads, -1).tolist()
    for own_row in range(own_rows):
        same: dict[tuple[tuple[int, ...], tuple[int, ...]], list[int]] = {}
        for head in range(own_heads):
            slash = tuple(d for d in slash_rows[own_row][head] if 0 <= d < k.shape[2])
            vertical = tuple(j for j in vertical_rows[own_row][head] if 0 <= j < k.shape[2])
            same.setdefault((slash, vertical), []).append(head)
        for (slash, vertical), members in same.items():
            shared = len(members) == own_heads
            columns = _CHUNK + _near(list(slash))
            scores = _CPU_SCORES if q.device.type == "cpu" else _GPU_SCORES
            step = max(1, scores // ((heads if shared else len(members)) * max(1, min(_CHUNK, q.shape[2])) * columns))
            rows = range(0, q.shape[0], step) if own_rows == 1 else (own_row,)
            for row in rows:
                yield _Part(
                    batch=slice(row, row + (step if own_rows == 1 else 1)),
                    heads=slice(None) if shared else members,
                    group=heads // k.shape[1],
                    slashes=list(slash),
                    verticals=torch.tensor(vertical, dtype=torch.int64, device=q.device),
                    alibi_slopes=alibi_slopes,
                    q_len=q.shape[2],
                    k_len=k.shape[2],
                )
