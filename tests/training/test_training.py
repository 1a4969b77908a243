"""What `train` does to a model: the loss it takes, the steps it makes, what it logs, when it stops."""

from __future__ import annotations

import gc
import json
import math
import os

import numpy as np
import pytest
import torch
from torch.utils.data import Dataset
from transformers import AutoModelForCausalLM

from farspan.data.packing import RandomWindows, TokenFile
from farspan.models import FarspanConfig, FarspanForCausalLM
from farspan.training import Recipe, Trained, train

LENGTH, VOCABULARY = 12, 32
WINDOW = {"pattern": "sliding_window", "window": 4}
LEARNED = {"pattern": "learned_spacing", "window": 2}
SPAN = {"pattern": "adaptive_span", "max_span": 8, "ramp": 2, "init": 0.5, "coefficient": 0.01}
DCLS = {"pattern": "dcls", "window": 2, "positions": [3.0, 5.0], "reach": 8, "width": 2.0}


@pytest.fixture(autouse=True)
def _quick(monkeypatch):
    """Without what takes most of the time: fsync, which guards against a loss of power that nothing here simulates, and
    the walk over all that was ever imported when accelerate collects garbage before a training."""
    monkeypatch.setattr(os, "fsync", lambda descriptor: None)
    gc.freeze()
    yield
    gc.unfreeze()


def tiny(*rules):
    torch.manual_seed(0)
    shape = dict(vocab_size=VOCABULARY, hidden_size=16, num_attention_heads=2, num_key_value_heads=1)
    rules = rules or (WINDOW,)
    return FarspanForCausalLM(FarspanConfig(**shape, num_hidden_layers=len(rules), rules=list(rules)))


def recipe(steps=4, micro_batch=2, windows_a_step=4, **changes):
    defaults = dict(
        length=LENGTH,
        micro_batch=micro_batch,
        batch_tokens=windows_a_step * LENGTH,
        tokens=steps * windows_a_step * LENGTH,
        learning_rate=1e-2,
        warmup_steps=0,
        precision="fp32",
        log_every=1,
        save_every=100,
    )
    return Recipe(**{**defaults, **changes})


class Windows(Dataset):
    """Random tokens; `labels` hides as many of them as `hidden(index)` says. Remembers which items were asked for."""

    def __init__(self, count=64, hidden=lambda index: 0, shifted=False):
        self.count, self.hidden, self.shifted, self.asked = count, hidden, shifted, []

    def __len__(self):
        return self.count

    def __getitem__(self, index):
        self.asked.append(index)
        ids = torch.randint(0, VOCABULARY, (LENGTH,), generator=torch.Generator().manual_seed(index))
        labels = ids.clone()
        labels[: self.hidden(index)] = -100
        item = {"input_ids": ids, "labels": labels}
        return {**item, "shift_labels": labels} if self.shifted else item


def lines_of(folder):
    return [json.loads(line) for line in (folder / "metrics.jsonl").read_text().splitlines()]


def losses_by_hand(model, items, shifted):
    """Negative log-likelihood of every token that has a label, one text at a time."""
    found = []
    for item in items:
        scores = model(item["input_ids"][None]).logits[0].log_softmax(-1)
        targets = item["labels"] if shifted else torch.cat([item["labels"][1:], torch.tensor([-100])])
        found.append(torch.stack([-scores[t, target] for t, target in enumerate(targets.tolist()) if target >= 0]))
    return found


@pytest.mark.parametrize("shifted", [False, True], ids=["labels", "shift_labels"])
@pytest.mark.parametrize("micro_batch", [1, 2, 4], ids=lambda n: f"{4 // n} passes")
def test_every_token_weighs_the_same_however_the_batch_is_split(tmp_path, micro_batch, shifted):
    """F31, F33: loss and gradient are those of all tokens in one batch, each label used once, in its place."""
    # Texts with one label, three, all, and some.
    windows = Windows(4, [LENGTH - 1, LENGTH - 3, 0, 4].__getitem__, shifted)
    model = tiny()
    losses = losses_by_hand(model, [windows[n] for n in range(4)], shifted)
    mean = torch.cat(losses).mean()
    assert abs(mean - torch.stack([loss.mean() for loss in losses]).mean()) > 0.05
    # The optimiser keeps the parameters that decay first.
    parameters = sorted(model.parameters(), key=lambda parameter: parameter.ndim < 2)
    expected = torch.autograd.grad(mean, parameters)
    # Without averaging (beta1 = 0) and clipping the first moment of the optimiser is the gradient.
    train(model, windows, recipe(1, micro_batch, beta1=0, clip=1e9), tmp_path)
    (line,) = lines_of(tmp_path)
    assert line["loss"] == pytest.approx(mean.item(), rel=1e-5)
    norm = torch.cat([grad.flatten() for grad in expected]).norm()
    assert line["grad_norm"] == pytest.approx(norm.item(), rel=1e-5)
    state = torch.load(tmp_path / "checkpoints" / "checkpoint-1" / "optimizer.pt", weights_only=True)
    moments = [state["state"][n]["exp_avg"] for group in state["param_groups"] for n in group["params"]]
    for moment, grad in zip(moments, expected, strict=True):
        torch.testing.assert_close(moment, grad, atol=1e-6, rtol=0)


def test_the_gradient_is_clipped_to_the_norm_of_the_recipe(tmp_path):
    model = tiny()
    train(model, Windows(), recipe(1, beta1=0, clip=0.01), tmp_path)
    state = torch.load(tmp_path / "checkpoints" / "checkpoint-1" / "optimizer.pt", weights_only=True)
    norm = torch.cat([entry["exp_avg"].flatten() for entry in state["state"].values()]).norm()
    assert norm.item() == pytest.approx(0.01, rel=1e-3)
    assert lines_of(tmp_path)[0]["grad_norm"] > 0.01


def test_the_optimiser_is_the_one_of_the_recipe(tmp_path):
    chosen = recipe(1, beta1=0.7, beta2=0.8, weight_decay=0.3, learning_rate=0.02)
    train(tiny(), Windows(), chosen, tmp_path)
    state = torch.load(tmp_path / "checkpoints" / "checkpoint-1" / "optimizer.pt", weights_only=True)
    groups = [(group["betas"], group["weight_decay"], group["initial_lr"]) for group in state["param_groups"]]
    assert groups == [((0.7, 0.8), 0.3, 0.02), ((0.7, 0.8), 0, 0.02)]


def test_the_learning_rate_warms_up_and_falls_to_a_tenth(tmp_path):
    train(tiny(), Windows(), recipe(12, warmup_steps=4, learning_rate=0.5), tmp_path)
    rates = [line["learning_rate"] for line in lines_of(tmp_path)]
    assert rates[:5] == pytest.approx([0, 0.125, 0.25, 0.375, 0.5])
    cosine = [0.05 + 0.45 * (1 + math.cos(math.pi * n / 8)) / 2 for n in range(8)]
    assert rates[4:] == pytest.approx(cosine)
    # The step after the last would be at the end of the cosine, a tenth of the peak.
    state = torch.load(tmp_path / "checkpoints" / "checkpoint-12" / "scheduler.pt", weights_only=True)
    assert state["_last_lr"] == pytest.approx([0.05] * 2)


def test_only_matrices_decay(tmp_path):
    """Parameters without a gradient move by decay alone: a matrix shrinks, a norm and a theta stay to the bit."""
    rule = {"pattern": "learned_spacing", "window": LENGTH}  # every rung lies inside or beyond: theta has no gradient
    model = tiny(rule, WINDOW)
    layer = model.model.layers[0]
    layer.self_attn.spacing.theta.data.fill_(0.7)
    layer.input_layernorm.weight.data.fill_(1.3)
    for parameter in (layer.input_layernorm.weight, layer.self_attn.q_proj.weight):
        parameter.register_hook(torch.zeros_like)
    before = layer.self_attn.q_proj.weight.detach().clone()
    train(model, Windows(), recipe(3, weight_decay=0.5, min_learning_rate=1), tmp_path)
    assert layer.self_attn.spacing.theta.item() == torch.tensor(0.7)
    assert (layer.input_layernorm.weight == 1.3).all()
    torch.testing.assert_close(layer.self_attn.q_proj.weight, before * (1 - 1e-2 * 0.5) ** 3)


def recorded(model, windows, chosen, folder):
    """What the model was shown, in order, and trains it."""
    shown = []
    hook = model.register_forward_pre_hook(
        lambda _, __, kwargs: shown.append(kwargs["input_ids"].clone()), with_kwargs=True
    )
    train(model, windows, chosen, folder)
    hook.remove()
    return torch.cat(shown)


def test_cells_see_the_same_batches_in_the_same_order(tmp_path):
    """Whatever the rules and the micro batch, and as the seed of the windows alone decides."""
    tokens = np.arange(500, dtype="<u2") % VOCABULARY
    folder = tmp_path / "tokens"
    folder.mkdir()
    tokens.tofile(folder / "tokens.bin")
    np.save(folder / "documents.npy", np.array([0, 500]))
    meta = dict(dtype="uint16", tokens=500, documents=1, tokenizer_sha256="", corpus_sha256="", split="train")
    (folder / "meta.json").write_text(json.dumps(meta))
    windows = lambda seed: RandomWindows(TokenFile(folder), LENGTH, seed, 16)  # noqa: E731
    cells = [
        recorded(tiny(WINDOW), windows(3), recipe(4), tmp_path / "window"),
        recorded(tiny({"pattern": "dense"}, LEARNED), windows(3), recipe(4, micro_batch=4), tmp_path / "learned"),
        recorded(tiny(WINDOW), windows(3), recipe(4, micro_batch=1), tmp_path / "small"),
    ]
    expected = torch.stack([windows(3)[n]["input_ids"] for n in range(16)])
    assert all(torch.equal(cell, expected) for cell in cells)
    assert not torch.equal(recorded(tiny(WINDOW), windows(4), recipe(4), tmp_path / "other"), expected)


def test_windows_are_taken_in_their_order_and_no_more_than_the_recipe_draws(tmp_path):
    windows = Windows(count=64)
    shown = recorded(tiny(), windows, recipe(5), tmp_path)
    assert torch.equal(shown, torch.stack([windows[n]["input_ids"] for n in range(20)]))


def test_too_few_windows_are_refused(tmp_path):
    with pytest.raises(ValueError, match="windows must hold at least the 16 the recipe draws, got 15"):
        train(tiny(), Windows(count=15), recipe(4), tmp_path)
    assert [*tmp_path.iterdir()] == []


@pytest.mark.parametrize(("steps", "log_every", "logged"), [(4, 1, [1, 2, 3, 4]), (7, 3, [3, 6, 7]), (2, 5, [2])])
def test_a_line_of_metrics_counts_its_own_steps(tmp_path, steps, log_every, logged):
    reported = []
    chosen = recipe(steps, log_every=log_every, save_every=30)
    trained = train(tiny(), Windows(), chosen, tmp_path, report=reported.append)
    lines = lines_of(tmp_path)
    assert reported == lines
    assert [line["step"] for line in lines] == logged
    assert [line["tokens"] for line in lines] == [step * 4 * LENGTH for step in logged]
    for line, before in zip(lines, [0, *logged], strict=False):
        assert line["tokens_per_second"] * line["seconds"] == pytest.approx((line["step"] - before) * 4 * LENGTH)
    assert all(0 < line["seconds"] < 60 for line in lines)
    assert trained == Trained(steps, steps * 4 * LENGTH, sum(line["seconds"] for line in lines), "fp32")


def test_the_loss_of_a_line_is_the_mean_since_the_line_before(tmp_path):
    for log_every in (1, 3):
        train(tiny(), Windows(), recipe(7, log_every=log_every, save_every=30), tmp_path / str(log_every))
    each = [line["loss"] for line in lines_of(tmp_path / "1")]
    means = [np.mean(each[:3]), np.mean(each[3:6]), each[6]]
    assert [line["loss"] for line in lines_of(tmp_path / "3")] == pytest.approx(means, rel=1e-5)
    assert each[-1] < each[0]


def test_learned_alphas_are_logged_as_they_move(tmp_path):
    model = tiny(LEARNED, WINDOW, LEARNED)
    train(model, Windows(), recipe(3, learning_rate=0.1), tmp_path / "learned")
    lines = lines_of(tmp_path / "learned")
    final = [model.attentions[layer].spacing.alpha.item() for layer in (0, 2)]
    assert [x for x in lines[-1]["alphas"] if x is not None] == final
    assert all(alpha != 1 for alpha in final)
    assert lines[0]["alphas"] != lines[-1]["alphas"]
    train(tiny(WINDOW), Windows(), recipe(1), tmp_path / "static")
    assert "alphas" not in lines_of(tmp_path / "static")[0]


def gradients_of(folder, model):
    """The gradients of a run of one step without averaging (beta1 = 0), by name."""
    state = torch.load(folder / "checkpoints" / "checkpoint-1" / "optimizer.pt", weights_only=True)
    names = sorted((name for name, _ in model.named_parameters()), key=lambda name: model.get_parameter(name).ndim < 2)
    order = [n for group in state["param_groups"] for n in group["params"]]
    return {name: state["state"][n]["exp_avg"] for name, n in zip(names, order, strict=True)}


@pytest.mark.parametrize("micro_batch", [1, 4], ids=lambda n: f"{4 // n} passes")
def test_the_penalty_of_spans_joins_the_loss_once_a_step(tmp_path, micro_batch):
    """arXiv 1905.07799, section 2.2: coefficient * max_span * mean(share) for each layer, whatever the passes."""
    without = {**SPAN, "coefficient": 0.0}
    found = []
    for name, rule in (("with", SPAN), ("without", without)):
        model = tiny(rule, WINDOW, rule)
        train(model, Windows(), recipe(1, micro_batch, beta1=0, clip=1e9), tmp_path / name)
        (line,) = lines_of(tmp_path / name)
        found.append((line, gradients_of(tmp_path / name, model)))
    (line, grads), (line_without, grads_without) = found
    assert line["loss"] - line_without["loss"] == pytest.approx(2 * 0.01 * 8 * 0.5, rel=1e-4)
    for name, grad in grads.items():
        more = 0.01 * 8 / 2 if name.endswith("share") else 0.0
        torch.testing.assert_close(grad, grads_without[name] + more, atol=1e-6, rtol=0)


def test_a_penalty_alone_shortens_spans_to_nothing_and_no_further(tmp_path):
    """At 0 they are clamped after every step, and a share below 0 would be seen in the last line."""
    model = tiny({**SPAN, "coefficient": 100.0})
    train(model, Windows(), recipe(20, learning_rate=0.1, min_learning_rate=1), tmp_path)
    spans = [line["spans"][0] for line in lines_of(tmp_path)]
    assert spans[0][0] < 4
    assert spans[-1] == [0.0, 0.0]
    assert model.attentions[0].spacing.share.tolist() == [0.0, 0.0]
    assert lines_of(tmp_path)[-1]["penalty"] == 0


def test_learned_positions_narrow_with_the_training(tmp_path):
    model = tiny(DCLS, WINDOW)
    widths = []
    train(model, Windows(), recipe(10), tmp_path, report=lambda _: widths.append(model.attentions[0].spacing.sigma))
    assert widths[:8] == pytest.approx([2.0 * (0.27 / 2.0) ** (step / 8) for step in range(1, 9)], rel=1e-5)
    assert widths[8:] == pytest.approx([0.27] * 2)
    lines = lines_of(tmp_path)
    assert lines[-1]["positions"] == [model.attentions[0].spacing.positions.tolist()]
    assert lines[0]["positions"] != lines[-1]["positions"]
    assert "penalty" not in lines[0]


@pytest.mark.parametrize("precision", ["fp32", "bf16"])
@pytest.mark.parametrize("rule", [{"pattern": "dense"}, WINDOW, LEARNED, SPAN, DCLS], ids=lambda rule: rule["pattern"])
def test_a_trained_model_is_as_one_loaded_from_disk(tmp_path, rule, precision):
    """Neither autocast nor the switched-off cache of the training stays behind, and weights are fp32 all along."""
    model = tiny(rule)
    trained = train(model, Windows(), recipe(2, precision=precision), tmp_path / "run")
    assert trained.precision == precision
    model.eval().save_pretrained(tmp_path / "model")
    loaded = AutoModelForCausalLM.from_pretrained(tmp_path / "model")
    ids = torch.arange(20)[None]
    assert loaded.dtype == torch.float32
    assert loaded.config.use_cache
    assert torch.equal(model(ids).logits, loaded(ids).logits)
    assert torch.equal(model.generate(ids, max_new_tokens=3), loaded.generate(ids, max_new_tokens=3))


def poison(model, step, parameter):
    """A report that makes one number of a parameter infinite once `step` is logged."""

    def report(line):
        if line["step"] == step:
            model.get_parameter(parameter).data.view(-1)[0] = math.inf

    return report


def checkpoints_of(folder):
    return sorted(int(path.parent.name[11:]) for path in folder.glob("checkpoints/checkpoint-*/complete"))


def test_a_loss_that_is_no_number_stops_the_run_and_keeps_the_last_good_checkpoint(tmp_path):
    model = tiny()
    report = poison(model, 5, "model.embed_tokens.weight")
    with pytest.raises(FloatingPointError, match="the loss became nan in step 6; the last good checkpoint stays"):
        train(model, Windows(), recipe(8, save_every=2), tmp_path, report=report)
    assert [line["step"] for line in lines_of(tmp_path)] == [1, 2, 3, 4, 5]
    assert checkpoints_of(tmp_path) == [2, 4]
    good = AutoModelForCausalLM.from_pretrained(tmp_path / "checkpoints" / "checkpoint-4")
    assert all(p.isfinite().all() for p in good.parameters())
    # What went wrong once can be repaired: the run goes on from there.
    train(tiny(), Windows(), recipe(8, save_every=2), tmp_path)
    assert [line["step"] for line in lines_of(tmp_path)] == [*range(1, 9)]


@pytest.mark.parametrize("step", [3, 4, 8], ids=["before a checkpoint", "at a checkpoint", "at the end"])
def test_weights_that_are_no_numbers_are_never_saved(tmp_path, step):
    """A theta without rungs has no part in the loss, which stays finite."""
    model = tiny({"pattern": "learned_spacing", "window": 4, "rungs": 0})
    name = "model.layers.0.self_attn.spacing.theta"
    with pytest.raises(FloatingPointError, match=f"{name} is no longer finite after step {math.ceil(step / 2) * 2}"):
        train(model, Windows(), recipe(8, save_every=2), tmp_path, report=poison(model, step, name))
    assert max(checkpoints_of(tmp_path)) < step
    for path in (tmp_path / "checkpoints").iterdir():
        assert all(p.isfinite().all() for p in AutoModelForCausalLM.from_pretrained(path).parameters())


def test_nothing_is_printed(tmp_path, capsys):
    """Progress belongs to the caller: the metrics file and `report`."""
    train(tiny(), Windows(), recipe(2), tmp_path)
    assert capsys.readouterr().out == ""
