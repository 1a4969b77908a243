"""Static rules: which keys a query reads, decided before the text is seen. Each returns a support for one layer."""

from farspan.patterns import schedules
from farspan.patterns.alibi import alibi_slopes, with_alibi
from farspan.patterns.bigbird import bigbird
from farspan.patterns.block_local import block_local
from farspan.patterns.elastic import elastic
from farspan.patterns.fibonacci import fibonacci
from farspan.patterns.longnet import longnet
from farspan.patterns.matching import match
from farspan.patterns.power_attention import power_attention
from farspan.patterns.powers import powers, powers_grown
from farspan.patterns.random import random
from farspan.patterns.s2_attention import s2_attention
from farspan.patterns.sparse_fixed import sparse_fixed
from farspan.patterns.window import sliding_window

__all__ = [
    "alibi_slopes",
    "bigbird",
    "block_local",
    "elastic",
    "fibonacci",
    "longnet",
    "match",
    "power_attention",
    "powers",
    "powers_grown",
    "random",
    "s2_attention",
    "schedules",
    "sliding_window",
    "sparse_fixed",
    "with_alibi",
]
