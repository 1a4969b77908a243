"""What the layers of a trained model read and what that costs, for its result."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from farspan.models import FarspanForCausalLM
from farspan.patterns import sliding_window
from farspan.support import Lines, Support


def layers(model: FarspanForCausalLM, length: int) -> list[dict[str, Any]]:
    """For each layer: pattern, alpha, and the distances that any of its heads reads within `length` tokens.

    No distances are listed for dense layers, nor where the position of the query decides them.
    """
    described = []
    for attention, support in zip(model.attentions, _supports(model, length), strict=True):
        rule = attention.rule
        reads = set()
        if rule["pattern"] != "dense" and isinstance(support, Lines):
            reads = {d for d in support.slash_table.flatten().tolist() if 0 <= d < length}
        alpha = attention.frozen.get("alpha")
        described.append({"pattern": rule["pattern"], "alpha": alpha, "slashes": sorted(reads)})
    return described


def cost(model: FarspanForCausalLM, lengths: Sequence[int]) -> dict[str, dict[str, float]]:
    """Pairs per token (mean over layers) and attention FLOPs per token (sum over layers, forward) at each length.

    A learned layer is counted as it runs while it is not frozen: each rung of a learned spacing reads two keys.
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


def _supports(model: FarspanForCausalLM, length: int) -> list[Support]:
    supports = []
    for attention in model.attentions:
        spacing = attention.spacing
        support = attention.support(length, length) if spacing is None else spacing.reads()
        supports.append(sliding_window(length) if support is None else support)
    return supports
