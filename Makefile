# make run     set up .venv and run the main job
# make test    set up .venv with the test extras and run every check
# Another interpreter: PYTHON=python3.12 make test

PYTHON ?= python3
VENV ?= .venv
WORKERS ?= 2
SECONDS ?= 3600

BIN := $(VENV)/bin
VERSION_OF := -c 'import sys; print("%d.%d" % sys.version_info[:2])'
PYVER := $(shell $(PYTHON) $(VERSION_OF))
PYTHON_STAMP := $(VENV)/.stamp-python-$(PYVER)
BASE_STAMP := $(VENV)/.stamp-base
TEST_STAMP := $(VENV)/.stamp-test

# Spinning BLAS threads on small products cost far more than they bring, and more so beside xdist.
export OPENBLAS_NUM_THREADS := 1
export OMP_NUM_THREADS := 1
export MKL_NUM_THREADS := 1
export NUMBA_NUM_THREADS := 1
export PIP_DISABLE_PIP_VERSION_CHECK := 1

# peers of the benchmarks, in an environment of their own
PEERS := .venv-peers
PEERS_STAMP := $(PEERS)/.stamp

.PHONY: help run test test-slow fuzz bench bench-peers bench-quick format clean

help:
	@echo "make run        set up $(VENV) and run the main job"
	@echo "make test       format, lint, types, layers, tests"
	@echo "make test-slow  the tests that take minutes"
	@echo "make fuzz       random calls and damaged files for an hour; SECONDS=600 SEED=1 for"
	@echo "                another time and seed"
	@echo "make bench      make test, then the benchmarks; KALSTREAM_DATA=FOLDER and"
	@echo "                STREAMS='my.csv ...' for more streams"
	@echo "make bench-peers  of these, kalstream beside its peers: an hour, writes docs/benchmarks.md"
	@echo "make bench-quick  kalstream beside its peers, in minutes"
	@echo "make format     rewrite the sources in the project's format"
	@echo "make clean      remove $(VENV), caches and build outputs"

run: $(BASE_STAMP)
	$(BIN)/kalstream run

test: $(TEST_STAMP)
	$(BIN)/ruff format --check .
	$(BIN)/ruff check .
	$(BIN)/mypy
	$(BIN)/lint-imports
	$(BIN)/pytest -n $(WORKERS)

test-slow: $(TEST_STAMP)
	$(BIN)/pytest -n $(WORKERS) -m slow

# a minute of it, with fixed seeds, is part of make test
fuzz: $(TEST_STAMP)
	$(BIN)/python tests/fuzz/__main__.py --seconds $(SECONDS) --workers $(WORKERS) $(if $(SEED),--seed $(SEED))

# no speed is reported from a tree whose tests fail
bench: test
	$(BIN)/python benchmarks/core.py
	$(BIN)/python benchmarks/predictive.py
	$(BIN)/python benchmarks/embeddings.py
	$(BIN)/python benchmarks/features.py
	$(BIN)/python benchmarks/run.py
	$(MAKE) bench-peers

bench-peers: $(PEERS_STAMP)
	$(PEERS)/bin/python benchmarks/peers/quality.py $(STREAMS)
	$(PEERS)/bin/python benchmarks/peers/detect.py
	$(PEERS)/bin/python benchmarks/peers/speed.py
	$(PEERS)/bin/python benchmarks/peers/write_page.py

bench-quick: $(PEERS_STAMP)
	$(PEERS)/bin/python benchmarks/peers/quality.py --quick $(STREAMS)
	$(PEERS)/bin/python benchmarks/peers/detect.py --quick
	$(PEERS)/bin/python benchmarks/peers/speed.py --quick

format: $(TEST_STAMP)
	$(BIN)/ruff format .
	$(BIN)/ruff check --fix .

clean:
	rm -rf $(VENV) $(PEERS) build dist .mypy_cache .ruff_cache .pytest_cache .hypothesis .import_linter_cache .numba_cache
	find src tests examples benchmarks -name __pycache__ -type d -prune -exec rm -rf {} + 2>/dev/null || true

$(PEERS_STAMP): pyproject.toml constraints.txt benchmarks/peers/requirements.txt
	$(PYTHON) -m venv --clear $(PEERS)
	$(PEERS)/bin/python -m pip install --quiet --constraint constraints.txt --editable '.[figures]' \
	    --requirement benchmarks/peers/requirements.txt
	@touch $@

# An environment of another Python version, or a broken one, is made anew; a good one is kept.
$(PYTHON_STAMP):
	@if [ "$$($(BIN)/python $(VERSION_OF) 2>/dev/null)" != "$(PYVER)" ] \
	    || ! $(BIN)/python -m pip --version >/dev/null 2>&1; then \
	    echo "creating $(VENV) with Python $(PYVER)"; \
	    $(PYTHON) -m venv --clear $(VENV); \
	fi
	@rm -f $(VENV)/.stamp-python-*
	@touch $@

$(BASE_STAMP): pyproject.toml constraints.txt | $(PYTHON_STAMP)
	$(BIN)/python -m pip install --quiet --constraint constraints.txt --editable .
	@touch $@

# the test environment contains the base one
$(TEST_STAMP): pyproject.toml constraints.txt | $(PYTHON_STAMP)
	$(BIN)/python -m pip install --quiet --constraint constraints.txt --editable '.[test]'
	@touch $(BASE_STAMP) $@
