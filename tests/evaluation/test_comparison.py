"""Paired block bootstrap: known differences are found, ties stay ties, intervals cover."""

from __future__ import annotations

import time

import numpy as np
import pytest

from farspan.evaluation import Scored, compare, compare_bins, mean_interval, rank
from farspan.evaluation.bootstrap import block_starts, resolve_block_length, t_quantile
from farspan.evaluation.windows import assemble


def scored(nll: np.ndarray, length: int = 64, stride: int | None = None) -> Scored:
    return assemble(np.asarray(nll), length, length - 1 if stride is None else stride)


def autocorrelated(random: np.random.Generator, n: int, run: int) -> np.ndarray:
    """Noise that is constant over runs of about `run` tokens, as a document's difficulty is."""
    return np.repeat(random.normal(size=n // run + 1), run)[:n] + 0.3 * random.normal(size=n)


@pytest.fixture
def text() -> np.ndarray:
    """The loss that both models share: hard and easy documents, far larger than their difference."""
    return 4 + autocorrelated(np.random.default_rng(0), 20_000, 300)


def test_a_known_difference_is_found(text):
    noise = np.random.default_rng(1).normal(scale=0.2, size=len(text))
    worse, better = scored(text + 0.03), scored(text + noise - noise.mean())
    result = compare(worse, better, block_length=512)
    assert result.verdict == "b better"
    assert result.difference == pytest.approx(0.03)
    assert 0 < result.low < 0.03 < result.high < 0.06
    assert (result.tokens, result.blocks, result.seeds) == (20_000, 39, (0,))
    mirrored = compare(better, worse, block_length=512)
    assert mirrored.verdict == "a better"
    assert mirrored.difference == -result.difference


def test_pairing_cancels_what_makes_text_hard(text):
    a, b = scored(text), scored(text + 0.03)
    alone = mean_interval(a, block_length=512)
    assert alone.low < alone.mean < alone.high
    assert alone.high - alone.low > 0.1
    paired = compare(a, b, block_length=512)
    assert paired.high - paired.low < 1e-9
    assert paired.verdict == "a better"


def test_noise_alone_is_a_tie(text):
    noise = autocorrelated(np.random.default_rng(5), len(text), 300)
    result = compare(scored(text), scored(text + noise - noise.mean() + 0.01), block_length=512)
    assert result.verdict == "tie"
    assert result.low < 0 < result.high


def test_a_model_ties_with_itself(text):
    result = compare(scored(text), scored(text), block_length=512)
    assert (result.difference, result.low, result.high, result.verdict) == (0, 0, 0, "tie")


@pytest.mark.parametrize("blocks", [8, 24])
def test_intervals_cover_the_truth_despite_autocorrelation(blocks):
    # Runs of 200 tokens in blocks of 400; resampling single tokens would cover about one time in five.
    random = np.random.default_rng(3)
    zero = scored(np.zeros(blocks * 400))
    covered = [
        (result := compare(scored(autocorrelated(random, len(zero), 200)), zero, block_length=400)).low
        <= 0
        <= result.high
        for _ in range(200)
    ]
    assert 0.90 <= np.mean(covered) <= 0.99


def test_few_blocks_give_no_verdict(text):
    a, b = scored(text[: 8 * 256]), scored(text[: 8 * 256] + 1.0)
    assert compare(a, b, block_length=256).verdict == "a better"
    few = compare(a, b, block_length=257)
    assert (few.verdict, few.blocks) == ("too few blocks", 7)
    assert few.high < 0, "the interval is still given"
    one = compare(a, b)
    assert (one.low, one.high, one.blocks, one.verdict) == (None, None, 1, "too few blocks")


def test_blocks_are_whole_windows_long_and_equal():
    assert resolve_block_length([scored(np.ones(99))], None) == 2048
    assert resolve_block_length([scored(np.ones(5000), 64), scored(np.ones(5000), 4096)], None) == 4096
    sizes = np.diff([*block_starts(1003, 100), 1003])
    assert len(sizes) == 10
    assert set(sizes) == {100, 101}
    with pytest.raises(ValueError, match=r"block_length must be at least the evaluation length \(64\), got 63"):
        compare(scored(np.ones(999)), scored(np.ones(999)), block_length=63)


def test_equal_seeds_give_equal_intervals(text):
    a = scored(text)
    b = scored(text + autocorrelated(np.random.default_rng(1), len(text), 300))
    first, again, other = (compare(a, b, block_length=512, seed=s) for s in (0, 0, 1))
    assert first == again
    assert first.low != other.low
    assert first.low == pytest.approx(other.low, abs=0.2 * abs(first.high - first.low))


def test_other_tokens_are_refused(text):
    with pytest.raises(ValueError, match="a and b must be scored on the same tokens, got 19999 and 20000"):
        compare(scored(text[1:]), scored(text), block_length=512)
    a = scored(text)
    moved = Scored(a.nll, a.context, a.position + 1, a.length, a.stride)
    with pytest.raises(ValueError, match="same tokens"):
        compare(a, moved, block_length=512)


def test_other_contexts_are_refused_where_context_selects(text):
    a, b = scored(text, 64), scored(text, 128)
    assert compare(a, b, block_length=512).verdict == "tie"
    with pytest.raises(ValueError, match="same context"):
        compare(a, b, min_context=32, block_length=512)
    with pytest.raises(ValueError, match="same context"):
        compare_bins(a, b, block_length=512)


def test_a_broken_model_is_refused(text):
    broken = text.copy()
    broken[7] = np.nan
    with pytest.raises(ValueError, match="nll must be finite, got nan in b"):
        compare(scored(text), scored(broken), block_length=512)


def test_only_tokens_beyond_a_context_count(text):
    a = scored(text)
    b = scored(text + np.where(a.context >= 32, 0.5, -9.0))
    result = compare(a, b, min_context=32, block_length=512)
    assert result.difference == pytest.approx(-0.5)
    assert result.tokens == (a.context >= 32).sum()
    with pytest.raises(ValueError, match="longest context is 63, got 64"):
        compare(a, b, min_context=64, block_length=512)


def test_bins_show_where_models_differ(text):
    a = scored(text)
    b = scored(text + np.where(a.context >= 16, 0.05, 0.0))
    bins = compare_bins(a, b, block_length=512)
    assert [(found.begin, found.end) for found in bins] == [
        (0, 1), (1, 2), (2, 4), (4, 8), (8, 16), (16, 32), (32, 64)
    ]  # fmt: skip
    assert bins[0].comparison is None
    verdicts = [found.comparison.verdict for found in bins[1:]]
    assert verdicts == ["tie"] * 4 + ["a better"] * 2
    assert sum(found.comparison.tokens for found in bins[1:]) == len(text)
    for found in bins[1:]:
        held = (a.context >= found.begin) & (a.context < found.end)
        assert found.comparison.difference == pytest.approx((a.nll - b.nll)[held].mean())


def test_sliding_bins_at_the_stream_start_get_no_verdict(text):
    a, b = scored(text, 64, 32), scored(text + 0.05, 64, 32)
    verdicts = {found.begin: found.comparison.verdict for found in compare_bins(a, b, block_length=512)[1:]}
    assert verdicts[16] == "too few blocks"
    assert verdicts[32] == "a better"


def test_training_noise_turns_a_claim_into_a_tie(text):
    arms = {seed: scored(text + shift) for seed, shift in enumerate([0.2, -0.15, 0.1])}
    base = dict.fromkeys(range(3), scored(text))
    assert compare(arms[0], base[0], block_length=512).verdict == "b better"
    together = compare(arms, base, block_length=512)
    assert together.verdict == "tie"
    assert together.per_seed == pytest.approx((0.2, -0.15, 0.1))
    assert together.difference == pytest.approx(0.05)
    # Student's t of three numbers: sd 0.1803, 4.3027 * sd / sqrt(3)
    assert together.high - together.difference == pytest.approx(4.3027 * 0.180278 / 3**0.5, rel=1e-3)


def test_seeds_that_agree_keep_the_claim(text):
    arms = {seed: scored(text + shift) for seed, shift in enumerate([0.10, 0.11, 0.12])}
    base = dict.fromkeys(range(3), scored(text))
    assert compare(arms, base, block_length=512).verdict == "b better"


def test_text_noise_stays_when_seeds_agree(text):
    noise = autocorrelated(np.random.default_rng(8), len(text), 300)
    base = dict.fromkeys(range(3), scored(text))
    arms = dict.fromkeys(range(3), scored(text + noise))
    single = compare(arms[0], base[0], block_length=512)
    together = compare(arms, base, block_length=512)
    assert together.high - together.low == pytest.approx(single.high - single.low, rel=0.15)


def test_only_shared_seeds_are_paired(text):
    a = {1: scored(text), 2: scored(text + 1)}
    b = {2: scored(text), 3: scored(text)}
    assert compare(a, b, block_length=512).seeds == (2,)
    assert compare(a, b, block_length=512).difference == pytest.approx(1)
    with pytest.raises(ValueError, match=r"share at least one seed, got \[1, 2\] and \[0\]"):
        compare(a, scored(text), block_length=512)


def test_ranking_shows_ties_with_the_best(text):
    noise = autocorrelated(np.random.default_rng(4), len(text), 300)
    arms = {
        "clearly worse": scored(text + 1.0),
        "as good": scored(text + noise - noise.mean() + 0.001),
        "best": scored(text),
    }
    standings = rank(arms, block_length=512)
    assert [place.name for place in standings] == ["best", "as good", "clearly worse"]
    assert [place.ties_with_best for place in standings] == [True, True, False]
    assert standings[0].against_best is None
    assert standings[2].against_best.difference == pytest.approx(1.0)
    assert standings[2].nll == pytest.approx(text.mean() + 1)


def test_ranking_uses_the_seeds_that_all_share(text):
    arms = {"a": {0: scored(text), 1: scored(text + 9)}, "b": {0: scored(text + 1)}}
    standings = rank(arms, block_length=512)
    assert [place.name for place in standings] == ["a", "b"]
    assert standings[1].against_best.seeds == (0,)
    with pytest.raises(ValueError, match="share at least one seed"):
        rank({"a": {0: scored(text)}, "b": {1: scored(text)}})
    with pytest.raises(ValueError, match="at least one model"):
        rank({})


def test_a_comparison_is_fast():
    random = np.random.default_rng(0)
    a, b = (scored(random.normal(size=65_536).astype(np.float32), 256) for _ in range(2))
    durations = []
    for _ in range(5):
        begin = time.perf_counter()
        compare(a, b, block_length=256, resamples=2000)
        durations.append(time.perf_counter() - begin)
    assert min(durations) < 0.2


@pytest.mark.parametrize(
    ("freedom", "quantile"),
    [(1, 12.706), (2, 4.303), (7.9, 2.365), (9, 2.262), (10, 2.228), (30, 2.042), (1e6, 1.960)],
)
def test_student_quantiles(freedom, quantile):
    assert t_quantile(freedom) == pytest.approx(quantile, abs=1e-3)


def test_too_few_resamples_are_refused(text):
    with pytest.raises(ValueError, match="resamples must be at least 100, got 10"):
        compare(scored(text), scored(text), resamples=10)
