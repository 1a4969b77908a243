"""Attention over `Lines` in plain PyTorch: memory linear in T, no T x T tensor, gradients by recomputation.

Queries go in chunks. The keys a chunk reads come in two kinds of columns:

- dense columns, a matrix product and a mask: the keys near the chunk (all slashes shorter than `near`) and the verticals;
- far slashes, one column each: the keys are a shifted view, so the scores are row-wise dot products.

The backward recomputes the probabilities of a chunk from the log-sum-exp, as FlashAttention does (arXiv 2205.14135).
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import torch
from torch import Tensor

_CHUNK = 128
# What one far slash costs, in dense columns. Row-wise products move memory, dense ones run at the speed of a matrix product.
_SLASH_IN_COLUMNS = 24

Index = slice | list[int]


def forward(
    q: Tensor, k: Tensor, v: Tensor, slashes: Tensor, verticals: Tensor, start: Tensor | None, scale: float
) -> tuple[Tensor, Tensor]:
    """`q [B, H, Tq, D]`, `k [B, Hkv, Tk, D]`, `v [B, Hkv, Tk, Dv]`, int32 tables `[1|B, 1|H, n]` -> out, lse."""
    wide = _wide(q.dtype)
    out = torch.zeros(*q.shape[:3], v.shape[3], dtype=q.dtype, device=q.device)
    lse = torch.full(q.shape[:3], -torch.inf, dtype=wide, device=q.device)
    for part in _parts(q, k, slashes, verticals):
        qs, ks, vs = part.queries(q), part.keys(k), part.keys(v)
        for chunk in part.chunks(start):
            rows = slice(chunk.row, chunk.row + chunk.rows)
            scores = chunk.scores(qs[..., rows, :].to(wide) * scale, ks)
            chunk_lse = scores.logsumexp(-1)
            weights = _weights(scores, chunk_lse)
            part.store(out, rows, chunk.mix(weights, vs).to(out.dtype))
            part.store(lse, rows, chunk_lse)
    return out, lse


def backward(
    grad_out: Tensor,
    grad_lse: Tensor,
    q: Tensor,
    k: Tensor,
    v: Tensor,
    out: Tensor,
    lse: Tensor,
    slashes: Tensor,
    verticals: Tensor,
    start: Tensor | None,
    scale: float,
) -> tuple[Tensor, Tensor, Tensor]:
    """Gradients of q, k and v, accumulated in fp32 (fp64 for fp64 inputs) and returned in the dtype of q, k and v."""
    wide = _wide(q.dtype)
    grad_q = torch.zeros(q.shape, dtype=q.dtype, device=q.device)
    grad_k = torch.zeros(k.shape, dtype=wide, device=k.device)
    grad_v = torch.zeros(v.shape, dtype=wide, device=v.device)
    # d lse / d score is the probability, so the gradient of lse joins the row sums of grad_out * out.
    delta = (grad_out.to(wide) * out.to(wide)).sum(-1) - grad_lse.to(wide)
    for part in _parts(q, k, slashes, verticals):
        qs, ks, vs = part.queries(q), part.keys(k), part.keys(v)
        grads, lses, deltas = part.queries(grad_out), part.queries(lse[..., None]), part.queries(delta[..., None])
        grad_ks, grad_vs = torch.zeros_like(ks, dtype=wide), torch.zeros_like(vs, dtype=wide)
        for chunk in part.chunks(start):
            rows = slice(chunk.row, chunk.row + chunk.rows)
            scaled = qs[..., rows, :].to(wide) * scale
            grad = grads[..., rows, :].to(wide)
            weights = _weights(chunk.scores(scaled, ks), lses[..., rows, 0])
            grad_scores = weights * (chunk.scores(grad, vs, fill=0.0) - deltas[..., rows, :])
            part.store(grad_q, rows, (chunk.mix(grad_scores, ks) * scale).to(grad_q.dtype))
            chunk.scatter(weights, grad, grad_vs)
            chunk.scatter(grad_scores, scaled, grad_ks)
        part.add_keys(grad_k, grad_ks)
        part.add_keys(grad_v, grad_vs)
    return grad_q, grad_k.to(k.dtype), grad_v.to(v.dtype)


def _wide(dtype: torch.dtype) -> torch.dtype:
    return torch.float64 if dtype == torch.float64 else torch.float32


def _weights(scores: Tensor, lse: Tensor) -> Tensor:
    # A row without keys has lse = -inf; subtracting 0 instead keeps exp(-inf) = 0 and no NaN.
    return (scores - lse.masked_fill(lse == -torch.inf, 0.0)[..., None]).exp()


@dataclass
class _Part:
    """Batch rows and heads that share the same lines. Queries are viewed as `[b, g, r, Tq, D]` with keys `[b, g, Tk, D]`."""

    batch: slice
    heads: Index
    group: int
    slashes: list[int]
    verticals: Tensor
    q_len: int
    k_len: int

    def queries(self, x: Tensor) -> Tensor:
        x = x[self.batch][:, self.heads]
        return x.unflatten(1, (-1, self.group if self._whole else 1))

    def keys(self, x: Tensor) -> Tensor:
        return x[self.batch][:, self._kv_heads]

    def store(self, target: Tensor, rows: slice, value: Tensor) -> None:
        target[self.batch, self.heads, rows] = value.flatten(1, 2)

    def add_keys(self, target: Tensor, value: Tensor) -> None:
        if self._whole:
            target[self.batch] += value
        else:
            for position, head in enumerate(self._kv_heads):
                target[self.batch, head] += value[:, position]

    @property
    def _whole(self) -> bool:
        return isinstance(self.heads, slice)

    @property
    def _kv_heads(self) -> Index:
        return slice(None) if isinstance(self.heads, slice) else [head // self.group for head in self.heads]

    def chunks(self, start: Tensor | None) -> Iterator[_Chunk]:
        offset = self.k_len - self.q_len
        near = _near(self.slashes)
        device = self.verticals.device
        member = torch.zeros(near + 1, dtype=torch.bool, device=device)
        member[[d for d in self.slashes if d < near]] = True
        far = [d for d in self.slashes if near <= d < self.k_len]
        # Rows before the first key stand at negative positions and read nothing.
        for row in range(max(0, -offset), self.q_len, _CHUNK):
            rows = min(_CHUNK, self.q_len - row)
            first, last = row + offset, row + offset + rows
            low = max(0, first - near + 1)
            position = torch.arange(first, last, device=device)[:, None]
            distance = position - torch.arange(low, last, device=device)
            mask = member[distance.clamp(0, near)] & (distance >= 0)
            behind = position - self.verticals
            vertical_mask = (behind >= 0) & ~_in_sorted(behind, self.slashes)
            begin = None if start is None else start[self.batch, row : row + rows].to(device)
            yield _Chunk(row, rows, first, low, last, mask, self.verticals, vertical_mask, far, begin)


@dataclass
class _Chunk:
    row: int
    rows: int
    first: int
    low: int
    last: int
    mask: Tensor
    verticals: Tensor
    vertical_mask: Tensor
    far: list[int]
    start: Tensor | None

    def _far_rows(self) -> Iterator[tuple[int, int, slice, slice]]:
        """Column, distance, rows of the chunk that have the key, and those keys."""
        column = self.last - self.low
        for index, distance in enumerate(self.far):
            skip = max(0, distance - self.first)
            if skip < self.rows:
                keys = slice(self.first + skip - distance, self.last - distance)
                yield column + index, distance, slice(skip, self.rows), keys

    def scores(self, rows: Tensor, keys: Tensor, fill: float = -torch.inf) -> Tensor:
        """`rows [b, g, r, C, D]` times `keys [b, g, Tk, D]` on the chunk's columns, `fill` where a pair is not read."""
        near = self.last - self.low
        scores = rows.new_full((*rows.shape[:4], near + len(self.far) + len(self.verticals)), fill)
        scores[..., :near] = _product(rows, keys[..., self.low : self.last, :].to(rows.dtype).transpose(-1, -2))
        scores[..., :near].masked_fill_(~self._begun(self.mask, slice(self.low, self.last)), fill)
        for column, distance, some, keys_read in self._far_rows():
            far = (rows[..., some, :] * keys[:, :, None, keys_read].to(rows.dtype)).sum(-1)
            if self.start is not None:
                begun = self._positions()[some] - distance >= self.start[:, some]
                far = far.masked_fill(~begun[:, None, None], fill)
            scores[..., some, column] = far
        if len(self.verticals):
            picked = keys[..., self.verticals, :].to(rows.dtype)
            mask = self._begun(self.vertical_mask, self.verticals)
            scores[..., near + len(self.far) :] = _product(rows, picked.transpose(-1, -2)).masked_fill(~mask, fill)
        return scores

    def mix(self, weights: Tensor, values: Tensor) -> Tensor:
        """Sums `values [b, g, Tk, Dv]` over the chunk's columns with `weights [b, g, r, C, n]`."""
        near = self.last - self.low
        out = _product(weights[..., :near], values[..., self.low : self.last, :].to(weights.dtype))
        for column, _, some, keys_read in self._far_rows():
            out[..., some, :] += weights[..., some, column, None] * values[:, :, None, keys_read].to(weights.dtype)
        if len(self.verticals):
            out += _product(weights[..., near + len(self.far) :], values[..., self.verticals, :].to(weights.dtype))
        return out

    def scatter(self, weights: Tensor, rows: Tensor, target: Tensor) -> None:
        """Adds the transpose of `mix` to `target [b, g, Tk, D]`: what every key receives from the rows that read it."""
        near = self.last - self.low

        def received(columns: Tensor) -> Tensor:
            return columns.flatten(2, 3).transpose(-1, -2) @ rows.flatten(2, 3)

        target[..., self.low : self.last, :] += received(weights[..., :near])
        for column, _, some, keys_read in self._far_rows():
            target[..., keys_read, :] += (weights[..., some, column, None] * rows[..., some, :]).sum(2)
        if len(self.verticals):
            target[..., self.verticals, :] += received(weights[..., near + len(self.far) :])

    def _positions(self) -> Tensor:
        return torch.arange(self.first, self.last, device=self.mask.device)

    def _begun(self, mask: Tensor, keys: slice | Tensor) -> Tensor:
        if self.start is None:
            return mask
        numbers = torch.arange(keys.start, keys.stop, device=mask.device) if isinstance(keys, slice) else keys
        return (mask & (numbers >= self.start[..., None]))[:, None, None]


def _product(rows: Tensor, columns: Tensor) -> Tensor:
    """`[b, g, r, C, n] @ [b, g, n, m]` as one matrix product per key head, the query heads of a group stacked."""
    return (rows.flatten(2, 3) @ columns).unflatten(2, rows.shape[2:4])


def _near(slashes: list[int]) -> int:
    """Where dense columns end: the cheapest cut between a wider block and one more far slash."""
    costs = {0: _SLASH_IN_COLUMNS * len(slashes)}
    for below, distance in enumerate(slashes, start=1):
        costs[distance + 1] = distance + 1 + _SLASH_IN_COLUMNS * (len(slashes) - below)
    return min(costs, key=costs.__getitem__)


def _in_sorted(numbers: Tensor, values: list[int]) -> Tensor:
    return torch.isin(numbers, torch.tensor(values, dtype=numbers.dtype, device=numbers.device))


def _parts(q: Tensor, k: Tensor, slashes: Tensor, verticals: Tensor) -> Iterator[_Part]:
    """Groups batch rows and heads by equal lines, so that each group runs with shared slices."""
    batch, heads = max(slashes.shape[0], verticals.shape[0]), max(slashes.shape[1], verticals.shape[1])
    slash_rows = slashes.expand(batch, heads, -1).tolist()
    vertical_rows = verticals.expand(batch, heads, -1).tolist()
    for b in range(batch):
        same: dict[tuple[tuple[int, ...], tuple[int, ...]], list[int]] = {}
        for h in range(heads):
            lines = tuple(d for d in slash_rows[b][h] if d >= 0), tuple(j for j in vertical_rows[b][h] if 0 <= j < k.shape[2])
            same.setdefault(lines, []).append(h)
        rows = slice(None) if batch == 1 else slice(b, b + 1)
        for (slash, vertical), members in same.items():
            shared = len(members) == heads
            picked = torch.tensor(vertical, dtype=torch.int64, device=q.device)
            yield _Part(
                batch=rows,
                heads=slice(None) if shared else members,
                group=q.shape[1] // k.shape[1],
                slashes=list(slash),
                verticals=picked,
                q_len=q.shape[2],
                k_len=k.shape[2],
            )
