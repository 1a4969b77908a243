"""Training speed of a study's models, beside the same models with a boolean mask through dense SDPA.

    python benchmarks/training_speed.py mini                            at the study's own length
    python benchmarks/training_speed.py mini --length 256 1024 4096     at others
    python benchmarks/training_speed.py paper --length 4096             a few minutes
    python benchmarks/training_speed.py paper --arms "fib learned*"     other arms, by label

A step is forward, backward and AdamW on random tokens, in fp32. An arm is one model that takes turns at both ways to
compute its attention; printed are the median tokens per second and the median of the ratios within a round. Dense arms
(causal SDPA) and learned layers have no mask to be compared with. Nothing is printed of an arm unless the logits of
both ways agree in the same run: what a boolean mask computes is what farspan computes.
"""

from __future__ import annotations

import argparse
import fnmatch
import functools
import time
from collections.abc import Callable
from types import MethodType

import torch
import torch.nn.functional as F
from torch import Tensor

import timing
from farspan.attention import backends
from farspan.models import FarspanConfig, FarspanForCausalLM
from farspan.models.configuration import LAYER_RULES
from farspan.studies.schema import Cell, load
from farspan.support import Lines, Support

# Logits of both ways differ by the rounding of fp32 sums; 1e-4 is far below any effect of a wrong pair.
TOLERANCE = 1e-4
# Most tokens of a step: the logits of the paper's whole batch would take 4 GB, and a step several times that.
STEP_TOKENS = 4096
# An arm whose rounds took longer than this gets no further one, but two in any case.
SECONDS = 30.0
# A step of the paper's model takes up to minutes: two of its arms show what there is to see.
ARMS = {"paper": ["dense", "fib stagger, window 13"]}


def build(cell: Cell, vocab_size: int) -> FarspanForCausalLM:
    torch.manual_seed(0)
    shape = cell.model
    return FarspanForCausalLM(
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


@functools.lru_cache(maxsize=64)
def mask_of(support: Support, length: int) -> Tensor:
    return support.mask(length, length)


def masked_attention(self, q: Tensor, k: Tensor, v: Tensor, start: None, scale: float) -> Tensor:
    """What the paper's code does: the whole mask as booleans, through dense attention."""
    mask = mask_of(self.support(q.shape[2], k.shape[2]), k.shape[2])
    return F.scaled_dot_product_attention(q, k, v, attn_mask=mask, scale=scale, enable_gqa=True)


def attend_by_mask(model: FarspanForCausalLM, masked: bool) -> None:
    for layer in model.attentions:
        layer.__dict__.pop("attend", None)
        if masked:
            layer.attend = MethodType(masked_attention, layer)


def measure(cell: Cell, vocab_size: int, ids: Tensor, rounds: int) -> timing.Turns:
    """Seconds of a step: of "farspan" and, where there is a mask, "mask"."""
    model = build(cell, vocab_size)
    optimizer = torch.optim.AdamW(model.parameters(), fused=True)
    ways = {"farspan": False, "mask": True}
    if cell.rules[0]["pattern"] in LAYER_RULES:
        del ways["mask"]

    def step(ids: Tensor) -> float:
        began = time.perf_counter()
        model(input_ids=ids, labels=ids).loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        return time.perf_counter() - began

    def each_way(run: Callable[[], float | Tensor]) -> dict[str, float | Tensor]:
        results = {}
        for name, masked in ways.items():
            attend_by_mask(model, masked)
            results[name] = run()
        return results

    if len(ways) == 2:
        with torch.no_grad():
            logits = each_way(lambda: model(input_ids=ids).logits)
        worst = float(logits["farspan"].sub_(logits.pop("mask")).abs().max())
        if not worst <= TOLERANCE:
            raise SystemExit(f"{cell.label}: the logits differ by {worst:.2e}, so no speed is printed")
        del logits
    each_way(lambda: step(ids[:1, :256]))  # warms up the code, the threads and the state of AdamW
    calls: dict[str, list[list[float]]] = {name: [] for name in ways}
    began = time.perf_counter()
    for number in range(rounds):
        if number >= 2 and time.perf_counter() - began > SECONDS:
            break
        for name, seconds in each_way(lambda: step(ids)).items():
            calls[name].append([seconds])
    return timing.Turns(calls)


def chosen(study: str, patterns: list[str] | None) -> list[Cell]:
    """One cell for each arm whose label fits one of the patterns."""
    cells = {cell.label: cell for cell in load(study).cells() if cell.task == "language"}
    patterns = patterns or ARMS.get(study, ["*"])
    found = [cell for label, cell in cells.items() if any(fnmatch.fnmatchcase(label, p) for p in patterns)]
    if not found:
        raise SystemExit(f"no arm of {study} is called {' or '.join(patterns)}; there are: {', '.join(cells)}")
    return found


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("study", nargs="?", default="mini")
    parser.add_argument("--length", type=int, nargs="+", help="tokens in a window; the study's by default")
    parser.add_argument("--arms", nargs="+", metavar="LABEL", help="with * for anything; all but in the paper's study")
    parser.add_argument("--rounds", type=int, default=7, help="at most; fewer of long steps")
    parser.add_argument("--threads", type=int, default=1)
    options = parser.parse_args()
    torch.set_num_threads(options.threads)
    language = load(options.study).language
    if language is None:
        raise SystemExit(f"{options.study} trains no language models")
    cells, neighbours, facts = chosen(options.study, options.arms), timing.Neighbours(), timing.machine()
    vocab_size = language.data.vocab_size
    backend = backends.choose(None, torch.empty(0), Lines([0]))
    print(f"{facts['cpu']}, {facts['cores']} cores; torch {facts['torch']}; backend {backend}")
    for length in options.length or [language.recipe.length]:
        windows = max(1, min(language.recipe.batch_tokens, STEP_TOKENS) // length)
        ids = torch.randint(vocab_size, (windows, length), generator=torch.Generator().manual_seed(0))
        print(f"\n{options.study}: {length} tokens a window, {ids.numel()} a step, {options.threads} threads")
        print(f"{'arm':32}{'tokens/s':>10}{'boolean mask':>14}{'ratio':>8}{'rounds':>8}")
        for cell in cells:
            turns = measure(cell, vocab_size, ids, options.rounds)
            speed = {name: ids.numel() / turns.median(name) for name in turns.calls}
            beside = f"{speed['mask']:>14.0f}{turns.ratio('mask', 'farspan'):>8.2f}" if "mask" in speed else " " * 22
            print(f"{cell.label:32}{speed['farspan']:>10.0f}{beside}{len(turns.calls['farspan']):>8}", flush=True)
        mask_of.cache_clear()
    if warning := neighbours.warning():
        print(f"WARNING: {warning}")


if __name__ == "__main__":
    main()
