"""What the attention tests measure with: a mask in one line, an oracle, and the probes of cases.md."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any, NamedTuple

import pytest
import torch
from torch import Tensor

from farspan import Blocks, Lines, Tokens, _cpu, attention, patterns
from farspan.support import Support

core, why_no_core = _cpu.load_core()
needs_core = pytest.mark.skipif(core is None, reason=str(why_no_core))

# Every shared test runs over these: `backend` is a name, and "cpu" is skipped with the reason where it cannot run.
FAST_BACKENDS = ("torch", pytest.param("cpu", marks=needs_core))
BACKENDS = ("reference", *FAST_BACKENDS)
backends = pytest.mark.parametrize("backend", BACKENDS)
fast_backends = pytest.mark.parametrize("backend", FAST_BACKENDS)

# Every shared test runs over this list: a new pattern is tested by one more line.
PATTERNS: dict[str, Lines] = {
    "self": patterns.sliding_window(1),
    "window": patterns.sliding_window(5),
    "fibonacci": patterns.fibonacci(window=4, alpha=0.6),
    "powers": patterns.powers(window=2, alpha=1.5),
    "far slashes without self": Lines([7, 40, 100]),
    "verticals": Lines([], verticals=[0, 3, 60]),
    "window and sinks": Lines(range(6), verticals=[0, 1, 4]),
    "slashes and verticals": Lines([0, 1, 2, 30, 110], verticals=[0, 33, 40]),
}


def entries(
    q_len: int, k_len: int, heads: int, block_q: int, block_k: int, *, batch: int = 1, empty: bool = False
) -> Tensor:
    """A random index `[batch, heads, blocks, 5]` with padding, shuffled: the block of the last query that stands at an
    end, the first one, others before and behind it. With `empty` every third block of queries reads nothing."""
    generator = torch.Generator().manual_seed(q_len + k_len)
    blocks = -(-q_len // block_q)
    last = (torch.arange(1, blocks + 1) * block_q + k_len - q_len - 1).clamp_min(0)[:, None] // block_k
    index = (torch.rand(batch, heads, blocks, 5, generator=generator) * (last + 2)).long()
    index[..., 1:2], index[..., 3] = last, 0
    index[..., 4] = -1
    if empty:
        index[:, :, ::3] = -1
    return index


SLOPES = [0.5, 0.0, 0.03, -0.2]


def biased(index: Tensor) -> tuple[Tensor, Tensor]:
    """`index` without duplicates, and a random bias."""
    index = Blocks(index, 1, 1).index
    return index, torch.randn(index.shape, generator=torch.Generator().manual_seed(2))


# Supports for four query heads over two key heads, made for the lengths of a call; the cpu backend takes none of them.
MADE: dict[str, Callable[[int, int], Support]] = {
    "blocks": lambda q, k: Blocks(entries(q, k, 1, 16, 16), 16, 16),
    "blocks per key head": lambda q, k: Blocks(entries(q, k, 2, 8, 32), 8, 32),
    "blocks per head": lambda q, k: Blocks(entries(q, k, 4, 5, 3), 5, 3),
    "blocks per row": lambda q, k: Blocks(entries(q, k, 2, 16, 4, batch=2), 16, 4),
    "blocks for each query": lambda q, k: Blocks(entries(q, k, 1, 1, 16), 1, 16),
    "one block of queries": lambda q, k: Blocks(entries(q, k, 1, 2000, 64), 2000, 64),
    "empty blocks": lambda q, k: Blocks(entries(q, k, 4, 4, 4, empty=True), 4, 4),
    "no entries": lambda q, k: Blocks(torch.full((1, 1, -(-q // 4), 0), -1), 4, 4),
    "tokens": lambda q, k: Tokens(entries(q, k, 1, 1, 1)),
    "tokens per head and row": lambda q, k: Tokens(entries(q, k, 4, 3, 1, batch=2), 3),
    "blocks with bias": lambda q, k: Blocks(*with_sizes(biased(entries(q, k, 1, 8, 8)), 8, 8)),
    "blocks with bias per head and slopes": lambda q, k: Blocks(
        *with_sizes(biased(entries(q, k, 4, 4, 8, batch=2)), 4, 8), alibi_slopes=SLOPES
    ),
    "tokens with bias per key head": lambda q, k: Tokens(*with_sizes(biased(entries(q, k, 2, 2, 1)), 2)),
    "tokens with slopes": lambda q, k: Tokens(entries(q, k, 1, 1, 1), alibi_slopes=SLOPES),
    "lines with slopes": lambda q, k: Lines([0, 1, 2, 30, 110], verticals=[0, 33, 40], alibi_slopes=SLOPES),
    "lines per head with slopes": lambda q, k: Lines([[0, 1], [0, 50], [3], [0, 1]], [0, 60], alibi_slopes=SLOPES),
}


def with_sizes(pair: tuple[Tensor, Tensor], *sizes: int) -> tuple[Any, ...]:
    """(index, sizes, bias), as the constructors want them."""
    return pair[0], *sizes, pair[1]


def widest(backend: str | None) -> torch.dtype:
    """The widest dtype that a backend takes."""
    return torch.float32 if backend == "cpu" else torch.float64


# How far two ways of computing the same may be apart, in units of the last place (eps of the dtype) of the largest
# number. A score is a sum of D products, a result one of up to n weighted rows. Roundings of random sign add up to
# about sqrt(D + n) of them, which is 36 for the largest sums here (D = 256, n = 1000).
ROUNDINGS = 64


def tolerance(dtype: torch.dtype) -> float:
    """`ROUNDINGS` for numbers around 1: 1.4e-14 in fp64, 7.6e-6 in fp32."""
    return ROUNDINGS * torch.finfo(dtype).eps


def allowed(position: int, slashes: Iterable[int], verticals: Iterable[int] = ()) -> set[int]:
    """The keys that a query at `position` reads."""
    return {position - d for d in slashes if d <= position} | {j for j in verticals if j <= position}


def mask_by_definition(slashes: Iterable[int], verticals: Iterable[int], q_len: int, k_len: int) -> Tensor:
    """bool `[q_len, k_len]`, pair by pair."""
    rows = [allowed(k_len - q_len + row, slashes, verticals) for row in range(q_len)]
    return torch.tensor([[key in row for key in range(k_len)] for row in rows], dtype=torch.bool).reshape(q_len, k_len)


def start_of(*documents: int) -> Tensor:
    """int64 `[1, T]`: the first position of the document that each token of the packed `documents` belongs to."""
    return torch.tensor([sum(documents[:n]) for n, length in enumerate(documents) for _ in range(length)])[None]


def random_qkv(
    *,
    batch: int = 1,
    heads: int = 2,
    kv_heads: int = 1,
    q_len: int,
    k_len: int | None = None,
    head_dim: int = 8,
    value_dim: int | None = None,
    dtype: torch.dtype = torch.float64,
    seed: int = 0,
) -> tuple[Tensor, Tensor, Tensor]:
    """q `[B, H, Tq, D]`, k `[B, Hkv, Tk, D]`, v `[B, Hkv, Tk, Dv]`, the same numbers in fp32 and in fp64."""
    generator = torch.Generator().manual_seed(seed)
    k_len = q_len if k_len is None else k_len
    shapes = (
        (batch, heads, q_len, head_dim),
        (batch, kv_heads, k_len, head_dim),
        (batch, kv_heads, k_len, head_dim if value_dim is None else value_dim),
    )
    q, k, v = (torch.randn(shape, generator=generator, dtype=torch.float64).float().to(dtype) for shape in shapes)
    return q, k, v


def oracle(q: Tensor, k: Tensor, v: Tensor, mask: Tensor, scale: float | None = None) -> tuple[Tensor, Tensor]:
    """Attention in fp64 with no trick at all: each query gathers its keys and takes their softmax.

    A query without keys needs no case of its own: an empty sum is 0, and its logarithm -inf.
    """
    q, k, v = q.double(), k.double(), v.double()
    scale = q.shape[-1] ** -0.5 if scale is None else scale
    group = q.shape[1] // k.shape[1]
    out, lse = [], []
    for b in range(q.shape[0]):
        for h in range(q.shape[1]):
            for row, keys in zip(q[b, h], mask.expand(q.shape[0], q.shape[1], -1, -1)[b, h], strict=True):
                scores = k[b, h // group, keys] @ row * scale
                out.append(scores.softmax(0) @ v[b, h // group, keys])
                lse.append(scores.logsumexp(0))
    return torch.stack(out).reshape(*q.shape[:3], v.shape[3]), torch.stack(lse).reshape(q.shape[:3])


class Results(NamedTuple):
    """Outputs of one call, and the gradients that fixed random gradients of both outputs give."""

    out: Tensor
    lse: Tensor
    grad_q: Tensor
    grad_k: Tensor
    grad_v: Tensor


def differentiate(function: Any, q: Tensor, k: Tensor, v: Tensor, narrow: torch.dtype = torch.float32) -> Results:
    """Runs `function(q, k, v) -> (out, lse)` forward and backward; `q, k, v` keep their strides.

    The random gradient of `out` is rounded to `narrow`, so that a run in a wider dtype can be given the same numbers.
    """
    leaves = [x.detach().requires_grad_() for x in (q, k, v)]
    out, lse = function(*leaves)
    generator = torch.Generator().manual_seed(1)
    grad_out = torch.randn(out.shape, generator=generator).to(narrow).to(out.dtype)
    grad_lse = torch.randn(lse.shape, generator=generator).to(lse.dtype)
    grads = torch.autograd.grad((out, lse), leaves, (grad_out, grad_lse))
    return Results(out.detach(), lse.detach(), *grads)


def run(backend: str | None, q: Tensor, k: Tensor, v: Tensor, support: Support, **options: Any) -> Results:
    """`attention` forward and backward on one backend, which gets fp64 inputs in the widest dtype that it takes."""
    if q.dtype == torch.float64:
        q, k, v = (x.to(widest(backend)) for x in (q, k, v))
    return differentiate(
        lambda q, k, v: attention(q, k, v, support, return_lse=True, backend=backend, **options), q, k, v
    )


def assert_same(actual: Results, expected: Results, roundings: float = ROUNDINGS) -> None:
    """Every field within so many units in the last place of its largest number, or of 1 where that is larger.

    The unit is that of `actual`; `expected` may be wider.
    """
    for name, a, b in zip(Results._fields, actual, expected, strict=True):
        finite = b[b.isfinite()].abs()
        unit = torch.finfo(a.dtype).eps * max(1.0, finite.max().item()) if finite.numel() else 0.0
        torch.testing.assert_close(
            a.to(b.dtype), b, atol=roundings * unit, rtol=0, msg=lambda text, name=name: f"{name}: {text}"
        )


def readout(
    support: Support,
    q_len: int,
    k_len: int,
    *,
    heads: int = 1,
    batch: int = 1,
    backend: str | None = None,
    **options: Any,
) -> Tensor:
    """READOUT of cases.md: the weights `[batch, heads, q_len, k_len]` that attention applies to equal scores."""
    q = torch.zeros(batch, heads, q_len, 1, dtype=widest(backend))
    k = torch.zeros(batch, 1, k_len, 1, dtype=widest(backend))
    v = torch.eye(k_len, dtype=widest(backend)).expand(batch, 1, k_len, k_len)
    return attention(q, k, v, support, backend=backend, **options)


def assert_reads(weights: Tensor, mask: Tensor) -> None:
    """The READOUT `weights` are 1 / (number of keys) on the keys of `mask` and exactly 0 elsewhere."""
    assert torch.equal(weights != 0, mask.expand_as(weights))
    expected = mask.to(weights.dtype) / mask.sum(-1, keepdim=True).clamp_min(1)
    torch.testing.assert_close(weights, expected.expand_as(weights), atol=tolerance(weights.dtype), rtol=0)
