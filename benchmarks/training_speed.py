"""Training speed of a study's model under each of its arms, beside the same model with a boolean mask through SDPA.

    python benchmarks/training_speed.py mini

One process, the contenders interleaved step by step; printed are the median tokens per second of a training step
(forward, backward, AdamW) and the median of the ratios within a round. Nothing is printed unless the logits of every
pair agree in the same run: what a boolean mask computes is what farspan computes.
"""

from __future__ import annotations

import argparse
import statistics
import time
from types import MethodType

import torch
import torch.nn.functional as F

from farspan.models import FarspanConfig, FarspanForCausalLM
from farspan.studies.schema import Cell, load

# Logits of both paths differ by the rounding of fp32 sums; 1e-4 is far below any effect of a wrong pair.
TOLERANCE = 1e-4


def build(cell: Cell, vocab_size: int, masked: bool) -> FarspanForCausalLM:
    torch.manual_seed(0)
    shape = cell.model
    model = FarspanForCausalLM(
        FarspanConfig(
            vocab_size=vocab_size,
            hidden_size=shape.hidden_size,
            num_hidden_layers=shape.layers,
            num_attention_heads=shape.heads,
            num_key_value_heads=shape.kv_heads,
            head_dim=shape.head_dim,
            max_position_embeddings=cell.recipe.length,
            rules=cell.rules,
        )
    )
    if masked:
        for layer in model.model.layers:
            layer.self_attn.attend = MethodType(masked_attention, layer.self_attn)
    return model


def masked_attention(self, q, k, v, start, scale):
    """What the paper's code does: the whole mask as booleans, through dense attention."""
    lines = self.lines(k.shape[2])
    if lines is None:
        return F.scaled_dot_product_attention(q, k, v, is_causal=True, scale=scale, enable_gqa=True)
    mask = lines.mask(q.shape[2], k.shape[2])
    return F.scaled_dot_product_attention(q, k, v, attn_mask=mask, scale=scale, enable_gqa=True)


def step(model: FarspanForCausalLM, optimizer: torch.optim.Optimizer, ids: torch.Tensor) -> float:
    began = time.perf_counter()
    model(input_ids=ids, labels=ids).loss.backward()
    optimizer.step()
    optimizer.zero_grad()
    return time.perf_counter() - began


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("study", nargs="?", default="mini")
    parser.add_argument("--length", type=int, help="tokens in a window; the study's by default")
    parser.add_argument("--rounds", type=int, default=7)
    parser.add_argument("--threads", type=int, default=1)
    options = parser.parse_args()
    torch.set_num_threads(options.threads)
    language = load(options.study).language
    assert language is not None
    length = options.length or language.recipe.length
    vocab_size = language.data.vocab_size
    ids = torch.randint(vocab_size, (max(1, language.recipe.batch_tokens // length), length))
    cells = {cell.label: cell for cell in load(options.study).cells() if cell.task == "language"}
    learned = [cell for cell in cells.values() if cell.rules[0]["pattern"] == "learned_spacing"]
    paired = [cell for cell in cells.values() if cell not in learned]
    models: dict[tuple[str, bool], tuple[FarspanForCausalLM, torch.optim.Optimizer]] = {}
    for cell in [*paired, *learned]:
        for masked in (False, True) if cell in paired else (False,):
            model = build(cell, vocab_size, masked)
            models[cell.label, masked] = model, torch.optim.AdamW(model.parameters(), fused=True)
    with torch.no_grad():
        for cell in paired:
            ours, theirs = (models[cell.label, masked][0](input_ids=ids).logits for masked in (False, True))
            worst = float((ours - theirs).abs().max())
            if not worst <= TOLERANCE:
                raise SystemExit(f"{cell.label}: the logits differ by {worst:.2e}, so no speed is printed")
    seconds: dict[tuple[str, bool], list[float]] = {key: [] for key in models}
    for number in range(options.rounds + 1):
        for key, (model, optimizer) in models.items():
            spent = step(model, optimizer, ids)
            if number:  # the first round warms up
                seconds[key].append(spent)
    print(f"{options.study}: {length} tokens a window, {ids.numel()} a step, {options.threads} threads")
    print(f"{'arm':32}{'tokens/s':>10}{'boolean mask':>14}{'ratio':>8}")
    for label in cells:
        ours = ids.numel() / statistics.median(seconds[label, False])
        line = f"{label:32}{ours:>10.0f}"
        if (label, True) in seconds:
            theirs = ids.numel() / statistics.median(seconds[label, True])
            rounds = zip(seconds[label, True], seconds[label, False], strict=True)
            line += f"{theirs:>14.0f}{statistics.median(t / o for t, o in rounds):>8.2f}"
        print(line)


if __name__ == "__main__":
    main()
