"""Rules on a trained model of transformers: `farspan.apply(model, rule)`."""

from __future__ import annotations

import copy
import inspect
from collections.abc import Mapping, Sequence
from types import TracebackType
from typing import Any

from torch import nn

from farspan.models.accounting import Account
from farspan.models.plugin_layer import NAME, PHASES, STATE, Layer, before_forward
from farspan.models.plugin_model import attention_modules, windows
from farspan.models.plugin_rules import per_layer
from farspan.selectors import Selector
from farspan.support import Lines

OneRule = Mapping[str, Any] | Lines | Selector


def apply(model: Any, rule: OneRule | Sequence[OneRule | None], *, phase: str = "both") -> Handle:
    """Lets the attention of a transformers model read what a rule says, until the handle is removed.

    Args:
        model: a causal decoder of transformers that uses its attention interface (Llama, Mistral, Qwen, Gemma 3, ...).
            Layers with a sliding window of their own stay as they are.
        rule: a dictionary as in `farspan.patterns.rules` (or `{"pattern": "dense"}`), `Lines`, or an object with
            `select(q, k, *, scale, start)` (`farspan.selectors.Selector`); or a list of one per layer, with None for
            those that stay as they are.
        phase: "prefill" for calls with several queries per row or without a key before them, "decode" for one query per
            row with keys before it, "both". A phase without a rule is dense. Two calls may give the phases one each.

    Returns the handle: `remove()` or the end of its `with` block takes the rule away, `account()` says what was read.
    A deep copy of a patched model is patched as well, with handles of its own (`handles`). Nothing of this is saved.

    Raises:
        ValueError: the model or the rule cannot be run so, or a layer has a rule for that phase.
        TypeError: the model or a rule has the wrong type.

    Example:
        >>> from transformers import LlamaConfig, LlamaForCausalLM
        >>> shape = dict(vocab_size=64, hidden_size=32, intermediate_size=64, num_hidden_layers=2)
        >>> model = LlamaForCausalLM(LlamaConfig(**shape, num_attention_heads=4))
        >>> with apply(model, {"pattern": "sliding_window", "window": 2}) as handle:
        ...     _ = model(model.dummy_inputs["input_ids"][:1])
        >>> handle.account().total("prefill").density < 1
        True
    """
    if phase not in (*PHASES, "both"):
        raise ValueError(f"phase must be prefill, decode or both, got {phase!r}")
    modules = attention_modules(model)
    slide = windows(model.config)
    heads = model.config.num_attention_heads
    rules = per_layer(rule, slide, heads, getattr(model.config, "num_key_value_heads", None) or heads)
    decoder = model.get_decoder()
    patch = getattr(decoder, STATE, None)
    phases = PHASES if phase == "both" else (phase,)
    wanted = [(n, each) for n, one in enumerate(rules) if one is not None for each in phases]
    if patch is not None:
        for layer, each in wanted:
            if (present := patch.layers[layer].rules[each]) is not None:
                shown = getattr(present, "rule", present)
                raise ValueError(
                    f"layer {layer} must be without a rule for {each}, got {shown}, which is applied already:"
                    " remove its handle first"
                )
    if patch is None:
        patch = _Patch(model, decoder, modules, [Layer(n, heads, window) for n, window in enumerate(slide)])
    for layer, each in wanted:
        patch.layers[layer].put(each, rules[layer])
    handle = Handle(patch, wanted)
    patch.handles.append(handle)
    return handle


def handles(model: Any) -> tuple[Handle, ...]:
    """The handles of the rules applied to a model, oldest first: those of a deep copy are found here only."""
    patch = getattr(model.get_decoder(), STATE, None)
    return () if patch is None else tuple(patch.handles)


class Handle:
    """What one call of `apply` put on a model. Handles of one model share their account."""

    def __init__(self, patch: _Patch, placed: list[tuple[int, str]]) -> None:
        self._patch, self._placed = patch, placed

    def account(self) -> Account:
        """What each layer read in each phase since the first rule was applied, after removal too.

        Layers that slide by themselves are left out. A recomputed forward (gradient checkpointing) counts again.
        """
        layers = [each for each in self._patch.layers if each.window is None]
        tallies = {(each.index, phase): each.settle(phase) for each in layers for phase in PHASES}
        compiled = any(tally.compiled for tally in tallies.values())
        return Account({place: tally.count for place, tally in tallies.items()}, compiled)

    def reset(self) -> None:
        """Counts from zero again."""
        for layer in self._patch.layers:
            for tally in layer.tallies.values():
                tally.reset()

    def remove(self) -> None:
        """Takes these rules away; with the last handle the model is what it was. Again, it does nothing."""
        if self not in self._patch.handles:
            return
        for layer, phase in self._placed:
            self._patch.layers[layer].put(phase, None)
        self._patch.handles.remove(self)
        if not self._patch.handles:
            self._patch.undo()

    def __enter__(self) -> Handle:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.remove()


class _Patch:
    """A model whose attention modules carry a `Layer` each, and how to undo that."""

    def __init__(self, model: Any, decoder: Any, modules: list[nn.Module], layers: list[Layer]) -> None:
        self.model, self.decoder, self.modules, self.layers = model, decoder, modules, layers
        self.parameters = tuple(inspect.signature(decoder.forward).parameters)
        self.handles: list[Handle] = []
        self.config = model.config
        # Another model may have been made with this config, and must not change with it.
        config = copy.copy(self.config)
        config._attn_implementation = NAME
        self._exchange(self.config, config)
        for module, layer in zip(modules, layers, strict=True):
            setattr(module, STATE, layer)
        setattr(decoder, STATE, self)
        self.hook = decoder.register_forward_pre_hook(before_forward, with_kwargs=True)

    def undo(self) -> None:
        """The model as it was, with what was set on its config in the meantime."""
        self.hook.remove()
        for module in (*self.modules, self.decoder):
            delattr(module, STATE)
        present, implementation = self.model.config, self.config._attn_implementation
        vars(self.config).update(vars(present))
        self.config._attn_implementation_internal = implementation
        self._exchange(present, self.config)

    def _exchange(self, old: Any, new: Any) -> None:
        for module in self.model.modules():
            if vars(module).get("config") is old:
                module.config = new
