# Two commands: `make demo` shows what rankcall does, `make test` runs every check. Both set themselves up.

SHELL := /bin/bash
VENV ?= .venv
BIN := $(VENV)/bin
STAMP := $(VENV)/.ready
# Set this where pip would fetch a build of PyTorch for GPUs and you want the small one for CPUs.
TORCH_INDEX_URL ?=
TORCH := torch==2.13.0
TESTFLAGS ?= -n 2

# The first Python that is new enough and can make virtual environments.
PYTHON ?= $(shell for candidate in python3 python3.13 python3.12 python3.11 python3.10 python; do \
	"$$candidate" -c 'import sys, venv, ensurepip; sys.exit(sys.version_info < (3, 10))' 2>/dev/null \
	&& { echo "$$candidate"; break; }; done)

.PHONY: help venv demo test jobs lint picture bench clean distclean

help:
	@echo 'make demo     a 4-rank CPU job with a planted hang, found and explained in seconds'
	@echo 'make test     ruff, mypy and all tests'
	@echo 'make jobs     run all planted and healthy jobs of tests/jobs and print the table (half an hour)'
	@echo 'make venv     only set up $(VENV): PyTorch (CPU), rankcall and its development tools'
	@echo 'make picture  draw docs/verdict.svg anew, from a real run of the demo'
	@echo 'make bench    measure what recording costs a training step, and how fast and how right why is on dumps'
	@echo 'make clean    remove caches and build results; make distclean removes $(VENV) too'

venv: $(STAMP)

$(STAMP): pyproject.toml
	@test -x $(BIN)/python || test -n "$(PYTHON)" || \
		{ echo 'make: no Python 3.10 or newer with venv was found; name one: make PYTHON=/path/to/python3'; exit 1; }
	@test -x $(BIN)/python || { echo "Setting up $(VENV) with $(PYTHON); PyTorch takes a few minutes."; \
		$(PYTHON) -m venv $(VENV); }
	@$(BIN)/python -m pip install --quiet $(if $(TORCH_INDEX_URL),--index-url $(TORCH_INDEX_URL)) $(TORCH)
	@$(BIN)/python -m pip install --quiet --editable '.[dev]'
	@touch $(STAMP)

demo: $(STAMP)
	@$(BIN)/rankcall demo

lint: $(STAMP)
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy

# pytest comes last, so that the last line printed tells how many tests passed.
test: lint
	$(BIN)/python -m pytest $(TESTFLAGS)

jobs: $(STAMP)
	$(BIN)/python tests/jobs/run.py -j 2

picture: $(STAMP)
	@rm -rf build/picture
	@$(BIN)/rankcall demo --keep build/picture
	@cd build/picture && $(abspath $(BIN)/python) $(abspath docs/picture.py) run $(abspath docs/verdict.svg)

bench: $(STAMP)
	$(BIN)/python benchmarks/overhead.py
	$(BIN)/python benchmarks/why_plantings.py
	$(BIN)/python benchmarks/why_scale.py

clean:
	rm -rf build dist .mypy_cache .ruff_cache .pytest_cache .hypothesis
	find src tests benchmarks -name __pycache__ -type d -prune -exec rm -rf {} + 2>/dev/null || true

distclean: clean
	rm -rf $(VENV)
