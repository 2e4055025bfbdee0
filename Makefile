# Everything starts from nothing but Python and pip: `make demo`, `make test`.
PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
READY := $(VENV)/.ready
# JOBS: processes that run tests side by side, three for two cores because many tests wait;
# TIMES: runs of `make flaky`
JOBS ?= 3
TIMES ?= 50
VERSIONS ?= 3.11 3.12 3.13 3.14
# conftest.py puts files of a few long tests first
SIDE_BY_SIDE = -n $(JOBS) --dist loadfile --no-loadscope-reorder
MATRIX ?= -m "not proof and not cuda" $(SIDE_BY_SIDE)
# every process of a test would compile the package again
unexport PYTHONDONTWRITEBYTECODE

.PHONY: demo test quick check bench docs pages proof reliability flaky matrix cuda clean

demo: $(READY)
	$(BIN)/penstock demo

# every test, and a random sample of the campaigns of `make proof`
test: $(READY)
	$(BIN)/pytest -q -m "not proof and not cuda" $(SIDE_BY_SIDE)

# under a minute, while you edit: order, plan, sources, collate, settings
quick: JOBS = 2
quick: $(READY)
	$(BIN)/pytest -q -m "not proof and not cuda and not timing" $(SIDE_BY_SIDE) \
		tests/order tests/keyed tests/checks tests/collate tests/training/config \
		tests/sources/test_memory.py tests/sources/test_npy.py tests/sources/test_combine.py \
		src/penstock/order src/penstock/collate

check: $(READY)
	$(BIN)/ruff format --check .
	$(BIN)/ruff check .
	$(BIN)/mypy
	$(BIN)/lint-imports

# all of them run, with the loaders they are compared with; exits with 1 if a claim does not hold
bench: $(READY)
	$(BIN)/pip install -q -c constraints.txt -e '.[bench]'
	$(BIN)/python benchmarks

# the site, in build/site/index.html; a warning (a dead link, a missing page) is an error
docs: export NO_MKDOCS_2_WARNING = 1
docs: $(READY)
	$(BIN)/pip install -q -c constraints.txt -e '.[docs]'
	$(BIN)/python -m docs.make.pictures
	$(BIN)/python -m docs.make.notebooks
	$(BIN)/python -m docs.make.figures
	$(BIN)/mkdocs build --strict

# adds the site of this tree as VERSION to PAGES, which a web server can serve as it is
PAGES ?= build/pages
pages: export NO_MKDOCS_2_WARNING = 1
pages: docs
	$(BIN)/python -m docs.make.versions $(VERSION) $(PAGES)

# the campaigns at full length; 2,000 examples of every law; the long forms of other tests
proof: $(READY)
	$(BIN)/python -m tests.campaigns run --jobs $(JOBS)
	HYPOTHESIS_PROFILE=proof $(BIN)/pytest -q -m "law and not cuda" $(SIDE_BY_SIDE)
	$(BIN)/pytest -q -m "proof and not law and not cuda" $(SIDE_BY_SIDE)

# the campaigns at full length, written to docs/reliability.md
reliability: $(READY)
	$(BIN)/python -m tests.campaigns run --jobs $(JOBS) --record
	$(BIN)/python -m tests.campaigns page

# tests with threads, processes, signals or clocks, $(TIMES) times beside a busy machine
flaky: $(READY)
	$(BIN)/python -m tests.campaigns flaky --times $(TIMES)

# the tests on every Python that is installed here, each in .venv-3.x
matrix:
	$(PYTHON) -m tests.campaigns.interpreters $(VERSIONS) -- $(MATRIX)

# the tests that need an accelerator; fails where there is none
cuda: $(READY)
	$(BIN)/python -c "import sys, torch; sys.exit(0 if torch.accelerator.is_available() else 'make cuda: this machine has no accelerator, so nothing was tested')"
	$(BIN)/pytest -q -m cuda

clean:
	rm -rf $(VENV) .venv-3.* .pytest_cache .mypy_cache .ruff_cache .hypothesis .import_linter_cache
	rm -rf .demo build dist
	rm -f src/penstock/libnative.so

# torch comes with everything that depends on it, pinned: an unpinned one pulls gigabytes
$(READY): pyproject.toml constraints.txt hatch_build.py src/penstock/native.c
	test -d $(VENV) || $(PYTHON) -m venv $(VENV)
	$(BIN)/pip install -q -c constraints.txt torch numpy
	$(BIN)/pip install -q -c constraints.txt -e '.[dev]'
	touch $(READY)
