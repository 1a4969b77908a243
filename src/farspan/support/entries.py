"""`Blocks` and `Tokens`: for each block of queries, a list of key blocks or of single keys.

Tokens are blocks of one key, so everything but the constructor is shared.
"""

from __future__ import annotations

import operator
from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from farspan.support.base import LARGEST, Support, check_lengths, check_start, same_tensor, slopes_of


class Blocks(Support):
    """Tiles of `block_q` queries by `block_k` keys.

    Args:
        index: int32 or int64 `[B, Hs, ceil(Tq / block_q), n]`: for every block of `block_q` query *rows* the key blocks
            it reads, in any order, padded with -1. Key block c holds the keys `c * block_k .. (c + 1) * block_k - 1`.
            B is 1 or the batch, Hs is 1, the key heads or the query heads. A block beyond the keys adds nothing, and
            causality cuts a block that begins before a query and ends after it.
        block_q: query rows per block.
        block_k: keys per block.
        bias: float of the shape of `index`, added to the (scaled) scores of all pairs of an entry; differentiable.
            Must be finite. With it, no entry may be listed twice; without, duplicates collapse.
        alibi_slopes: one number per query head, or None: see `Support.alibi_slopes`.

    Raises:
        TypeError: an argument has the wrong type.
        ValueError: a shape or a number is out of range, or an entry with a bias stands there twice.

    Example:
        >>> Blocks(torch.tensor([[[[0, -1], [0, 1]]]]), block_q=2, block_k=2).pairs(4, 4)
        10
    """

    __slots__ = ("bias", "block_k", "block_q", "index")

    index: Tensor
    """int32 `[B, Hs, blocks, n]`: sorted, unique, padded at the end with -1."""
    bias: Tensor | None
    """Of the shape of `index` and in its order; 0 where index is -1."""
    block_q: int
    block_k: int

    def __init__(
        self,
        index: Tensor,
        block_q: int,
        block_k: int,
        bias: Tensor | None = None,
        *,
        alibi_slopes: Sequence[float] | Tensor | None = None,
    ) -> None:
        self.block_q, self.block_k = _size("block_q", block_q), _size("block_k", block_k)
        self.index, self.bias = _canonical(index, bias)
        self.batch, self.heads = self.index.shape[:2]
        self.alibi_slopes = slopes_of(alibi_slopes)

    def mask(self, q_len: int, k_len: int) -> Tensor:
        self.check_rows(q_len)
        check_lengths(q_len, k_len)
        device = self.index.device
        blocks = -(-k_len // self.block_k)
        # One more column takes what lies beyond the keys, and the padding.
        tiles = torch.zeros(*self.index.shape[:3], blocks + 1, dtype=torch.bool, device=device)
        beyond = (self.index < 0) | (self.index >= blocks)
        tiles.scatter_(3, self.index.long().masked_fill(beyond, blocks), True)
        rows = torch.arange(q_len, device=device)
        keys = torch.arange(k_len, device=device)
        allowed = tiles[:, :, rows // self.block_q][..., keys // self.block_k]
        allowed &= keys <= rows[:, None] + (k_len - q_len)
        if self.batch > 1:
            return allowed
        return allowed[0] if self.heads > 1 else allowed[0, 0]

    def pairs(self, q_len: int, k_len: int, start: Tensor | None = None) -> int | Tensor:
        self.check_rows(q_len)
        check_lengths(q_len, k_len)
        offset = k_len - q_len
        entries = self.index.long()
        listed = entries >= 0
        first = entries * self.block_k
        row = torch.arange(self.index.shape[2], device=first.device)[:, None] * self.block_q
        if start is not None:
            check_start(start, q_len, self.batch)
            return self._pairs_from(start.to(first.device).long(), first, listed, q_len, offset)
        low = (row + offset).clamp_min(0)
        high = (row + self.block_q).clamp_max(q_len) + offset
        # Queries low .. high - 1 see 1, 2, .. block_k, block_k, .. keys of a block as they move on.
        seen = (self._ramp(high - first) - self._ramp(low - first)) * (listed & (high > low))
        counts = seen.sum((2, 3)).cpu()
        if self.batch > 1:
            return counts
        return counts[0] if self.heads > 1 else int(counts)

    def _ramp(self, x: Tensor) -> Tensor:
        """Sum of min(y, block_k) over y = 1 .. x."""
        short = x.clamp(0, self.block_k)
        return short * (short + 1) // 2 + (x - self.block_k).clamp_min(0) * self.block_k

    def _pairs_from(self, start: Tensor, first: Tensor, listed: Tensor, q_len: int, offset: int) -> Tensor:
        counts = torch.zeros(max(len(start), self.batch), self.heads, dtype=torch.int64, device=first.device)
        for within in range(min(self.block_q, q_len)):
            rows = torch.arange(within, q_len, self.block_q, device=first.device)
            begin, blocks = start[:, None, rows, None], slice(len(rows))
            low = torch.maximum(first[:, :, blocks], begin)
            high = torch.minimum(first[:, :, blocks] + self.block_k, (rows + offset + 1)[:, None])
            counts += ((high - low).clamp_min(0) * listed[:, :, blocks]).sum((2, 3))
        return counts.cpu()

    def _keys_read(self, row: int, heads: range, q_len: int, k_len: int) -> int:
        self.check_rows(q_len)
        index = self.index[row, heads.start : heads.stop].long()
        last = (torch.arange(index.shape[1], device=index.device) + 1) * self.block_q
        seen = (last.clamp_max(q_len) + (k_len - q_len))[:, None].expand_as(index)
        first = index * self.block_k
        some = (index >= 0) & (first < seen)
        first, stop = first[some], torch.minimum(first + self.block_k, seen)[some]
        edges = torch.zeros(k_len + 1, dtype=torch.int64, device=index.device)
        edges.index_add_(0, first, torch.ones_like(first)).index_add_(0, stop, -torch.ones_like(stop))
        return int((edges.cumsum(0) > 0).sum())

    def fits(self, heads: int, kv_heads: int) -> bool:
        return self.heads in (1, kv_heads, heads)

    def check_rows(self, q_len: int) -> None:
        """Raises ValueError unless the index was made for `q_len` query rows."""
        wanted = -(-q_len // self.block_q)
        if self.index.shape[2] != wanted:
            raise ValueError(
                f"index must list {wanted} blocks of {self.block_q} query rows for {q_len} queries,"
                f" got {self.index.shape[2]}"
            )

    def __eq__(self, other: object) -> bool:
        if type(other) is not type(self):
            return NotImplemented
        assert isinstance(other, Blocks)
        return (
            (self.block_q, self.block_k) == (other.block_q, other.block_k)
            and torch.equal(self.index, other.index)
            and same_tensor(self.bias, other.bias)
            and same_tensor(self.alibi_slopes, other.alibi_slopes)
        )

    def __hash__(self) -> int:
        return hash((self.block_q, self.block_k, *self.index.shape, *self.index.flatten().tolist()))

    def __repr__(self) -> str:
        parts = [f"tensor{list(self.index.shape)}", f"block_q={self.block_q}", f"block_k={self.block_k}"]
        return f"{type(self).__name__}({', '.join(parts + self._extras())})"

    def _extras(self) -> list[str]:
        named = (("bias", self.bias), ("alibi_slopes", self.alibi_slopes))
        return [f"{name}=tensor{list(value.shape)}" for name, value in named if value is not None]


class Tokens(Blocks):
    """Single keys, chosen for each block of queries.

    Args:
        index: int32 or int64 `[B, Hs, ceil(Tq / block_q), n]`: for every block of `block_q` query rows the positions of
            the keys it reads, as in `Blocks` with `block_k = 1`.
        block_q: query rows per block.
        bias: float of the shape of `index`, as in `Blocks`.
        alibi_slopes: as in `Blocks`.

    Raises:
        TypeError, ValueError: as in `Blocks`.

    Example:
        >>> Tokens(torch.tensor([[[[0, -1], [0, 1]]]])).pairs(2, 2)
        3
    """

    __slots__ = ()

    def __init__(
        self,
        index: Tensor,
        block_q: int = 1,
        bias: Tensor | None = None,
        *,
        alibi_slopes: Sequence[float] | Tensor | None = None,
    ) -> None:
        super().__init__(index, block_q, 1, bias, alibi_slopes=alibi_slopes)

    def __repr__(self) -> str:
        parts = [f"tensor{list(self.index.shape)}", f"block_q={self.block_q}"]
        return f"Tokens({', '.join(parts + self._extras())})"


def _size(name: str, value: Any) -> int:
    if isinstance(value, bool):
        raise TypeError(f"{name} must be an integer, got the boolean {value}")
    try:
        number = operator.index(value)
    except TypeError:
        raise TypeError(f"{name} must be an integer, got {value!r} of type {type(value).__name__}") from None
    if not 1 <= number <= LARGEST:
        raise ValueError(f"{name} must lie in 1..2**31-1, got {number}")
    return number


def _canonical(index: Any, bias: Any) -> tuple[Tensor, Tensor | None]:
    """The index sorted, unique and padded at the end, and the bias in that order."""
    if not isinstance(index, Tensor) or index.dtype not in (torch.int32, torch.int64):
        kind = index.dtype if isinstance(index, Tensor) else type(index).__name__
        raise TypeError(f"index must be an int32 or int64 tensor, got {kind}")
    if index.ndim != 4 or 0 in index.shape[:2]:
        raise ValueError(f"index must be [B, Hs, blocks, n] with at least one head, got {list(index.shape)}")
    if index.numel() and not -1 <= int(index.min()) <= int(index.max()) <= LARGEST:
        raise ValueError(f"index must lie in -1..2**31-1, got {int(index.min())}..{int(index.max())}")
    last = torch.iinfo(torch.int64).max
    ordered, order = index.long().masked_fill(index < 0, last).sort(-1)
    repeated = torch.zeros_like(ordered, dtype=torch.bool)
    repeated[..., 1:] = (ordered[..., 1:] == ordered[..., :-1]) & (ordered[..., 1:] < last)
    if bias is not None:
        if not isinstance(bias, Tensor) or not bias.is_floating_point():
            kind = bias.dtype if isinstance(bias, Tensor) else type(bias).__name__
            raise TypeError(f"bias must be a floating point tensor, got {kind}")
        if bias.shape != index.shape or bias.device != index.device:
            raise ValueError(
                f"bias must have the shape and device of index, {list(index.shape)} on {index.device},"
                f" got {list(bias.shape)} on {bias.device}"
            )
        if repeated.any():
            twice = int(ordered[repeated][0])
            raise ValueError(f"index must list an entry once where there is a bias, got {twice} twice in one row")
        bias = bias.gather(-1, order)
    elif repeated.any():
        ordered = ordered.masked_fill(repeated, last).sort(-1).values
    width = int((ordered < last).sum(-1).max()) if ordered.numel() else 0
    ordered = ordered[..., :width]
    padding = ordered == last
    if bias is not None:
        bias = bias[..., :width].masked_fill(padding, 0.0)
    return ordered.masked_fill(padding, -1).to(torch.int32), bias
