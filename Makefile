# Each target does all set-up itself, once, into .venv. Needs: python3 (3.11 or newer), make, a C++ compiler.
#   make PYTHON=python3.12        another Python (for a new .venv)
#   make TORCH_INDEX=URL          another package index for PyTorch alone, e.g. one with CPU-only builds
#   make JOBS=1                   number of test processes

PYTHON ?= python3
TORCH_INDEX ?=
JOBS ?= $(shell $(PY) -c 'import os; print(min(4, os.cpu_count() or 1))' 2>/dev/null || echo 1)

VENV := .venv
PY := $(VENV)/bin/python
FARSPAN := $(VENV)/bin/farspan
LOG := build/install.log
INCOMPLETE := $(VENV)/.farspan-incomplete
DEPENDENCIES := $(VENV)/.farspan-dependencies

# The install step depends on the names of the modules (an editable install maps each to its file) and on
# which compiler there is (so that installing one is noticed), as well as on the files of the C++ core.
COMPILER := $(firstword $(shell for c in $$CXX c++ g++ clang++; do command -v $$c; done; true))
STATE := $(shell (find src -name '*.py' | sort; echo $(COMPILER)) | cksum | cut -d' ' -f1)
INSTALLED := $(VENV)/.farspan-installed-$(STATE)
SOURCES := CMakeLists.txt $(wildcard csrc/*)

PIP_INSTALL := $(PY) -m pip --no-input --disable-pip-version-check install --root-user-action=ignore
# Compiling all of the packages to bytecode takes half of the set-up; the first import compiles what is used.
INSTALL := $(PIP_INSTALL) -qq --no-compile --constraint constraints.txt
unexport PYTHONDONTWRITEBYTECODE

# Two threads in each of several test processes would fight over the cores.
PYTEST = OMP_NUM_THREADS=1 $(PY) -m pytest -n $(JOBS) --dist loadfile

.DELETE_ON_ERROR:
.PHONY: help setup demo picture test check lint format clean

help:
	@echo "make demo     train and compare the models of the mini study, then write its report (about 10 minutes on two cores)"
	@echo "make test     the tests, without the slow ones"
	@echo "make check    everything CI checks: format, lint, types, import direction, C++ warnings, all tests"
	@echo "make setup    only the set-up, which the others do by themselves"
	@echo "make format   format and fix the code"
	@echo "make clean    remove .venv, build outputs and caches; results in runs/ stay"

setup: $(INSTALLED)

demo: $(INSTALLED)
	@$(FARSPAN) study run mini
	@$(FARSPAN) study report mini

# The picture at the top of the README, from the results of `make demo`.
picture: $(INSTALLED)
	@$(FARSPAN) study report mini
	@cp runs/mini/figures/perplexity-vs-length.png docs/images/mini.png

test: $(INSTALLED)
	@echo "farspan: tests, without the slow ones, in $(JOBS) processes"
	@$(PYTEST) -m "not slow"

check: lint
	@echo "farspan: all tests, in $(JOBS) processes"
	@$(PYTEST) --durations=10 --durations-min=10

lint: $(INSTALLED)
	@echo "farspan: format and lint (ruff)"
	@$(VENV)/bin/ruff format --check . || { echo "farspan: 'make format' formats them" >&2; exit 1; }
	@$(VENV)/bin/ruff check .
	@echo "farspan: types (mypy)"
	@$(VENV)/bin/mypy
	@echo "farspan: import direction (import-linter)"
	@$(VENV)/bin/lint-imports --no-logo
	@echo "farspan: C++ core with warnings as errors"
	@PATH="$(CURDIR)/$(VENV)/bin:$$PATH" cmake -S . -B build/werror -G Ninja -DFARSPAN_WERROR=ON -DPython_EXECUTABLE="$(CURDIR)/$(PY)" --log-level=WARNING >/dev/null
	@PATH="$(CURDIR)/$(VENV)/bin:$$PATH" cmake --build build/werror -- --quiet

format: $(INSTALLED)
	@$(VENV)/bin/ruff format .
	@$(VENV)/bin/ruff check --fix .

clean:
	rm -rf $(VENV) build dist .hypothesis .import_linter_cache .mypy_cache .pytest_cache .ruff_cache
	find src tests -name __pycache__ -type d -prune -exec rm -rf {} +

# A .venv whose set-up was interrupted is made anew: pip can take half-unpacked packages for whole ones.
$(DEPENDENCIES): constraints.txt pyproject.toml
	@if [ -e $(INCOMPLETE) ]; then echo "farspan: the last set-up was interrupted, starting again"; rm -rf $(VENV); fi
	@if [ ! -x $(PY) ]; then \
	  command -v $(PYTHON) >/dev/null || { echo "farspan needs Python 3.11 or newer, and there is no '$(PYTHON)'. Install it, or name another: make PYTHON=/path/to/python3" >&2; exit 1; }; \
	  $(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' || { echo "farspan needs Python 3.11 or newer, and '$(PYTHON)' is $$($(PYTHON) --version 2>&1). Install a newer one, or name it: make PYTHON=/path/to/python3" >&2; exit 1; }; \
	  $(PYTHON) -c 'import ensurepip, venv' 2>/dev/null || { echo "farspan needs Python's venv module, and '$(PYTHON)' lacks it. On Debian and Ubuntu: apt install python3-venv" >&2; exit 1; }; \
	  echo "farspan: set-up, once, 1 to 5 minutes by your network: new virtual environment in $(VENV)"; \
	  mkdir -p $(VENV) && touch $(INCOMPLETE) && $(PYTHON) -m venv $(VENV); \
	fi
	@touch $(INCOMPLETE)
	@echo "farspan: 1/3 pip and PyTorch"
	@$(INSTALL) --upgrade pip
	@$(INSTALL) $(if $(TORCH_INDEX),--index-url $(TORCH_INDEX)) torch
	@echo "farspan: 2/3 the other packages"
	@$(INSTALL) scikit-build-core nanobind cmake ninja
	@$(INSTALL) --no-build-isolation --only-deps '.[dev]'
	@rm -f $(INCOMPLETE)
	@touch $@

$(INSTALLED): $(DEPENDENCIES) $(SOURCES)
	@mkdir -p build; rm -f $(VENV)/.farspan-installed-*
	@echo "farspan: 3/3 farspan itself and its C++ core"
	@PATH="$(CURDIR)/$(VENV)/bin:$$PATH" $(PIP_INSTALL) --verbose \
	  --no-deps --no-build-isolation -Cbuild-dir='build/{wheel_tag}' --editable . >$(LOG) 2>&1 \
	  || { tail -n 30 $(LOG) >&2; echo "farspan: the install failed; all of its output is in $(LOG)" >&2; exit 1; }
	@ls $(VENV)/lib*/python*/site-packages/farspan/_core* >/dev/null 2>&1 \
	  || echo "farspan: $(if $(COMPILER),the C++ core did not build (see $(LOG)),there is no C++ compiler here (on Debian: apt install g++ python3-dev)); going on without the C++ core, on PyTorch alone"
	@touch $@
