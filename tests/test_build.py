"""Set-up from a bare clone, the pins, and what a wheel holds. The builds themselves are marked slow."""

from __future__ import annotations

import importlib.metadata
import itertools
import json
import os
import re
import shutil
import subprocess
import sys
import sysconfig
import tarfile
import tomllib
import venv
import zipfile
from pathlib import Path

import pytest
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

from farspan import _cpu

ROOT = Path(__file__).resolve().parents[1]
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())


def direct_dependencies() -> list[Requirement]:
    extras = itertools.chain(*PROJECT["project"]["optional-dependencies"].values())
    names = [*PROJECT["build-system"]["requires"], *PROJECT["project"]["dependencies"], *extras]
    return [r for r in map(Requirement, names) if r.name != "farspan"]


def pins() -> dict[str, str]:
    lines = [line for line in (ROOT / "constraints.txt").read_text().splitlines() if line[:1] not in ("", "#")]
    return {canonicalize_name(name): version for name, version in (line.split("==") for line in lines)}


@pytest.mark.parametrize("requirement", direct_dependencies(), ids=str)
def test_every_direct_dependency_is_pinned_inside_its_range(requirement):
    assert requirement.specifier.contains(pins()[canonicalize_name(requirement.name)])


def test_pins_fit_other_machines():
    assert not [version for version in pins().values() if "+" in version], "a local version exists only here"
    assert "pip" in pins()
    assert "farspan" not in pins()


def test_ci_runs_make_check_without_standard_input():
    script = ROOT / ".ci/run"
    assert os.access(script, os.X_OK)
    assert re.search(r"^exec make check </dev/null$", script.read_text(), re.MULTILINE)


# --- make, with a Python that only writes down what it is asked to do


FAKE_PYTHON = """#!/bin/sh
echo "$@" >> "{log}"
case "$*" in
  *version_info*) exit {too_old} ;;
  *ensurepip*) exit {no_venv} ;;
  --version) echo "Python 3.9.1" ;;
  "-m venv "*) mkdir -p "$3/bin"; cp "$0" "$3/bin/python" ;;
  *"{fails_on}"*) exit 1 ;;
esac
"""


class Clone:
    """A bare clone in which every call of Python is recorded instead of run."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.log = folder / "python.log"
        for name in ("Makefile", "pyproject.toml", "constraints.txt", "CMakeLists.txt"):
            shutil.copy(ROOT / name, folder)
        for name in ("csrc/core.cpp", "src/farspan/__init__.py"):
            (folder / name).parent.mkdir(parents=True)
            (folder / name).touch()

    def make(self, *, too_old=0, no_venv=0, fails_on="no such words", path=None, **variables):
        python = self.folder / "python"
        python.write_text(FAKE_PYTHON.format(log=self.log, too_old=too_old, no_venv=no_venv, fails_on=fails_on))
        python.chmod(0o755)
        if (self.folder / ".venv/bin").exists():
            shutil.copy(python, self.folder / ".venv/bin/python")
        self.log.write_text("")
        values = {"PYTHON": python, **variables}
        environment = {"PATH": path or os.environ["PATH"]}
        command = ["make", "setup", *(f"{name}={value}" for name, value in values.items())]
        return subprocess.run(command, cwd=self.folder, env=environment, capture_output=True, text=True)

    def installs(self) -> list[str]:
        """What each `pip install` of the last run was asked for: its last word."""
        return [line.split()[-1] for line in self.log.read_text().splitlines() if " install " in line]


@pytest.fixture
def clone(tmp_path):
    return Clone(tmp_path)


SETUP = ["pip", "torch", "ninja", ".[dev]", "."]


def test_setup_is_done_once_and_installs_torch_before_what_needs_it(clone):
    assert clone.make().returncode == 0
    assert clone.installs() == SETUP
    second = clone.make()
    assert second.returncode == 0
    assert clone.log.read_text() == ""


@pytest.mark.parametrize(
    ("changed", "expected"),
    [
        ("constraints.txt", SETUP),
        ("pyproject.toml", SETUP),
        ("CMakeLists.txt", ["."]),
        ("csrc/core.cpp", ["."]),
        ("src/farspan/__init__.py", []),
        ("src/farspan/new_module.py", ["."]),
    ],
)
def test_setup_repeats_exactly_what_a_change_asks_for(clone, changed, expected):
    clone.make()
    file = clone.folder / changed
    file.touch()
    os.utime(file, (2e9, 2e9))
    clone.make()
    assert clone.installs() == expected


@pytest.mark.parametrize("step", ["--upgrade pip", "torch", ".[dev]"])
def test_interrupted_setup_is_started_again_in_a_new_environment(clone, step):
    failed = clone.make(fails_on=step)
    assert failed.returncode != 0
    half_installed = clone.folder / ".venv/half-unpacked"
    half_installed.touch()
    again = clone.make()
    assert again.returncode == 0
    assert "interrupted" in again.stdout
    assert not half_installed.exists()
    assert clone.installs() == SETUP


def test_an_install_that_fails_shows_its_output_and_is_tried_again(clone):
    failed = clone.make(fails_on="--editable .")
    assert failed.returncode != 0
    assert "build/install.log" in failed.stderr
    assert clone.make().returncode == 0
    assert clone.installs() == ["."]


@pytest.mark.parametrize(
    ("wrong", "words"),
    [
        ({"PYTHON": "/no/such/python"}, "no '/no/such/python'"),
        ({"too_old": 1}, "needs Python 3.11 or newer"),
        ({"no_venv": 1}, "apt install python3-venv"),
    ],
    ids=["no python", "old python", "no venv module"],
)
def test_missing_python_stops_with_one_clear_sentence(clone, wrong, words):
    run = clone.make(**wrong)
    assert run.returncode != 0
    assert words in run.stderr
    assert clone.installs() == []
    assert not (clone.folder / ".venv").exists()


def test_missing_compiler_is_said_and_noticed_when_it_comes(clone):
    tools = clone.folder / "tools"
    tools.mkdir()
    for name in ("sh", "make", "find", "sort", "cksum", "cut", "mkdir", "touch", "rm", "ls", "cp", "tail"):
        (tools / name).symlink_to(shutil.which(name))
    without = clone.make(path=str(tools))
    assert without.returncode == 0
    assert "there is no C++ compiler" in without.stdout
    (tools / "g++").symlink_to(shutil.which("true"))
    clone.make(path=str(tools))
    assert clone.installs() == ["."]


# --- real builds


@pytest.fixture
def source(tmp_path) -> Path:
    """A copy of the project with the litter of work in it."""
    litter = shutil.ignore_patterns(".git", ".venv", "build", "runs", "dist", "__pycache__", ".*_cache")
    copy = tmp_path / "source"
    shutil.copytree(ROOT, copy, ignore=litter)
    for name in ("runs/mini/result.json", ".venv/pyvenv.cfg", "build/old.txt", "src/farspan/stale.so"):
        (copy / name).parent.mkdir(parents=True, exist_ok=True)
        (copy / name).touch()
    return copy


def build(source: Path, kind: str, **environment: str) -> Path:
    code = f"import scikit_build_core.build as b; name = b.build_{kind}('out'); print(); print(name)"
    path = f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"
    values = {**os.environ, "PATH": path, **environment}
    run = subprocess.run([sys.executable, "-c", code], cwd=source, env=values, capture_output=True, text=True)
    assert run.returncode == 0, run.stdout + run.stderr
    return source / "out" / run.stdout.splitlines()[-1]


def package_files() -> set[str]:
    """Modules and data of the package, as paths in a wheel."""
    files = [file for file in (ROOT / "src").rglob("*") if file.is_file()]
    compiled = (".pyc", ".so", ".pyd")
    return {str(file.relative_to(ROOT / "src")) for file in files if file.suffix not in compiled}


@pytest.mark.slow
def test_wheel_holds_the_core_and_all_data_and_no_litter(source):
    if shutil.which("c++") is None:
        pytest.skip("needs a C++ compiler")
    wheel = build(source, "wheel")
    names = set(zipfile.ZipFile(wheel).namelist())
    assert package_files() <= names
    outside = {name for name in names if not name.startswith(("farspan/", "farspan-0.1.0.dist-info/"))}
    assert not outside
    assert [name for name in names if name.endswith((".so", ".pyd"))] == [
        f"farspan/_core{sysconfig.get_config_var('EXT_SUFFIX') if sys.version_info < (3, 12) else '.abi3.so'}"
    ]
    assert any(name.endswith("licenses/LICENSE") for name in names)


@pytest.mark.slow
def test_sdist_holds_what_a_build_needs_and_no_litter(source):
    with tarfile.open(build(source, "sdist")) as sdist:
        names = {name.split("/", 1)[1] for name in sdist.getnames()}
    assert {"pyproject.toml", "CMakeLists.txt", "csrc/core.cpp", "LICENSE", "constraints.txt"} <= names
    assert {f"src/{name}" for name in package_files()} <= names
    litter = [name for name in names if name.startswith(("runs", ".venv", "build/", "out/")) or name.endswith(".so")]
    assert not litter


@pytest.mark.slow
def test_F37_without_a_compiler_it_installs_runs_and_says_so(source, tmp_path):
    wheel = build(source, "wheel", CC="/no/such/cc", CXX="/no/such/c++")
    assert wheel.name == "farspan-0.1.0-py3-none-any.whl"
    # A path file gives the new environment our packages but not our editable install of farspan.
    environment = tmp_path / "environment"
    venv.create(environment, with_pip=False)
    site = next(environment.glob("lib*/python*/site-packages"))
    zipfile.ZipFile(wheel).extractall(site)
    (site / "ours.pth").write_text(sysconfig.get_path("purelib"))
    code = (
        "import json, torch, farspan; from farspan import doctor\n"
        "q = k = v = torch.randn(1, 1, 8, 4)\n"
        "out = farspan.attention(q, k, v, farspan.Lines([0, 1]))\n"
        "print(json.dumps([farspan.__file__, list(out.shape), out.device.type, doctor.report().to_dict()]))"
    )
    values = {name: value for name, value in os.environ.items() if name != "PYTHONPATH"}
    command = [environment / "bin/python", "-c", code]
    run = subprocess.run(command, cwd=tmp_path, env=values, capture_output=True, text=True)
    assert run.returncode == 0, run.stderr
    file, shape, device, report = json.loads(run.stdout)
    assert Path(file).is_relative_to(site)
    assert (shape, device) == ([1, 1, 8, 4], "cpu")
    core = next(item for item in report["hardware"] if item["name"] == "C++ core")
    assert not core["available"]
    assert "compiler" in core["how"]


def test_core_is_there_where_farspan_was_installed_with_a_compiler():
    try:
        importlib.metadata.version("farspan")
    except importlib.metadata.PackageNotFoundError:
        pytest.skip("farspan runs from its source folder, not installed")
    if not any(map(shutil.which, ("c++", "g++", "clang++"))):
        pytest.skip("there is no C++ compiler here")
    core, why = _cpu.load_core()
    assert core is not None, why


def test_every_folder_of_modules_is_a_package():
    """Without `__init__.py` import-linter would pass over the folder without a word."""
    folders = {file.parent for file in (ROOT / "src/farspan").rglob("*.py")}
    assert not [folder for folder in folders if not (folder / "__init__.py").exists()]
