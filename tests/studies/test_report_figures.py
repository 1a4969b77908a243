"""Figures: labels keep apart, colours follow the page, ids are their own, nothing global changes."""

from __future__ import annotations

import re
import xml.etree.ElementTree as ElementTree
from itertools import pairwise

import matplotlib
import pytest
from hypothesis import given
from hypothesis import strategies as st
from matplotlib.text import Annotation, Text

from farspan.studies.report import words
from farspan.studies.report.compare import Comparer
from farspan.studies.report.figures.alpha import alphas
from farspan.studies.report.figures.canvas import drawing, to_png, to_svg
from farspan.studies.report.figures.labels import spread
from farspan.studies.report.figures.language import language_drawings
from farspan.studies.report.figures.perplexity import draw_perplexity, highlighted
from farspan.studies.report.figures.theme import CSS_VARIABLES, DARK, INLINE, LIGHT
from farspan.studies.report.results import read_study
from farspan.studies.report.rows import language_rows
from report_fixture import LanguageCell, fib, mini_cells, paper_cells, write_study

HOSTILE = 'fib $alpha$ <script>alert("x")</script> & more'


@pytest.fixture(scope="module")
def rows(tmp_path_factory):
    cells = [*mini_cells()[1:3], LanguageCell(HOSTILE, fib("stagger"), 0.05)]
    return language_rows(read_study(write_study(tmp_path_factory.mktemp("study"), cells)))


@given(
    st.lists(st.floats(0, 300), min_size=1, max_size=12),
    st.floats(1, 15),
)
def test_labels_are_spread_in_order_and_kept_inside(wanted, gap):
    placed = spread(wanted, gap, 0, 300)
    by_wish = sorted(range(len(wanted)), key=lambda i: wanted[i])
    positions = [placed[i] for i in by_wish]
    assert all(b - a >= gap - 1e-6 for a, b in pairwise(positions))
    assert positions[0] >= -1e-6
    assert positions[-1] <= 300 + 1e-6


def test_labels_that_do_not_touch_stay_where_they_are():
    assert spread([10, 100, 50], 12, 0, 300) == [10, 100, 50]


@pytest.mark.parametrize("key", ["perplexity-vs-length", "perplexity-sliding", "loss-by-position", "training-loss"])
def test_lines_are_named_in_full_on_a_phone(key, tmp_path):
    """Long labels take two lines, and no label lies on another."""
    rows = language_rows(read_study(write_study(tmp_path, mini_cells())))
    (shown,) = (each for each in language_drawings(rows, Comparer()) if each.key == key)
    with drawing():
        figure = shown.draw(INLINE, False)
        names = [text for text in figure.axes[0].texts if isinstance(text, Annotation)]
        boxes = sorted((Text.get_window_extent(text) for text in names), key=lambda box: box.y0)
    said = [text.get_text().replace("\n", " ") for text in names]
    assert all(any(text.startswith(row.label) for text in said) for row in rows), said
    assert all(below.y1 <= above.y0 + 1 for below, above in pairwise(boxes))


def test_a_label_is_cut_only_after_its_second_line():
    assert words.wrapped("fib stagger", 18) == "fib stagger"
    assert words.wrapped("powers stagger, equal pairs", 18) == "powers stagger,\nequal pairs"
    assert (
        words.wrapped("powers stagger, equal pairs, another seed", 18)
        == "powers stagger,\nequal pairs,\N{HORIZONTAL ELLIPSIS}"
    )
    assert words.wrapped("w" * 40, 18) == "w" * 18 + "\n\N{HORIZONTAL ELLIPSIS}"


def svg_of(rows, name="x"):
    with drawing():
        return to_svg(draw_perplexity(rows, "disjoint", INLINE, True), name, f"about {HOSTILE}")


def test_inline_svg_is_themed_self_contained_and_its_own(rows):
    svg = svg_of(rows, "first")
    ElementTree.fromstring(svg)
    assert not [colour for colour in CSS_VARIABLES if colour in svg]
    assert "var(--fibonacci)" in svg
    assert "http" not in svg
    assert "DejaVu" not in svg
    ids = re.findall(r' id="([^"]+)"', svg)
    assert len(ids) == len(set(ids))
    assert all(name.startswith("first-") for name in ids)
    assert all(f'id="{name}"' in svg for name in re.findall(r"(?:url\(|href=\")#([^\")]+)", svg))


def test_a_hostile_label_is_drawn_as_text(rows):
    svg = svg_of(rows)
    assert "<script" not in svg
    drawn = ["".join(text.itertext()) for text in ElementTree.fromstring(svg).iter("text")]
    assert {"fib $alpha$", '<script>alert("x")</script>'} <= {
        text.split("\N{HORIZONTAL ELLIPSIS}")[0] for text in drawn
    }


def test_no_settings_are_left_behind(rows):
    before = dict(matplotlib.rcParams)
    svg_of(rows)
    assert dict(matplotlib.rcParams) == before


def test_the_same_figure_gives_the_same_bytes(rows):
    def png(theme):
        with drawing():
            return to_png(draw_perplexity(rows, "disjoint", theme, False), theme, dpi=40)

    assert svg_of(rows) == svg_of(rows)
    assert png(LIGHT) == png(LIGHT)
    assert png(LIGHT) != png(DARK)


def test_an_exploding_line_leaves_the_axis_and_says_so(rows):
    figure = draw_perplexity(rows, "disjoint", LIGHT, True)
    texts = [text.get_text() for text in figure.axes[0].texts]
    assert any(text.startswith("dense ↑") and text.endswith("at 2,048") for text in texts)


def test_the_training_length_is_marked(rows):
    axes = draw_perplexity(rows, "disjoint", LIGHT, True).axes[0]
    assert [256, 256] in [list(line.get_xdata()) for line in axes.lines]


def test_many_models_are_thinned_to_the_best_of_each_kind(tmp_path):
    cells = [cell for cell in paper_cells() if "W=6" in cell.label or "W=12" in cell.label or cell.label == "dense"]
    rows = language_rows(read_study(write_study(tmp_path, cells)))
    named = [row.label for row in highlighted(rows)]
    assert named == [
        "dense",
        "fib fixed W=12",
        "fib stagger W=12",
        "fib coprime W=12",
        "fib learned W=12",
        "powers stagger W=12",
    ]


def test_learned_alphas_report_their_movement(tmp_path):
    cells = [LanguageCell("fib learned", fib("learned"), 0.0, drift=0.02), LanguageCell("fib fixed", fib("fixed"), 0.0)]
    entries = alphas(language_rows(read_study(write_study(tmp_path, cells))))
    assert [entry.name for entry in entries] == ["fixed", "fib learned"]
    assert entries[0].final == (1.0,) * 8
    assert entries[1].movement == pytest.approx(0.02)


def test_alphas_of_heads_are_not_drawn_as_alphas_of_layers(tmp_path):
    cells = [LanguageCell("fib heads", fib("stagger"), 0.0), LanguageCell("fib fixed", fib("fixed"), 0.0)]
    rows = language_rows(read_study(write_study(tmp_path, cells)))
    for row in rows:
        if row.label == "fib heads":
            for layer in row.first["layers"]:
                layer["alpha"] = [0.5, 1.5]
    assert [entry.name for entry in alphas(rows)] == ["fixed"]
