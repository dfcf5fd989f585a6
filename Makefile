# Every target works on a fresh clone: each one first makes the environment it needs.

VENV := .venv
BIN := $(VENV)/bin
LOWEST := $(VENV)-lowest
NEWEST := $(VENV)-newest
LOWEST_TESTS := $(addprefix tests/, diagnostics/test_checks.py compiled/test_functions.py results/test_expectations.py \
	chain/test_pickles.py chain/test_pm_sample.py choice/test_block.py \
	samplers/hmc_ecs/test_step.py::test_result_is_what_pymc_and_arviz_expect)
ready = $(VENV)/.ready-$(1)

# Where it is set, each of many processes compiles the modules of PyMC and ArviZ anew: 10 s.
unexport PYTHONDONTWRITEBYTECODE

.DEFAULT_GOAL := help
.NOTPARALLEL:
.PHONY: help demo test test-costly test-slow test-lowest test-newest lint types docs benchmark clean

help:  ## Show this list
	@sed -n 's/^\([a-z-]*\):.*## /make \1\t/p' $(MAKEFILE_LIST) | expand -t 20

demo: $(call ready,base)  ## Sample the flights model and draw a picture into demo_output/
	$(BIN)/python examples/flights.py

test: $(call ready,test)  ## Run the tests, but not the costly and the slow ones
	$(BIN)/python -m pytest -n auto -m "not costly and not slow" $(PYTEST_ARGS)

test-costly: $(call ready,test)  ## Run the costly tests
	$(BIN)/python -m pytest -n auto -m "costly and not slow" $(PYTEST_ARGS)

test-slow: $(call ready,test)  ## Run the slow tests
	$(BIN)/python -m pytest -n auto -m slow $(PYTEST_ARGS)

test-lowest: $(LOWEST)/.ready-test  ## Run a few tests with the lowest versions allowed
	NUMBA_CACHE_DIR=$(LOWEST)/numba $(LOWEST)/bin/python -m pytest $(LOWEST_TESTS) $(PYTEST_ARGS)

test-newest: $(NEWEST)/.ready-test  ## Run the tests with the newest PyMC, pre-releases too
	NUMBA_CACHE_DIR=$(NEWEST)/numba $(NEWEST)/bin/python -m pytest -n auto $(PYTEST_ARGS)

lint: $(call ready,dev)  ## Check style and formatting
	$(BIN)/ruff check
	$(BIN)/ruff format --check

types: $(call ready,dev)  ## Check types
	$(BIN)/mypy

docs: $(call ready,docs)  ## Build the documentation into docs/_build/html
	$(BIN)/python -m sphinx -W --keep-going -q -j auto -b html docs docs/_build/html

benchmark: $(call ready,benchmark)  ## Compare with other samplers
	$(BIN)/python tests/benchmarks/run_all.py $(BENCHMARK_ARGS)

clean:  ## Remove the environment and everything built
	rm -rf $(VENV) $(LOWEST) $(NEWEST) docs/_build docs/api/generated demo_output

$(LOWEST)/.ready-test: pyproject.toml scripts/install
	@scripts/install $(LOWEST) test lowest
	@touch $@

# What is newest changes without notice: the environment is made anew each time.
.PHONY: $(NEWEST)/.ready-test
$(NEWEST)/.ready-test:
	@scripts/install $(NEWEST) test newest

$(VENV)/.ready-base: pyproject.toml scripts/install
	@scripts/install $(VENV)
	@touch $@

$(VENV)/.ready-%: pyproject.toml scripts/install
	@scripts/install $(VENV) $*
	@touch $@
