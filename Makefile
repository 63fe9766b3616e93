# Every target builds the environment that it needs. Type `make help`.
SHELL := /bin/bash
.SHELLFLAGS := -eu -o pipefail -c
.DEFAULT_GOAL := help

PYTHON ?= python3
VENV ?= .venv
CONSUMERS_VENV ?= .venv-consumers
TORCH_PIN := $(shell grep '^torch==' constraints.txt)
# Anything pip takes: another build or release, or TORCH_SPEC='torch==2.13.0 --index-url ...'
TORCH_SPEC ?= $(TORCH_PIN)
PYTEST_ARGS ?=
export PIP_DISABLE_PIP_VERSION_CHECK := 1

BIN := $(VENV)/bin
STAMP := $(VENV)/.installed
CONSUMERS_STAMP := $(CONSUMERS_VENV)/.installed
# When another torch than the pinned one is asked for, the pins of torch and triton step aside.
PINS := $(if $(filter $(TORCH_PIN),$(TORCH_SPEC)),cat,grep -vE '^(torch|triton)==')
PIP_INSTALL := $(BIN)/python -m pip install -q -c $(VENV)/constraints.txt

.PHONY: help setup demo check test test-slow test-consumers clean

help: ## List the targets
	@awk -F ':.*## ' '/^[a-z-]+:.*## / { printf "  make %-15s %s\n", $$1, $$2 }' Makefile
	@echo "  Variables: PYTHON=$(PYTHON) VENV=$(VENV) CONSUMERS_VENV=$(CONSUMERS_VENV) TORCH_SPEC='$(TORCH_SPEC)'"

setup: $(STAMP) ## Build the virtual environment and install quantkit into it
	@echo "setup: $(VENV) is ready"

demo: $(STAMP) ## Quantize, evaluate and serve a real model from nothing
	@$(BIN)/python scripts/demo.py

check: $(STAMP) ## Static checks: style, types, layers, file sizes
	@echo "check: ruff"; $(BIN)/ruff check -q .
	@$(BIN)/ruff format -q --check .
	@echo "check: mypy"; $(BIN)/mypy
	@echo "check: layers"; $(BIN)/lint-imports --no-logo
	@echo "check: file sizes"; $(BIN)/python scripts/size.py --check

test: $(STAMP) ## All tests but the slow ones and those of the consumers
	OMP_NUM_THREADS=1 $(BIN)/python -m pytest -q -n 2 --dist loadfile -m "not slow and not consumers" $(PYTEST_ARGS)

test-slow: $(STAMP) ## The tests that take minutes or gigabytes
	$(BIN)/python -m pytest -q -m "slow and not consumers" $(PYTEST_ARGS)

test-consumers: $(CONSUMERS_STAMP) ## Prove that other programs load our files
	$(CONSUMERS_VENV)/bin/python -m pytest -q -m consumers $(PYTEST_ARGS)

clean: ## Remove both environments and everything built or cached in the tree
	rm -rf $(VENV) $(CONSUMERS_VENV) build dist *.egg-info .mypy_cache .pytest_cache .ruff_cache \
	    .import_linter_cache .hypothesis
	find . -name __pycache__ -type d -prune -exec rm -rf {} +

# One clear line when the interpreter cannot do it.
define CHECK_PYTHON
	@command -v $(PYTHON) >/dev/null || { echo "error: $(PYTHON) is not installed; quantkit needs Python 3.11 or newer" >&2; exit 2; }
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' || { \
	    echo "error: quantkit needs Python 3.11 or newer and $(PYTHON) is $$($(PYTHON) -V); try make PYTHON=python3.12" >&2; exit 2; }
	@$(PYTHON) -c 'import venv, ensurepip' 2>/dev/null || { \
	    echo "error: $(PYTHON) has no venv module; install it (Debian, Ubuntu: apt install python3-venv)" >&2; exit 2; }
endef

$(STAMP): pyproject.toml constraints.txt
	$(CHECK_PYTHON)
	@echo "setup: virtual environment $(VENV)"
	@test -x $(BIN)/python || $(PYTHON) -m venv $(VENV)
	@$(PINS) constraints.txt > $(VENV)/constraints.txt
	@echo "setup: $(TORCH_SPEC)"
	@$(PIP_INSTALL) $(TORCH_SPEC)
	@echo "setup: quantkit and its dependencies"
	@$(PIP_INSTALL) -e '.[dev]'
	@touch $@

$(CONSUMERS_STAMP): pyproject.toml constraints-consumers.txt scripts/consumers.sh
	$(CHECK_PYTHON)
	@PYTHON='$(PYTHON)' VENV='$(CONSUMERS_VENV)' TORCH_SPEC='$(TORCH_SPEC)' bash scripts/consumers.sh
	@touch $@
