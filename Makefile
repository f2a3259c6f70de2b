# Everything runs from .venv, made from requirements.lock by the Python that PYTHON names.
# Paths stay relative, so that the checkout may live in a folder with spaces in its name.
PYTHON ?= python3
BIN := .venv/bin
STAMP := .venv/.installed
# Each has an embedded stack of its own; most tests wait for theirs, so more than there are cores is faster.
TEST_PROCESSES ?= 4
PIP_FLAGS := --disable-pip-version-check --no-input

.PHONY: help demo test prove lint bench lock clean
help:
	@echo 'make demo  [ARGS="--events 5000"]       the whole pipeline, with failures, on real Kafka and PostgreSQL'
	@echo 'make test  [ARGS="-k invariant"]        the test suite on the same embedded stack'
	@echo 'make prove NAME=connector-kills         a long proof from tests/proofs/; make test runs its short form'
	@echo 'make lint                               ruff and mypy'
	@echo 'make bench NAME=connector [ARGS=--json] one benchmark from benchmarks/'
	@echo 'make lock                               renew requirements.lock'

$(STAMP): requirements.lock pyproject.toml
	@command -v "$(PYTHON)" > /dev/null || { echo 'there is no $(PYTHON): make PYTHON=/path/to/python3.11 $(MAKECMDGOALS)'; exit 1; }
	@"$(PYTHON)" -c 'import sys; sys.exit(sys.version_info < (3, 11))' || \
	  { echo 'outrider needs Python 3.11 or newer: make PYTHON=/path/to/python3.11 $(MAKECMDGOALS)'; exit 1; }
	@test -x $(BIN)/python || "$(PYTHON)" -m venv .venv
	$(BIN)/python -m pip install $(PIP_FLAGS) --require-hashes --only-binary :all: -r requirements.lock
	$(BIN)/python -m pip install $(PIP_FLAGS) --no-deps --no-build-isolation --editable .
	@touch $(STAMP)

demo: $(STAMP)
	@$(BIN)/python -m pipeline.cli demo $(ARGS)

test: $(STAMP)
	@$(BIN)/python -m pytest --numprocesses=$(TEST_PROCESSES) --dist=loadfile $(ARGS)

prove: $(STAMP)
	@test -n "$(NAME)" || { echo 'which one? make prove NAME=...; there are:'; ls tests/proofs | sed -n 's/\.py$$//p' | grep -v -e __init__ -e report | tr _ -; exit 2; }
	@$(BIN)/python -m tests.proofs.$(subst -,_,$(NAME)) $(ARGS)

lint: $(STAMP)
	$(BIN)/python -m ruff check .
	$(BIN)/python -m ruff format --check .
	$(BIN)/python -m mypy

bench: $(STAMP)
	@test -n "$(NAME)" || { echo 'which one? make bench NAME=...; there are:'; ls benchmarks | sed -n 's/\.py$$//p' | grep -v -e __init__ -e report; exit 2; }
	@$(BIN)/python -m benchmarks.$(NAME) $(ARGS)

lock: $(STAMP)
	$(BIN)/python -m pip install $(PIP_FLAGS) uv
	$(BIN)/uv pip compile pyproject.toml --all-extras --universal --python-version 3.11 --generate-hashes --no-header --quiet -o requirements.lock

clean:
	rm -rf .venv .mypy_cache .pytest_cache .ruff_cache
