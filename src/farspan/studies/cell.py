"""One cell of a study: train, evaluate, write the result. Everything it leaves behind is in its folder."""

from __future__ import annotations

import hashlib
import io
import json
import resource
import sys
import time
import traceback
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor
from torch.utils.data import Dataset
from transformers import PreTrainedTokenizerBase

from farspan.data import Prepared, RandomWindows, cache_folder, prepare
from farspan.data.files import build_once, sha256_json, write_atomic, write_json_atomic
from farspan.evaluation import CopyAccuracy, MarkedCopy, ShiftCopy, accuracy, length_curve
from farspan.evaluation.shift_copy import CopyTask
from farspan.layers import LearnedSpacing
from farspan.models import FarspanConfig, FarspanForCausalLM
from farspan.studies.geometry import cost, layers
from farspan.studies.provenance import provenance
from farspan.studies.schema import Cell, Data
from farspan.training import Trained, precision_here, train


def prepare_data(data: Data, progress: Callable[[str, int, int | None], None] | None = None) -> Prepared:
    """The tokens of a language study, from the cache or made now."""
    return prepare(
        data.corpus,
        data.vocab_size,
        cache_folder(),
        data.heldout_fraction,
        data.max_train_tokens,
        max_heldout_tokens=data.max_heldout_tokens,
        progress=progress,
    )


def run(cell: Cell, folder: Path) -> None:
    """Runs the cell to its `result.json`, from wherever an earlier run of it was killed. Finished cells are left alone.

    A failure is written to `error.txt` and raised.

    Raises:
        ValueError: the folder holds a cell with other settings.
    """
    if (folder / "result.json").exists():
        return
    settings = cell.model_dump(mode="json")
    status = _Status(folder / "status.json", cell.recipe.steps)
    try:
        write_once(folder / "config.json", settings)
        (folder / "error.txt").unlink(missing_ok=True)
        if cell.threads is not None:
            torch.set_num_threads(cell.threads)
        write_json_atomic(
            folder / "provenance.json",
            {
                **provenance(),
                "threads": torch.get_num_threads(),
                "seed": cell.seed,
                "cell_sha256": sha256_json(settings),
            }
            | ({"schedule_file_sha256": cell.group["sha256"]} if "sha256" in cell.group else {})
            | {"rules_sha256": sha256_json(cell.rules), "started": time.strftime("%Y-%m-%d %H:%M:%S %z")},
        )
        result = (_language if cell.task == "language" else _copy)(cell, folder, status)
        write_json_atomic(folder / "result.json", result)
        status("finished", "finished", cell.recipe.steps)
    except Exception:
        write_atomic(folder / "error.txt", traceback.format_exc())
        status("failed", "failed", status.step)
        raise


def write_once(path: Path, value: dict[str, Any]) -> None:
    """Writes a JSON file, or checks that it already says the same."""
    if path.exists():
        if json.loads(path.read_text()) != json.loads(json.dumps(value)):
            raise ValueError(
                f"{path} was written with other settings: give the study another name, or remove {path.parent}"
            )
        return
    write_json_atomic(path, value)


class _Status:
    """`status.json`, rewritten at most twice a second while a phase goes on."""

    def __init__(self, path: Path, steps: int) -> None:
        self.path, self.steps, self.step, self.written = path, steps, 0, 0.0

    def __call__(self, state: str, phase: str, step: int, **more: Any) -> None:
        self.step = step
        now = time.time()
        if state == "running" and now - self.written < 0.5:
            return
        self.written = now
        write_json_atomic(
            self.path,
            {"state": state, "phase": phase, "step": step, "steps": self.steps, "updated": now, **more},
        )

    def training(self, line: dict[str, Any]) -> None:
        self(
            "running",
            "training",
            line["step"],
            loss=line["loss"],
            tokens_per_second=line["tokens_per_second"],
        )

    def evaluating(self, done: int, total: int) -> None:
        self("running", "evaluating", self.steps, done=done, total=total)


def _language(cell: Cell, folder: Path, status: _Status) -> dict[str, Any]:
    assert cell.data is not None
    assert cell.evaluation is not None
    data = prepare_data(cell.data)
    _add_provenance(
        folder,
        corpus=cell.data.corpus,
        corpus_sha256=data.corpus_sha256,
        tokenizer_sha256=data.tokenizer_sha256,
    )
    heldout = np.asarray(data.heldout.tokens[: cell.evaluation.tokens])
    if len(heldout) < cell.evaluation.tokens:
        raise ValueError(
            f"evaluation.tokens must be at most the {len(heldout)} held-out tokens, got {cell.evaluation.tokens}"
        )
    model = _model(cell, vocab_size=len(data.tokenizer))
    windows = RandomWindows(data.train, cell.recipe.length, cell.seed, cell.recipe.windows)
    trained = _train(cell, folder, status, model, windows, data.tokenizer)
    began = time.perf_counter()
    lengths = [cell.recipe.length * multiple for multiple in cell.evaluation.multiples]
    curve = length_curve(
        model,
        heldout,
        lengths,
        cell.recipe.length,
        protocols=cell.evaluation.protocols,
        progress=status.evaluating,
    )
    buffer = io.BytesIO()
    np.savez_compressed(buffer, allow_pickle=False, **curve.arrays)
    write_atomic(folder / "nll.npz", buffer.getvalue())
    return {
        **_common(cell, model, trained, max(lengths)),
        "eval_seconds": time.perf_counter() - began,
        "cost": cost(model, lengths),
        "perplexity": curve.perplexity,
        "position_bins": curve.position_bins,
    }


def _copy(cell: Cell, folder: Path, status: _Status) -> dict[str, Any]:
    assert cell.alphabet is not None
    assert cell.samples is not None
    length, size = cell.recipe.length, cell.recipe.windows
    task: CopyTask
    if cell.task == "shift-copy":
        task = ShiftCopy(cell.distances[0], length, cell.alphabet, size=size, seed=cell.seed)
    else:
        task = MarkedCopy(cell.distances, length, cell.alphabet, size=size, seed=cell.seed)
    model = _model(cell, vocab_size=task.vocab_size)
    trained = _train(cell, folder, status, model, _Answers(task))
    score: CopyAccuracy = accuracy(model, task, samples=cell.samples)
    answer: dict[str, Any] = {"chance": score.chance, "depth": cell.model.layers, "steps": trained.steps}
    if cell.task == "shift-copy":
        answer |= {"distance": cell.distances[0], "accuracy": score.accuracies[0]}
    else:
        answer |= {"distances": cell.distances, "accuracies": list(score.accuracies)}
    return {**_common(cell, model, trained, length), **answer}


class _Answers(Dataset[dict[str, Tensor]]):
    """A copy task as the Trainer wants it: the targets answer their own position, so the loss must not shift them."""

    def __init__(self, task: CopyTask) -> None:
        self.task = task

    def __len__(self) -> int:
        return len(self.task)

    def __getitem__(self, index: int) -> dict[str, Tensor]:
        item = self.task[index]
        return {"input_ids": item["input_ids"], "labels": item["targets"], "shift_labels": item["targets"]}


def _model(cell: Cell, vocab_size: int) -> FarspanForCausalLM:
    """The untrained model; equal seeds and shapes give equal weights whatever the rules."""
    torch.manual_seed(cell.seed)
    return FarspanForCausalLM(
        FarspanConfig(
            vocab_size=vocab_size,
            hidden_size=cell.model.hidden_size,
            num_hidden_layers=cell.model.layers,
            num_attention_heads=cell.model.heads,
            num_key_value_heads=cell.model.kv_heads,
            head_dim=cell.model.head_dim,
            max_position_embeddings=cell.recipe.length,
            rules=cell.rules,
        )
    )


def _train(
    cell: Cell,
    folder: Path,
    status: _Status,
    model: FarspanForCausalLM,
    windows: Dataset[Any],
    tokenizer: PreTrainedTokenizerBase | None = None,
) -> Trained:
    """Trains `model` and keeps it, with its tokenizer, in `model/`."""
    _add_provenance(folder, initial_weights_sha256=_weights_sha256(model))
    status("running", "training", 0)
    trained = train(model, windows, cell.recipe, folder, seed=cell.seed, report=status.training)

    def save(scratch: Path) -> None:
        model.save_pretrained(scratch)
        if tokenizer is not None:
            tokenizer.save_pretrained(scratch)

    build_once(folder / "model", save)
    precision, reason = precision_here(cell.recipe.precision)
    _add_provenance(folder, precision=f"{precision}: {reason}", weights_sha256=_weights_sha256(model))
    return trained


def _weights_sha256(model: torch.nn.Module) -> str:
    digest = hashlib.sha256()
    for parameter in model.parameters():
        digest.update(parameter.detach().cpu().contiguous().numpy().tobytes())
    return digest.hexdigest()


def _add_provenance(folder: Path, **more: Any) -> None:
    path = folder / "provenance.json"
    write_json_atomic(path, {**json.loads(path.read_text()), **more})


def _common(cell: Cell, model: FarspanForCausalLM, trained: Trained, length: int) -> dict[str, Any]:
    learned = [attention.spacing for attention in model.attentions if attention.spacing is not None]
    spacings = [layer for layer in learned if isinstance(layer, LearnedSpacing)]
    alphas = None
    if spacings:
        alphas = {
            "initial": [(s.low + s.high) / 2 for s in spacings],
            "final": [float(s.alpha.detach()) for s in spacings],
        }
    # ru_maxrss is in KiB on Linux and in bytes on macOS.
    unit = 1 if sys.platform == "darwin" else 1024
    return {
        "cell": cell.id,
        "label": cell.label,
        "group": cell.group,
        "seed": cell.seed,
        "task": cell.task,
        "parameters": sum(p.numel() for p in model.parameters()),
        "train_tokens": trained.tokens,
        "train_seconds": trained.seconds,
        "train_tokens_per_second": trained.tokens / trained.seconds,
        "peak_memory_mb": resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * unit / 1e6,
        "threads": torch.get_num_threads(),
        "train_length": cell.recipe.length,
        "layers": layers(model, length),
        "alphas": alphas,
        "learned": [layer.readings() for layer in learned],
    }
