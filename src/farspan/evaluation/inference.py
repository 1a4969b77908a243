"""What every evaluation of a model needs: evaluation mode undone afterwards, and early, clear refusals."""

from __future__ import annotations

import inspect
from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor, nn

if TYPE_CHECKING:
    from transformers import PreTrainedModel

_LEARNED_POSITIONS = ("wpe", "embed_positions", "position_embeddings")


@contextmanager
def evaluating(model: nn.Module) -> Iterator[None]:
    """Evaluation mode without gradients; on leaving, each submodule is back in the mode it had."""
    training = [module for module in model.modules() if module.training]
    model.eval()
    try:
        with torch.no_grad():
            yield
    finally:
        for module in training:
            module.training = True


def embedding_weight(model: PreTrainedModel) -> Tensor:
    """The input embedding `[V, hidden]`: its rows are the ids a model knows, its device takes the inputs."""
    weight = model.get_input_embeddings().weight
    assert isinstance(weight, Tensor)
    return weight


def accepted(model: nn.Module, **options: Any) -> dict[str, Any]:
    """Those options that the model's `forward` names; `logits_to_keep`, say, is not known to all."""
    names = inspect.signature(model.forward).parameters
    return {name: value for name, value in options.items() if name in names}


def check_length(model: PreTrainedModel, length: int) -> None:
    """Refuse a length beyond a learned position table. Rotary and position-free models run at any length."""
    limit = getattr(model.config, "max_position_embeddings", None)
    if limit is None or length <= limit:
        return
    for name, module in model.named_modules():
        if isinstance(module, nn.Embedding) and name.rpartition(".")[2] in _LEARNED_POSITIONS:
            raise ValueError(f"length must be at most {limit}, the learned positions of {name}, got {length}")
