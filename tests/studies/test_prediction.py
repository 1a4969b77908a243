"""What the geometry predicts: connections from any mask, ranks with ties, an interval that knows its clusters."""

from __future__ import annotations

import itertools
import json
import re
from collections import Counter
from pathlib import Path

import numpy as np
import pytest
from typer.testing import CliRunner

from farspan.cli import app
from farspan.patterns import rules
from farspan.studies.report import build
from farspan.studies.report.claims import probe_claims
from farspan.studies.report.kinds import Kind
from farspan.studies.report.prediction import Prediction, connections, predictions, spearman
from farspan.studies.report.results import read_study
from farspan.studies.report.rows import ProbeRow, probe_rows
from report_fixture import probe_cells, write_study

LAYERS = [(0, 1, 4), (0, 2, 9), (0, 1, 5)]
RULES = [{"pattern": "lines", "slashes": list(layer)} for layer in LAYERS]


def row(label: str, accuracy: dict[int, float], layers: list[dict[str, object]] = RULES) -> ProbeRow:
    return ProbeRow(label, Kind("lines"), 3, "shift-copy", accuracy, frozenset(), 1 / 16, layers, 24)


def test_connections_of_lines_are_those_of_their_sums() -> None:
    found = connections(RULES, 24)
    sums = list(itertools.product(*LAYERS))
    counts = Counter(map(sum, sums))
    for distance in range(24):
        moves = [sum(step > 0 for step in path) for path in sums if sum(path) == distance]
        assert found.hops[distance] == (min(moves) if moves else 4)
        assert found.log_paths[distance] == pytest.approx(np.log10(counts[distance] or 0.1))
        assert found.direct[distance] == any(distance in layer for layer in LAYERS)


def test_connections_of_blocks_are_means_over_queries() -> None:
    one = [{"pattern": "block_lines", "distances": [0], "block": 4}]
    found = connections(one, 8)
    assert found.direct.tolist() == pytest.approx([1, 6 / 7, 4 / 6, 2 / 5, 0, 0, 0, 0])
    assert found.hops.tolist() == pytest.approx([0, (6 + 2) / 7, (4 + 4) / 6, (2 + 6) / 5, 2, 2, 2, 2])


def test_where_heads_differ_a_path_counts_the_share_of_heads() -> None:
    (mask,) = [rules.build({"pattern": "lines", "slashes": [[0, 2], [0, 3]]}, 6).mask(6, 6)]
    assert mask.shape[-3] == 2
    found = connections([{"pattern": "lines", "slashes": [[0, 2], [0, 3]]}] * 2, 6)
    assert found.log_paths[2] == pytest.approx(np.log10(1.0))
    assert found.log_paths[5] == pytest.approx(np.log10(0.5))


def test_spearman_is_that_of_the_textbook() -> None:
    assert spearman(np.array([1.0, 2, 3, 4]), np.array([10.0, 20, 30, 1000])) == pytest.approx(1)
    # Ranks 1, 2.5, 2.5, 4 and 1, 3, 2, 4: Pearson's correlation of those.
    expected = np.corrcoef([1, 2.5, 2.5, 4], [1, 3, 2, 4])[0, 1]
    assert spearman(np.array([0.0, 5, 5, 9]), np.array([1.0, 7, 3, 8])) == pytest.approx(expected)
    assert spearman(np.ones(4), np.arange(4.0)) is None


def test_a_model_that_follows_the_hops_is_found_out() -> None:
    c = connections(RULES, 24)
    accuracy = {d: 1 / float(c.hops[d]) for d in range(1, 20)}
    direct, hops, _ = predictions([row("a", accuracy), row("b", accuracy)])
    assert (hops.name, hops.cells, hops.rho, hops.low) == ("few hops", 38, pytest.approx(1), pytest.approx(1))
    assert direct.rho is not None
    assert 0 < direct.rho < 1


def test_accuracy_without_a_pattern_has_an_interval_around_nought() -> None:
    random = np.random.default_rng(0)
    found = predictions([row("a", {d: random.random() for d in range(1, 20)})])
    assert all(one.low is not None and one.high is not None and one.low < 0 < one.high for one in found)


def test_arms_that_repeat_one_another_make_the_interval_no_narrower() -> None:
    random = np.random.default_rng(1)
    accuracy = {d: random.random() for d in range(1, 20)}
    once = predictions([row("a", accuracy)])
    fourfold = predictions([row(name, accuracy) for name in "abcd"])
    for one, four in zip(once, fourfold, strict=True):
        assert (one.low, one.high) == (pytest.approx(four.low), pytest.approx(four.high))


def test_equal_accuracy_everywhere_has_no_correlation() -> None:
    assert predictions([row("a", dict.fromkeys(range(1, 9), 1.0))])[1] == Prediction("few hops", 8, None, None, None)


def test_dense_and_learned_models_are_left_out() -> None:
    dense = [{"pattern": "dense"}] * 3
    learned = [{"pattern": "learned_spacing", "window": 3}] * 3
    assert predictions([row("a", {3: 1.0}, dense), row("b", {3: 1.0}, learned)]) == []


def test_a_pattern_without_distances_has_no_say_in_what_direct_reading_does(tmp_path: Path) -> None:
    folder = write_study(tmp_path, probe_cells())
    for path in folder.glob("cells/copy-fib-*/result.json"):
        content = json.loads(path.read_text())
        content["layers"][0]["slashes"] = []
        path.write_text(json.dumps(content))
    rows = probe_rows(read_study(folder), "shift-copy")
    directs = {row.label: row.direct for row in rows}
    assert directs["fib stagger"] == frozenset()
    assert directs["dense"] is None
    assert directs["powers fixed"]
    (finding,) = probe_claims(rows)[-1].findings
    asked = sum(len(row.accuracy) for row in rows if row.direct)
    assert sum(int(n) for n in re.findall(r"of (\d+)", finding.text)) == asked


def test_the_report_and_the_command_show_it(tmp_path: Path) -> None:
    folder = write_study(tmp_path, probe_cells())
    for config in folder.glob("cells/*/config.json"):
        if "fib" in config.parent.name:
            content = json.loads(config.read_text())
            config.write_text(json.dumps(content | {"rules": RULES, "recipe": {"length": 600}}))
    paths = build(folder)
    assert "What the geometry of a pattern predicts" in paths.tables.read_text()
    assert "some layer reads it directly" in paths.html.read_text()
    result = CliRunner().invoke(app, ["study", "correlation", folder.name, "--runs", str(folder.parent), "--json"])
    assert result.exit_code == 0, result.output
    assert [one["name"] for one in json.loads(result.stdout)][1] == "few hops"
