# `make demo` and `make test` set up everything they need, in .venv. `make help` lists the targets.

.DEFAULT_GOAL := help
.NOTPARALLEL:
.PHONY: help demo test lint format tables docs docs-serve clean distclean

# From the environment or the command line: PYTHON, the interpreter for a new .venv; UV, the uv to
# use (empty: use venv and pip even where uv is installed); PYTEST_ARGS.

BIN := .venv/bin
PYTEST_ARGS ?=

help: ## list the targets
	@awk -F ':.*## ' '/^[a-z-]+:.*## /{ printf "make %-12s %s\n", $$1, $$2 }' $(firstword $(MAKEFILE_LIST))

demo: .venv/.core ## the bundled pair answers a word problem, with and without speculation, offline
	HF_HUB_OFFLINE=1 $(BIN)/antiphon demo

test: .venv/.dev ## run the tests; PYTEST_ARGS="--slow -k NAME" adds options
	HF_HUB_OFFLINE=1 $(BIN)/python -m pytest $(PYTEST_ARGS)

lint: .venv/.dev ## check format, style and types
	$(BIN)/python -m ruff format --check .
	$(BIN)/python -m ruff check .
	$(BIN)/python -m mypy --strict src/antiphon

format: .venv/.dev ## put the code in its format and fix what can be fixed by itself
	$(BIN)/python -m ruff check --fix-only .
	$(BIN)/python -m ruff format .

tables: .venv/.dev ## fill the tables of README.md and docs/ from docs/records/
	$(BIN)/python scripts/tables.py

docs: .venv/.docs ## build the documentation into site/
	NO_MKDOCS_2_WARNING=1 $(BIN)/python -m mkdocs build --strict

docs-serve: .venv/.docs ## show the documentation at http://127.0.0.1:8000 while you write it
	$(BIN)/python -m mkdocs serve

clean: ## remove builds and caches
	rm -rf build dist site .pytest_cache .mypy_cache .ruff_cache .hypothesis
	find src tests -name __pycache__ -type d -prune -exec rm -rf {} +

distclean: clean ## also remove .venv
	rm -rf .venv

# Each file records that an environment is set up, until what it is made from changes.
.venv/.core: pyproject.toml constraints.txt scripts/setup_env.sh
	@sh scripts/setup_env.sh
	@touch $@

.venv/.dev: pyproject.toml constraints.txt scripts/setup_env.sh
	@sh scripts/setup_env.sh dev
	@touch .venv/.core $@

.venv/.docs: pyproject.toml constraints.txt scripts/setup_env.sh
	@sh scripts/setup_env.sh docs
	@touch .venv/.core $@
