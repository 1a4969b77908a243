"""The curve of perplexity against length in the form that a study writes to disk."""

from __future__ import annotations

import json

import numpy as np
import pytest

from farspan.evaluation import compare, length_curve, score_tokens, scored_from_arrays

TOKENS = np.random.default_rng(2).integers(31, size=150)


@pytest.fixture(scope="module")
def model(tiny_llama):
    return tiny_llama(31, initializer_range=0.5)


@pytest.fixture(scope="module")
def curve(model):
    return length_curve(model, TOKENS, [64, 16, 32], train_length=16)


def test_every_point_scores_the_same_tokens(curve):
    points = [point for lengths in curve.perplexity.values() for point in lengths.values()]
    assert [list(lengths) for lengths in curve.perplexity.values()] == [["16", "32", "64"]] * 2
    assert {point["tokens"] for point in points} == {149}
    assert {array.shape for array in curve.arrays.values()} == {(149,)}


def test_beyond_appears_only_beyond_the_training_length(curve):
    disjoint = curve.perplexity["disjoint"]
    assert disjoint["16"]["beyond_nll"] is None
    assert disjoint["16"]["beyond_tokens"] == 0
    assert 0 < disjoint["32"]["beyond_tokens"] < disjoint["64"]["beyond_tokens"]
    assert curve.perplexity["sliding"]["32"]["stride"] == 16
    assert "stride" not in disjoint["32"]


def test_the_summary_is_that_of_the_arrays(curve):
    nll = curve.arrays["sliding_32_nll"].astype(np.float64)
    context = curve.arrays["sliding_32_context"]
    point = curve.perplexity["sliding"]["32"]
    assert point["nll"] == pytest.approx(nll.mean(), rel=1e-12)
    assert point["beyond_nll"] == pytest.approx(nll[context >= 16].mean(), rel=1e-12)


def test_position_bins_are_those_of_the_longest_disjoint_run(curve):
    assert curve.position_bins["edges"] == [0, 1, 2, 4, 8, 16, 32, 64]
    assert sum(curve.position_bins["tokens"]) == 149
    first = curve.arrays["disjoint_64_nll"][curve.arrays["disjoint_64_context"] == 1]
    assert curve.position_bins["nll"][1] == pytest.approx(first.mean())


def test_the_result_is_plain_json(curve):
    written = json.dumps({"perplexity": curve.perplexity, "bins": curve.position_bins}, allow_nan=False)
    assert json.loads(written)["perplexity"] == curve.perplexity


@pytest.mark.parametrize("protocol", ["disjoint", "sliding"])
@pytest.mark.parametrize("length", [16, 64])
def test_arrays_read_back_are_the_scores(model, curve, tmp_path, protocol, length):
    np.savez(tmp_path / "nll.npz", **curve.arrays)
    with np.load(tmp_path / "nll.npz", allow_pickle=False) as arrays:
        read = scored_from_arrays(arrays, protocol, length)
    scored = score_tokens(model, TOKENS, length, protocol)
    for name in ("nll", "context", "position", "length", "stride"):
        assert np.array_equal(getattr(read, name), getattr(scored, name)), name
    assert compare(read, scored).difference == 0


def test_progress_runs_once_to_the_end(model):
    calls = []
    length_curve(model, TOKENS, [16, 32], 16, progress=lambda *call: calls.append(call))
    done = [tokens for tokens, _ in calls]
    assert done == sorted(done)
    assert calls[-1] == (4 * 149, 4 * 149)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        pytest.param({"lengths": []}, "must not be empty", id="no-lengths"),
        pytest.param({"protocols": ["strided"]}, "among disjoint, sliding, got .'strided'", id="protocol"),
        pytest.param({"lengths": [16, 151]}, r"number of tokens \(150\), got 151", id="too-long"),
    ],
)
def test_bad_arguments_are_refused(model, change, message):
    with pytest.raises(ValueError, match=message):
        length_curve(model, TOKENS, **({"lengths": [16], "train_length": 16} | change))
