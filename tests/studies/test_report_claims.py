"""A verdict follows the data: it flips when they flip, ties where they tie, and names what is missing."""

from __future__ import annotations

from dataclasses import replace

import pytest

from farspan.studies.report.claims import Claim, Finding, Verdict, language_claims, probe_claims
from farspan.studies.report.claims.verdicts import sign_test, wilson
from farspan.studies.report.compare import Comparer
from farspan.studies.report.results import read_study
from farspan.studies.report.rows import language_rows, probe_rows
from report_fixture import (
    DENSE,
    LanguageCell,
    ProbeCell,
    Shape,
    fib,
    matched,
    mini_cells,
    partial_cells,
    powers,
    probe_cells,
    write_study,
)


def claims_of(folder, cells, shape=None):
    study = read_study(write_study(folder, cells, shape))
    found = language_claims(study, language_rows(study), Comparer())
    return {claim.key: claim for claim in found}


@pytest.fixture(scope="module")
def mini(tmp_path_factory):
    return claims_of(tmp_path_factory.mktemp("mini"), mini_cells())


@pytest.fixture(scope="module")
def opposite(tmp_path_factory):
    """The study with every effect turned round."""
    cells = [
        LanguageCell("dense", DENSE, 0.0),
        LanguageCell("fib fixed", fib("fixed"), 0.0, collapse=0.06),
        LanguageCell("fib stagger", fib("stagger"), 0.05, later=0.05),
        LanguageCell("fib coprime", fib("coprime"), 0.0),
        LanguageCell("fib learned", fib("learned"), 0.0, drift=0.2),
        LanguageCell("powers fixed", powers("fixed"), 0.06),
        LanguageCell("powers stagger", powers("stagger"), 0.1),
        LanguageCell("powers stagger, equal pairs", matched("powers", 11), 0.1),
        LanguageCell("window, equal pairs", matched("sliding_window", 14), 0.0),
    ]
    return claims_of(tmp_path_factory.mktemp("opposite"), cells)


FLIPS = [
    "stagger-beats-fixed-fibonacci",
    "stagger-equals-coprime",
    "learned-stays",
    "learned-no-better",
    "beats-window",
    "dense-collapses",
]


@pytest.mark.parametrize("key", FLIPS)
def test_a_claim_that_shows_does_not_show_when_the_data_are_turned_round(mini, opposite, key):
    assert mini[key].verdict is Verdict.SHOWS
    assert opposite[key].verdict is Verdict.NOT


@pytest.mark.parametrize("key", ["bases-equal-window", "bases-equal-pairs"])
def test_a_claim_that_does_not_show_shows_when_the_data_are_turned_round(mini, opposite, key):
    assert mini[key].verdict is Verdict.NOT
    assert opposite[key].verdict is Verdict.SHOWS


def test_one_sparse_model_that_collapses_refutes_the_claim_and_is_named(mini, opposite):
    assert mini["sparse-holds"].verdict is Verdict.SHOWS
    assert opposite["sparse-holds"].verdict is Verdict.NOT
    contradicting = [f for f in opposite["sparse-holds"].findings if f.verdict is Verdict.NOT]
    assert [f.short.split(" +")[0] for f in contradicting] == ["fib fixed"]


def test_a_gain_from_longer_context_is_told_from_the_early_token_effect(mini, opposite):
    assert mini["gain-is-early-tokens"].verdict is Verdict.SHOWS
    real_gain = next(f for f in opposite["gain-is-early-tokens"].findings if "stagger" in f.text)
    assert real_gain.verdict is Verdict.NOT
    worse = next(f for f in opposite["gain-is-early-tokens"].findings if "fib fixed" in f.text)
    assert "nothing to explain" in worse.text


def test_numbers_interval_and_budget_stand_in_the_sentence(mini):
    text = mini["stagger-beats-fixed-fibonacci"].summary
    assert "pairs a token" in text
    assert "interval" in text
    assert "16,384 tokens, 1 seed" in text
    assert "not matched" in mini["bases-equal-window"].findings[0].text


def test_models_without_a_difference_tie(tmp_path):
    cells = [LanguageCell("fib fixed", fib("fixed"), 0.0), LanguageCell("fib stagger", fib("stagger"), 0.0)]
    claims = claims_of(tmp_path, cells)
    assert claims["stagger-beats-fixed-fibonacci"].verdict is Verdict.UNDECIDED
    assert "a tie" in claims["stagger-beats-fixed-fibonacci"].summary


def test_missing_cells_are_named_with_their_state(tmp_path):
    claims = claims_of(tmp_path, [c for c in partial_cells() if "coprime" not in c.label])
    powers_claim = claims["stagger-beats-fixed-powers"]
    assert powers_claim.verdict is Verdict.UNTESTED
    assert "powers-fixed-seed42 (powers fixed) failed" in powers_claim.summary
    assert "powers-stagger-seed42 (powers stagger) has not finished" in powers_claim.summary
    assert claims["stagger-equals-coprime"].verdict is Verdict.UNTESTED
    assert "plans no Fibonacci coprime cell" in claims["stagger-equals-coprime"].summary


def test_models_trained_on_different_budgets_are_not_compared(tmp_path):
    cells = [
        LanguageCell("fib fixed", fib("fixed"), 0.0, train_tokens=409_600),
        LanguageCell("fib stagger", fib("stagger"), -0.1, train_tokens=819_200),
    ]
    claim = claims_of(tmp_path, cells)["stagger-beats-fixed-fibonacci"]
    assert claim.verdict is Verdict.UNTESTED
    assert "819,200" in claim.summary


def test_a_window_of_other_size_is_no_control_at_equal_pairs(tmp_path):
    cells = [
        LanguageCell("fib stagger", fib("stagger"), 0.0),
        LanguageCell("window", matched("sliding_window", 20), 0.1),
    ]
    claim = claims_of(tmp_path, cells)["beats-window"]
    assert claim.verdict is Verdict.UNTESTED
    assert "13.9" in claim.summary


def test_models_of_different_windows_are_not_compared(tmp_path):
    cells = [
        LanguageCell("fib fixed", fib("fixed", 7), 0.1),
        LanguageCell("fib stagger", fib("stagger", 9), 0.0),
    ]
    claims = claims_of(tmp_path, cells)
    assert claims["stagger-beats-fixed-fibonacci"].verdict is Verdict.UNTESTED
    assert "no two finished cells share a window" in claims["stagger-beats-fixed-fibonacci"].summary.lower()


def test_too_little_text_decides_nothing(tmp_path):
    cells = [LanguageCell("fib fixed", fib("fixed"), 0.5), LanguageCell("fib stagger", fib("stagger"), 0.0)]
    claim = claims_of(tmp_path, cells, Shape(tokens=8193))["stagger-beats-fixed-fibonacci"]
    assert claim.verdict is Verdict.UNDECIDED
    assert "no interval: only 4 blocks" in claim.summary


def test_seeds_that_disagree_decide_nothing(tmp_path):
    differences = {42: -0.03, 43: 0.03, 44: -0.02}
    cells = [LanguageCell("fib fixed", fib("fixed"), 0.0, seed=seed) for seed in differences]
    cells += [LanguageCell("fib stagger", fib("stagger"), d, seed=seed) for seed, d in differences.items()]
    claim = claims_of(tmp_path, cells)["stagger-beats-fixed-fibonacci"]
    assert claim.verdict is Verdict.UNDECIDED
    assert "3 seeds" in claim.summary


def test_probe_claims_flip_with_the_accuracies(tmp_path):
    distances = range(100, 1000, 100)
    arms = {"dense": (DENSE, 0.95), "fib fixed": (fib("fixed"), 0.05), "fib stagger": (fib("stagger"), 0.95)}
    cells = [ProbeCell(label, kind, 4, (d,), (a,)) for label, (kind, a) in arms.items() for d in distances]
    by_key = _probe_claims(tmp_path / "a", cells)
    assert by_key["probe-dense-solves"].verdict is Verdict.SHOWS
    assert by_key["probe-stagger-beats-fixed"].verdict is Verdict.SHOWS
    turned = [replace(c, accuracies=(1 - c.accuracies[0],)) for c in cells]
    by_key = _probe_claims(tmp_path / "b", turned)
    assert by_key["probe-dense-solves"].verdict is Verdict.NOT
    assert by_key["probe-stagger-beats-fixed"].verdict is Verdict.NOT


def test_a_lead_of_one_distance_decides_nothing(tmp_path):
    arms = {"fib fixed": (fib("fixed"), 3), "fib stagger": (fib("stagger"), 4)}
    cells = [
        ProbeCell(label, kind, 2, (d,), (0.95 if i < solved else 0.1,))
        for label, (kind, solved) in arms.items()
        for i, d in enumerate(range(100, 900, 100))
    ]
    claim = _probe_claims(tmp_path, cells)["probe-stagger-beats-fixed"]
    assert claim.verdict is Verdict.UNDECIDED
    assert "4 and fib fixed from 3 of 8 distances; 1 only by the former" in claim.summary


def test_direct_reading_is_judged_by_what_layers_read(tmp_path):
    sums = [c for c in probe_cells() if len(c.distances) == 1]
    assert _probe_claims(tmp_path / "a", sums)["probe-direct-reading"].verdict is Verdict.SHOWS
    turned = [replace(c, accuracies=(0.95 if c.accuracies[0] < 0.5 else 0.05,)) for c in sums]
    assert _probe_claims(tmp_path / "b", turned)["probe-direct-reading"].verdict is Verdict.NOT


def _probe_claims(folder, cells):
    return {
        claim.key: claim for claim in probe_claims(probe_rows(read_study(write_study(folder, cells)), "shift-copy"))
    }


@pytest.mark.parametrize(
    ("verdicts", "expected"),
    [
        ("SS", Verdict.SHOWS),
        ("SU", Verdict.UNDECIDED),
        ("SN", Verdict.UNDECIDED),
        ("NU", Verdict.NOT),
        ("NN", Verdict.NOT),
        ("S-", Verdict.SHOWS),
        ("--", Verdict.UNTESTED),
    ],
)
def test_a_claim_shows_only_if_all_its_findings_do(verdicts, expected):
    letters = {"S": Verdict.SHOWS, "N": Verdict.NOT, "U": Verdict.UNDECIDED, "-": Verdict.UNTESTED}
    claim = Claim("k", "statement", "rule", tuple(Finding(letters[v], "text.") for v in verdicts))
    assert claim.verdict is expected


def test_exact_sign_test_and_wilson_interval():
    assert sign_test(7, 0) == pytest.approx(2 / 2**7)
    assert sign_test(3, 3) == 1.0
    low, high = wilson(13, 13)
    assert (low, high) == (pytest.approx(0.7719, abs=1e-4), pytest.approx(1.0))
