"""The training recipe of arXiv 2606.28560 (its section 4 and code) as validated data."""

from __future__ import annotations

from typing import Literal, Self

import torch
from pydantic import BaseModel, ConfigDict, Field, model_validator

from farspan import _cpu


class Recipe(BaseModel):
    """Everything that decides the weights besides the model and the text. Budgets are tokens, never seconds.

    The defaults are the paper's: 425.98M tokens in steps of 32,768, AdamW with betas 0.9 and 0.95, decay 0.1 on
    matrices only, 300 steps of warm-up to 3e-4, cosine to a tenth, gradient norm clipped at 1.
    """

    model_config = ConfigDict(frozen=True, extra="forbid")

    length: int = Field(1024, ge=2, description="tokens in a training window")
    tokens: int = Field(425_984_000, ge=1, description="tokens trained on")
    batch_tokens: int = Field(32_768, ge=1, description="tokens in an optimiser step")
    micro_batch: int = Field(8, ge=1, description="windows in one forward pass on one device")
    learning_rate: float = Field(3e-4, gt=0)
    min_learning_rate: float = Field(0.1, ge=0, le=1, description="where the cosine ends, as a share of learning_rate")
    warmup_steps: int | None = Field(None, ge=0, description="300 by default, or a tenth of the steps if that is less")
    beta1: float = Field(0.9, ge=0, lt=1)
    beta2: float = Field(0.95, ge=0, lt=1)
    weight_decay: float = Field(0.1, ge=0)
    clip: float = Field(1.0, gt=0)
    precision: Literal["auto", "fp32", "bf16"] = "auto"
    log_every: int = Field(10, ge=1, description="steps between two lines of metrics")
    save_every: int = Field(500, ge=1, description="steps between two checkpoints, a multiple of log_every")

    @model_validator(mode="after")
    def _whole(self) -> Self:
        window = self.length * self.micro_batch
        if self.batch_tokens % window:
            raise ValueError(
                f"batch_tokens must be a multiple of length * micro_batch = {window}, got {self.batch_tokens}"
            )
        if self.tokens < self.batch_tokens:
            raise ValueError(f"tokens must be at least batch_tokens = {self.batch_tokens}, got {self.tokens}")
        if self.warmup >= self.steps:
            raise ValueError(f"warmup_steps must be below the number of steps, {self.steps}, got {self.warmup}")
        if self.save_every % self.log_every:
            # A checkpoint between two lines of metrics would lose the losses since the last one.
            raise ValueError(f"save_every must be a multiple of log_every = {self.log_every}, got {self.save_every}")
        return self

    @property
    def warmup(self) -> int:
        """Steps until the learning rate is at its peak."""
        return min(300, self.steps // 10) if self.warmup_steps is None else self.warmup_steps

    @property
    def steps(self) -> int:
        """Optimiser steps: whole batches within the token budget."""
        return self.tokens // self.batch_tokens

    @property
    def windows(self) -> int:
        """Training windows drawn in all steps together."""
        return self.steps * self.batch_tokens // self.length


def precision_here(wanted: Literal["auto", "fp32", "bf16"]) -> tuple[Literal["fp32", "bf16"], str]:
    """The precision to train in on this machine, and why.

    "auto" takes bf16 autocast where the device multiplies it fast. A CPU without bf16 instructions does not: there a
    matrix product was measured 25 times slower than in fp32.
    """
    if wanted != "auto":
        return wanted, "asked for"
    if torch.cuda.is_available():
        fast = torch.cuda.is_bf16_supported(including_emulation=False)
        return ("bf16", "the GPU multiplies bf16") if fast else ("fp32", "the GPU has no bf16 units")
    if _cpu.bf16_is_fast():
        return "bf16", "the CPU has bf16 instructions"
    return "fp32", "the CPU has no bf16 instructions"
