# make run     set up .venv, run the packaged stream elec2 and write a report
# make test    set up .venv with the test extras and run every check
# make help    list all targets
# Another interpreter: PYTHON=python3.12 make test

PYTHON ?= python3
VENV ?= .venv
WORKERS ?= 2
SECONDS ?= 3600
PORT ?= 8080

BIN := $(VENV)/bin
VERSION_OF := -c 'import sys; print("%d.%d" % sys.version_info[:2])'
PYVER := $(shell $(PYTHON) $(VERSION_OF))
PYTHON_STAMP := $(VENV)/.stamp-python-$(PYVER)
BASE_STAMP := $(VENV)/.stamp-base
TEST_STAMP := $(VENV)/.stamp-test
DOCS_STAMP := $(VENV)/.stamp-docs

# On small products, waiting BLAS threads cost more time than they save, above all beside xdist.
export OPENBLAS_NUM_THREADS := 1
export OMP_NUM_THREADS := 1
export MKL_NUM_THREADS := 1
export NUMBA_NUM_THREADS := 1
export PIP_DISABLE_PIP_VERSION_CHECK := 1

# the peers of the benchmarks have their own environment
PEERS := .venv-peers
PEERS_STAMP := $(PEERS)/.stamp

.PHONY: help run test test-slow fuzz bench bench-peers bench-quick docs docs-serve format clean

help:
	@echo "make run          set up $(VENV), run the packaged stream elec2 and write a report"
	@echo "make test         check format, lint, types and layers, and run the tests"
	@echo "make test-slow    run the tests that take minutes"
	@echo "make fuzz         make random calls and damage files for an hour;"
	@echo "                  SECONDS=600 SEED=1 set the time and the seed"
	@echo "make bench        run make test and then the benchmarks;"
	@echo "                  KALSTREAM_DATA=FOLDER and STREAMS='my.csv ...' add streams"
	@echo "make bench-peers  compare kalstream with its peers: an hour, writes docs/benchmarks.md"
	@echo "make bench-quick  the same in minutes; writes no page"
	@echo "make docs         build the site (guides, examples, reference) into site/"
	@echo "make docs-serve   show the site at http://localhost:8080; PORT=8081 sets the port"
	@echo "make format       rewrite the sources in the project's format"
	@echo "make clean        remove $(VENV), caches and build outputs"

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

# make test runs a minute of it with fixed seeds
fuzz: $(TEST_STAMP)
	$(BIN)/python tests/fuzz/__main__.py --seconds $(SECONDS) --workers $(WORKERS) \
	    $(if $(SEED),--seed $(SEED))

# tests first: no speed is reported when tests fail
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

docs: $(DOCS_STAMP)
	$(BIN)/python docs/site/build.py

docs-serve:
	$(PYTHON) -m http.server --bind localhost --directory site $(PORT)

format: $(TEST_STAMP)
	$(BIN)/ruff format .
	$(BIN)/ruff check --fix .

clean:
	rm -rf $(VENV) $(PEERS) build dist site .mypy_cache .ruff_cache .pytest_cache .hypothesis \
	    .import_linter_cache .numba_cache
	find src tests examples benchmarks -name __pycache__ -type d -prune -exec rm -rf {} + \
	    2>/dev/null || true

$(PEERS_STAMP): pyproject.toml constraints.txt benchmarks/peers/requirements.txt
	$(PYTHON) -m venv --clear $(PEERS)
	$(PEERS)/bin/python -m pip install --quiet --constraint constraints.txt --editable '.[figures]' \
	    --requirement benchmarks/peers/requirements.txt
	@touch $@

# A broken environment, or one of another Python version, is created again; a good one is kept.
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

# with the test extras, because the site imports and runs what it documents
$(DOCS_STAMP): $(TEST_STAMP)
	$(BIN)/python -m pip install --quiet --constraint constraints.txt --editable '.[docs]'
	@touch $@
