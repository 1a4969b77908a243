"""Static rules: which keys a query reads, decided before the text is seen. Each returns a support for one layer."""

from farspan.patterns import schedules
from farspan.patterns.dilateformer import dilateformer
from farspan.patterns.fibonacci import fibonacci
from farspan.patterns.fibonacci_blocks import fibonacci_blocks
from farspan.patterns.fibottention import fibottention
from farspan.patterns.hdc import hdc, hdc_gaps
from farspan.patterns.log_sparse import log_sparse
from farspan.patterns.longformer import longformer, longformer_depth
from farspan.patterns.matching import match
from farspan.patterns.mswa import mswa
from farspan.patterns.partial_power import partial_power
from farspan.patterns.powers import powers, powers_grown
from farspan.patterns.sparse_strided import sparse_strided
from farspan.patterns.streaming_llm import streaming_llm
from farspan.patterns.wavenet import wavenet
from farspan.patterns.window import sliding_window

__all__ = [
    "dilateformer",
    "fibonacci",
    "fibonacci_blocks",
    "fibottention",
    "hdc",
    "hdc_gaps",
    "log_sparse",
    "longformer",
    "longformer_depth",
    "match",
    "mswa",
    "partial_power",
    "powers",
    "powers_grown",
    "schedules",
    "sliding_window",
    "sparse_strided",
    "streaming_llm",
    "wavenet",
]
