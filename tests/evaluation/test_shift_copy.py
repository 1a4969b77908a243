"""The copy probe: exact generators, unshifted targets (case F33), honest accuracy."""

from __future__ import annotations

import hashlib
import os
import subprocess
import sys
from types import SimpleNamespace

import numpy as np
import pytest
import torch
from torch import nn

from farspan.evaluation import MarkedCopy, ShiftCopy, accuracy, copy_loss

DIGEST = """
import hashlib
from farspan.evaluation.shift_copy import MarkedCopy, ShiftCopy
tasks = ShiftCopy(5, 64, size=9, seed=7), MarkedCopy((3, 20), 64, size=9, seed=7)
items = [task[index] for task in tasks for index in range(9)]
data = b"".join(item[key].numpy().tobytes() for item in items for key in item)
print(hashlib.sha256(data).hexdigest())
"""


class Copier(nn.Module):
    """Answers each position with the id `back` positions earlier; `back` may differ by mark."""

    def __init__(self, backs: tuple[int, ...], vocabulary: int, alphabet: int) -> None:
        super().__init__()
        self.backs, self.vocabulary, self.alphabet = backs, vocabulary, alphabet
        self.embedding = nn.Embedding(vocabulary, 1)

    def get_input_embeddings(self) -> nn.Embedding:
        return self.embedding

    def forward(self, input_ids: torch.Tensor) -> SimpleNamespace:
        positions = torch.arange(input_ids.shape[1])
        back = torch.tensor(self.backs)[input_ids // self.alphabet]
        source = (positions - back).clamp(min=0)
        answer = input_ids.gather(1, source)
        return SimpleNamespace(logits=100.0 * nn.functional.one_hot(answer, self.vocabulary))


def test_shift_targets_are_earlier_inputs():
    task = ShiftCopy(5, 40, 16, size=3)
    for item in (task[index] for index in range(len(task))):
        ids, targets = item["input_ids"], item["targets"]
        assert ids.dtype == targets.dtype == torch.int64
        assert ids.shape == targets.shape == (40,)
        assert (targets[:5] == -100).all()
        assert torch.equal(targets[5:], ids[:-5])
        assert ids.min() >= 0
        assert ids.max() < task.vocab_size == 16


def test_marked_targets_follow_each_positions_own_mark():
    task = MarkedCopy((3, 17, 30), 40, 8, size=4, seed=2)
    assert task.vocab_size == 24
    asked = set()
    for item in (task[index] for index in range(4)):
        ids, targets = item["input_ids"].tolist(), item["targets"].tolist()
        for t, (token, target) in enumerate(zip(ids, targets, strict=True)):
            distance = task.distances[token // 8]
            assert target == (ids[t - distance] if t >= distance else -100)
            if target != -100:
                asked.add(distance)
    assert asked == {3, 17, 30}


def test_the_papers_probe_has_its_sizes():
    task = MarkedCopy((200, 350), 512, 256, size=1)
    assert task.vocab_size == 512
    assert len(task[0]["input_ids"]) == 512


def test_leak_no_other_position_gives_the_answer_away():
    task = ShiftCopy(20, 256, 16, size=64)
    items = [task[index] for index in range(len(task))]
    ids, targets = (torch.stack([item[key] for item in items]) for key in ("input_ids", "targets"))
    for back in (0, 1, 19, 21, 40):
        guess = torch.roll(ids, back, dims=1)[:, 40:]
        assert (guess == targets[:, 40:]).float().mean() == pytest.approx(1 / 16, abs=0.01)


def test_samples_are_a_pure_function_of_seed_and_index():
    task = ShiftCopy(5, 64, size=1000, seed=7)
    late = task[999]["input_ids"]
    again = ShiftCopy(5, 64, size=1000, seed=7)
    assert torch.equal(again[999]["input_ids"], late)
    assert again[0]["input_ids"][:8].tolist() == task[0]["input_ids"][:8].tolist()
    assert torch.equal(ShiftCopy(9, 64, size=5, seed=7)[3]["input_ids"], task[3]["input_ids"])


def test_samples_do_not_repeat_over_index_seed_or_split():
    seen = {
        tuple(task[index]["input_ids"].tolist())
        for seed in (0, 1, 2**63)
        for task in (ShiftCopy(5, 64, size=20, seed=seed), ShiftCopy(5, 64, size=1, seed=seed).held_out(20))
        for index in range(20)
    }
    assert len(seen) == 3 * 2 * 20
    # A sample must not continue the random words of the one before it either.
    task = ShiftCopy(5, 64, size=20)
    first, second = task[0]["input_ids"].tolist(), task[1]["input_ids"].tolist()
    assert not set(zip(first, first[1:], first[2:], first[3:], first[4:], strict=False)) & set(
        zip(second, second[1:], second[2:], second[3:], second[4:], strict=False)
    )


def test_tokens_are_uniform():
    task = MarkedCopy((3, 20), 256, 8, size=200)
    counts = torch.bincount(torch.cat([task[index]["input_ids"] for index in range(200)]), minlength=16)
    expected = 200 * 256 / 16
    assert ((counts - expected) ** 2 / expected).sum() < 37.7, "chi-square, 15 degrees of freedom, p = 0.001"


def test_samples_are_the_same_in_every_process():
    environment = {**os.environ, "PYTHONHASHSEED": "1"}
    run = subprocess.run([sys.executable, "-c", DIGEST], capture_output=True, text=True, env=environment, check=True)
    tasks = ShiftCopy(5, 64, size=9, seed=7), MarkedCopy((3, 20), 64, size=9, seed=7)
    items = [task[index] for task in tasks for index in range(9)]
    data = b"".join(item[key].numpy().tobytes() for item in items for key in item)
    assert run.stdout.strip() == hashlib.sha256(data).hexdigest()


def test_f33_the_loss_shifts_nothing_and_mixes_no_rows():
    task = ShiftCopy(5, 40, size=2)
    targets = torch.stack([task[0]["targets"], task[1]["targets"]])
    right = 100.0 * nn.functional.one_hot(targets.clamp(min=0), 16)
    assert copy_loss(right, targets) < 1e-6
    late = torch.roll(right, 1, dims=1)
    assert copy_loss(late, targets) > 1
    other = right.clone()
    other[1] = torch.randn(40, 16)
    assert copy_loss(other[:1], targets[:1]) == copy_loss(right[:1], targets[:1])
    unasked = right.clone()
    unasked[:, :5] = torch.randn(5, 16)
    assert torch.equal(copy_loss(unasked, targets), copy_loss(right, targets))


def test_loss_runs_in_fp32():
    targets = torch.arange(6)[None]
    logits = torch.linspace(0, 3, 36).view(1, 6, 6).bfloat16()
    expected = nn.functional.cross_entropy(logits[0].float(), targets[0])
    assert torch.equal(copy_loss(logits, targets), expected)


def test_accuracy_of_a_perfect_and_of_a_wrong_copier():
    task = ShiftCopy(20, 64, 16, size=1, seed=3)
    right = accuracy(Copier((20,), 16, 16), task, samples=50, batch_tokens=300)
    assert (right.accuracies, right.chance, right.asked) == ((1.0,), 1 / 16, (50 * 44,))
    wrong = accuracy(Copier((21,), 16, 16), task, samples=200)
    assert wrong.accuracies[0] == pytest.approx(1 / 16, abs=0.03)


def test_accuracy_tells_the_distances_apart():
    task = MarkedCopy((7, 30), 64, 16, size=1)
    half = accuracy(Copier((7, 7), 32, 16), task, samples=100)
    assert half.accuracies[0] == 1.0
    assert half.accuracies[1] == pytest.approx(half.chance, abs=0.02)
    assert half.chance == 1 / 32
    assert accuracy(Copier((7, 30), 32, 16), task, samples=100).accuracies == (1.0, 1.0)
    # both marks are equally likely, so positions asked go as length - distance
    assert half.asked[0] / half.asked[1] == pytest.approx((64 - 7) / (64 - 30), rel=0.1)


def test_accuracy_reads_samples_that_training_never_saw():
    task = ShiftCopy(5, 64, size=100)
    seen = {tuple(task[index]["input_ids"].tolist()) for index in range(100)}
    model = Copier((5,), 16, 16)
    asked = []
    model.register_forward_pre_hook(lambda _m, _a, kw: asked.extend(kw["input_ids"].tolist()), with_kwargs=True)
    accuracy(model, task, samples=100)
    assert len(asked) == 100
    assert not seen & {tuple(row) for row in asked}


def test_accuracy_restores_the_mode():
    model = Copier((5,), 16, 16).train()
    accuracy(model, ShiftCopy(5, 64, size=1), samples=2)
    assert model.training


def test_a_small_dense_model_learns_to_copy(tiny_llama):
    model = tiny_llama(16, hidden_size=64, intermediate_size=170, num_hidden_layers=2, tie_word_embeddings=True)
    task = ShiftCopy(20, 64, 16, size=90 * 8)
    before = accuracy(model, task, samples=16).accuracies[0]
    optimizer = torch.optim.AdamW(model.parameters(), lr=3e-3, betas=(0.9, 0.95), weight_decay=0.0)
    for batch in torch.utils.data.DataLoader(task, batch_size=8):
        loss = copy_loss(model(input_ids=batch["input_ids"]).logits, batch["targets"])
        optimizer.zero_grad()
        loss.backward()
        nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
    assert before < 0.2
    assert accuracy(model, task, samples=16).accuracies[0] > 0.9


@pytest.mark.parametrize(
    ("change", "message"),
    [
        pytest.param({"distance": 64}, "distance must be between 1 and length - 1 = 63, got 64", id="too-far"),
        pytest.param({"distance": 0}, "distance must be between 1 and length - 1 = 63, got 0", id="self"),
        pytest.param({"length": 1}, "length must be at least 2", id="length"),
        pytest.param({"alphabet": 1}, "alphabet must be at least 2 tokens, got 1", id="alphabet"),
        pytest.param({"size": 0}, "size must be at least 1 sample, got 0", id="size"),
        pytest.param({"seed": -1}, "seed must be between 0 and", id="seed"),
        pytest.param({"split": "test"}, "split must be one of train, held-out, got 'test'", id="split"),
    ],
)
def test_bad_tasks_are_refused(change, message):
    with pytest.raises(ValueError, match=message):
        ShiftCopy(**({"distance": 5, "length": 64, "size": 1} | change))


@pytest.mark.parametrize("distances", [(7,), (7, 7), ()], ids=["one", "equal", "none"])
def test_marks_need_different_distances(distances):
    with pytest.raises(ValueError, match="distances must be two or more different ones"):
        MarkedCopy(distances, 64, size=1)


def test_out_of_range_and_impossible_requests_are_refused():
    task = ShiftCopy(5, 64, 16, size=3)
    for index in (3, -1):
        with pytest.raises(IndexError, match=f"between 0 and 2, got {index}"):
            task[index]
    assert len(list(iter(task))) == 3
    with pytest.raises(ValueError, match="model must know the task's 16 tokens, got a vocabulary of 8"):
        accuracy(Copier((5,), 8, 8), task)
    with pytest.raises(ValueError, match="size must be at least 1 sample, got 0"):
        accuracy(Copier((5,), 16, 16), task, samples=0)
    with pytest.raises(ValueError, match="samples must be enough that every distance is asked for, got 1"):
        accuracy(Copier((5, 5), 32, 16), MarkedCopy((5, 63), 64, 16, size=1), samples=1)


def test_numpy_seeding_is_left_alone():
    np.random.seed(0)
    before = np.random.get_state()[1].copy()
    ShiftCopy(5, 64, size=1)[0]
    assert np.array_equal(np.random.get_state()[1], before)
