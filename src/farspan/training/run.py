"""Training one model by a recipe, on transformers' Trainer: resumable to bitwise the same weights on a CPU."""

from __future__ import annotations

import math
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils.data import Dataset, SequentialSampler
from transformers import (
    PreTrainedModel,
    Trainer,
    TrainerCallback,
    TrainerControl,
    TrainerState,
    TrainingArguments,
)
from transformers.trainer_callback import PrinterCallback

from farspan.layers import LearnedLayer
from farspan.training import checkpoints, metrics
from farspan.training.recipe import Recipe, precision_here

Report = Callable[[dict[str, Any]], None]


@dataclass(frozen=True)
class Trained:
    """What a finished training cost: steps, tokens, seconds of stepping over all resumes, precision used."""

    steps: int
    tokens: int
    seconds: float
    precision: str


def train(
    model: PreTrainedModel,
    windows: Dataset[Any],
    recipe: Recipe,
    folder: Path,
    *,
    seed: int = 0,
    report: Report | None = None,
) -> Trained:
    """Trains `model` in place on `windows` in their order, from the newest complete checkpoint in `folder` if there
    is one.

    Args:
        windows: map-style, at least `recipe.windows` items `{"input_ids": [length], "labels": [length]}`; an item with
            `shift_labels` has its loss taken without the usual shift by one.
        folder: gets `metrics.jsonl` and `checkpoints/`; kill the process at any time and call again to go on.
        seed: of whatever the model draws while training (dropout); the windows carry their own.
        report: called with each line of metrics as it is written.

    Raises:
        FloatingPointError: the loss or a weight is no longer finite; the last good checkpoint stays.
        ValueError: there are fewer windows than the recipe needs.
    """
    available = len(windows)  # type: ignore[arg-type]
    if available < recipe.windows:
        raise ValueError(f"windows must hold at least the {recipe.windows} the recipe draws, got {available}")
    folder.mkdir(parents=True, exist_ok=True)
    saved = checkpoints.newest(folder / "checkpoints")
    log = folder / "metrics.jsonl"
    metrics.keep_until(log, saved[0] if saved else 0)
    precision, _ = precision_here(recipe.precision)
    arguments = TrainingArguments(
        output_dir=str(folder / "checkpoints"),
        max_steps=recipe.steps,
        per_device_train_batch_size=recipe.micro_batch,
        learning_rate=recipe.learning_rate,
        adam_beta1=recipe.beta1,
        adam_beta2=recipe.beta2,
        weight_decay=recipe.weight_decay,
        max_grad_norm=recipe.clip,
        warmup_steps=recipe.warmup,
        lr_scheduler_type="cosine_with_min_lr",
        lr_scheduler_kwargs={"min_lr_rate": recipe.min_learning_rate},
        optim="adamw_torch_fused",
        bf16=precision == "bf16",
        use_cpu=not torch.accelerator.is_available(),
        logging_steps=recipe.log_every,
        logging_nan_inf_filter=False,
        save_steps=recipe.save_every,
        save_total_limit=2,
        seed=seed,
        report_to="none",
        disable_tqdm=True,
        remove_unused_columns=False,
        dataloader_pin_memory=torch.cuda.is_available(),
    )
    arguments.gradient_accumulation_steps = _accumulation(recipe, arguments)
    use_cache = model.config.use_cache
    trainer = _Trainer(
        model=model,
        args=arguments,
        train_dataset=windows,
        callbacks=[_AfterStep(model, recipe.steps), _Metrics(log, recipe, model, report)],
    )
    # The Trainer prints its own logs to the terminal; the metrics file and the caller's report take their place.
    trainer.remove_callback(PrinterCallback)
    if saved and saved[0] >= recipe.steps:
        # The Trainer would take one step more from a checkpoint of the last step.
        model.load_state_dict(type(model).from_pretrained(saved[1]).state_dict())
    else:
        trainer.train(resume_from_checkpoint=str(saved[1]) if saved else None)
    _check_weights(model, recipe.steps)
    # The Trainer switches the cache off and leaves autocast around forward; a trained model is to be like a loaded one.
    model.config.use_cache = use_cache
    for name in ("forward", "_original_forward"):
        vars(model).pop(name, None)
    lines = metrics.read(log)
    seconds = sum(line["seconds"] for line in lines)
    return Trained(recipe.steps, recipe.steps * recipe.batch_tokens, seconds, precision)


def _accumulation(recipe: Recipe, arguments: TrainingArguments) -> int:
    at_once = recipe.length * arguments.train_batch_size * arguments.world_size
    passes, rest = divmod(recipe.batch_tokens, at_once)
    if rest:
        raise ValueError(
            f"batch_tokens must be a multiple of length * micro_batch * devices = {at_once}, got {recipe.batch_tokens}"
        )
    return passes


class _Trainer(Trainer):
    """The Trainer, with windows in order, decay on matrices only, penalties of learned layers in the loss, and a stop
    at the first number that is not finite."""

    def _get_train_sampler(self, train_dataset: Any = None) -> SequentialSampler:
        return SequentialSampler(train_dataset if train_dataset is not None else self.train_dataset)

    def get_decay_parameter_names(self, model: nn.Module) -> list[str]:
        return [name for name, parameter in model.named_parameters() if parameter.ndim >= 2]

    def compute_loss(self, model: nn.Module, inputs: dict[str, Any], *args: Any, **kwargs: Any) -> Any:
        loss = super().compute_loss(model, inputs, *args, **kwargs)
        if self.model.training and (penalty := _penalty(self.model)) is not None:
            # The loss of each pass is its part of the step's; so is the penalty, which every pass finds whole.
            loss = loss + penalty / self.args.gradient_accumulation_steps
        return loss

    def training_step(self, *args: Any, **kwargs: Any) -> Tensor:
        loss = super().training_step(*args, **kwargs)
        if not math.isfinite(loss.item()):
            raise FloatingPointError(
                f"the loss became {loss.item()} in step {self.state.global_step + 1}; the last good checkpoint stays"
            )
        return loss

    def _save_checkpoint(self, model: nn.Module, trial: Any) -> None:
        _check_weights(model, self.state.global_step)
        super()._save_checkpoint(model, trial)
        self.accelerator.wait_for_everyone()
        if self.args.should_save:
            checkpoints.mark_complete(Path(self.args.output_dir), self.state.global_step)


def _check_weights(model: nn.Module, step: int) -> None:
    for name, parameter in model.named_parameters():
        if not bool(torch.isfinite(parameter).all()):
            raise FloatingPointError(f"{name} is no longer finite after step {step}; the last good checkpoint stays")


def _learned(model: nn.Module) -> list[LearnedLayer]:
    return [module for module in model.modules() if isinstance(module, LearnedLayer)]


def _penalty(model: nn.Module) -> Tensor | None:
    """What the learned layers add to the loss, or None where none of them adds anything."""
    penalties = [penalty for layer in _learned(model) if (penalty := layer.penalty()) is not None]
    return torch.stack(penalties).sum() if penalties else None


class _AfterStep(TrainerCallback):
    """Lets learned layers do what they do after each step of the optimiser."""

    def __init__(self, model: nn.Module, steps: int) -> None:
        self.model, self.steps = model, steps

    def on_optimizer_step(
        self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **_: Any
    ) -> None:
        # The Trainer counts the step after this call.
        for layer in _learned(self.model):
            layer.after_step((state.global_step + 1) / self.steps)


class _Metrics(TrainerCallback):
    """Writes a line of metrics whenever the Trainer logs."""

    def __init__(self, path: Path, recipe: Recipe, model: nn.Module, report: Report | None) -> None:
        self.path, self.recipe, self.report = path, recipe, report
        self.model = model
        self.since = 0.0

    def on_train_begin(self, *_: Any, **__: Any) -> None:
        self.since = time.perf_counter()

    def on_step_end(self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **_: Any) -> None:
        if state.global_step == self.recipe.steps:
            control.should_log = True

    def on_log(
        self,
        args: TrainingArguments,
        state: TrainerState,
        control: TrainerControl,
        logs: dict[str, float] | None = None,
        **_: Any,
    ) -> None:
        if not logs or "loss" not in logs or not state.is_world_process_zero:
            return
        now = time.perf_counter()
        steps = state.global_step - (state.global_step - 1) // self.recipe.log_every * self.recipe.log_every
        line: dict[str, Any] = {
            "step": state.global_step,
            "tokens": state.global_step * self.recipe.batch_tokens,
            "loss": logs["loss"],
            "learning_rate": logs["learning_rate"],
            "grad_norm": logs["grad_norm"],
            "seconds": now - self.since,
            "tokens_per_second": steps * self.recipe.batch_tokens / (now - self.since),
        }
        for layer in _learned(self.model):
            for name, value in layer.readings().items():
                line.setdefault(name, []).append(value)
        if (penalty := _penalty(self.model)) is not None:
            line["penalty"] = penalty.item()
        self.since = now
        metrics.append(self.path, line)
        if self.report is not None:
            self.report(line)
