"""The benchmark of attention: it runs, it prints no speed of wrong results, and what it counts is counted right."""

from __future__ import annotations

import importlib.util
import json
import re
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace

import pytest
import torch

import farspan
from farspan import Lines, _cpu

BENCHMARKS = Path(__file__).resolve().parents[1] / "benchmarks"
# A figure with a unit of speed, or the head of a table of them.
SPEED = re.compile(r"\d+(\.\d+)? ?(x|%|us|ms)\b|\b(us|ms|GFLOP/s)\b")


@pytest.fixture
def modules(monkeypatch):
    """The modules of benchmarks/, which are scripts and not a package."""
    monkeypatch.syspath_prepend(str(BENCHMARKS))
    names = ("contenders", "gate", "memory", "roofline", "sections", "targets", "timing")
    found = {name: importlib.import_module(name) for name in names}
    spec = importlib.util.spec_from_file_location("benchmark_of_attention", BENCHMARKS / "attention.py")
    found["main"] = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(found["main"])
    before = torch.get_num_threads()
    yield SimpleNamespace(**found)
    torch.set_num_threads(before)
    for name in names:
        del sys.modules[name]


def test_one_section_runs_and_writes_its_figures(tmp_path):
    file = tmp_path / "figures.json"
    words = ["--backend", "torch", "--quick", "--only", "overhead", "--check", "--json", str(file)]
    run = subprocess.run([sys.executable, BENCHMARKS / "attention.py", *words], capture_output=True, text=True)
    assert run.returncode == 0, run.stderr
    assert "correctness gate: green" in run.stdout
    assert SPEED.search(run.stdout)
    data = json.loads(file.read_text())
    assert data["gate"]["green"]
    assert data["figures"]["overhead/no_grad"] > 0
    assert {row["call"] for row in data["sections"]["overhead"]} >= {"farspan, no_grad", "dense SDPA, no_grad"}
    assert all(entry["met"] is None for entry in data["targets"]), "short lengths judge nothing"
    assert [path.name for path in tmp_path.iterdir()] == ["figures.json"]


def one_wrong_pair(results):
    results[0][..., -1, 0] += 1e-3


def not_a_number(results):
    results[1][..., -1] = torch.nan


@pytest.mark.parametrize("fault", [one_wrong_pair, not_a_number])
def test_red_gate_prints_no_speed(modules, monkeypatch, capsys, tmp_path, fault):
    def faulty(*args, backend, **options):
        out, lse = results = [x.clone() for x in farspan.attention(*args, backend=backend, **options)]
        if backend == "torch":
            fault(results)
        return out, lse

    monkeypatch.setattr(modules.gate, "attention", faulty)
    monkeypatch.setattr(modules.gate, "COLUMNS", modules.gate.COLUMNS[:1])
    file = tmp_path / "figures.json"
    # Without the long lengths, where the torch backend is judge and not judged.
    quick = modules.sections.Sizes(gate=((17, 17),), gate_long=())
    monkeypatch.setattr(modules.main, "QUICK", quick)
    status = modules.main.main(["--backend", "torch", "--quick", "--only", "overhead", "--check", "--json", str(file)])
    printed = capsys.readouterr().out
    assert status == 1
    assert "correctness gate: RED" in printed
    assert not SPEED.search(printed)
    data = json.loads(file.read_text())
    assert not data["gate"]["green"]
    assert data["gate"]["failures"]
    assert (data["figures"], data["sections"], data["targets"]) == ({}, {}, [])


TRAINING = [sys.executable, str(BENCHMARKS / "training_speed.py"), "mini", "--length", "48", "--rounds", "1"]


def test_training_speed_of_the_arms_asked_for():
    command = [*TRAINING, "--arms", "dense", "fib s*"]
    run = subprocess.run(command, capture_output=True, text=True)
    assert run.returncode == 0, run.stderr
    found = re.findall(r"^(dense|fib \w+) +(\d+)(?: +(\d+) +(\d+\.\d+))? +1$", run.stdout, re.MULTILINE)
    assert [label for label, *_ in found] == ["dense", "fib stagger"]
    assert found[0][2:] == ("", ""), "a dense model has no mask"
    assert all(float(figure) > 0 for figure in found[1][1:])


def test_training_speed_prints_none_where_the_mask_computes_something_else(modules, monkeypatch, capsys):
    spec = importlib.util.spec_from_file_location("training_speed", BENCHMARKS / "training_speed.py")
    training_speed = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(training_speed)
    mask_of = Lines.mask
    monkeypatch.setattr(Lines, "mask", lambda *args: mask_of(*args).index_fill(-1, torch.tensor([0]), True))
    monkeypatch.setattr(sys, "argv", [*TRAINING[1:], "--arms", "fib stagger"])
    with pytest.raises(SystemExit, match="fib stagger: the logits differ by"):
        training_speed.main()
    assert not re.search(r"^fib stagger", capsys.readouterr().out, re.MULTILINE)


def test_gate_without_a_case_is_not_green(modules):
    assert not modules.gate.Gate().green


def test_missing_backend_is_one_sentence_and_no_figure(modules, monkeypatch, capsys):
    monkeypatch.setattr(modules.main.backends, "available", lambda: {"cpu": "there is no compiler"})
    assert modules.main.main([]) == 2
    printed = capsys.readouterr()
    assert printed.out == ""
    assert printed.err == "backend 'cpu' does not run here: there is no compiler\n"


def test_missed_target_fails_only_a_strict_check(modules, monkeypatch, capsys):
    monkeypatch.setattr(modules.main.gate, "check", lambda *_: modules.gate.Gate(cases=1))
    slow = {"overhead": lambda session: session.figures.update({"overhead/no_grad": 16.0, "overhead/autograd": 70.0})}
    monkeypatch.setattr(modules.main, "SECTIONS", slow)
    words = ["--backend", "torch", "--check"]
    assert modules.main.main(words) == 0
    assert modules.main.main([*words, "--strict"]) == 1
    printed = capsys.readouterr().out
    assert "NOT MET  call less its kernel, T = 16, no_grad" in printed
    assert "met      call less its kernel, T = 16, forward with autograd" in printed
    assert "1 of 2 targets met" in printed


def test_contenders_take_turns_and_ratios_stay_within_a_round(modules):
    order = []
    entries = {name: modules.timing.Contender(lambda _, name=name: order.append(name)) for name in "ab"}
    turns = modules.timing.interleave(entries, rounds=3)
    assert [len(turns.calls[name]) for name in "ab"] == [3, 3]
    changes = [a for a, b in zip(order, [*order[1:], ""], strict=True) if a != b]
    assert "".join(changes) == "abababa"[: len(changes)]
    # The machine is ten times slower in the second round: the ratio of the medians would be 20.
    turns = modules.timing.Turns({"a": [[2.0], [20.0], [20.0]], "b": [[1.0], [10.0], [1.0]]})
    assert turns.ratio("a", "b") == 2.0


@pytest.mark.parametrize("block", [16, 64])
@pytest.mark.parametrize("slashes", [[0], range(70), [0, 1, 2, 40, 90], [5, 130]], ids=str)
def test_block_mask_lists_exactly_the_blocks_that_hold_pairs(modules, slashes, block):
    lines, length = Lines(slashes), 192
    mask = modules.contenders.block_mask(lines, length, block)
    tiles = lines.mask(length, length).unfold(0, block, block).unfold(1, block, block).flatten(2)
    whole, some = tiles.all(-1), tiles.any(-1)
    kinds = (
        (mask.kv_num_blocks, mask.kv_indices, some & ~whole),
        (mask.full_kv_num_blocks, mask.full_kv_indices, whole),
    )
    for count, index, expected in kinds:
        listed = torch.zeros_like(expected)
        for row in range(len(expected)):
            keys = index[0, 0, row, : count[0, 0, row]].long()
            assert len(set(keys.tolist())) == len(keys)
            listed[row, keys] = True
        assert torch.equal(listed, expected)
    query, key = torch.meshgrid(torch.arange(length), torch.arange(length), indexing="ij")
    assert torch.equal(mask.mask_mod(0, 0, query, key), lines.mask(length, length))


@pytest.mark.parametrize("kv_heads", [2, 8])
def test_gather_computes_the_same(modules, kv_heads):
    lines = modules.contenders.window_and_fibonacci(16, 130)
    q, k, v = modules.contenders.qkv(130, kv_heads)
    gathered = modules.contenders.Gather(lines, 130, kv_heads)(q, k, v)
    torch.testing.assert_close(gathered, farspan.attention(q, k, v, lines, backend="reference"))


def test_window_and_fibonacci_is_the_pattern_of_the_targets(modules):
    assert modules.contenders.window_and_fibonacci(8, 60) == Lines([*range(8), 8, 13, 21, 34, 55])
    assert modules.contenders.window_and_fibonacci(64, 100) == Lines([*range(64), 89])


def test_roofline_counts_rows_that_distances_touch(modules):
    for distances, step in (([0, 1, 2, 10], 5), ([0, 30, 31], 7), ([3], 4)):
        touched = {d + n for d in distances for n in range(step)}
        assert modules.roofline._union(distances, step) == len(touched)
    # One window fits L1: besides the compulsory bytes nothing comes from further out.
    count = modules.roofline.count(Lines(range(4)), 256, 8, 8, 64)
    assert (count.loads["L2"], count.loads["L3"]) == (0, 0)
    assert count.flops == 4 * 64 * count.pairs
    far = modules.roofline.count(Lines([0, 100]), 256, 8, 8, 64)
    assert far.loads["L2"] == 8 * 156 * 2 * 64 * 4


def test_core_measures_the_limits_of_this_machine():
    core, why = _cpu.load_core()
    if core is None:
        pytest.skip(why)
    assert 0.5 < core.fma_peak(0.01) < 1000
    near, far = core.load_bandwidth(16 << 10, 0.02), core.load_bandwidth(64 << 20, 0.02)
    assert 0.5 < far < near
