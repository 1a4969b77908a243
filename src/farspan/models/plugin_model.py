"""Which models a rule can be put on: their attention modules, and why not the others."""

from __future__ import annotations

from typing import Any

from torch import nn
from transformers import PreTrainedModel

from farspan.models.modeling import FarspanPreTrainedModel

FULL, SLIDING = "full_attention", "sliding_attention"


def attention_modules(model: Any) -> list[nn.Module]:
    """The self-attention of every layer, bottom to top.

    Raises:
        TypeError: the model is none of transformers'.
        ValueError: it is no causal decoder, or its attention is more than a softmax over scaled products.
    """
    if not isinstance(model, PreTrainedModel):
        raise TypeError(f"model must be a model of transformers, got {type(model).__name__}")
    name, config = type(model).__name__, model.config
    if isinstance(model, FarspanPreTrainedModel):
        raise ValueError(f"model must be without rules of its own, got {name}, whose config holds them")
    if config.get_text_config() is not config or getattr(config, "is_encoder_decoder", False):
        raise ValueError(f"model must be a decoder of text alone, got {name}")
    found = [each for each in model.modules() if isinstance(getattr(each, "layer_idx", None), int)]
    found = sorted((each for each in found if hasattr(each, "is_causal")), key=lambda each: each.layer_idx)
    if not model._can_set_attn_implementation() or not found:
        raise ValueError(f"model must use transformers' attention interface, got {name}, which does not")
    if [each.layer_idx for each in found] != list(range(config.num_hidden_layers)):
        raise ValueError(
            f"model must have one attention in each of its {config.num_hidden_layers} layers, got {name} with those"
            f" of layers {[each.layer_idx for each in found]}"
        )
    if getattr(config, "attn_logit_softcapping", None):
        raise ValueError(
            f"model must be without softcapping of its scores, got {name} with attn_logit_softcapping ="
            f" {config.attn_logit_softcapping}"
        )
    for each in found:
        if hasattr(each, "sinks"):
            raise ValueError(f"model must be without attention sinks, got {name}, whose layers have sinks")
    if not all(each.is_causal for each in found) or getattr(config, "is_causal", True) is False:
        raise ValueError(f"model must be causal, got {name} with is_causal = False")
    if any(each.config is not config for each in found):
        raise ValueError(f"model must have one config for all layers, got {name} with several")
    return found


def windows(config: Any) -> list[int | None]:
    """For each layer its own sliding window, None where it reads everything.

    Raises:
        ValueError: a layer is neither.
    """
    kinds = getattr(config, "layer_types", None)
    if kinds is None:
        # transformers then makes the mask of a window for all layers.
        return [getattr(config, "sliding_window", None)] * config.num_hidden_layers
    if other := sorted(set(kinds) - {FULL, SLIDING}):
        raise ValueError(f"layer_types must be {FULL} or {SLIDING}, got {', '.join(other)}")
    return [config.sliding_window if kind == SLIDING else None for kind in kinds]
