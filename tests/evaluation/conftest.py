"""Shared by the tests of evaluation: a small transformers model, on one thread."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import pytest
import torch
from transformers import LlamaConfig, LlamaForCausalLM


@pytest.fixture(autouse=True, scope="module")
def one_thread() -> Iterator[None]:
    """Models this small only lose time to a second thread, and very much of it on a busy machine."""
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(threads)


@pytest.fixture(scope="session")
def tiny_llama() -> Callable[..., LlamaForCausalLM]:
    """`tiny_llama(vocab_size, **config)`: a random Llama, by default of one layer."""

    def build(vocab_size: int, **config: Any) -> LlamaForCausalLM:
        torch.manual_seed(0)
        shape = dict(hidden_size=16, intermediate_size=32, num_hidden_layers=1, num_attention_heads=2)
        return LlamaForCausalLM(LlamaConfig(vocab_size=vocab_size, **{**shape, **config})).eval()

    return build
