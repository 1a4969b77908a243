"""Static rules: which keys a query reads, decided before the text is seen. Each returns a support for one layer."""

from farspan.patterns import schedules
from farspan.patterns.alibi import alibi_slopes, with_alibi
from farspan.patterns.bigbird import bigbird
from farspan.patterns.block_local import block_local
from farspan.patterns.dilateformer import dilateformer
from farspan.patterns.elastic import elastic
from farspan.patterns.fibonacci import fibonacci
from farspan.patterns.fibonacci_blocks import fibonacci_blocks
from farspan.patterns.fibottention import fibottention
from farspan.patterns.hdc import hdc, hdc_gaps
from farspan.patterns.log_sparse import log_sparse
from farspan.patterns.longformer import longformer, longformer_depth
from farspan.patterns.longnet import longnet
from farspan.patterns.matching import match
from farspan.patterns.mswa import mswa
from farspan.patterns.partial_power import partial_power
from farspan.patterns.power_attention import power_attention
from farspan.patterns.powers import powers, powers_grown
from farspan.patterns.random import random
from farspan.patterns.s2_attention import s2_attention
from farspan.patterns.sparse_fixed import sparse_fixed
from farspan.patterns.sparse_strided import sparse_strided
from farspan.patterns.streaming_llm import streaming_llm
from farspan.patterns.wavenet import wavenet
from farspan.patterns.window import sliding_window

__all__ = [
    "alibi_slopes",
    "bigbird",
    "block_local",
    "dilateformer",
    "elastic",
    "fibonacci",
    "fibonacci_blocks",
    "fibottention",
    "hdc",
    "hdc_gaps",
    "log_sparse",
    "longformer",
    "longformer_depth",
    "longnet",
    "match",
    "mswa",
    "partial_power",
    "power_attention",
    "powers",
    "powers_grown",
    "random",
    "s2_attention",
    "schedules",
    "sliding_window",
    "sparse_fixed",
    "sparse_strided",
    "streaming_llm",
    "wavenet",
    "with_alibi",
]
