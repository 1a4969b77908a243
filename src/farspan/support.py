"""Supports: the set of (query, key) pairs that attention runs on, as plain validated data.

Query row `i` of `q_len` stands at position `k_len - q_len + i` (bottom-right alignment) and only ever reads keys at
positions up to its own. `distance` is query position minus key position.
"""

from __future__ import annotations

import operator
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

LARGEST = 2**31 - 1


@dataclass(frozen=True)
class Cost:
    """What attention over a support costs, counted and not measured.

    `pairs` counts (query, key) pairs over all batch rows and heads. FLOPs count a multiply-add as two and leave out the
    softmax. Bytes are the compulsory traffic: each tensor element that must be read or written moves once; keys that no
    query reads do not move.
    """

    pairs: int
    forward_flops: int
    backward_flops: int
    forward_bytes: int
    backward_bytes: int


class Lines:
    """Slashes (one distance for all queries) and verticals (one key for all queries).

    Args:
        slashes: distances >= 0. Either integers shared by all heads, or one sequence of integers per head, or an
            integer tensor `[H, n]` or `[B, H, n]` padded with -1. Order does not matter, duplicates collapse, 0 is
            the query's own key, and a distance that reaches before the first key adds nothing.
        verticals: key positions >= 0, in the same three forms. A key that a slash reads already is not read twice.

    Raises:
        TypeError: a slash or vertical is not an integer.
        ValueError: it is negative (below -1 in a tensor) or above 2**31 - 1, or the head or batch counts disagree.

    Example:
        >>> Lines([0, 1, 2], verticals=[0]).pairs(4, 4)
        10
    """

    __slots__ = ("batch", "heads", "slash_table", "slashes", "vertical_table", "verticals")

    slashes: tuple[int, ...] | tuple[tuple[int, ...], ...] | Tensor
    verticals: tuple[int, ...] | tuple[tuple[int, ...], ...] | Tensor
    slash_table: Tensor
    """int32 `[1|B, 1|H, n]`: sorted, unique, padded at the end with -1."""
    vertical_table: Tensor
    heads: int
    """Number of heads with lines of their own; 1 when all heads share them."""
    batch: int
    """Number of batch rows with lines of their own; 1 when all rows share them."""

    def __init__(self, slashes: Any, verticals: Any = ()) -> None:
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

    def mask(self, q_len: int, k_len: int) -> Tensor:
        """The pairs as booleans, causality included.

        Returns `[q_len, k_len]` where all heads share the lines, `[H, q_len, k_len]` where they differ by head and
        `[B, H, q_len, k_len]` where they differ by batch row.
        """
        _check_lengths(q_len, k_len)
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
        """Number of (query, key) pairs of one head.

        Args:
            start: int `[B, q_len]`, the first key position each query may read, or None.

        Returns an int, or an int64 tensor `[H]` / `[B, H]` where heads or batch rows differ (`[B, H]` with H = 1 for
        shared lines if `start` is given). Runs in time linear in the number of lines, or in q_len with `start`.
        """
        _check_lengths(q_len, k_len)
        if start is None:
            counts = [[_count(*lines, q_len, k_len) for lines in row] for row in self._lists()]
            if self.batch > 1:
                return torch.tensor(counts)
            return torch.tensor(counts[0]) if self.heads > 1 else counts[0][0]
        if not isinstance(start, Tensor) or start.dtype not in (torch.int32, torch.int64):
            kind = start.dtype if isinstance(start, Tensor) else type(start).__name__
            raise TypeError(f"start must be an int32 or int64 tensor, got {kind}")
        if start.ndim != 2 or start.shape[1] != q_len:
            raise ValueError(f"start must be [B, {q_len}], got {list(start.shape)}")
        if self.batch > 1 and start.shape[0] not in (1, self.batch):
            raise ValueError(f"start must have 1 or {self.batch} batch rows to fit the lines, got {start.shape[0]}")
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

    def density(self, q_len: int, k_len: int) -> float:
        """Pairs kept / causal pairs, averaged over heads and batch rows; 0 where there is no causal pair."""
        causal = _causal_pairs(q_len, k_len)
        kept = torch.as_tensor(self.pairs(q_len, k_len), dtype=torch.float64).mean().item()
        return kept / causal if causal else 0.0

    def cost(
        self,
        q_len: int,
        k_len: int,
        *,
        heads: int,
        kv_heads: int,
        head_dim: int,
        value_dim: int | None = None,
        dtype: torch.dtype = torch.float32,
        batch: int = 1,
    ) -> Cost:
        """FLOPs and compulsory bytes of attention over this support, forward and backward (scores recomputed).

        Forward is two products per pair (scores, values), backward five (scores again, the gradients of probabilities,
        values, queries and keys).
        """
        for name, value in (
            ("heads", heads),
            ("kv_heads", kv_heads),
            ("head_dim", head_dim),
            ("batch", batch),
        ):
            if value < 1:
                raise ValueError(f"{name} must be >= 1, got {value}")
        if heads % kv_heads:
            raise ValueError(f"heads must be a multiple of kv_heads, got {heads} and {kv_heads}")
        if self.heads not in (1, heads) or self.batch not in (1, batch):
            raise ValueError(
                f"heads and batch must fit the lines of {self.heads} heads and {self.batch} batch rows,"
                f" got {heads} and {batch}"
            )
        value_dim = head_dim if value_dim is None else value_dim
        if value_dim < 1:
            raise ValueError(f"value_dim must be >= 1, got {value_dim}")
        counted = torch.as_tensor(self.pairs(q_len, k_len))
        pairs = int(counted.expand(batch, heads).sum())
        rows = self._lists()
        group = heads // kv_heads
        keys = 0
        for b in range(batch):
            row = rows[b % len(rows)]
            for g in range(kv_heads):
                members = row if len(row) == 1 else row[g * group : (g + 1) * group]
                keys += _keys_read(members, q_len, k_len)
        size = dtype.itemsize
        queries = batch * heads * q_len
        # q and out (and their gradients) move once per query, k and v once per key read, lse is fp32 or wider.
        elements = (queries + keys) * (head_dim + value_dim)
        moved = size * elements + max(4, size) * queries
        return Cost(
            pairs=pairs,
            forward_flops=2 * pairs * (head_dim + value_dim),
            backward_flops=2 * pairs * (3 * head_dim + 2 * value_dim),
            forward_bytes=moved,
            backward_bytes=moved + size * elements,
        )

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
        return torch.equal(self.slash_table, other.slash_table) and torch.equal(
            self.vertical_table, other.vertical_table
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

        return f"Lines({show(self.slashes)}, verticals={show(self.verticals)})"


def _check_lengths(q_len: int, k_len: int) -> None:
    for name, value in (("q_len", q_len), ("k_len", k_len)):
        if value < 0:
            raise ValueError(f"{name} must be >= 0, got {value}")


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


def _causal_pairs(q_len: int, k_len: int) -> int:
    rows = min(q_len, k_len)
    return rows * k_len - rows * (rows - 1) // 2


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
