"""Configuration of the Llama-family model with one attention rule per layer."""

import copy
from typing import Any

from huggingface_hub.dataclasses import strict
from transformers import AutoConfig, LlamaConfig

from farspan import layers
from farspan.patterns import rules as patterns

LAYER_RULES = ("dense", *layers.LAYERS)
"""Rules of a layer that are no pattern: full attention, and what is trained with the model."""

COUNTS = (
    "vocab_size",
    "hidden_size",
    "intermediate_size",
    "num_hidden_layers",
    "num_attention_heads",
    "num_key_value_heads",
    "head_dim",
    "max_position_embeddings",
)


@strict
class FarspanConfig(LlamaConfig):
    """A `LlamaConfig` plus `rules`: for each layer, bottom to top, what its queries read.

    A rule is a dictionary with the key `pattern` and the arguments of that pattern: a name in
    `farspan.patterns.rules.PATTERNS` ("fibonacci", "sliding_window", "bigbird", ...), "dense", or a name in
    `farspan.layers.LAYERS` ("learned_spacing", "adaptive_span", "dcls") for what is trained with the model. With
    `"alibi": true` a pattern's scores get ALiBi's penalty on distance, and the layer no rotary embedding. Without
    `rules` the model is the best one of arXiv 2606.28560: window 13, Fibonacci, stagger.

    The defaults are that paper's model (its section 4 and code): 16 layers of width 512, 8 query and 2 key heads,
    SwiGLU with 8/3, tied embeddings, weights drawn with standard deviation width ** -0.5 (`initializer_range` None)
    and residual projections scaled by (2 * layers) ** -0.5.

    Raises:
        ValueError: a width, a length or a number of layers or heads is below 1.
        StrictDataclassError: (huggingface_hub's, as for every config of transformers) a rule is unknown or wrong,
            their number is not `num_hidden_layers`, or attention dropout is asked for.
    """

    model_type = "farspan"

    vocab_size: int = 32768
    hidden_size: int = 512
    intermediate_size: int | None = None
    num_hidden_layers: int = 16
    num_attention_heads: int = 8
    num_key_value_heads: int | None = 2
    max_position_embeddings: int = 1024
    initializer_range: float | None = None
    tie_word_embeddings: bool = True
    bos_token_id: int | None = None
    eos_token_id: int | list[int] | None = None
    rules: list[dict[str, Any]] | None = None

    def __post_init__(self, **kwargs: Any) -> None:
        # First of all: what follows, here and in transformers, divides by some of them.
        for name in COUNTS:
            count = getattr(self, name)
            if count is not None and count < 1:
                raise ValueError(f"{name} must be >= 1, got {count}")
        if self.intermediate_size is None:
            self.intermediate_size = 2 * round(self.hidden_size * 4 / 3)
        if self.initializer_range is None:
            self.initializer_range = self.hidden_size**-0.5
        if self.rules is None:
            self.rules = patterns.over_depth(
                {"pattern": "fibonacci", "window": 13}, self.num_hidden_layers, self.num_attention_heads, "stagger"
            )
        self.rules = copy.deepcopy(self.rules)
        super().__post_init__(**kwargs)

    def validate_architecture(self) -> None:
        """Part of the validation that `transformers` runs on every config."""
        super().validate_architecture()
        assert self.num_key_value_heads is not None
        if self.num_attention_heads % self.num_key_value_heads:
            raise ValueError(
                f"num_attention_heads must be a multiple of num_key_value_heads = {self.num_key_value_heads},"
                f" got {self.num_attention_heads}"
            )
        if self.attention_dropout:
            raise ValueError(f"attention_dropout must be 0, got {self.attention_dropout}")
        assert self.rules is not None
        if len(self.rules) != self.num_hidden_layers:
            raise ValueError(f"rules must be one per layer ({self.num_hidden_layers}), got {len(self.rules)}")
        for layer, rule in enumerate(self.rules):
            try:
                check_rule(rule, self.num_attention_heads, self.num_key_value_heads)
            except (TypeError, ValueError) as error:
                raise ValueError(f"rules[{layer}]: {error}") from error


def check_rule(rule: dict[str, Any], heads: int, kv_heads: int) -> None:
    """Raises ValueError or TypeError unless the rule can be a layer of a model with so many query and key heads."""
    name = rule.get("pattern")
    if name == "dense":
        if len(rule) > 1:
            raise ValueError(f"a dense rule takes no arguments, got {', '.join(k for k in rule if k != 'pattern')}")
    elif name in layers.LAYERS:
        layers.build(rule, heads)
    elif isinstance(name, str) and name in patterns.PATTERNS:
        support = patterns.build(rule, length=1)
        if not support.fits(heads, kv_heads):
            raise ValueError(f"a rule with keys per head must have {heads} heads, as the model, got {support.heads}")
        slopes = support.alibi_slopes
        if slopes is not None and len(slopes) != heads:
            raise ValueError(f"a rule with ALiBi must have {heads} slopes, one a head of the model, got {len(slopes)}")
    else:
        raise ValueError(f"pattern must be one of {', '.join((*LAYER_RULES, *patterns.PATTERNS))}, got {name!r}")


AutoConfig.register("farspan", FarspanConfig)
