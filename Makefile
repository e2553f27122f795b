# The two commands: `make demo` and `make test`. Each sets up .venv by itself and can be repeated.
#
#   make setup    .venv with all that development needs, and the compiled core built in place
#   make demo     Spark pushes a real data set into a PyTorch training loop
#   make test     the tests, in two processes (`make test PROCS=0`: in one;
#                 `make test ARGS="tests/cli -k push"`: what you name)
#   make test-slow   those of minutes each, which `make test` leaves out
#   make test-rdma   the tests on real verbs, in a virtual machine (`make test` does it too)
#   make test-gpu    the tests and numbers on a CUDA device; says so where there is none
#   make test-pythons   core, sockets, tensors and rdma on Python 3.12 and 3.13, where they are here
#   make test-aarch64   tests of the core built for aarch64, emulated by qemu
#   make test-asan   tests of the compiled core built with the address and undefined-behaviour sanitizers
#   make test-tsan   the same with the thread sanitizer
#   make check    ruff, mypy, pyright, import-linter, cython-lint, codespell
#   make quick    the fast checks, and tests of patterns, core and sockets: before each commit
#   make reference   the tables of docs/reference/ again, from the code
#   make site     the documentation as a website in build/site, strictly, by MkDocs and by Zensical
#   make bench    the benchmarks (`make bench ARGS="--case push_pull --size 64"`)
#   make wheels   source distribution and wheels of the commit in dist/ (`make wheels PYTHONS=3.12`)
#   make build    the compiled core again, if its sources changed
#   make format   ruff's formatting, and what it can mend
#   make clean    removes what was built, .venv too

PYTHON ?= python3
VENV ?= .venv
BIN := $(VENV)/bin
PY := $(BIN)/python
ARGS ?=

# The pinned torch is the CPU build, named "+cpu": the default one for Linux x86-64 brings gigabytes of
# CUDA libraries. It is asked for wherever pip looks; where it is not, add PyTorch's CPU index to pip's
# (PIP_EXTRA_INDEX_URL, or `make TORCH_INDEX=... setup`), or take the default build: `make TORCH_WHEEL= setup`.
# A Python for which there is none gets all the rest, and so does `make TORCH_VERSION= setup`.
TORCH_VERSION ?= 2.13.0
TORCH_WHEEL ?= +cpu
TORCH_INDEX ?=

SETUP_DONE := $(VENV)/.setup-done
CORE_DONE := transports/core/native/.built
CORE_SOURCES := $(wildcard transports/core/native/*.pyx transports/core/native/*.pxd transports/core/native/*.h)
# -qq: warnings about the machine's own pip settings are not ours.
PIP := $(PY) -m pip --disable-pip-version-check -qq

.PHONY: help quick reference site setup java demo test test-slow test-rdma test-gpu test-pythons test-aarch64 test-asan
.PHONY: test-tsan check format bench wheels build clean
.DELETE_ON_ERROR:

help:
	@sed -n '/^#/!q; s/^# \{0,1\}//p' Makefile

setup: $(SETUP_DONE) $(CORE_DONE)

$(PY):
	@command -v $(PYTHON) >/dev/null || { \
	  echo "transfer needs Python 3.11 or newer: apt install python3 python3-venv" >&2; exit 1; }
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' || { \
	  echo "transfer needs Python 3.11 or newer; name one: make PYTHON=python3.12 setup" >&2; exit 1; }
	@$(PYTHON) -c 'import ensurepip, venv' 2>/dev/null && $(PYTHON) -m venv $(VENV) || { \
	  echo "Python cannot make a virtual environment: apt install python3-venv" >&2; exit 1; }

$(SETUP_DONE): pyproject.toml setup.py Makefile | $(PY)
	@echo "installing into $(VENV) (a few minutes the first time)"
	@$(PIP) install "setuptools>=77" "wheel" "Cython>=3.3.1"
	@mkdir -p build; rm -f build/without-*
	@test -z "$(TORCH_VERSION)" && touch build/without-torch \
	  || $(PY) -c 'import importlib.metadata as m, sys; sys.exit(m.version("torch").split("+")[0] != "$(TORCH_VERSION)")' \
	  2>/dev/null \
	  || $(PIP) install "torch==$(TORCH_VERSION)$(TORCH_WHEEL)" 2>/dev/null \
	  || $(PIP) install $(if $(TORCH_INDEX),--extra-index-url "$(TORCH_INDEX)") "torch==$(TORCH_VERSION)$(TORCH_WHEEL)" 2>/dev/null \
	  || { echo "pip knows no CPU build of torch $(TORCH_VERSION): taking the default one, which is large (see Makefile)"; \
	       $(PIP) install "torch==$(TORCH_VERSION)"; } \
	  || touch build/without-torch
	@$(PY) tests/requirements.py dev --only pyspark >build/pyspark.txt
	@$(PIP) install --requirement build/pyspark.txt || touch build/without-pyspark
	@for file in build/without-*; do test -e $$file || continue; \
	  echo "$$($(PY) --version): $${file#build/without-} is not installed (see above, and the head of the Makefile). All else is;" \
	    "the tests that need it are skipped" >&2; done
	@$(PY) tests/requirements.py dev bench --without $$(ls build | sed -n 's/^without-//p') >build/requirements.txt
	@TRANSFER_NO_NATIVE=1 $(PIP) install --no-build-isolation --editable . --requirement build/requirements.txt
	@touch $@

# Kept beside the modules, so that removing them (git clean) builds them again. Not made when the
# core could not be built: the next `make` tries again.
$(CORE_DONE): $(CORE_SOURCES) setup.py | $(SETUP_DONE)
	@mkdir -p build
	@$(PY) setup.py --quiet build_ext --inplace 2>build/core.log || { cat build/core.log >&2; exit 1; }
	@if grep -s WARNING build/core.log >&2; then echo "(the compiler's words: build/core.log)" >&2; else touch $@; fi

build: $(CORE_DONE)

# Before the minutes that the set-up takes. Whether it is new enough, the demo says.
java:
	@command -v "$${JAVA_HOME:+$$JAVA_HOME/bin/}java" >/dev/null || { \
	  echo "the demo runs Spark, which needs Java 17 or newer: apt install openjdk-17-jre-headless, or set JAVA_HOME" >&2; \
	  exit 1; }

demo: java setup
	@$(PY) -m examples.spark_to_torch $(ARGS)

# How the tests are divided among processes says tests/workers.py; what ARGS chooses stays in one.
PROCS ?= $(if $(ARGS),0,2)

test: setup
	@$(PY) -m pytest -m "not slow and not gpu" -n $(PROCS) $(ARGS)

test-slow: setup
	@$(PY) -m pytest -m slow --timeout 900 $(ARGS)

# Needs no InfiniBand: the machine's kernel brings Soft-RoCE. `python -m tests.rdma.vm --help`
test-rdma: setup
	@$(PY) -m tests.rdma.vm $(if $(ARGS),-- $(ARGS))

# Without .venv, as on a machine that reaches no index, it takes the interpreter that holds torch, which needs
# Cython, pytest, pytest-timeout and what the tests import; GPU_PACK=DIR has them, made by
# `python -m bench.gpu --pack DIR`. GPU_REPORT names the files of the report. GPU_ALSO: tests that need no GPU.
GPU_PYTHON ?= $(if $(wildcard $(PY)),$(PY),python3)
GPU_REPORT ?= build/gpu.json
GPU_ALSO ?=
WITH_PACK := $(if $(GPU_PACK),PYTHONPATH=$(CURDIR)/build/gpu_pack)

test-gpu:
	@mkdir -p build
	@$(if $(GPU_PACK),$(GPU_PYTHON) bench/gpu_pack.py $(GPU_PACK) build/gpu_pack)
	@$(WITH_PACK) $(GPU_PYTHON) setup.py --quiet build_ext --inplace
	@$(if $(GPU_ALSO),$(WITH_PACK) $(GPU_PYTHON) -m pytest -p no:benchmark -m "not slow and not gpu" $(GPU_ALSO))
	@$(WITH_PACK) $(GPU_PYTHON) -m pytest -p no:benchmark -m gpu tests/gpu $(ARGS)
	@$(WITH_PACK) $(GPU_PYTHON) -m bench.gpu --report $(GPU_REPORT)

test-pythons: setup
	@$(PY) -m tests.other_pythons $(ARGS)

# The core's tests; `make test-aarch64 ARGS="tests/core -k crc"` others.
test-aarch64: setup
	@$(PY) -m tests.aarch64.run $(ARGS)

# Of what ARGS chooses, `make test-tsan ARGS=sockets`; else the usual groups: tests/sanitizers/groups.py.
test-asan test-tsan: setup
	@$(PY) -m tests.sanitizers.run $(@:test-%=%) $(ARGS)

# What runs on a GPU only: that every name in it is still there.
UNRUN := --config-file= --check-untyped-defs --no-strict-optional --ignore-missing-imports \
	--explicit-package-bases --follow-imports=silent

check: setup
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy
	$(BIN)/mypy $(UNRUN) tests/gpu/*.py bench/gpu.py bench/gpu_pack.py
	$(BIN)/pyright --pythonpath $(PY) examples
	$(BIN)/lint-imports
	PATH="$(CURDIR)/$(BIN):$$PATH" $(BIN)/cython-lint transports/core/native
	$(BIN)/codespell

# What a change breaks most often, in less than 30 s.
QUICK := tests/patterns tests/core/test_wire.py tests/core/test_receiving.py tests/core/test_sending.py \
  tests/sockets/test_push_pull.py tests/sockets/test_req_rep.py tests/project/test_style.py tests/project/test_layers.py

quick: setup
	@$(BIN)/ruff check .
	@$(BIN)/ruff format --check --quiet .
	@$(PY) -m pytest -q -m "not slow" -n 2 $(QUICK)

reference: build
	@$(PY) -m tests.docs.reference

# In an environment of its own: what it needs is used nowhere else.
SITE := build/site-env
site: $(SITE)/.done
	@NO_MKDOCS_2_WARNING=1 $(SITE)/bin/mkdocs build --strict --quiet
	@rm -rf build/site
	@$(SITE)/bin/zensical build --strict --clean
	@echo "build/site/index.html"

$(SITE)/.done: pyproject.toml | $(PY)
	@$(PYTHON) -m venv $(SITE)
	@$(SITE)/bin/python -m pip --disable-pip-version-check -qq install \
	  $$($(PYTHON) -c 'import tomllib; print(*tomllib.load(open("pyproject.toml", "rb"))["project"]["optional-dependencies"]["docs"])')
	@touch $@

format: setup
	$(BIN)/ruff format .
	$(BIN)/ruff check --fix .

# Needs no set-up: what builds them is installed below build/wheels.
wheels:
	@$(PYTHON) -m deploy.wheels $(if $(PYTHONS),--python $(PYTHONS)) $(if $(PLATFORMS),--platform $(PLATFORMS)) $(ARGS)

bench: setup
	@$(PY) -m bench $(ARGS)

clean:
	rm -rf $(VENV) build dist *.egg-info .pytest_cache .mypy_cache .ruff_cache .import_linter_cache .hypothesis
	rm -f transports/core/native/*.so transports/core/native/*.c transports/core/native/.built
	find . -name __pycache__ -type d -prune -exec rm -rf {} +
