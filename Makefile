# Everything runs from a bare clone: `make` builds .venv from the lock on first use.
PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
STAMP := $(VENV)/.locked

.DEFAULT_GOAL := help
.PHONY: help install run run-gguf run-vllm test check format bench bench-peers mutants fuzz docs lock clean

help: ## this list
	@awk -F ':.*## ' '/^[a-z-]+:.*## /{printf "  make %-12s %s\n", $$1, $$2}' $(MAKEFILE_LIST)

$(STAMP): requirements-dev.lock pyproject.toml
	test -x $(BIN)/python || $(PYTHON) -m venv $(VENV)
	$(BIN)/python -m pip install --quiet --disable-pip-version-check -r requirements-dev.lock
	@# Without its warning that an editable installation is editable.
	PYTHONWARNINGS=ignore $(BIN)/python -m pip install --quiet --disable-pip-version-check --no-deps --editable .
	@touch $(STAMP)

install: $(STAMP) ## build .venv from the lock

run: $(STAMP) ## the router on backends.yaml, with its embedded simulated backends
	$(BIN)/lifeboat serve

run-gguf: $(STAMP) ## a real llama.cpp server with a small real model, and the router in front
	bash deploy/run-gguf.sh

run-vllm: $(STAMP) ## a real vLLM server on the CPU (2.5 GB) with a tiny model, and the router in front
	bash deploy/run-vllm.sh

test: $(STAMP) ## all tests
	$(BIN)/python -m pytest $(PYTEST_ARGS)

check: $(STAMP) ## format, lint, types, import contracts, docs, deploy/
	$(BIN)/ruff format --check .
	$(BIN)/ruff check .
	$(BIN)/pyright
	$(BIN)/lint-imports --no-logo
	$(BIN)/python -m docs.build --check
	NO_MKDOCS_2_WARNING=1 $(BIN)/mkdocs build --strict --site-dir build/site
	bash deploy/check.sh

format: $(STAMP) ## apply the formatter and the safe fixes
	$(BIN)/ruff format .
	$(BIN)/ruff check --fix .

bench: $(STAMP) ## all measurements of bench/: half an hour (BENCH=quick: two minutes)
	$(BIN)/python -m bench $(BENCH)

bench-peers: $(STAMP) ## .venv-peers, with the proxies that `make bench` compares with
	$(BIN)/python -m bench.peers.install

mutants: $(STAMP) ## every hand-made mutant must make its test fail
	$(BIN)/python -m tests.mutants

fuzz: $(STAMP) ## the fuzzers with twenty times the budget of `make test`, on new examples
	FUZZ_SCALE=$${FUZZ_SCALE:-20} $(BIN)/python -m pytest tests/fuzz --timeout 3600 $(PYTEST_ARGS)

docs: $(STAMP) ## write the generated pages and the JSON schema, and build/site
	$(BIN)/python -m docs.build
	NO_MKDOCS_2_WARNING=1 $(BIN)/mkdocs build --strict --site-dir build/site

lock: $(STAMP) ## resolve the locks anew (needs `pip install uv` in .venv)
	$(BIN)/uv pip compile --quiet --upgrade --universal --python-version 3.11 --no-emit-index-url \
		--no-header --no-annotate pyproject.toml -o requirements.lock
	$(BIN)/uv pip compile --quiet --upgrade --universal --python-version 3.11 --no-emit-index-url \
		--no-header --no-annotate --extra dev --constraint requirements.lock pyproject.toml \
		-o requirements-dev.lock

clean: ## remove what the other targets made
	rm -rf $(VENV) .venv-gguf .venv-vllm .venv-peers build dist *.egg-info .pytest_cache .ruff_cache .hypothesis .import_linter_cache
