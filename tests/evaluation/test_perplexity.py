"""Perplexity of real (tiny, random) transformers models and of modules whose right answer is known."""

from __future__ import annotations

from types import SimpleNamespace

import numpy as np
import pytest
import torch
from torch import nn
from transformers import GPT2Config, GPT2LMHeadModel

from farspan.evaluation import perplexity, position_bins, score_stream, score_tokens, token_nll

VOCABULARY = 61


@pytest.fixture(scope="module")
def llama(tiny_llama):
    return tiny_llama(
        VOCABULARY,
        num_hidden_layers=2,
        num_attention_heads=4,
        num_key_value_heads=2,
        max_position_embeddings=16,
        initializer_range=0.3,
        attention_dropout=0.5,
    )


@pytest.fixture
def tokens() -> np.ndarray:
    return np.random.default_rng(1).integers(VOCABULARY, size=103).astype(np.uint16)


class Successor(nn.Module):
    """Predicts id + 1; knows no option but `input_ids`, and remembers what it was asked."""

    def __init__(self) -> None:
        super().__init__()
        self.embedding = nn.Embedding(VOCABULARY, 1)
        self.config = SimpleNamespace()
        self.shapes: list[tuple[int, ...]] = []
        self.gradients: list[bool] = []

    def get_input_embeddings(self) -> nn.Embedding:
        return self.embedding

    def forward(self, input_ids: torch.Tensor) -> SimpleNamespace:
        self.shapes.append(tuple(input_ids.shape))
        self.gradients.append(torch.is_grad_enabled() or self.training)
        following = (input_ids + 1) % VOCABULARY
        return SimpleNamespace(logits=100.0 * nn.functional.one_hot(following, VOCABULARY).float())


def window_by_window(model, tokens, length, stride):
    ids = torch.from_numpy(tokens.astype(np.int64))

    def nll(window):
        with torch.no_grad():
            logits = model(input_ids=ids[None, window.begin : window.stop]).logits[0].double()
        losses = nn.functional.cross_entropy(logits[:-1], ids[window.begin + 1 : window.stop], reduction="none")
        return losses[window.first - window.begin - 1 :]

    return score_stream(nll, len(tokens), length, stride)


@pytest.mark.parametrize("stride", [1, 5, 11, 22], ids="stride-{}".format)
def test_losses_do_not_depend_on_the_batch(llama, tokens, stride):
    stream = tokens[:66]
    expected = window_by_window(llama, stream, 23, stride)
    for batch_tokens in (1, 64, 10**6):
        scored = score_tokens(llama, stream, 23, stride, batch_tokens=batch_tokens)
        assert np.abs(scored.nll - expected.nll).max() <= 1e-5
        assert np.array_equal(scored.context, expected.context)
        assert np.array_equal(scored.position, expected.position)


def test_one_window_agrees_with_the_loss_of_transformers(llama, tokens):
    ids = torch.from_numpy(tokens.astype(np.int64))[None]
    with torch.no_grad():
        expected = llama(input_ids=ids, labels=ids).loss
    assert score_tokens(llama, tokens, len(tokens)).nll.mean() == pytest.approx(float(expected), abs=1e-5)


@pytest.mark.parametrize("stride", ["disjoint", "sliding", 3])
def test_f33_targets_are_shifted_exactly_once(stride):
    stream = np.arange(200) % VOCABULARY
    assert score_tokens(Successor(), stream, 16, stride).nll.max() < 1e-6


@pytest.mark.parametrize("stride", ["disjoint", "sliding"])
def test_leak_a_token_changes_no_earlier_loss(llama, tokens, stride):
    changed = tokens.copy()
    changed[57] = (changed[57] + 1) % VOCABULARY
    before, after = (score_tokens(llama, stream, 20, stride).nll for stream in (tokens, changed))
    assert np.array_equal(before[:56], after[:56])
    assert before[56] != after[56]


def test_named_strides_are_the_two_protocols(llama, tokens):
    default, disjoint, sliding = (score_tokens(llama, tokens, 20, s) for s in (None, "disjoint", "sliding"))
    assert (default.stride, disjoint.stride, sliding.stride) == (19, 19, 10)
    assert np.array_equal(default.nll, disjoint.nll)


def test_a_tensor_a_list_and_a_memory_map_score_alike(llama, tokens, tmp_path):
    tokens.tofile(tmp_path / "tokens.bin")
    mapped = np.memmap(tmp_path / "tokens.bin", dtype=np.uint16, mode="r")
    as_tensor = torch.from_numpy(tokens.astype(np.int32))
    results = [score_tokens(llama, t, 20).nll for t in (tokens, mapped, as_tensor, tokens.tolist())]
    assert all(np.array_equal(results[0], other) for other in results[1:])


def test_evaluation_is_deterministic_and_leaves_the_modes_alone(llama, tokens):
    llama.train()
    llama.model.layers[1].eval()
    modes = [module.training for module in llama.modules()]
    try:
        first, second = (score_tokens(llama, tokens, 20).nll for _ in range(2))
        assert np.array_equal(first, second), "dropout was left on"
        assert [module.training for module in llama.modules()] == modes
    finally:
        llama.eval()
    model = Successor().train()
    score_tokens(model, np.arange(40), 8)
    assert not any(model.gradients)


def test_modes_come_back_after_a_failure(llama, tokens):
    model = Successor().train()
    model.forward = lambda input_ids: 1 / 0
    with pytest.raises(ZeroDivisionError):
        score_tokens(model, np.arange(40), 8)
    assert model.training


def test_rotary_models_run_beyond_their_training_length_unedited(llama, tokens):
    before = llama.config.to_dict()
    scored = score_tokens(llama, tokens, 100)
    assert scored.context.max() == 99 > llama.config.max_position_embeddings
    assert llama.config.to_dict() == before


def test_learned_positions_are_refused_beyond_their_table(tokens):
    config = GPT2Config(vocab_size=VOCABULARY, n_embd=16, n_layer=1, n_head=2, n_positions=32)
    model = GPT2LMHeadModel(config).eval()
    assert len(score_tokens(model, tokens, 32)) == 102
    with pytest.raises(ValueError, match=r"length must be at most 32, .*transformer\.wpe, got 33"):
        score_tokens(model, tokens, 33)


def test_computed_positions_have_no_table_to_outrun():
    model = Successor()
    model.config.max_position_embeddings = 8
    model.embed_positions = nn.Identity()
    assert score_tokens(model, np.arange(40), 30).nll.max() < 1e-6
    model.embed_positions = nn.Embedding(8, 1)
    with pytest.raises(ValueError, match="length must be at most 8"):
        score_tokens(model, np.arange(40), 30)


def test_memory_is_bounded_whatever_the_batch_asks(monkeypatch):
    monkeypatch.setattr(perplexity, "_MAX_LOGITS", 3 * 16 * VOCABULARY)
    model = Successor()
    score_tokens(model, np.arange(300) % VOCABULARY, 16, batch_tokens=10**6)
    assert max(rows for rows, _ in model.shapes) == 3
    # 300 tokens: windows at 0, 15, ..., 285 fill 16 tokens, the last one only 15
    assert sorted({width for _, width in model.shapes}) == [15, 16]


def test_only_scored_logits_are_computed(llama, tokens):
    kept = []
    hook = llama.lm_head.register_forward_hook(lambda _m, _i, out: kept.append(out.shape[1]))
    try:
        score_tokens(llama, tokens, 20, 4)
    finally:
        hook.remove()
    assert kept[0] == 20
    assert set(kept[1:-1]) == {5}


def test_loss_in_chunks_is_the_loss_and_is_fp32(monkeypatch):
    torch.manual_seed(0)
    logits = 4 * torch.randn(3, 7, 11, dtype=torch.bfloat16)
    targets = torch.randint(11, (3, 7))
    expected = -logits.float().log_softmax(-1).gather(-1, targets[..., None])[..., 0]
    for chunk in (2**22, 3 * 11 * 2, 1):
        monkeypatch.setattr(perplexity, "_LOSS_CHUNK", chunk)
        nll = token_nll(logits, targets)
        assert nll.dtype == torch.float32
        torch.testing.assert_close(nll, expected, rtol=1e-6, atol=1e-6)


def test_progress_counts_scored_tokens(tokens):
    calls = []
    score_tokens(Successor(), tokens, 20, batch_tokens=40, progress=lambda *call: calls.append(call))
    assert calls[-1] == (102, 102)
    assert [done for done, _ in calls] == [38, 76, 95, 102]


@pytest.mark.parametrize(
    ("change", "error", "message"),
    [
        pytest.param({"tokens": np.array([0, VOCABULARY])}, ValueError, "0..60,.*got 0..61", id="above"),
        pytest.param({"tokens": np.array([-1, 5])}, ValueError, "0..60,.*got -1..5", id="negative"),
        pytest.param({"tokens": np.ones(9)}, TypeError, "integer ids, got float64", id="float"),
        pytest.param({"tokens": np.ones((2, 9), int)}, ValueError, r"flat stream \[N\]", id="batch"),
        pytest.param({"tokens": np.array([3])}, ValueError, "at least 2", id="one-token"),
        pytest.param({"length": 1}, ValueError, "length must be at least 2", id="length"),
        pytest.param({"stride": 16}, ValueError, "length - 1 = 15, got 16", id="skips-tokens"),
        pytest.param({"stride": "half"}, ValueError, "'disjoint', 'sliding' or.*got 'half'", id="stride-name"),
        pytest.param({"batch_tokens": 0}, ValueError, "batch_tokens must be at least 1", id="batch-tokens"),
    ],
)
def test_bad_arguments_are_refused_before_any_work(change, error, message):
    model = Successor()
    arguments = {"tokens": np.arange(40), "length": 16} | change
    with pytest.raises(error, match=message):
        score_tokens(model, **arguments)
    assert not model.shapes


def test_a_loss_that_is_not_finite_is_an_error_that_says_where():
    model = Successor()
    forward = model.forward

    def broken(input_ids):
        out = forward(input_ids)
        out.logits[input_ids == 17] = float("nan")
        return out

    model.forward = broken
    with pytest.raises(ValueError, match=r"not finite \(nan\) at token 18 of the stream"):
        score_tokens(model, np.arange(40), 8)


def test_position_bins_are_log_spaced_and_count_every_token():
    scored = score_stream(lambda w: 1.0 * (np.arange(w.first, w.stop) - w.begin), 41, 21, 20)
    bins = position_bins(scored)
    assert bins["edges"] == [0, 1, 2, 4, 8, 16, 32]
    assert bins["tokens"] == [0, 2, 4, 8, 16, 10]
    assert bins["nll"] == [None, 1.0, 2.5, 5.5, 11.5, 18.0]


@pytest.mark.parametrize(("longest", "last"), [(1, 2), (31, 32), (32, 64), (33, 64)])
def test_the_longest_context_has_a_bin(longest, last):
    scored = score_stream(lambda w: np.ones(w.stop - w.first), 200, longest + 1, longest)
    bins = position_bins(scored)
    assert bins["edges"][-1] == last
    assert sum(bins["tokens"]) == 199


def test_position_bins_refuse_edges_that_lose_tokens():
    scored = score_stream(lambda w: np.ones(w.stop - w.first), 41, 21, 20)
    assert position_bins(scored, [1, 20, 21])["tokens"] == [38, 2]
    for edges in ([2, 32], [0, 10], [0, 20]):
        with pytest.raises(ValueError, match=r"edges must cover every context \(1 to 20\)"):
            position_bins(scored, edges)
