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
.PHONY: help setup demo picture test check lint sanitize portable format clean

help:
	@echo "make demo     train and compare the models of the mini study, then write its report (about 10 minutes on two cores)"
	@echo "make test     the tests, without the slow ones"
	@echo "make check    everything CI checks: format, lint, types, import direction, C++ warnings, sanitize, portable, all tests"
	@echo "make sanitize the tests of the C++ core with memory and undefined behaviour checked (Linux, g++)"
	@echo "make portable run the kernels for ARM in an emulator, and those for AVX-512 on vectors of this CPU (Linux, g++)"
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

check: lint sanitize portable
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

ifeq ($(shell [ "$$(uname 2>/dev/null)" = Linux ] && command -v g++ 2>/dev/null),)
sanitize:
	@echo "farspan: C++ core not run under sanitizers: they need Linux and g++"
else
SANITIZED := build/sanitize
# The kernels on all patterns, on plans of several steps, and on calls of any shape and layout. All tests of the cpu
# backend take ten minutes here.
SANITIZED_CPU_LINES := test_any_call_is_exact test_plans_of_several_steps_are_exact
SANITIZED_TESTS := tests/cpu tests/attention/test_kernels.py $(SANITIZED_CPU_LINES:%=tests/attention/test_cpu_lines.py::%)
# The tests run in an environment of their own, and so do the processes they start. A path file brings our packages but
# not our editable install, whose import hook would find the ordinary module first.
# Preloaded is what the module was linked with: ASan has to come before all that allocates, libstdc++ before ASan looks
# for its `throw`. Leaks are not looked for: Python and torch leave much behind at exit. pytest must not keep stderr,
# or a report would die with the process.
sanitize: $(DEPENDENCIES)
	@echo "farspan: C++ core under AddressSanitizer and UndefinedBehaviorSanitizer"
	@PATH="$(CURDIR)/$(VENV)/bin:$$PATH" cmake -S . -B $(SANITIZED) -G Ninja -DFARSPAN_SANITIZE=ON -DCMAKE_BUILD_TYPE=RelWithDebInfo -DCMAKE_CXX_COMPILER=g++ -DPython_EXECUTABLE="$(CURDIR)/$(PY)" --log-level=WARNING >/dev/null
	@PATH="$(CURDIR)/$(VENV)/bin:$$PATH" cmake --build $(SANITIZED) -- --quiet
	@$(PY) -m venv --clear --without-pip $(SANITIZED)/venv
	@site=$$(echo $(SANITIZED)/venv/lib/python*/site-packages); \
	mkdir $$site/farspan && ln -s $(CURDIR)/src/farspan/* $(CURDIR)/$(SANITIZED)/_core.*so $$site/farspan && \
	$(PY) -c 'import sysconfig; print(sysconfig.get_path("purelib"))' >$$site/packages.pth
	@LD_PRELOAD="$$(ldd $(SANITIZED)/_core.*so | awk '/lib(asan|ubsan|stdc\+\+)\.so/ {print $$3}' | tr '\n' ' ')" \
	ASAN_OPTIONS=detect_leaks=0 UBSAN_OPTIONS=print_stacktrace=1 OMP_NUM_THREADS=2 $(SANITIZED)/venv/bin/python -c \
	'import sys, pytest; result = pytest.main(sys.argv[1:]); from farspan import _core; assert "-fsanitize" in _core.build_info()["flags"], _core.__file__; sys.exit(result)' \
	--capture=sys $(SANITIZED_TESTS)
endif

# The C++ core without its Python module, against plain loops: it needs neither Python nor torch. Three builds: the baseline
# kernels; the code for AVX-512 with its vectors split into what the CPU has (GCC notes that such vectors are no part of
# the ABI; no function that remains passes one); and 64-bit ARM, in an emulator, for which it is linked statically.
PORTABLE := build/portable
PORTABLE_CXX := $(shell [ "$$(uname 2>/dev/null)" = Linux ] && command -v g++ 2>/dev/null)
AARCH64_CXX ?= aarch64-linux-gnu-g++
QEMU_AARCH64 ?= qemu-aarch64
PORTABLE_FLAGS := -std=c++17 -O3 -Wall -Wextra -Wshadow -Werror
KERNEL_FLAGS := -ffp-contract=fast -fno-math-errno -fno-trapping-math
PORTABLE_SOURCES := tests/cpu/lines_test.cpp $(filter-out csrc/core.cpp,$(wildcard csrc/*.cpp))
# $(call self_test,FOLDER,COMPILER AND MORE FLAGS): FOLDER/lines_test, its objects side by side in FOLDER
define self_test
$(1)/%.o: csrc/%.cpp $(wildcard csrc/*.h)
	@mkdir -p $$(@D)
	@$(2) $(PORTABLE_FLAGS) $(KERNEL_FLAGS) -c $$< -o $$@
$(1)/%.o: tests/cpu/%.cpp $(wildcard csrc/*.h)
	@mkdir -p $$(@D)
	@$(2) $(PORTABLE_FLAGS) -c $$< -o $$@
$(1)/lines_test: $(addprefix $(1)/,$(addsuffix .o,$(basename $(notdir $(PORTABLE_SOURCES)))))
	@$(2) -pthread $$^ -o $$@
endef
$(eval $(call self_test,$(PORTABLE)/native,$(PORTABLE_CXX)))
$(eval $(call self_test,$(PORTABLE)/wide,$(PORTABLE_CXX) -DFARSPAN_VECTOR_LENGTH=16 -Wno-psabi))
$(eval $(call self_test,$(PORTABLE)/aarch64,$(AARCH64_CXX) -static))

.PHONY: portable-native portable-aarch64
portable: portable-native portable-aarch64

ifeq ($(PORTABLE_CXX),)
portable-native:
	@echo "farspan: kernels not run with vectors of 4 and of 16: that needs Linux and g++"
else
portable-native: $(PORTABLE)/native/lines_test $(PORTABLE)/wide/lines_test
	@$(PORTABLE)/native/lines_test
	@$(PORTABLE)/wide/lines_test
endif

ifeq ($(shell command -v $(AARCH64_CXX) 2>/dev/null),)
portable-aarch64:
	@echo "farspan: kernels not compiled for NEON: there is no $(AARCH64_CXX) here (on Debian: apt install g++-aarch64-linux-gnu)"
else
portable-aarch64: $(PORTABLE)/aarch64/lines_test
ifeq ($(shell command -v $(QEMU_AARCH64) 2>/dev/null),)
	@echo "farspan: kernels compiled for NEON and not run: there is no $(QEMU_AARCH64) here (on Debian: apt install qemu-user)"
else
	@$(QEMU_AARCH64) $(PORTABLE)/aarch64/lines_test
endif
endif

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
