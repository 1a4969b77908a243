"""Pictures of patterns in text, and that the figures hold what they should."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from farspan import Blocks, Lines, patterns
from farspan.patterns import coverage, drawing
from farspan.patterns.drawing.axes import by_column, columns, stack_map
from farspan.patterns.drawing.figures import comparison, picture

BLOCKS = Blocks(torch.arange(4, dtype=torch.int32).reshape(1, 1, 4, 1), 4, 4)


def test_the_mask_in_text():
    assert drawing.mask_text(Lines([0, 2]), 6) == "▀▄\n▀▄▀▄\n  ▀▄▀▄"
    assert drawing.mask_text(Lines([[0], [2]]), 6) == drawing.mask_text(Lines([0, 2]), 6)
    assert drawing.mask_text(BLOCKS, 16, 4) == "▀▄\n  ▀▄"


def test_a_long_mask_is_drawn_in_tiles():
    """Eight tiles of 128 tokens: distance 256 begins in the third."""
    assert drawing.mask_text(Lines([0, 256]), 1024, 8) == "▀▄\n▀▄▀▄\n  ▀▄▀▄\n    ▀▄▀▄"


def test_the_schedule_in_text():
    drawn = drawing.schedule_text([Lines([0, 1]), Lines([0, 7])], 8, 10).splitlines()
    assert drawn[0] == "0 │█  █      │"
    assert drawn[1] == "1 │█        █│"
    assert drawn[2].split() == ["0", "1", "4", "7"]


def test_reach_in_text_stops_where_all_is_connected():
    found = coverage.analyse([patterns.sliding_window(5)] * 16, 13)
    drawn = drawing.reach_text(found, 20).splitlines()
    assert [row.partition(" ")[0] for row in drawn[:-1]] == ["1", "2", "3"]
    assert drawn[2] == f"3 │{'█' * 20}│"
    assert "█" in drawn[0]
    assert drawn[0].endswith(" │")


def test_no_shade_is_a_rounding():
    """One distance of many is not blank, and all but one are not full."""
    one, most = Lines([0, 990]), Lines([d for d in range(1024) if d != 990])
    drawn = [drawing.reach_text(coverage.analyse([support], 1024), 16).splitlines()[0] for support in (one, most)]
    assert drawn[0][-2] == "░"
    assert drawn[1][-2] == "▓"


def test_paths_in_text_are_blank_where_there_is_none():
    found = {"window": coverage.analyse([Lines([0, 1])], 64), "all": coverage.analyse([Lines(range(64))] * 3, 64)}
    first, second, axis, scale = drawing.paths_text(found, 12).splitlines()
    assert first.startswith("window │▁▁")
    assert first.endswith("  │")
    assert second.startswith("   all │▁")
    assert second.endswith("█│")
    assert axis.split()[0] == "0"
    assert scale == f"full height: 10^{np.log10(64 * 65 / 2):.1f} paths"


def test_what_is_not_known_is_said():
    length = coverage.LONGEST + 1
    index = torch.arange(length, dtype=torch.int32).reshape(1, 1, length, 1)
    found = coverage.analyse([Blocks(index, 1, 1)], length)
    assert drawing.reach_text(found) == drawing.paths_text({"": found}) == "not known at this length"


@pytest.mark.parametrize("length", [1, 2, 3, 17, 1000])
def test_columns_cover_the_axis(length):
    at = columns(length, 20)
    assert at[0] == 0
    assert at[-1] == (19 if length > 1 else 0)
    assert (np.diff(at) >= 0).all()
    assert by_column(np.ones(length), 20).tolist() == [1.0] * 20


def test_the_map_of_a_stack_is_the_mean_over_its_layers():
    shares = stack_map([Lines([0]), Lines([0, 1])], 4, 4)
    assert shares.tolist() == [[1, 0, 0, 0], [0.5, 1, 0, 0], [0, 0.5, 1, 0], [0, 0, 0.5, 1]]


def test_a_picture_has_axes_with_units():
    figure = picture([Lines([0, 1]), Lines([0, 4])], 64, "two layers")
    assert [axis.get_title() for axis in figure.axes] == ["first layer", "last layer", "distances read"]
    assert [axis.get_xlabel() for axis in figure.axes] == ["key (tokens)", "key (tokens)", "distance (tokens)"]
    assert len(picture([BLOCKS, BLOCKS], 16).axes) == 2


@pytest.mark.parametrize("count", [1, 4, 5])
def test_a_comparison_shows_every_pattern(count):
    stacks = {f"window {w}": [patterns.sliding_window(w)] * 2 for w in range(2, 2 + count)}
    found = {name: coverage.analyse(stack, 32) for name, stack in stacks.items()}
    figure = comparison(stacks, found)
    titles = [axis.get_title() for axis in figure.axes]
    assert [title for title in titles if title.startswith("window")] == list(stacks)
    curves = {axis.get_title(): axis.lines for axis in figure.axes}
    connected = curves["distances connected by the bottom layers"]
    assert [line.get_label() for line in connected] == list(stacks)
    assert connected[0].get_ydata()[-1] == pytest.approx(100 * 2 / 31)
    paths = curves["paths through the whole stack"]
    assert len(paths) == count
    assert paths[0].get_ydata()[:3] == pytest.approx(np.log10([1, 2, 1]))
