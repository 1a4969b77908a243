"""Study files: what they may say, and what they mean."""

from __future__ import annotations

from pathlib import Path

import pytest

from farspan.models import FarspanConfig
from farspan.patterns import rules
from farspan.studies.schema import load, shipped
from farspan.studies.single import single

STUDY = """
title = "A study"
[language.model]
hidden_size = 32
layers = 4
heads = 4
[language.recipe]
length = 64
tokens = 10240
batch_tokens = 512
warmup_steps = 2
[[language.arms]]
label = "fib {schedule} {window}"
rule = { pattern = "fibonacci" }
matrix = { schedule = ["fixed", "stagger"], window = [3, 5] }
[[language.arms]]
label = "window"
rule = { pattern = "sliding_window", match = "fib stagger 5" }
"""


def write(folder: Path, text: str) -> Path:
    path = folder / "try.toml"
    path.write_text(text)
    return path


def test_shipped_studies_load_and_their_models_can_be_configured() -> None:
    assert shipped() == ["depth", "design", "mini", "paper", "shift-copy", "small", "windows", "zoo-mini"]
    for name in shipped():
        for cell in load(name).cells():
            FarspanConfig(num_hidden_layers=cell.model.layers, hidden_size=64, num_attention_heads=4, rules=cell.rules)


def test_the_paper_is_whole() -> None:
    cells = load("paper").cells()
    controls = [cell for cell in cells if "equal" in cell.label]
    models = [cell for cell in cells if cell not in controls and cell.label != "dense"]
    assert len({cell.label for cell in models}) == 21
    assert len(models) == 30
    assert cells[0].recipe.steps == 13_000
    learned = [cell for cell in models if "learned" in cell.label]
    assert {cell.recipe.micro_batch for cell in learned} == {4}
    assert {cell.recipe.batch_tokens for cell in cells} == {32_768}


def test_a_matrix_stands_for_all_combinations(tmp_path: Path) -> None:
    cells = load(write(tmp_path, STUDY)).cells()
    assert [cell.label for cell in cells] == ["fib fixed 3", "fib fixed 5", "fib stagger 3", "fib stagger 5", "window"]
    assert [rule["alpha"] for rule in cells[2].rules] == pytest.approx([0.5, 0.5 + 1 / 3, 0.5 + 2 / 3, 1.5])
    assert len({cell.id for cell in cells}) == len(cells)


def test_a_matched_arm_has_equal_pairs_in_every_layer(tmp_path: Path) -> None:
    *_, target, window = load(write(tmp_path, STUDY)).cells()
    for ours, theirs in zip(window.rules, target.rules, strict=True):
        pairs = [int(rules.build(rule, 64).pairs(64, 64)) for rule in (ours, theirs)]
        assert abs(pairs[0] - pairs[1]) <= 64


def test_a_matched_arm_of_random_keys_draws_anew_in_every_layer(tmp_path: Path) -> None:
    text = STUDY.replace('"sliding_window", match = "fib stagger 5"', '"random", match = "fib stagger 5", seed = 3')
    *_, target, control = load(write(tmp_path, text)).cells()
    assert [(rule["seed"], rule["layer"]) for rule in control.rules] == [(3, 0), (3, 1), (3, 2), (3, 3)]
    for ours, theirs in zip(control.rules, target.rules, strict=True):
        pairs = [int(rules.build(rule, 64).pairs(64, 64)) for rule in (ours, theirs)]
        assert 2 * abs(pairs[0] - pairs[1]) <= 64


def test_arms_with_equal_seed_and_shape_differ_in_rules_only() -> None:
    cells = load("mini").cells()
    for cell in cells[1:]:
        assert cell.recipe == cells[0].recipe
        assert (cell.model, cell.data, cell.evaluation) == (cells[0].model, cells[0].data, cells[0].evaluation)


@pytest.mark.parametrize(
    ("change", "words"),
    [
        (("tokens = 10240", "token = 10240"), ["language.recipe.token", "unknown key", "tokens", "batch_tokens"]),
        (("layers = 4", "layers = 0"), ["language.model.layers", "greater than or equal to 1"]),
        (("heads = 4", "heads = 3"), ["language.model", "multiple of kv_heads"]),
        (("batch_tokens = 512", "batch_tokens = 500"), ["language.recipe", "multiple of length * micro_batch", "500"]),
        (("warmup_steps = 2", "warmup_steps = 20"), ["language.recipe", "warmup_steps", "20"]),
        (('"fixed", "stagger"', '"fixed", "staggered"'), ["fib staggered 3", "schedule must be one of", "'staggered'"]),
        (("fib stagger 5", "fib"), ["arm 'window'", "match must name another arm", "'fib'"]),
        (("window = [3, 5]", "window = [3, 3]"), ["unique labels", "'fib fixed 3'"]),
        (("window = [3, 5]", "window = [0, 5]"), ["arm 'fib fixed 0'", "window must be an integer >= 1", "0"]),
        (("[[language.arms]]", "[[language.arm]]"), ["language.arms", "required"]),
        (("title", "seeds = []\ntitle"), ["seeds"]),
        (('label = "window"', "label = window"), ["not valid TOML"]),
        (('{schedule} {window}"', '{size}"'), ["arm 'fib {size}'", "size"]),
        (('label = "window"', 'label = "FIB fixed-3"'), ["folder of its own", "'FIB fixed-3'", "'fib fixed 3'"]),
        (("title", "seeds = [1, 1]\ntitle"), ["folder of its own", "seed"]),
        (("title", "seeds = [true]\ntitle"), ["seeds.0", "integer"]),
        (("title", "seeds = [-1]\ntitle"), ["seeds.0", "greater than or equal to 0"]),
        (("title", "name = 'x'\ntitle"), ["name is the file's own"]),
        (("window = [3, 5]", "window = []"), ["matrix.window", "at least one value"]),
        (("[language.recipe]", "[language.evaluation]\nprotocols = []\n[language.recipe]"), ["evaluation.protocols"]),
        (("[language.recipe]", "[language.evaluation]\ntokens = 100\n[language.recipe]"), ["512", "100"]),
        (
            ('match = "fib stagger 5"', 'match = "fib stagger 5", schedule = "zig"'),
            ["schedule must be one of", "'zig'"],
        ),
        (('match = "fib stagger 5"', 'match = "fib stagger 5", foo = 1'), ["matched rule takes", "foo"]),
        (('match = "fib stagger 5"', "window = 3, by = 'pairs'"), ["arm 'window'", "by"]),
        (
            ('"sliding_window", match = "fib stagger 5"', '"lines", slashes = [[0], [1], [2]]'),
            ["must have 4 heads", "got 3"],
        ),
        (
            ('"sliding_window", match = "fib stagger 5"', '"learned_spacing", windows = 3'),
            ["learned_spacing", "windows"],
        ),
        (('"sliding_window", match = "fib stagger 5"', '"dense", schedule = "stagger"'), ["dense", "no alpha"]),
    ],
    ids=lambda value: value[1] if isinstance(value, tuple) else "",
)
def test_a_wrong_file_is_refused_by_file_key_and_allowed_values(
    tmp_path: Path, change: tuple[str, str], words: list[str]
) -> None:
    path = write(tmp_path, STUDY.replace(*change))
    with pytest.raises(ValueError, match=r"try\.toml") as raised:
        load(path)
    for word in words:
        assert word in str(raised.value)


def test_a_study_that_is_not_there_is_named_with_the_ones_that_are() -> None:
    with pytest.raises(ValueError, match=r"mini, paper, shift-copy, small, windows, zoo-mini .*'minni'"):
        load("minni")


def test_train_settings_reach_the_study() -> None:
    settings = ["recipe.tokens=65536", "model.layers=2", "data.corpus=some/file.txt"]
    study = single("one", {"pattern": "dense"}, 7, settings)
    (cell,) = study.cells()
    assert (cell.recipe.tokens, cell.model.layers, cell.seed) == (65536, 2, 7)
    assert cell.data is not None
    assert cell.data.corpus == "some/file.txt"


@pytest.mark.parametrize("setting", ["tokens=3", "recipe.tokens", "optimizer.lr=3", "recipe.lr=1", "model.layers=x"])
def test_a_wrong_train_setting_is_refused(setting: str) -> None:
    with pytest.raises(ValueError, match=r"--set|recipe\.lr|layers"):
        single("one", {"pattern": "dense"}, 7, [setting])
