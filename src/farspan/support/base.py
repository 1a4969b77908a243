"""What every support can say of itself, whatever its form."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass

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


class Support(ABC):
    """The pairs of `Lines`, `Blocks` or `Tokens`, and what may be added to their scores."""

    __slots__ = ("alibi_slopes", "batch", "heads")

    heads: int
    """Number of heads with pairs of their own; 1 when all heads share them."""
    batch: int
    """Number of batch rows with pairs of their own; 1 when all rows share them."""
    alibi_slopes: Tensor | None
    """fp32 `[H]`: `-slope * distance` is added to the (scaled) score of every pair (ALiBi, arXiv 2108.12409)."""

    @abstractmethod
    def mask(self, q_len: int, k_len: int) -> Tensor:
        """The pairs as booleans, causality included.

        Returns `[q_len, k_len]` where all heads share the pairs, `[heads, q_len, k_len]` where they differ by head and
        `[batch, heads, q_len, k_len]` where they differ by batch row.
        """

    @abstractmethod
    def pairs(self, q_len: int, k_len: int, start: Tensor | None = None) -> int | Tensor:
        """Number of (query, key) pairs of one head.

        Args:
            start: int `[B, q_len]`, the first key position each query may read, or None.

        Returns an int, or an int64 tensor `[heads]` / `[B, heads]` where heads or batch rows differ (`[B, heads]`
        with heads = 1 for shared pairs if `start` is given). Never builds the mask.
        """

    @abstractmethod
    def _keys_read(self, row: int, heads: range, q_len: int, k_len: int) -> int:
        """Number of distinct keys that these of the support's own heads read in one of its batch rows."""

    def density(self, q_len: int, k_len: int) -> float:
        """Pairs kept / causal pairs, averaged over heads and batch rows; 0 where there is no causal pair."""
        rows = min(q_len, k_len)
        causal = rows * k_len - rows * (rows - 1) // 2
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
        if not self.fits(heads, kv_heads) or self.batch not in (1, batch):
            raise ValueError(
                f"heads and batch must fit the support of {self.heads} heads and {self.batch} batch rows,"
                f" got {heads} and {batch}"
            )
        value_dim = head_dim if value_dim is None else value_dim
        if value_dim < 1:
            raise ValueError(f"value_dim must be >= 1, got {value_dim}")
        counted = torch.as_tensor(self.pairs(q_len, k_len))
        pairs = int(counted.expand(self.batch, self.heads).sum()) * (batch // self.batch) * (heads // self.heads)
        keys = 0
        for row in range(self.batch):
            if self.heads > kv_heads:
                group = self.heads // kv_heads
                keys += sum(
                    self._keys_read(row, range(g * group, (g + 1) * group), q_len, k_len) for g in range(kv_heads)
                )
            else:
                own = [self._keys_read(row, range(head, head + 1), q_len, k_len) for head in range(self.heads)]
                keys += sum(own) * (kv_heads // self.heads)
        keys *= batch // self.batch
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

    def fits(self, heads: int, kv_heads: int) -> bool:
        """Whether the support can be read by `heads` query heads over `kv_heads` key heads."""
        return self.heads in (1, heads)


def check_lengths(q_len: int, k_len: int) -> None:
    """Raises ValueError for negative lengths."""
    for name, value in (("q_len", q_len), ("k_len", k_len)):
        if value < 0:
            raise ValueError(f"{name} must be >= 0, got {value}")


def check_start(start: Tensor, q_len: int, batch: int) -> None:
    """Raises TypeError or ValueError unless `start` is int `[B, q_len]` and B fits a support of `batch` rows."""
    if not isinstance(start, Tensor) or start.dtype not in (torch.int32, torch.int64):
        kind = start.dtype if isinstance(start, Tensor) else type(start).__name__
        raise TypeError(f"start must be an int32 or int64 tensor, got {kind}")
    if start.ndim != 2 or start.shape[1] != q_len:
        raise ValueError(f"start must be [B, {q_len}], got {list(start.shape)}")
    if batch > 1 and start.shape[0] not in (1, batch):
        raise ValueError(f"start must have 1 or {batch} batch rows to fit the support, got {start.shape[0]}")


def slopes_of(value: Sequence[float] | Tensor | None) -> Tensor | None:
    """`alibi_slopes` as fp32 `[H]`."""
    if value is None:
        return None
    slopes = torch.as_tensor(value)
    if slopes.dtype == torch.bool or slopes.is_complex():
        raise TypeError(f"alibi_slopes must be real numbers, got {slopes.dtype}")
    if slopes.ndim != 1 or not len(slopes):
        raise ValueError(f"alibi_slopes must be one number per head, [H], got shape {list(slopes.shape)}")
    if slopes.requires_grad:
        raise ValueError("alibi_slopes must not require a gradient: they are constants, got ones that do")
    slopes = slopes.to(torch.float32)
    if not slopes.isfinite().all():
        raise ValueError(f"alibi_slopes must be finite, got {slopes.tolist()}")
    return slopes


def same_tensor(one: Tensor | None, other: Tensor | None) -> bool:
    """Whether both are absent, or equal in shape and numbers."""
    if one is None or other is None:
        return one is other
    return torch.equal(one, other)
