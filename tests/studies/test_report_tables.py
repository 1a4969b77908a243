"""Tables say what is matched, what ties, what is missing, and survive any label."""

from __future__ import annotations

import csv
import io
import re

import pytest

from farspan.studies.report import words
from farspan.studies.report.compare import Comparer
from farspan.studies.report.results import read_study
from farspan.studies.report.rows import language_rows, probe_rows
from farspan.studies.report.tables.cells import provenance_tables, state_table
from farspan.studies.report.tables.headline import headline_table
from farspan.studies.report.tables.probe import probe_table
from farspan.studies.report.tables.results_csv import results_csv
from farspan.studies.report.tables.sliding import sliding_table
from farspan.studies.report.tables.table import Column, Entry, Table, markdown
from report_fixture import LanguageCell, fib, matched, mini_cells, partial_cells, probe_cells, write_study


def study_of(folder, cells):
    return read_study(write_study(folder, cells))


def columns(table, label):
    """Entries of the row of a label, by `group: title`."""
    row = next(r for r in table.rows if r[0].text == label)
    return {f"{c.group}: {c.title}" if c.group else c.title: e for c, e in zip(table.columns, row, strict=True)}


@pytest.fixture(scope="module")
def mini(tmp_path_factory):
    study = study_of(tmp_path_factory.mktemp("mini"), mini_cells())
    return headline_table(language_rows(study), Comparer())


def test_every_row_says_whether_its_pairs_are_matched(mini):
    """F36: compared at equal pairs, or the table says it is not."""
    matched_column = {row[0].text: columns(mini, row[0].text)["pairs a token: matched"] for row in mini.rows}
    assert matched_column["fib stagger"].text == "reference"
    assert matched_column["window, equal pairs"] == Entry("yes", "0.98×")
    assert matched_column["powers fixed"] == Entry("not matched", "0.86×")
    assert matched_column["dense"].text == "not matched"


def test_the_notes_say_what_the_words_of_the_columns_mean(mini):
    assert "those that tie share theirs: '4=' is one of several in fourth place" in " ".join(mini.notes)
    assert words.PAIRS in mini.notes


def test_the_best_is_bold_and_has_rank_one(mini):
    best = columns(mini, "powers stagger, equal pairs")
    assert best["rank"].text == "1"
    assert best["perplexity, non-overlapping windows: 1×"].strong
    assert best["difference in nats: to the best"].text == "best"


def test_rows_go_from_the_yardstick_to_the_rival(mini):
    labels = [row[0].text for row in mini.rows]
    assert labels[:3] == ["dense", "window, equal pairs", "fib fixed"]


def test_ties_are_shown_as_ties(tmp_path):
    cells = [
        LanguageCell("fib fixed", fib("fixed"), 0.0),
        LanguageCell("fib stagger", fib("stagger"), 0.0),
        LanguageCell("window", matched("sliding_window", 14), 0.3),
    ]
    table = headline_table(language_rows(study_of(tmp_path, cells)), Comparer())
    rows = {label: columns(table, label) for label in ("fib fixed", "fib stagger", "window")}
    assert {label: row["rank"].text for label, row in rows.items()} == {
        "fib fixed": "1=",
        "fib stagger": "1=",
        "window": "3",
    }
    at_train = [row["perplexity, non-overlapping windows: 1×"] for row in rows.values()]
    assert sorted(entry.text.startswith("≈") for entry in at_train) == [False, False, True]
    assert [entry.strong for entry in at_train] == [True, True, False]


def test_a_row_without_token_losses_has_no_rank(tmp_path):
    folder = write_study(tmp_path, mini_cells()[2:4])
    (folder / "cells" / "fib-fixed-seed42" / "nll.npz").unlink()
    row = columns(headline_table(language_rows(read_study(folder)), Comparer()), "fib fixed")
    assert row["rank"].text == "–"
    assert row["difference in nats: to the best"].text == "not comparable"


def test_seeds_are_averaged_and_their_range_shown(tmp_path):
    study = study_of(tmp_path, [c for c in mini_cells((42, 43, 44)) if c.label.startswith("fib f")])
    row = columns(headline_table(language_rows(study), Comparer()), "fib fixed")
    assert row["seeds"].text == "3"
    assert " to " in row["perplexity, non-overlapping windows: 1×"].small


def test_both_protocols_have_a_table_and_name_their_context(tmp_path):
    study = study_of(tmp_path, mini_cells()[2:4])
    table = sliding_table(language_rows(study), Comparer())
    assert "non-overlapping" in table.notes[0]


def test_failed_running_and_missing_cells_are_listed(tmp_path):
    """F35: nothing planned disappears from the report."""
    folder = write_study(tmp_path, partial_cells())
    (folder / "cells" / "left-over").mkdir()
    study = read_study(folder)
    states = {row[0].text: (row[4].text, row[5].text) for row in state_table(study).rows}
    assert states["powers-fixed-seed42"] == ("failed", "ValueError: loss is NaN at step 49")
    assert states["powers-stagger-seed42"][0] == "unfinished"
    assert "step 49 of 147" in states["powers-stagger-seed42"][1]
    assert states["powers-stagger--equal-pairs-seed42"][0] == "not started"
    assert "left-over" in state_table(study).notes[0]


def test_a_result_that_cannot_be_read_is_a_failed_cell(tmp_path):
    folder = write_study(tmp_path, mini_cells()[:3])
    (folder / "cells" / "dense-seed42" / "result.json").write_text('{"label": "dense"')
    (folder / "cells" / "fib-fixed-seed42" / "result.json").write_text('{"label": "fib fixed"}')
    details = {cell.id: (cell.state, cell.detail) for cell in read_study(folder).cells}
    assert details["dense-seed42"] == ("failed", "result.json is not readable")
    assert details["fib-fixed-seed42"][1].startswith("result.json lacks parameters")


def test_csv_has_one_line_a_planned_cell(tmp_path):
    """F35: no duplicate rows."""
    cells = [*partial_cells(), *probe_cells(depths=(2,))]
    lines = list(csv.DictReader(io.StringIO(results_csv(study_of(tmp_path, cells)))))
    assert [line["cell"] for line in lines] == [cell.id for cell in cells]
    failed = next(line for line in lines if line["state"] == "failed")
    assert failed["disjoint_256_ppl"] == ""
    assert float(lines[0]["disjoint_2048_beyond_nll"]) > 0
    assert lines[-1]["accuracy_350"] == "0.08"


def test_provenance_tells_shared_from_differing(tmp_path):
    shared, differing, recipe = provenance_tables(study_of(tmp_path, mini_cells()[:3]))
    assert ["torch", "2.13.0+cpu"] in [[e.text for e in row] for row in shared.rows]
    assert [c.title for c in differing.columns] == ["cell", "pattern_sha256"]
    assert ["language.recipe.length", "256"] in [[e.text for e in row] for row in recipe.rows]


def test_probe_table_marks_what_a_layer_reads(tmp_path):
    rows = probe_rows(study_of(tmp_path, probe_cells(depths=(2,))), "shift-copy")
    table = probe_table(rows, "shift-copy")
    row = columns(table, "fib fixed")
    assert row["above 0.9"].text == "2 of 8"
    assert row["accuracy at distance: 233"].text.endswith("•")
    assert not row["accuracy at distance: 256"].text.endswith("•")


@pytest.mark.parametrize("label", ["a|b", "<img src=x>", "**bold**", "[link](http://x)", "`code`", "a\\|b", "$x$"])
def test_a_label_stays_text_in_markdown(label):
    table = Table("t", "T", [Column("model", number=False), Column("n")], [[Entry(label), Entry("1")]])
    line = markdown(table).splitlines()[4]
    cells = re.findall(r"((?:\\.|[^|\\])*)\|", line)
    assert [len(cells), cells[0], cells[2]] == [3, "", " 1 "]
    assert "<" not in line
    assert re.sub(r"\\(.)", r"\1", cells[1]).strip() == label.replace("<", "&lt;").replace(">", "&gt;")
    assert not re.search(r"(?<!\\)[*_`\[\]$]", cells[1].replace("\\\\", ""))
