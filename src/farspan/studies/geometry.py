"""What the layers of a trained model read and what that costs, for its result."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from farspan.models import FarspanForCausalLM
from farspan.patterns import sliding_window
from farspan.support import Lines


def layers(model: FarspanForCausalLM, length: int) -> list[dict[str, Any]]:
    """For each layer: pattern, alpha, and the distances it reads within `length` tokens (none listed for dense)."""
    described = []
    for attention, lines in zip(model.attentions, _supports(model, length), strict=True):
        rule = attention.rule
        dense = rule["pattern"] == "dense"
        reads = [] if dense else [d for d in lines.slash_table.flatten().tolist() if 0 <= d < length]
        described.append({"pattern": rule["pattern"], "alpha": attention.frozen.get("alpha"), "slashes": reads})
    return described


def cost(model: FarspanForCausalLM, lengths: Sequence[int]) -> dict[str, dict[str, float]]:
    """Pairs per token (mean over layers) and attention FLOPs per token (sum over layers, forward) at each length.

    A learned spacing is counted as it runs while it is not frozen: each of its rungs reads two keys.
    """
    config = model.config
    pairs, flops = {}, {}
    for length in lengths:
        costs = [
            support.cost(
                length,
                length,
                heads=config.num_attention_heads,
                kv_heads=config.num_key_value_heads,
                head_dim=config.head_dim,
            )
            for support in _supports(model, length)
        ]
        pairs[str(length)] = sum(c.pairs for c in costs) / (len(costs) * config.num_attention_heads * length)
        flops[str(length)] = sum(c.forward_flops for c in costs) / length
    return {"pairs_per_token": pairs, "attention_flops_per_token": flops}


def _supports(model: FarspanForCausalLM, length: int) -> list[Lines]:
    supports = []
    for attention in model.attentions:
        lines = attention.spacing.reads() if attention.spacing is not None else attention.lines(length)
        supports.append(sliding_window(length) if lines is None else lines)
    return supports
