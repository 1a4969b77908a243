"""A Llama whose layers each follow a rule. Everything but the attention is transformers' own code."""

from __future__ import annotations

import copy
from collections.abc import Callable
from typing import Any, ClassVar

import torch
from torch import Tensor, nn
from transformers import AttentionInterface, AutoModel, AutoModelForCausalLM, Cache, LlamaForCausalLM, LlamaModel
from transformers import initialization as init
from transformers.masking_utils import AttentionMaskInterface
from transformers.modeling_outputs import BaseModelOutputWithPast
from transformers.models.llama.modeling_llama import (
    LlamaAttention,
    LlamaDecoderLayer,
    LlamaMLP,
    LlamaPreTrainedModel,
    LlamaRMSNorm,
    LlamaRotaryEmbedding,
)
from transformers.utils.deprecation import deprecate_kwarg

from farspan import layers
from farspan.attention import attention, dense_attention
from farspan.layers import LAYERS, LearnedLayer
from farspan.models.configuration import FarspanConfig
from farspan.models.start import check_inputs, start_from_mask
from farspan.models.static_rule import StaticRule, check_start
from farspan.patterns import rules as patterns
from farspan.support import Support

NAME = "farspan"


class FarspanAttention(LlamaAttention):
    """Llama's projections and rotary embedding around the attention that this layer's rule asks for.

    A rule with ALiBi leaves the rotary embedding out: its slopes are all that such a layer knows of positions.
    """

    def __init__(self, config: FarspanConfig, layer_idx: int) -> None:
        super().__init__(config, layer_idx)
        assert config.rules is not None
        self.rule = config.rules[layer_idx]
        self.static = StaticRule(self.rule, config.max_position_embeddings)
        self.spacing: LearnedLayer | None = None
        if self.rule["pattern"] in LAYERS:
            self.spacing = layers.build(self.rule, config.num_attention_heads)

    @property
    def frozen(self) -> dict[str, Any]:
        """This layer's rule, or the static one nearest to what it has learned."""
        return self.rule if self.spacing is None else self.spacing.frozen_rule()

    def support(self, q_len: int, k_len: int) -> Support | None:
        """What the last `q_len` of `k_len` tokens read; None for dense and learned layers."""
        return self.static.support(q_len, k_len)

    def forward(
        self, hidden_states: Tensor, position_embeddings: tuple[Tensor, Tensor] | None = None, **kwargs: Any
    ) -> tuple[Tensor, Tensor | None]:
        """Llama's forward, which looks the attention up by a name that anyone may set on the config."""
        if self.config._attn_implementation != NAME:
            raise ValueError(
                f"attn_implementation must be {NAME!r}, or the rules would be ignored,"
                f" got {self.config._attn_implementation!r}"
            )
        if patterns.has_alibi(self.rule) and position_embeddings is not None:
            cosine, sine = position_embeddings
            position_embeddings = torch.ones_like(cosine), torch.zeros_like(sine)
        return super().forward(hidden_states, position_embeddings=position_embeddings, **kwargs)

    def attend(self, q: Tensor, k: Tensor, v: Tensor, start: Tensor | None, scale: float) -> Tensor:
        """`q [B, H, Tq, D]`, `k`, `v [B, Hkv, Tk, D]`, `start` int `[B, Tq]` or None -> `[B, H, Tq, D]`."""
        if self.spacing is not None:
            return self.spacing(q, k, v, scale=scale, start=start)
        support = self.support(q.shape[2], k.shape[2])
        if support is None:
            return dense_attention(q, k, v, scale=scale, start=start)
        self.static.check_cache(self.layer_idx, k.shape[2] - q.shape[2], k.shape[2])
        check_start(support, self.rule["pattern"], self.layer_idx, start, k.shape[2])
        return attention(q, k, v, support, scale=scale, start=start)


def _attention(
    module: FarspanAttention,
    query: Tensor,
    key: Tensor,
    value: Tensor,
    attention_mask: Tensor | None,
    scaling: float,
    output_attentions: bool = False,
    **_: Any,
) -> tuple[Tensor, None]:
    """The function transformers calls: `query [B, H, Tq, D]` -> `[B, Tq, H, D]`. The mask is `start`, `[B, Tq]`."""
    if output_attentions or module.config.output_attentions:
        raise ValueError("output_attentions must be False: the attention weights are never stored")
    if attention_mask is not None and attention_mask.ndim != 2:
        raise ValueError(
            f"attention_mask must be [B, T], padding only: the rules decide the pairs, got {list(attention_mask.shape)}"
        )
    # Autocast leaves the rotated queries and keys in fp32 beside values in bf16.
    query, key = query.to(value.dtype), key.to(value.dtype)
    out = module.attend(query, key, value, attention_mask, scaling)
    return out.transpose(1, 2).contiguous(), None


AttentionInterface.register(NAME, _attention)
AttentionMaskInterface.register(NAME, start_from_mask)


class FarspanRotaryEmbedding(LlamaRotaryEmbedding):
    """Llama's rotary embedding whose frequencies stay in fp32 when the model is cast: in bf16 they are 0.4 % off."""

    inv_freq: Tensor
    original_inv_freq: Tensor

    def _apply(self, fn: Callable[[Tensor], Tensor], recurse: bool = True) -> FarspanRotaryEmbedding:
        frequencies = self.inv_freq, self.original_inv_freq
        super()._apply(fn, recurse)
        if self.inv_freq.dtype != frequencies[0].dtype:
            self.inv_freq, self.original_inv_freq = (each.to(self.inv_freq.device) for each in frequencies)
        return self


class FarspanDecoderLayer(LlamaDecoderLayer):
    """Llama's decoder layer with our attention."""

    def __init__(self, config: FarspanConfig, layer_idx: int) -> None:
        nn.Module.__init__(self)
        self.hidden_size = config.hidden_size
        self.self_attn = FarspanAttention(config, layer_idx)
        self.mlp = LlamaMLP(config)
        self.input_layernorm = LlamaRMSNorm(config.hidden_size, eps=config.rms_norm_eps)
        self.post_attention_layernorm = LlamaRMSNorm(config.hidden_size, eps=config.rms_norm_eps)
        self.self_attn.o_proj.into_residual = True
        self.mlp.down_proj.into_residual = True


class FarspanPreTrainedModel(LlamaPreTrainedModel):
    """What the models share: the config class, the choice of attention, the initial weights."""

    config_class = FarspanConfig
    _no_split_modules: ClassVar[list[str]] = ["FarspanDecoderLayer"]
    # `_attention` returns no weights; recording them would hand out a tuple of None.
    _can_record_outputs: ClassVar[dict[str, type]] = {"hidden_states": FarspanDecoderLayer}

    def _check_and_adjust_attn_implementation(self, attn_implementation: str | None, *_: Any, **__: Any) -> str:
        if attn_implementation not in (None, NAME):
            raise ValueError(
                f"attn_implementation must be left out: the rules of the config decide, got {attn_implementation!r}"
            )
        return NAME

    @torch.no_grad()
    def _init_weights(self, module: nn.Module) -> None:
        """Normal with `initializer_range`, projections into the residual stream narrower by (2 * layers) ** -0.5."""
        if getattr(module, "into_residual", False):
            assert self.config.initializer_range is not None
            std = self.config.initializer_range * (2 * self.config.num_hidden_layers) ** -0.5
            init.normal_(module.weight, std=std)
            return
        super()._init_weights(module)
        if isinstance(module, LearnedLayer):
            for name, value in module.initial().items():
                init.copy_(getattr(module, name), value)


class FarspanModel(FarspanPreTrainedModel, LlamaModel):
    """The decoder without a head."""

    def __init__(self, config: FarspanConfig) -> None:
        LlamaPreTrainedModel.__init__(self, config)
        self.padding_idx = config.pad_token_id
        self.vocab_size = config.vocab_size
        self.embed_tokens = nn.Embedding(config.vocab_size, config.hidden_size, self.padding_idx)
        self.layers = nn.ModuleList(FarspanDecoderLayer(config, i) for i in range(config.num_hidden_layers))
        self.norm = LlamaRMSNorm(config.hidden_size, eps=config.rms_norm_eps)
        self.rotary_emb = FarspanRotaryEmbedding(config=config)
        self.gradient_checkpointing = False
        self.post_init()

    @deprecate_kwarg("past_key_values", "5.40.0", new_name="cache")
    def forward(
        self,
        input_ids: Tensor | None = None,
        attention_mask: Tensor | None = None,
        position_ids: Tensor | None = None,
        cache: Cache | None = None,
        inputs_embeds: Tensor | None = None,
        use_cache: bool | None = None,
        **kwargs: Any,
    ) -> BaseModelOutputWithPast:
        """Llama's forward, for masks and packed documents that transformers would misread without a word.

        Documents packed into one row (position ids that restart) are told apart where neither a cache nor a mask is
        given; no cache is then kept. Beside one, and in a compiled graph that keeps a cache, they are refused.
        """
        use_cache = check_inputs(attention_mask, position_ids, cache, use_cache)
        return super().forward(
            input_ids=input_ids,
            attention_mask=attention_mask,
            position_ids=position_ids,
            cache=cache,
            inputs_embeds=inputs_embeds,
            use_cache=use_cache,
            **kwargs,
        )


class FarspanForCausalLM(FarspanPreTrainedModel, LlamaForCausalLM):
    """The language model. Its config holds one rule per layer; it runs at any length without editing."""

    def __init__(self, config: FarspanConfig) -> None:
        LlamaPreTrainedModel.__init__(self, config)
        self.model = FarspanModel(config)
        self.vocab_size = config.vocab_size
        self.lm_head = nn.Linear(config.hidden_size, config.vocab_size, bias=False)
        self.post_init()

    @property
    def attentions(self) -> list[FarspanAttention]:
        """The attention of every layer, bottom to top."""
        return [module for module in self.model.modules() if isinstance(module, FarspanAttention)]

    def freeze(self) -> FarspanForCausalLM:
        """A copy whose learned layers are the static patterns nearest to what they have learned, as cheap as those."""
        config = FarspanConfig(**{**self.config.to_dict(), "rules": [each.frozen for each in self.attentions]})
        frozen = FarspanForCausalLM(config).to(self.device, self.dtype)
        weights = {name: value for name, value in self.state_dict().items() if ".spacing." not in name}
        frozen.load_state_dict(weights)
        frozen.generation_config = copy.deepcopy(self.generation_config)
        return frozen.train(self.training)


AutoModel.register(FarspanConfig, FarspanModel)
AutoModelForCausalLM.register(FarspanConfig, FarspanForCausalLM)
