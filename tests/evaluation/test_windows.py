"""The perplexity protocols with fake models: case F26 (windows) and F27 (curves over length)."""

from __future__ import annotations

import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from farspan.evaluation import Scored, Window, score_documents, score_stream, summarise, windows


def inverse_context(window: Window) -> np.ndarray:
    """Loss 1 / (tokens of context seen), the fake model of F26."""
    return 1 / (np.arange(window.first, window.stop) - window.begin)


def reference_scored(n: int, length: int, stride: int) -> list[tuple[int, int]]:
    """(token, context) as `strided_mean` of cases.md, Part C, visits them."""
    scored, end, begin = [], 0, 0
    while end < n:
        stop = min(begin + length, n)
        scored += [(t, t - begin) for t in range(end, stop) if t > begin]
        end, begin = stop, begin + stride
    return scored


@pytest.mark.parametrize(
    ("length", "stride", "mean"),
    [
        pytest.param(4, 2, 0.469697, id="sliding"),
        pytest.param(4, 3, 0.636364, id="windows-share-one-token"),
        pytest.param(12, 11, 0.274534, id="one-window"),
    ],
)
def test_f26_every_token_weighs_one(length, stride, mean):
    scored = score_stream(inverse_context, 12, length, stride)
    summary = summarise(scored, train_length=100)
    assert summary["nll"] == pytest.approx(mean, abs=5e-7)
    assert summary["tokens"] == 11
    assert scored.position.tolist() == list(range(1, 12))


def test_f26_perplexity_is_exp_of_the_mean_loss():
    summary = summarise(score_stream(inverse_context, 12, 4, 2), train_length=100)
    assert summary["ppl"] == pytest.approx(1.5995, abs=5e-5)
    assert summary["stride"] == 2


def test_f26_a_stride_that_skips_tokens_is_refused():
    with pytest.raises(ValueError, match=r"stride must be between 1 and length - 1 = 3, got 4.*unscored"):
        score_stream(inverse_context, 12, 4, 4)


@given(st.data())
def test_tokens_and_contexts_are_those_of_the_reference(data):
    n = data.draw(st.integers(2, 60))
    length = data.draw(st.integers(2, n))
    stride = data.draw(st.integers(1, length - 1))
    scored = score_stream(inverse_context, n, length, stride)
    expected = reference_scored(n, length, stride)
    assert list(zip(scored.position.tolist(), scored.context.tolist(), strict=True)) == expected
    assert [t for t, _ in expected] == list(range(1, n))
    assert scored.nll == pytest.approx([1 / context for _, context in expected])


def test_sliding_windows_bound_the_context_from_below():
    scored = score_stream(inverse_context, 500, 64, 16)
    assert scored.context[64:].min() == 64 - 16
    assert scored.context.max() == 63


@pytest.mark.parametrize("stride", ["disjoint", "sliding"])
def test_f27_a_loss_that_ignores_context_gives_a_flat_curve(stride):
    losses = np.random.default_rng(0).gamma(2.0, 1.5, size=9001)
    lengths = [64, 128, 256, 512, 1024, 2048, 4096]
    curve = [
        summarise(
            score_stream(
                lambda w: losses[w.first : w.stop],
                len(losses),
                length,
                length - 1 if stride == "disjoint" else length // 2,
            ),
            train_length=64,
        )
        for length in lengths
    ]
    assert {point["tokens"] for point in curve} == {9000}
    assert np.ptp([point["nll"] for point in curve]) < 1e-9


def test_f27_the_context_of_each_token_is_reported():
    short, long = (score_stream(inverse_context, 4097, length, length - 1) for length in (64, 4096))
    assert np.array_equal(short.nll, 1 / short.context)
    assert summarise(short, 64)["mean_context"] == pytest.approx(32, abs=0.1)
    assert summarise(long, 64)["mean_context"] == pytest.approx(2048, abs=1)


def test_f27_a_short_document_is_dropped_and_said_so():
    documents = [list(range(30)), list(range(8)), list(range(16)), list(range(9))]

    def score(tokens):
        return score_stream(inverse_context, len(tokens), 9, 4)

    result = score_documents(score, documents, minimum=9)
    assert (result.kept, result.dropped) == ([0, 2, 3], [1])
    expected = [*range(1, 30), *range(39, 54), *range(55, 63)]
    assert result.scored.position.tolist() == expected
    assert result.scored.context[29] == 1, "a document must not see the one before it"


def test_f27_a_document_is_never_scored_short():
    documents = [list(range(30)), list(range(8))]
    with pytest.raises(ValueError, match=r"minimum must be at least the evaluation length \(9\), got 8"):
        score_documents(lambda t: score_stream(inverse_context, len(t), 9, 8), documents, minimum=8)
    with pytest.raises(ValueError, match="documents must hold one of at least 31 tokens, got 2 shorter"):
        score_documents(lambda t: score_stream(inverse_context, len(t), 9, 8), documents, minimum=31)


def test_loss_beyond_the_training_length_stands_apart():
    scored = score_stream(inverse_context, 33, 17, 16)
    summary = summarise(scored, train_length=8)
    beyond = [1 / context for _, context in reference_scored(33, 17, 16) if context >= 8]
    assert summary["beyond_tokens"] == len(beyond) == 18
    assert summary["beyond_nll"] == pytest.approx(np.mean(beyond))
    within = summarise(scored, train_length=17)
    assert (within["beyond_nll"], within["beyond_tokens"]) == (None, 0)
    assert set(summary) == {"ppl", "nll", "tokens", "mean_context", "beyond_nll", "beyond_tokens"}


@pytest.mark.parametrize(
    ("n", "length", "stride", "message"),
    [
        pytest.param(1, 4, 2, "n_tokens must be at least 2.*got 1", id="one-token"),
        pytest.param(0, 4, 2, "n_tokens must be at least 2.*got 0", id="no-token"),
        pytest.param(9, 1, 1, "length must be at least 2 tokens, got 1", id="length-1"),
        pytest.param(9, 4, 0, "stride must be between 1 and length - 1 = 3, got 0", id="stride-0"),
        pytest.param(9, 10, 9, r"length must be at most the number of tokens \(9\), got 10", id="too-long"),
    ],
)
def test_bad_protocols_are_refused(n, length, stride, message):
    with pytest.raises(ValueError, match=message):
        score_stream(inverse_context, n, length, stride)
    with pytest.raises(ValueError, match=message):
        windows(n, length, stride)


def test_a_model_must_answer_for_every_token():
    with pytest.raises(ValueError, match=r"one loss for each of the 3 tokens.*got shape"):
        score_stream(lambda window: np.ones(window.stop - window.begin), 12, 4, 3)


def test_uneven_results_are_refused():
    with pytest.raises(ValueError, match="equally long"):
        Scored(np.ones(3), np.ones(2, np.int32), np.arange(3), 4, 3)


def test_losses_keep_double_precision():
    assert score_stream(lambda w: np.full(w.stop - w.first, math.pi), 9, 4, 3).nll[0] == math.pi
