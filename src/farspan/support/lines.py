"""`Lines`: slashes and verticals, the support of every pattern that depends on distances alone."""

from __future__ import annotations

import operator
from collections.abc import Iterable, Sequence
from typing import Any

import torch
from torch import Tensor

from farspan.support.base import LARGEST, Support, check_lengths, check_start, same_tensor, slopes_of


class Lines(Support):
    """Slashes (one distance for all queries) and verticals (one key for all queries).

    Args:
        slashes: distances >= 0. Either integers shared by all heads, or one sequence of integers per head, or an
            integer tensor `[H, n]` or `[B, H, n]` padded with -1. Order does not matter, duplicates collapse, 0 is
            the query's own key, and a distance that reaches before the first key adds nothing.
        verticals: key positions >= 0, in the same three forms. A key that a slash reads already is not read twice.
        alibi_slopes: one number per query head, or None: see `Support.alibi_slopes`.

    Raises:
        TypeError: a slash or vertical is not an integer.
        ValueError: it is negative (below -1 in a tensor) or above 2**31 - 1, or the head or batch counts disagree.

    Example:
        >>> Lines([0, 1, 2], verticals=[0]).pairs(4, 4)
        10
    """

    __slots__ = ("slash_table", "slashes", "vertical_table", "verticals")

    slashes: tuple[int, ...] | tuple[tuple[int, ...], ...] | Tensor
    verticals: tuple[int, ...] | tuple[tuple[int, ...], ...] | Tensor
    slash_table: Tensor
    """int32 `[1|B, 1|H, n]`: sorted, unique, padded at the end with -1."""
    vertical_table: Tensor

    def __init__(
        self, slashes: Any, verticals: Any = (), *, alibi_slopes: Sequence[float] | Tensor | None = None
    ) -> None:
        self.slashes, self.slash_table = _canonical(slashes, "slashes")
        self.verticals, self.vertical_table = _canonical(verticals, "verticals")
        for axis, name in ((0, "batch rows"), (1, "heads")):
            counts = {self.slash_table.shape[axis], self.vertical_table.shape[axis]} - {1}
            if len(counts) > 1:
                raise ValueError(
                    f"slashes and verticals must agree on the number of {name}, got "
                    f"{self.slash_table.shape[axis]} and {self.vertical_table.shape[axis]}"
                )
        self.batch, self.heads = (max(self.slash_table.shape[axis], self.vertical_table.shape[axis]) for axis in (0, 1))
        if self.slash_table.device != self.vertical_table.device:
            # A static part given beside a content-selected one follows it to its device.
            device = next(t.device for t in (self.slash_table, self.vertical_table) if t.device.type != "cpu")
            self.slash_table = self.slash_table.to(device)
            self.vertical_table = self.vertical_table.to(device)
        self.alibi_slopes = slopes_of(alibi_slopes)

    def mask(self, q_len: int, k_len: int) -> Tensor:
        check_lengths(q_len, k_len)
        device = self.slash_table.device
        position = torch.arange(k_len - q_len, k_len, device=device)[:, None]
        key = torch.arange(k_len, device=device)[None, :]
        distance = position - key
        # Position tables instead of a comparison per line: [.., k_len] booleans looked up by distance and by key.
        by_distance = _membership(self.slash_table, k_len)
        by_key = _membership(self.vertical_table, k_len)
        allowed = (by_distance[..., distance.clamp_min(0)] | by_key[..., None, :]) & (distance >= 0)
        if self.batch > 1:
            return allowed.expand(self.batch, self.heads, q_len, k_len)
        if self.heads > 1:
            return allowed[0].expand(self.heads, q_len, k_len)
        return allowed[0, 0]

    def pairs(self, q_len: int, k_len: int, start: Tensor | None = None) -> int | Tensor:
        check_lengths(q_len, k_len)
        if start is None:
            counts = [[_count(*lines, q_len, k_len) for lines in row] for row in self._lists()]
            if self.batch > 1:
                return torch.tensor(counts)
            return torch.tensor(counts[0]) if self.heads > 1 else counts[0][0]
        check_start(start, q_len, self.batch)
        position = torch.arange(k_len - q_len, k_len, device=start.device)
        rows = self._lists()
        start = start.expand(max(start.shape[0], self.batch), -1)
        out = torch.zeros(start.shape[0], self.heads, dtype=torch.int64)
        for b, row_start in enumerate(start.long()):
            first = row_start.clamp_min(0)
            for h, (slashes, verticals) in enumerate(rows[b % len(rows)]):
                slash = torch.tensor(slashes, dtype=torch.int64, device=start.device)
                vertical = torch.tensor(verticals, dtype=torch.int64, device=start.device)
                out[b, h] = torch.searchsorted(slash, position - first, right=True).sum()
                distance = position[:, None] - vertical
                extra = (distance >= 0) & (vertical >= first[:, None]) & ~torch.isin(distance, slash)
                out[b, h] += extra.sum()
        return out

    def _keys_read(self, row: int, heads: range, q_len: int, k_len: int) -> int:
        lines = self._lists()[row]
        return _keys_read([lines[head] for head in heads], q_len, k_len)

    def _lists(self) -> list[list[tuple[list[int], list[int]]]]:
        """`[batch][heads]` of (slashes, verticals) as Python lists without padding."""
        slashes = self.slash_table.expand(self.batch, self.heads, -1).tolist()
        verticals = self.vertical_table.expand(self.batch, self.heads, -1).tolist()
        return [
            [([d for d in s if d >= 0], [j for j in v if j >= 0]) for s, v in zip(s_row, v_row, strict=True)]
            for s_row, v_row in zip(slashes, verticals, strict=True)
        ]

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, Lines):
            return NotImplemented
        return (
            torch.equal(self.slash_table, other.slash_table)
            and torch.equal(self.vertical_table, other.vertical_table)
            and same_tensor(self.alibi_slopes, other.alibi_slopes)
        )

    def __hash__(self) -> int:
        return hash(
            tuple((*table.shape, *table.flatten().tolist()) for table in (self.slash_table, self.vertical_table))
        )

    def __repr__(self) -> str:
        def show(value: Any) -> str:
            if isinstance(value, Tensor):
                return f"tensor{list(value.shape)}"
            return repr(list(value)) if len(value) <= 24 else f"[{value[0]}, {value[1]}, ... {value[-1]}: {len(value)}]"

        slopes = "" if self.alibi_slopes is None else f", alibi_slopes=tensor{list(self.alibi_slopes.shape)}"
        return f"Lines({show(self.slashes)}, verticals={show(self.verticals)}{slopes})"


def _integer(value: Any, name: str) -> int:
    if isinstance(value, bool):
        raise TypeError(f"{name} must be integers, got the boolean {value}")
    try:
        number = operator.index(value)
    except TypeError:
        raise TypeError(f"{name} must be integers, got {value!r} of type {type(value).__name__}") from None
    if not 0 <= number <= LARGEST:
        raise ValueError(f"{name} must lie in 0..2**31-1, got {number}")
    return number


def _canonical(value: Any, name: str) -> tuple[Any, Tensor]:
    """Returns the value as given but sorted and unique, and its int32 table `[1|B, 1|H, n]`."""
    if isinstance(value, Tensor) and value.ndim > 1:
        table = _tensor_table(value, name)
        return table.reshape(table.shape[0 if value.ndim == 3 else 1 :]), table
    if isinstance(value, str) or not isinstance(value, Iterable) or getattr(value, "ndim", 1) == 0:
        raise TypeError(f"{name} must be a sequence of integers, one sequence per head, or a tensor, got {value!r}")
    items = value.tolist() if hasattr(value, "tolist") else list(value)
    if any(isinstance(item, Sequence | Tensor) or hasattr(item, "__len__") for item in items):
        per_head = tuple(_line(item, name) for item in items)
        if len(per_head) > 1:
            width = max(len(line) for line in per_head)
            rows = [list(line) + [-1] * (width - len(line)) for line in per_head]
            return per_head, torch.tensor(rows, dtype=torch.int32, device="cpu").reshape(1, len(per_head), width)
        items = list(per_head[0])
    shared = _line(items, name)
    # Explicitly on the CPU: transformers builds models under the meta device, and a table must hold its numbers.
    return shared, torch.tensor(shared, dtype=torch.int32, device="cpu").reshape(1, 1, len(shared))


def _line(items: Any, name: str) -> tuple[int, ...]:
    if not isinstance(items, Iterable):
        raise TypeError(
            f"{name} must be either all integers or all sequences (one per head), got {items!r} among sequences"
        )
    items = items.tolist() if hasattr(items, "tolist") else items
    return tuple(sorted({_integer(item, name) for item in items}))


def _tensor_table(value: Tensor, name: str) -> Tensor:
    if value.ndim not in (2, 3):
        raise ValueError(f"{name} as a tensor must be [H, n] or [B, H, n], got {list(value.shape)}")
    if value.dtype.is_floating_point or value.dtype.is_complex or value.dtype == torch.bool:
        raise TypeError(f"{name} as a tensor must hold integers, got {value.dtype}")
    if 0 in value.shape[:-1]:
        raise ValueError(f"{name} as a tensor must have at least one head, got {list(value.shape)}")
    if value.numel() and not -1 <= int(value.min()) <= int(value.max()) <= LARGEST:
        raise ValueError(f"{name} as a tensor must lie in -1..2**31-1, got {int(value.min())}..{int(value.max())}")
    # Padding sorts last as the largest number, so do the duplicates once they are marked.
    last = torch.iinfo(torch.int64).max
    ordered = value.long().masked_fill(value < 0, last).sort(-1).values
    repeated = torch.zeros_like(ordered, dtype=torch.bool)
    repeated[..., 1:] = ordered[..., 1:] == ordered[..., :-1]
    ordered = ordered.masked_fill(repeated, last).sort(-1).values
    width = int((ordered < last).sum(-1).max())
    table = ordered[..., :width].masked_fill(ordered[..., :width] == last, -1).to(torch.int32)
    return table if value.ndim == 3 else table[None]


def _membership(table: Tensor, size: int) -> Tensor:
    """bool `[.., .., size]`: which numbers below `size` the table lists."""
    member = torch.zeros(*table.shape[:2], size + 1, dtype=torch.bool, device=table.device)
    inside = (table >= 0) & (table < size)
    member.scatter_(2, table.long().masked_fill(~inside, size), True)
    return member[..., :size]


def _count(slashes: Sequence[int], verticals: Sequence[int], q_len: int, k_len: int) -> int:
    first = max(k_len - q_len, 0)
    total = sum(max(0, k_len - max(d, first)) for d in slashes)
    total += sum(max(0, k_len - max(j, first)) for j in verticals)
    both = sum(1 for j in verticals for d in slashes if first <= j + d < k_len)
    return total - both


def _keys_read(heads: Sequence[tuple[Sequence[int], Sequence[int]]], q_len: int, k_len: int) -> int:
    """Number of distinct keys that the queries of these heads read."""
    first = max(k_len - q_len, 0)
    spans = [(max(first - d, 0), k_len - d) for slashes, _ in heads for d in slashes if d < k_len]
    spans += [(j, j + 1) for _, verticals in heads for j in verticals if j < k_len and q_len > 0]
    total, end = 0, 0
    for low, high in sorted(spans):
        low = max(low, end)
        if high > low and q_len > 0:
            total += high - low
            end = high
    return total
