"""One example of every pattern, of a size that can be looked at: what the gallery shows."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from farspan.patterns import rules
from farspan.support import Support

LAYERS, HEADS, LENGTH = 8, 4, 1024


@dataclass(frozen=True)
class Example:
    """A rule, with the schedule that gives each layer its alpha where it has one."""

    title: str
    rule: dict[str, Any]
    schedule: str | None = None

    @property
    def slug(self) -> str:
        """The title as a file name."""
        return "".join(c if c.isalnum() else "-" for c in self.title.lower())

    @property
    def family(self) -> rules.Family:
        """The family of its rule."""
        return rules.PATTERNS[self.rule["pattern"]]

    def stack(self) -> list[Support]:
        """One support per layer, bottom to top."""
        written = rules.over_depth(self.rule, LAYERS, HEADS, self.schedule)
        built: list[Support] = []
        for number, rule in enumerate(written):
            # Layers that are alike share a support, and its analysis.
            same = next((built[other] for other in range(number) if written[other] == rule), None)
            built.append(rules.build(rule, LENGTH) if same is None else same)
        return built


EXAMPLES = (
    Example("Sliding window", {"pattern": "sliding_window", "window": 32}),
    Example("StreamingLLM", {"pattern": "streaming_llm", "window": 28, "sinks": 4}),
    Example("MSWA", {"pattern": "mswa", "window": 32}),
    Example("Longformer", {"pattern": "longformer", "window": 32, "dilation": 4, "global_tokens": 2}),
    Example("Longformer over depth", {"pattern": "longformer_depth", "bottom": 8, "top": 128}),
    Example("Fibonacci", {"pattern": "fibonacci", "window": 13}, "fixed"),
    Example("Fibonacci, stagger", {"pattern": "fibonacci", "window": 13}, "stagger"),
    Example("Fibonacci, coprime", {"pattern": "fibonacci", "window": 13}, "coprime"),
    Example("Fibonacci, descending", {"pattern": "fibonacci", "window": 13}, "descending"),
    Example("Fibonacci, stagger over heads", {"pattern": "fibonacci", "window": 13}, "stagger_heads"),
    Example("Fibonacci, coprime over heads and layers", {"pattern": "fibonacci", "window": 13}, "coprime_heads"),
    Example("Fibonacci with sinks, stagger", {"pattern": "fibonacci", "window": 13, "sinks": 4}, "stagger"),
    Example("Fibonacci in blocks, stagger", {"pattern": "fibonacci_blocks", "window": 13, "block": 16}, "stagger"),
    Example("Powers", {"pattern": "powers", "window": 13}, "fixed"),
    Example("Powers, stagger", {"pattern": "powers", "window": 13}, "stagger"),
    Example("Powers, grown", {"pattern": "powers_grown", "window": 13}, "stagger"),
    Example("LogSparse", {"pattern": "log_sparse"}),
    Example("LogSparse, local and restart", {"pattern": "log_sparse", "local": 10, "restart": 256}),
    Example("Sparse Transformer, strided", {"pattern": "sparse_strided", "stride": 32}),
    Example("Sparse Transformer, strided, merged", {"pattern": "sparse_strided", "stride": 32, "form": "merged"}),
    Example("Fibottention", {"pattern": "fibottention", "widest": 341, "window": 8}),
    Example("WaveNet", {"pattern": "wavenet"}),
    Example("HDC", {"pattern": "hdc"}),
    Example("DilateFormer", {"pattern": "dilateformer", "window": 16, "dilations": [1, 2, 3, 4]}),
    Example("PowerAttention", {"pattern": "power_attention", "block": 16, "window_blocks": 2}),
    Example("BigBird", {"pattern": "bigbird", "block": 16, "global_blocks": 1, "random_blocks": 1}),
    Example("Sparse Transformer, fixed", {"pattern": "sparse_fixed", "stride": 32, "summary": 4}),
    Example(
        "Sparse Transformer, fixed, heads", {"pattern": "sparse_fixed", "stride": 32, "summary": 4, "form": "heads"}
    ),
    Example("S2-Attention", {"pattern": "s2_attention", "block": 16, "local_blocks": 2, "stride": 16}),
    Example("LongNet", {"pattern": "longnet", "segments": [32, 128, 512], "ratios": [1, 4, 16]}),
    Example("Elastic", {"pattern": "elastic", "keys": 32}),
    Example("Random keys", {"pattern": "random", "window": 16, "keys": 32}),
    Example("Block-local", {"pattern": "block_local", "block": 64}),
    Example("Block-local with a bridge", {"pattern": "block_local", "block": 64, "bridge": 8}),
    Example("Lines between blocks", {"pattern": "block_lines", "distances": [0, 1, 2, 5, 13], "block": 16}),
    Example("Lines", {"pattern": "lines", "slashes": [*range(16), 31, 63, 127, 255, 511], "verticals": [0]}),
    Example("Partial power", {"pattern": "partial_power", "exponent": 0.5, "window": 16}),
)
