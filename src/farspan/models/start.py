"""What transformers knows about padding and packing, as `start`: the first key each query may read."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor
from transformers.masking_utils import causal_mask_function

_HALVINGS = 31


def start_from_mask(
    *,
    batch_size: int,
    q_length: int,
    kv_length: int,
    q_offset: int | Tensor = 0,
    kv_offset: int = 0,
    mask_function: Callable[..., Any] = causal_mask_function,
    attention_mask: Tensor | None = None,
    use_vmap: bool = False,
    device: torch.device | str = "cpu",
    **_: Any,
) -> Tensor | None:
    """A mask function for `AttentionMaskInterface` that returns int `[B, Tq]`, or None where nothing is hidden.

    Padding on the left hides keys, rows that are padding themselves read nothing, and packed documents (position ids
    that restart) read their own document only.

    Raises:
        ValueError: the mask cannot be expressed by one number per query: padding between real tokens, a mask function
            of the caller's own, or a cache with room beyond the last query (static caches).
    """
    last = int(q_offset) + q_length
    if kv_offset or kv_length != last:
        raise ValueError(
            f"the cache must end at the last query (position {last}), got {kv_length} keys from position {kv_offset}:"
            " use the dynamic cache"
        )
    return first_keys(batch_size, q_length, last, mask_function, attention_mask, use_vmap, device)


def first_keys(
    batch_size: int,
    q_length: int,
    last: int,
    mask_function: Callable[..., Any],
    attention_mask: Tensor | None,
    use_vmap: bool,
    device: torch.device | str,
) -> Tensor | None:
    """`start`, int `[B, Tq]`, of the last `q_length` of `last` tokens, or None where nothing is hidden.

    Raises:
        ValueError: the mask cannot be expressed by one number per query.
    """
    position = torch.arange(last - q_length, last, device=device)
    start = None
    if mask_function is not causal_mask_function:
        if use_vmap:
            raise ValueError("a mask function of the caller's own cannot be expressed as the first key of each query")
        start = _first_allowed(mask_function, position, batch_size)
    if attention_mask is not None and (attention_mask.ndim != 2 or attention_mask.shape[1] != last):
        raise ValueError(f"attention_mask must be [B, {last}], all keys, got {list(attention_mask.shape)}")
    if attention_mask is None:
        return start
    real = attention_mask.bool()
    if not torch.compiler.is_compiling() and real.all():
        return start
    return _first_real(real, position, start)


def check_inputs(
    attention_mask: Tensor | None, position_ids: Tensor | None, cache: Any, use_cache: bool | None
) -> bool | None:
    """Refuses masks and packed documents that transformers would misread without a word.

    Returns `use_cache`, False where it was left out beside packed documents, which keep no cache.
    """
    if attention_mask is not None:
        check_padding(attention_mask)
    if position_ids is not None and position_ids.shape[-1] > 1:
        unseen = cache is not None or attention_mask is not None or use_cache
        if unseen or (use_cache is None and torch.compiler.is_compiling()):
            check_positions(position_ids, attention_mask)
        elif use_cache is None and packed(position_ids):
            return False
    return use_cache


def check_padding(attention_mask: Tensor) -> None:
    """Refuses additive masks, which transformers would read as booleans: their 0 hides nothing, and means padding here.

    Raises:
        ValueError: a float mask `[B, Tk]` holds other numbers than 0 and 1.
    """
    if attention_mask.ndim == 2 and attention_mask.is_floating_point():
        insist(
            ((attention_mask == 0) | (attention_mask == 1)).all(),
            "attention_mask must be 1 for real tokens and 0 for padding, got other numbers (of an additive mask?)",
        )


def check_positions(position_ids: Tensor, attention_mask: Tensor | None) -> None:
    """Refuses packed documents where transformers does not look for them: beside a cache or a mask.

    Raises:
        ValueError: `position_ids [B or 1, Tq]` are those of packed documents.
    """
    insist(
        ~packed(position_ids, attention_mask),
        "position_ids must rise one by one over the real tokens beside a cache or an attention_mask, got those of"
        " packed documents: leave out cache, use_cache and attention_mask",
    )


def packed(position_ids: Tensor, attention_mask: Tensor | None = None) -> Tensor:
    """bool scalar: positions that do not rise one by one over the real tokens, where transformers begins a document."""
    breaks = position_ids.diff() != 1
    # A mask of any other shape is refused when it becomes `start`.
    if attention_mask is not None and attention_mask.ndim == 2 and attention_mask.shape[1] > breaks.shape[1]:
        real = attention_mask[:, -position_ids.shape[1] :].bool()
        breaks = breaks & real[:, 1:] & real[:, :-1]
    return breaks.any()


def insist(condition: Tensor, message: str) -> None:
    """A ValueError unless the bool scalar holds; in a compiled graph, which cannot branch on it, an assertion."""
    if torch.compiler.is_compiling():
        torch._assert_async(condition, message)
    elif not condition:
        raise ValueError(message)


def _first_real(real: Tensor, position: Tensor, start: Tensor | None) -> Tensor:
    """First real key of each row, beyond the row itself where it is padding. `real` is bool `[B, Tk]`."""
    # Real tokens must be one run: at most one place where a real token follows padding or begins the row.
    begins = real & ~torch.nn.functional.pad(real, (1, 0))[:, :-1]
    insist(
        (begins.sum(1) <= 1).all(),
        "attention_mask must hide keys before or after the real tokens only, got a gap between them",
    )
    first = real.int().argmax(1, keepdim=True)
    hidden = ~real[:, position]
    padded = torch.where(hidden, position + 1, first)
    return padded if start is None else torch.maximum(padded, start)


def _first_allowed(mask_function: Callable[..., Any], position: Tensor, batch: int) -> Tensor:
    """First key of each query by bisection, for masks whose allowed keys run up to the query without a gap."""
    row = torch.arange(batch, device=position.device)[:, None]
    head = torch.zeros_like(row)
    low = torch.zeros(batch, len(position), dtype=torch.int64, device=position.device)
    high = position.expand_as(low).clone()
    # Halvings enough for any length; asking whether all are done would read values back and break a graph.
    for _ in range(_HALVINGS):
        middle = (low + high) // 2
        allowed = mask_function(row, head, position, middle)
        low, high = torch.where(allowed, low, middle + 1), torch.where(allowed, middle, high)
    return low
