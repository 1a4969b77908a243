"""What the plug-in keeps on an attention module, and the two functions that transformers calls for it."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import torch
from torch import Tensor
from transformers import AttentionInterface
from transformers.masking_utils import AttentionMaskInterface, causal_mask_function

from farspan.attention import attention, dense_attention
from farspan.models.accounting import Tally
from farspan.models.start import check_inputs, first_keys
from farspan.models.static_rule import StaticRule, check_start
from farspan.selectors import Selector
from farspan.support import Lines, Support

NAME = "farspan_apply"
STATE = "_farspan"
"""The attribute that holds a `Layer` on an attention module, and the patch on the decoder."""
PHASES = ("prefill", "decode")
DENSE = StaticRule({"pattern": "dense"})
CHANGES_SCORES = ("softcap", "s_aux", "position_bias")
"""Arguments of transformers' attention functions that no support expresses."""

Rule = StaticRule | Lines | Selector


class Layer:
    """One attention module: a rule for each phase, and what was read. A layer that slides keeps its own window."""

    def __init__(self, index: int, heads: int, window: int | None) -> None:
        self.index = index
        self.window = None if window is None else Lines(range(window))
        self.rules: dict[str, Rule | None] = dict.fromkeys(PHASES)
        self.tallies = {phase: Tally(heads) for phase in PHASES}

    def put(self, phase: str, rule: Rule | None) -> None:
        """Another rule from here on; None for dense."""
        self.settle(phase)
        self.rules[phase] = rule

    def settle(self, phase: str) -> Tally:
        """The tally of one phase with nothing waiting."""
        rule = self.rules[phase]
        self.tallies[phase].settle(rule if isinstance(rule, StaticRule | Lines) else DENSE)
        return self.tallies[phase]

    def attend(self, q: Tensor, k: Tensor, v: Tensor, start: Tensor | None, scale: float | None) -> Tensor:
        """`q [B, H, Tq, D]`, `k`, `v [B, Hkv, Tk, D]`, `start` int `[B, Tq]` or None -> `[B, H, Tq, D]`."""
        if self.window is not None:
            return attention(q, k, v, self.window, scale=scale, start=start)
        (batch, _, q_len, head_dim), k_len = q.shape, k.shape[2]
        phase = "decode" if q_len == 1 and k_len > 1 else "prefill"
        rule = self.rules[phase] or DENSE
        support: Support | None
        if isinstance(rule, StaticRule):
            support = rule.support(q_len, k_len)
            if support is not None:
                rule.check_cache(self.index, k_len - q_len, k_len)
                check_start(support, rule.name, self.index, start, k_len)
        elif isinstance(rule, Lines):
            support = rule
            check_start(support, "Lines", self.index, start, k_len)
        else:
            support = rule.select(q, k, scale=head_dim**-0.5 if scale is None else scale, start=start)
            self._check(support)
        tally = self.tallies[phase]
        if torch.compiler.is_compiling():
            # A graph that counted would be compiled again for every length.
            tally.compiled = True
        elif start is None and isinstance(rule, StaticRule | Lines):
            tally.record(rule, q_len, k_len, batch)
        else:
            tally.add(support, q_len, k_len, batch, start)
        if support is None:
            return dense_attention(q, k, v, scale=scale, start=start)
        return attention(q, k, v, support, scale=scale, start=start)

    def _check(self, support: Any) -> None:
        if not isinstance(support, Support):
            raise TypeError(
                f"select of layer {self.index} must return Lines, Blocks or Tokens, got {type(support).__name__}"
            )
        if support.alibi_slopes is not None:
            raise ValueError(
                f"select of layer {self.index} must return a support without alibi_slopes, got some:"
                " the model has its own positions"
            )


def _attention(
    module: Any,
    query: Tensor,
    key: Tensor,
    value: Tensor,
    attention_mask: Tensor | None,
    scaling: float | None = None,
    dropout: float = 0.0,
    output_attentions: bool = False,
    **more: Any,
) -> tuple[Tensor, None]:
    """`query [B, H, Tq, D]`, `key`, `value [B, Hkv, Tk, D]` -> `[B, Tq, H, D]`; the mask is that of `_mask`."""
    layer = getattr(module, STATE, None)
    if layer is None:
        raise ValueError(f"attn_implementation {NAME!r} must be set by farspan.apply, got a model without its rules")
    if dropout:
        raise ValueError(f"attention_dropout must be 0 in training, got {dropout}")
    if output_attentions or module.config.output_attentions:
        raise ValueError("output_attentions must be False: the attention weights are never stored")
    for name in CHANGES_SCORES:
        if more.get(name) is not None:
            raise ValueError(f"{name} must be None: a support cannot express it, got {type(more[name]).__name__}")
    start, used = _unpacked(attention_mask, query.shape[2])
    if used is not None:
        # The slots of a static cache beyond these hold nothing yet.
        key, value = key[:, :, :used], value[:, :, :used]
    # Autocast leaves the rotated queries and keys in fp32 beside values in bf16.
    query, key = query.to(value.dtype), key.to(value.dtype)
    out = layer.attend(query, key, value, start, scaling)
    return out.transpose(1, 2).contiguous(), None


def _mask(
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
    """For `AttentionMaskInterface`: int64 `[B, 1, Tq, 2]`, the first key of each query and the one after its own.

    None where every query reads from the first key on. A cache with room beyond the last query makes it
    `[B, 1, Tq, 3]`, whose third number is how many keys are in use. Keys are counted within what the cache still holds.
    Four dimensions, because `generate` makes masks beforehand for static caches, and transformers hands four on as they
    are but takes two for padding.

    Raises:
        ValueError: the mask cannot be expressed so, or the cache is too short.
    """
    last = int(q_offset) + q_length
    used = last - kv_offset
    if not q_length <= used <= kv_length:
        raise ValueError(f"the cache must have room for {used} keys, got {kv_length}")
    start = first_keys(batch_size, q_length, last, mask_function, attention_mask, use_vmap, device)
    if start is not None and kv_offset:
        start = (start - kv_offset).clamp_min(0)
    if start is None and used == kv_length:
        return None
    after = torch.arange(used - q_length + 1, used + 1, device=device).expand(batch_size, -1)
    columns = [torch.zeros_like(after) if start is None else start.long(), after]
    if used < kv_length:
        columns.append(torch.full_like(after, used))
    return torch.stack(columns, -1)[:, None]


def _unpacked(mask: Tensor | None, q_len: int) -> tuple[Tensor | None, int | None]:
    """`start [B, Tq]` or None, and how many keys are in use or None for all."""
    if mask is None:
        return None, None
    if not _ours(mask) or mask.shape[2] != q_len:
        raise ValueError(
            f"attention_mask must be [B, T], padding only: the rules decide the pairs, got {list(mask.shape)}"
        )
    start = mask[:, 0, :, 0]
    if mask.shape[3] == 2:
        return start, None
    return start if start.any() else None, int(mask[0, 0, 0, 2])


def _ours(mask: Tensor) -> bool:
    return mask.ndim == 4 and mask.dtype == torch.int64 and mask.shape[1] == 1 and mask.shape[3] in (2, 3)


def before_forward(
    module: Any, args: tuple[Any, ...], kwargs: Mapping[str, Any]
) -> tuple[tuple[Any, ...], dict[str, Any]]:
    """A hook on the decoder: refuses what would go by the rules, or what transformers would misread."""
    patch = getattr(module, STATE)
    if module.config._attn_implementation != NAME:
        raise ValueError(
            f"attn_implementation must stay {NAME!r} while rules are applied, or they would be ignored,"
            f" got {module.config._attn_implementation!r}"
        )
    given = {**dict(zip(patch.parameters, args, strict=False)), **kwargs}
    mask, positions = given.get("attention_mask"), given.get("position_ids")
    if isinstance(mask, dict):
        # One for each kind of layer, made beforehand by `generate`: all know which rows are padding.
        mask = next((each for each in mask.values() if each is not None), None)
    if mask is not None and _ours(mask):
        # Rows that are padding themselves begin behind their own key.
        mask = mask[:, 0, :, 0] < mask[:, 0, :, 1]
    caches = [given[name] for name in ("cache", "past_key_values") if given.get(name) is not None]
    use_cache = check_inputs(mask, positions, caches[0] if caches else None, given.get("use_cache"))
    if use_cache is given.get("use_cache"):
        return args, dict(kwargs)
    return args, {**kwargs, "use_cache": use_cache}


AttentionInterface.register(NAME, _attention)
AttentionMaskInterface.register(NAME, _mask)
