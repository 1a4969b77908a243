"""Arguments that nobody can mean are refused before anything is counted up to them."""

from __future__ import annotations

import pytest

from farspan import patterns
from farspan.patterns import coverage
from farspan.patterns.rules import PATTERNS, build, over_depth


@pytest.mark.parametrize(
    ("rule", "message"),
    [
        ({"pattern": "sliding_window", "window": 3_000_000_000}, "window must be at most 16,777,216, got 3000000000"),
        ({"pattern": "streaming_llm", "window": 3, "sinks": 2**31}, "sinks must be at most 16,777,216, got 2147483648"),
        ({"pattern": "fibonacci", "window": 3, "rungs": 3_000_000}, "rungs must be at most 1,000, got 3000000"),
        (
            {"pattern": "fibonacci_blocks", "window": 10**30, "block": 4},
            f"window must be at most 16,777,216, got {10**30}",
        ),
        ({"pattern": "powers", "window": 3, "reach": 10**14}, f"reach must be at most 2,147,483,647, got {10**14}"),
        ({"pattern": "partial_power", "exponent": 1e-300}, "exponent must lie in 0.01..1, got 1e-300"),
        (
            {"pattern": "lines", "slashes": [0], "alibi_slopes": [1.0], "alibi": True, "heads": 1},
            "a rule must have alibi or alibi_slopes, got both",
        ),
    ],
)
def test_what_is_too_large_is_refused_by_name(rule, message):
    with pytest.raises(ValueError, match=" ") as error:
        build(rule, 64)
    assert str(error.value) == message


@pytest.mark.parametrize("distances", [3, "12", b"12", {1: 2}])
def test_distances_are_a_list(distances):
    with pytest.raises(TypeError, match=r"^distances must be a list of integers >= 0, got "):
        patterns.rules.build({"pattern": "block_lines", "distances": distances, "block": 4}, 64)


@pytest.mark.parametrize(("schedule", "takes"), [("fixed", "alpha"), ("stagger_heads", "high, low")])
def test_a_schedule_says_what_it_takes(schedule, takes):
    with pytest.raises(ValueError, match=f"^the schedule {schedule} takes {takes}, got seed$"):
        over_depth({"pattern": "fibonacci", "window": 3}, 4, 2, schedule, seed=3)


@pytest.mark.parametrize("stack", [["x"], patterns.sliding_window(3), [None], "x"])
def test_an_analysis_needs_supports(stack):
    with pytest.raises(TypeError, match=r"^stack must be a list of supports, one per layer, got "):
        coverage.analyse(stack, 10)


def test_every_family_bounds_its_integers():
    """A new family that counts up to an argument without `at_least` would hang here."""
    for name in PATTERNS:
        if name != "lines":
            with pytest.raises((TypeError, ValueError)):
                build({"pattern": name, "window": 10**30, "length": 10**30}, 64)
