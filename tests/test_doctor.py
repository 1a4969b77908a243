"""`farspan doctor` tells the truth about this machine, and keeps telling it when parts are broken."""

from __future__ import annotations

import json
import platform
import re
from io import StringIO
from pathlib import Path

import pytest
import torch
from rich.console import Console

from farspan import _cpu, doctor
from farspan.attention import backends


@pytest.fixture
def without_core(monkeypatch):
    monkeypatch.setattr(_cpu, "load_core", lambda: (None, "the C++ core was not built"))


def rendered(found: doctor.Report, width: int = 100) -> str:
    out = StringIO()
    doctor.render(found, Console(file=out, width=width))
    return out.getvalue()


def items(found: doctor.Report) -> dict[str, doctor.Item]:
    return {item.name: item for item in (*found.backends, *found.hardware, *found.extras)}


def test_report_is_json_and_every_absence_has_a_reason():
    found = doctor.report()
    assert json.loads(json.dumps(found.to_dict()))["versions"]["python"] == platform.python_version()
    for item in items(found).values():
        assert item.available or item.why, item


def test_backends_are_those_of_the_attention_package(monkeypatch):
    monkeypatch.setattr(backends, "available", lambda: {"torch": None, "abacus": "no beads"})
    found = doctor.report()
    assert [(item.name, item.available, item.why) for item in found.backends] == [
        ("torch", True, ""),
        ("abacus", False, "no beads"),
    ]


def test_text_names_every_item_and_its_reason(without_core):
    found = doctor.report()
    text = " ".join(rendered(found, width=500).split())
    for item in items(found).values():
        assert item.name in text
        assert item.why in text
        assert item.how in text


def test_brackets_in_texts_are_not_markup():
    found = doctor.Report({}, {}, (), (), (doctor.Item("x", False, why="why [a]", how="pip install 'f[data]'"),))
    assert "why [a]" in rendered(found)
    assert "'f[data]'" in rendered(found)


def test_F37_a_missing_core_is_said_with_how_to_get_it(without_core):
    core = items(doctor.report())["C++ core"]
    assert not core.available
    assert core.why == "the C++ core was not built"
    assert "compiler" in core.how
    assert "no C++ core" in items(doctor.report())["C++ threads"].why


def test_says_which_instructions_and_threads_the_kernels_use():
    core, why = _cpu.load_core()
    if core is None:
        pytest.skip(why)
    found = items(doctor.report())
    used = re.search(r"kernels use ([^;]+);", found["C++ core"].detail)
    assert used[1] in core.instruction_sets()
    if all(_cpu.torch_pool()):
        assert found["C++ threads"].detail.startswith(f"{torch.get_num_threads()}, torch's own")


def test_a_torch_that_does_not_lend_its_threads_is_said_with_what_helps(monkeypatch):
    core, why = _cpu.load_core()
    if core is None:
        pytest.skip(why)
    monkeypatch.setattr(_cpu, "_torch_library", lambda: None)  # the program itself, which has no such symbols
    assert _cpu.torch_pool() == (0, 0)
    threads = items(doctor.report())["C++ threads"]
    assert not threads.available
    assert torch.__version__ in threads.why
    assert "run on one" in threads.why
    assert "torch 2.10" in threads.how


@pytest.mark.parametrize(
    ("owner", "name", "item"),
    [
        (torch.cuda, "is_available", "GPU"),
        (_cpu, "bf16_is_fast", "fast bf16 on CPU"),
        (_cpu, "load_core", "C++ core"),
        (backends, "available", "attention"),
    ],
    ids=["driver", "cpu", "core", "backends"],
)
def test_a_broken_part_becomes_a_line_not_an_exception(monkeypatch, owner, name, item):
    def broken():
        raise OSError("driver on fire")

    monkeypatch.setattr(owner, name, broken)
    line = items(doctor.report())[item]
    assert not line.available
    assert "driver on fire" in line.why


@pytest.mark.parametrize(
    ("capabilities", "fast"),
    [
        ({}, False),
        ({"avx2": True, "avx512_bf16": False, "amx_bf16": False}, False),
        ({"avx512_bf16": True}, True),
        ({"amx_bf16": True}, True),
        ({"neon": True, "bf16": True}, True),
    ],
    ids=["unknown", "avx2", "avx512", "amx", "arm"],
)
def test_bf16_is_fast_only_with_its_own_instructions(monkeypatch, capabilities, fast):
    monkeypatch.setattr(_cpu, "_capabilities", lambda: capabilities)
    assert _cpu.bf16_is_fast() is fast


def test_instruction_sets_of_the_core_are_those_of_the_kernel():
    core, why = _cpu.load_core()
    if core is None:
        pytest.skip(why)
    cpuinfo = Path("/proc/cpuinfo")
    if platform.machine() != "x86_64" or not cpuinfo.exists():
        pytest.skip("compares with Linux's list of x86 features")
    flags = set(next(line for line in cpuinfo.read_text().splitlines() if line.startswith("flags")).split())
    expected = ["baseline"]
    if {"avx2", "fma"} <= flags:
        expected.append("avx2")
    if {"avx512f", "avx512bw", "avx512dq", "avx512vl"} <= flags:
        expected.append("avx512")
    assert core.instruction_sets() == expected
    assert core.build_info()["architecture"] == "x86_64"
