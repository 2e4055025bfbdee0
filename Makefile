# Everything starts from nothing but Python and pip: `make demo`, `make test`.
PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
READY := $(VENV)/.ready

.PHONY: demo test check bench proof clean

demo: $(READY)
	$(BIN)/penstock demo

test: $(READY)
	$(BIN)/pytest -q -m "not proof and not cuda"

check: $(READY)
	$(BIN)/ruff format --check .
	$(BIN)/ruff check .
	$(BIN)/mypy
	$(BIN)/lint-imports

bench: $(READY)
	for b in benchmarks/bench_*.py; do $(BIN)/python $$b || exit 1; done

# the long campaigns: kills, soaks, large matrices
proof: $(READY)
	PENSTOCK_PROOF=1 $(BIN)/pytest -q -m "proof and not cuda"

clean:
	rm -rf $(VENV) .pytest_cache .mypy_cache .ruff_cache .hypothesis .import_linter_cache .demo build dist
	rm -f src/penstock/streaming/libpast_cache.so

# torch comes with everything that depends on it, pinned: an unpinned one pulls gigabytes
$(READY): pyproject.toml constraints.txt hatch_build.py src/penstock/streaming/past_cache.c
	test -d $(VENV) || $(PYTHON) -m venv $(VENV)
	$(BIN)/pip install -q -c constraints.txt torch numpy
	$(BIN)/pip install -q -c constraints.txt -e '.[dev]'
	touch $(READY)
