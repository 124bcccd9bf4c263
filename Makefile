# Two commands to know: `make demo` and `make test`. Both set up what they need.
SHELL := /bin/bash
.DEFAULT_GOAL := help
PYTHON ?= $(shell command -v python3 || command -v python)
BIN := .venv/bin
# Without bytecode files every process would compile all of its imports anew: seconds per command.
unexport PYTHONDONTWRITEBYTECODE
# Shared by all checkouts: mypy compares the hashes of the sources, so a new clone need not analyse everything again.
export MYPY_CACHE_DIR ?= $(or $(XDG_CACHE_HOME),$(HOME)/.cache)/frazil/mypy
# Options for pytest, for example: make test ARGS="-k storage -x"
ARGS ?=

.PHONY: help demo test test-deep check test-all soak bench services lint format lock wheel setup setup-dev clean

help: ## Show this list
	@grep -hE '^[a-z-]+:.*## ' $(MAKEFILE_LIST) | awk -F ':.*## ' '{printf "  make %-10s %s\n", $$1, $$2}'

demo: setup ## Show the whole flow on this machine, with nothing but Python installed
	@$(BIN)/frazil demo

test: setup-dev ## Show every promise once, on real servers (at most 12 minutes on 2 cores, once warm)
	@$(BIN)/python -m tests.services install
	@$(MAKE) --no-print-directory lint
	@$(BIN)/python -m tests.run test $(ARGS)

test-deep: setup-dev ## The rest of what CI runs: further catalogs, crash matrices, random schedules
	@$(BIN)/python -m tests.services install --deep
	@$(BIN)/python -m tests.run deep $(ARGS)

check: setup-dev lint ## The fast lane, under 90 seconds: lint, types, layers, unit tests
	@$(BIN)/python -m tests.run check $(ARGS)

test-all: setup-dev lint ## Everything, also what is slow: all pairs, long loops
	@$(BIN)/python -m tests.services install --all
	@$(BIN)/python -m pytest $(ARGS)

soak: setup-dev ## Only the long loops, with six hours of upkeep (SOAK_MINUTES=360)
	@$(BIN)/python -m tests.services install --all
	@SOAK_MINUTES=$${SOAK_MINUTES:-360} $(BIN)/python -m pytest -m soak $(ARGS)

bench: setup-dev ## Measure, and write benchmarks/RESULTS.md
	@$(BIN)/python -m benchmarks $(ARGS)

services: setup-dev ## Start S3, catalogs and databases to play with; Ctrl-C stops them
	@$(BIN)/python -m tests.services up $(ARGS)

lint: ## Ruff, mypy, import-linter
	@$(BIN)/ruff check .
	@$(BIN)/ruff format --check .
	@$(BIN)/mypy
	@$(BIN)/lint-imports --no-cache

format: ## Format the code
	@$(BIN)/ruff check --fix .
	@$(BIN)/ruff format .

lock: ## Resolve the dependencies anew, with hashes
	@$(BIN)/uv pip compile -q --upgrade --universal --python-version 3.11 --generate-hashes --no-emit-index-url \
	  --custom-compile-command 'make lock' pyproject.toml --extra build -o requirements/runtime.txt
	@$(BIN)/uv pip compile -q --universal --python-version 3.11 --generate-hashes --no-emit-index-url \
	  --custom-compile-command 'make lock' pyproject.toml --extra build --extra dev --extra labels --extra ocr --extra heic --extra mysql --extra postgres -c requirements/runtime.txt -o requirements/dev.txt
	@grep '^uv==' requirements/dev.txt | sed 's/ *\\//' | $(BIN)/uv pip compile -q --universal --python-version 3.11 --generate-hashes \
	  --no-emit-index-url --custom-compile-command 'make lock' - -o requirements/uv.txt

wheel: setup-dev ## Build the wheel into dist/
	@$(BIN)/uv build --wheel --no-build-isolation --quiet -o dist .
	@ls dist/*.whl

setup:
	@$(PYTHON) tools/bootstrap.py

setup-dev:
	@$(PYTHON) tools/bootstrap.py --dev

clean: ## Remove what was built here (not the caches in your home folder)
	@rm -rf .venv dist build .mypy_cache .ruff_cache .hypothesis frazil-demo
