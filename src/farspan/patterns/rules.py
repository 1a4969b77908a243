"""Patterns by name: the form in which configs and study files hold one rule per layer.

A rule is a plain dictionary, `{"pattern": "fibonacci", "window": 13, "alpha": 0.5}`, so it survives JSON and TOML.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch

from farspan.patterns import schedules
from farspan.patterns.alibi import with_alibi
from farspan.patterns.arguments import one_of
from farspan.patterns.bigbird import CARD as BIGBIRD
from farspan.patterns.bigbird import bigbird
from farspan.patterns.block_lines import CARD as BLOCK_LINES
from farspan.patterns.block_lines import block_lines
from farspan.patterns.block_local import CARD as BLOCK_LOCAL
from farspan.patterns.block_local import block_local
from farspan.patterns.card import Card
from farspan.patterns.dilateformer import CARD as DILATEFORMER
from farspan.patterns.dilateformer import dilateformer
from farspan.patterns.elastic import CARD as ELASTIC
from farspan.patterns.elastic import elastic
from farspan.patterns.fibonacci import CARD as FIBONACCI
from farspan.patterns.fibonacci import fibonacci
from farspan.patterns.fibonacci_blocks import CARD as FIBONACCI_BLOCKS
from farspan.patterns.fibonacci_blocks import fibonacci_blocks
from farspan.patterns.fibottention import CARD as FIBOTTENTION
from farspan.patterns.fibottention import fibottention
from farspan.patterns.hdc import CARD as HDC
from farspan.patterns.hdc import hdc
from farspan.patterns.log_sparse import CARD as LOG_SPARSE
from farspan.patterns.log_sparse import log_sparse
from farspan.patterns.longformer import CARD as LONGFORMER
from farspan.patterns.longformer import longformer, longformer_depth
from farspan.patterns.longnet import CARD as LONGNET
from farspan.patterns.longnet import longnet
from farspan.patterns.mswa import CARD as MSWA
from farspan.patterns.mswa import mswa
from farspan.patterns.partial_power import CARD as PARTIAL_POWER
from farspan.patterns.partial_power import partial_power
from farspan.patterns.power_attention import CARD as POWER_ATTENTION
from farspan.patterns.power_attention import power_attention
from farspan.patterns.powers import CARD as POWERS
from farspan.patterns.powers import powers, powers_grown
from farspan.patterns.random import CARD as RANDOM
from farspan.patterns.random import random
from farspan.patterns.s2_attention import CARD as S2_ATTENTION
from farspan.patterns.s2_attention import s2_attention
from farspan.patterns.sparse_fixed import CARD as SPARSE_FIXED
from farspan.patterns.sparse_fixed import sparse_fixed
from farspan.patterns.sparse_strided import CARD as SPARSE_STRIDED
from farspan.patterns.sparse_strided import sparse_strided
from farspan.patterns.streaming_llm import CARD as STREAMING_LLM
from farspan.patterns.streaming_llm import streaming_llm
from farspan.patterns.wavenet import CARD as WAVENET
from farspan.patterns.wavenet import wavenet
from farspan.patterns.window import CARD as WINDOW
from farspan.patterns.window import sliding_window
from farspan.support import Lines, Support


@dataclass(frozen=True)
class Family:
    """One kind of pattern: the function that builds a layer's support, and its card.

    A builder may take four arguments that are no part of a rule's choice. `length` and `queries` come with every call:
    the number of keys, and of the last queries among them. `layer`, `layers` and `heads` are written into the rule by
    `over_depth`.
    """

    build: Callable[..., Support]
    card: Card
    grows: bool = False
    """Whether a query may read other keys in a longer sequence, so that no cache can be kept."""


PATTERNS: dict[str, Family] = {
    "sliding_window": Family(sliding_window, WINDOW),
    "fibonacci": Family(fibonacci, FIBONACCI),
    "powers": Family(powers, POWERS),
    "powers_grown": Family(powers_grown, POWERS, grows=True),
    "fibonacci_blocks": Family(fibonacci_blocks, FIBONACCI_BLOCKS),
    "log_sparse": Family(log_sparse, LOG_SPARSE),
    "sparse_strided": Family(sparse_strided, SPARSE_STRIDED),
    "longformer": Family(longformer, LONGFORMER),
    "longformer_depth": Family(longformer_depth, LONGFORMER),
    "mswa": Family(mswa, MSWA),
    "fibottention": Family(fibottention, FIBOTTENTION),
    "wavenet": Family(wavenet, WAVENET),
    "hdc": Family(hdc, HDC),
    "dilateformer": Family(dilateformer, DILATEFORMER),
    "streaming_llm": Family(streaming_llm, STREAMING_LLM),
    "partial_power": Family(partial_power, PARTIAL_POWER),
    "block_lines": Family(block_lines, BLOCK_LINES),
    "sparse_fixed": Family(sparse_fixed, SPARSE_FIXED),
    "bigbird": Family(bigbird, BIGBIRD),
    "longnet": Family(longnet, LONGNET),
    "power_attention": Family(power_attention, POWER_ATTENTION),
    "s2_attention": Family(s2_attention, S2_ATTENTION),
    "elastic": Family(elastic, ELASTIC),
    "block_local": Family(block_local, BLOCK_LOCAL),
    "random": Family(random, RANDOM),
    "lines": Family(
        Lines,
        Card("both", "slash", "fixed", "fixed", "all heads or per head", False, "given by the user"),
    ),
}
SCHEDULES: dict[str, Callable[..., list[float]]] = {
    "fixed": schedules.fixed,
    "stagger": schedules.stagger,
    "coprime": schedules.coprime,
    "descending": schedules.descending,
    "shuffled": schedules.shuffled,
}
HEAD_SCHEDULES: dict[str, Callable[..., list[list[float]]]] = {
    "stagger_heads": schedules.stagger_heads,
    "coprime_heads": schedules.coprime_heads,
}


def grows(rule: Mapping[str, Any]) -> bool:
    """Whether a query may read other keys in a longer sequence."""
    return _family(rule).grows


def needs(rule: Mapping[str, Any]) -> set[str]:
    """Which of "length" and "queries" decide the support: none of them for what is the same at any length."""
    return {"length", "queries"} & set(_parameters(rule))


def has_alibi(rule: Mapping[str, Any]) -> bool:
    """Whether the scores get a penalty on distance, which stands in for position embeddings."""
    return bool(rule.get("alibi")) or rule.get("alibi_slopes") is not None


def build(rule: Mapping[str, Any], length: int, queries: int | None = None) -> Support:
    """The support of a rule for the last `queries` (all by default) of `length` tokens, on the CPU.

    A rule of any pattern may say `"alibi": true`; then it also names the query heads, as `heads`, and the support
    carries a slope for each.

    Raises:
        ValueError: the pattern is unknown or an argument is unknown, missing or out of range.
    """
    given = {"length": length, "queries": length if queries is None else queries}
    arguments = {key: value for key, value in rule.items() if key not in ("pattern", "alibi")}
    known = _parameters(rule)
    alibi = rule.get("alibi", False)
    heads: Any = rule.get("heads")
    if not isinstance(alibi, bool):
        raise TypeError(f"alibi must be true or false, got {alibi!r}")
    if alibi and rule.get("alibi_slopes") is not None:
        raise ValueError("a rule must have alibi or alibi_slopes, got both")
    if alibi and heads is None:
        raise ValueError(f"a rule with alibi needs heads, the number of query heads, got {dict(rule)}")
    if alibi and "heads" not in known:
        del arguments["heads"]
    if present := sorted(set(arguments) & set(given)):
        raise ValueError(
            f"{present[0]} is not part of a {rule['pattern']} rule: it is that of the sequence the rule runs on"
        )
    unknown = set(arguments) - set(known)
    if unknown:
        takes = ", ".join(sorted(set(known) - set(given)))
        raise ValueError(f"a {rule['pattern']} rule takes {takes}, got {', '.join(sorted(unknown))}")
    missing = {n for n, p in known.items() if p.default is p.empty and n not in given} - set(arguments)
    if missing:
        raise ValueError(f"a {rule['pattern']} rule needs {', '.join(sorted(missing))}, got {dict(rule)}")
    # transformers builds models under the meta device, and a support must hold its numbers.
    with torch.device("cpu"):
        support = _family(rule).build(**arguments, **{name: value for name, value in given.items() if name in known})
        return support if heads is None or not alibi else with_alibi(support, heads)


def over_depth(
    rule: Mapping[str, Any], layers: int, heads: int, schedule: str | None = None, **bounds: float
) -> list[dict[str, Any]]:
    """One rule per layer, bottom to top.

    What a pattern wants to know of its place (`layer`, `layers`, `heads`) is filled in. `schedule` names what gives
    each layer its alpha, or each of its heads one, with `bounds` as its further arguments: low, high and seed.

    Raises:
        ValueError: the schedule is unknown, or the rule has an alpha of its own or takes none.
    """
    known = set(_parameters(rule)) | ({"heads"} if rule.get("alibi") else set())
    place = [{"layer": layer, "layers": layers, "heads": heads} for layer in range(layers)]
    rules = [{**{k: v for k, v in here.items() if k in known}, **rule} for here in place]
    if schedule is None:
        if bounds:
            raise ValueError(f"{', '.join(bounds)} belong to a schedule, got none")
        return rules
    one_of("schedule", schedule, (*SCHEDULES, *HEAD_SCHEDULES))
    if "alpha" in rule:
        raise ValueError(f"a scheduled rule must leave alpha to the schedule, got alpha = {rule['alpha']}")
    if "alpha" not in known:
        raise ValueError(f"a {rule['pattern']} rule has no alpha that a schedule could set")
    takes = set(inspect.signature({**SCHEDULES, **HEAD_SCHEDULES}[schedule]).parameters) - {"layers", "heads"}
    if unknown := sorted(set(bounds) - takes):
        raise ValueError(f"the schedule {schedule} takes {', '.join(sorted(takes))}, got {', '.join(unknown)}")
    alphas: Sequence[float | list[float]]
    if schedule in HEAD_SCHEDULES:
        alphas = HEAD_SCHEDULES[schedule](layers, heads, **bounds)
    else:
        alphas = SCHEDULES[schedule](layers, **bounds)
    return [{**one, "alpha": alpha} for one, alpha in zip(rules, alphas, strict=True)]


def _family(rule: Mapping[str, Any]) -> Family:
    name = rule.get("pattern")
    if not isinstance(name, str) or name not in PATTERNS:
        raise ValueError(f"pattern must be one of {', '.join(PATTERNS)}, got {name!r}")
    return PATTERNS[name]


def _parameters(rule: Mapping[str, Any]) -> Mapping[str, inspect.Parameter]:
    return inspect.signature(_family(rule).build).parameters
