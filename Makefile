# `make` alone lists the targets. GNU make and a POSIX shell; everything is installed into .venv.

VENV := .venv
NEWEST := .venv-newest
BIN := $(VENV)/bin
DEMO := utility traces/samples/gpu-dp2-tp4 --cluster dgx-a100 --nodes 2

PYTHONS := python3.13 python3.12 python3.11 python3
INSTALL := -m pip install --quiet --quiet --disable-pip-version-check --progress-bar off
READY := $(VENV)/ready

# True of a Python that is new enough and can make virtual environments with pip in them.
SUITABLE := import ensurepip, sys, venv; sys.exit(sys.version_info < (3, 11))

# Sets the shell's $python, or stops: a name on PATH need not be one that runs.
FIND_PYTHON = for python in $(PYTHONS) ""; do \
	  $$python -c '$(SUITABLE)' >/dev/null 2>&1 && break; \
	done; \
	if [ -z "$$python" ]; then \
	  echo "make: needs Python 3.11 or later with its venv module, none of $(PYTHONS) is" >&2; \
	  exit 1; \
	fi

# $(call stage,name,command): say what runs, and which stage it was if it fails.
define stage
	@echo "== $(1)"
	@$(2) || { status=$$?; echo "make $@: stage '$(1)' failed" >&2; exit $$status; }
endef

MAKEFLAGS += --no-print-directory
.DEFAULT_GOAL := help
.PHONY: help setup demo test check bench validate newest lock clean

help:  ## list the targets
	@awk -F ':.*## ' '/^[a-z]+:.*## / { printf "make %-9s %s\n", $$1, $$2 }' $(firstword $(MAKEFILE_LIST))

setup: $(READY)  ## make .venv with the pinned versions; the other targets do it by themselves

$(READY): pyproject.toml constraints.txt
	@if ! $(BIN)/python -c '$(SUITABLE)' >/dev/null 2>&1; then \
	  $(FIND_PYTHON); \
	  echo "== setup: make $(VENV) with $$($$python --version)"; \
	  $$python -m venv --clear $(VENV); \
	fi
	@echo "== setup: install into $(VENV); the first time takes a minute or two"
	@$(BIN)/python $(INSTALL) --constraint constraints.txt --editable '.[test]'
	@echo "== setup: compile, once: modules as pip does with what it copies, and the hot loops"
	@$(BIN)/python -m compileall -q simulator topologies collectives traces experiments twofold.py
	@$(BIN)/python -m experiments.cli warm
	@touch $@
	@echo "== setup: done"

demo: $(READY)  ## run the main job on a sample that ships with the project
	$(BIN)/twofold $(DEMO)

check: $(READY)  ## format, lint, types, layers
	$(call stage,format,$(BIN)/ruff format --check --quiet .)
	$(call stage,lint,$(BIN)/ruff check --quiet .)
	$(call stage,types,$(BIN)/mypy)
	$(call stage,layers,$(BIN)/lint-imports --no-logo)

test: check  ## check, then all tests: everything the project demands of itself
	$(call stage,tests,$(BIN)/python -m pytest)

bench: $(READY)  ## speed and memory against their targets
	$(BIN)/python -m benchmarks

validate: $(READY)  ## results against published measurements
	$(BIN)/python -m benchmarks.validate

newest:  ## the tests with the newest versions instead of the pinned ones
	@$(FIND_PYTHON); \
	echo "== setup: make $(NEWEST) with $$($$python --version) and the newest versions"; \
	$$python -m venv --clear $(NEWEST)
	@$(NEWEST)/bin/python $(INSTALL) --editable '.[test]'
	$(call stage,tests with the newest versions,$(NEWEST)/bin/python -m pytest)

lock: $(READY)  ## write the versions that .venv holds to constraints.txt
	@echo "# What make setup installs, written by make lock. make newest tries other versions." \
	  > constraints.new
	@$(BIN)/python -m pip freeze --exclude-editable --disable-pip-version-check >> constraints.new
	@if grep -n '@\|://' constraints.new; then \
	  echo "make lock: the lines above were not installed by name and version" >&2; exit 1; \
	fi
	@LC_ALL=C sort -f -o constraints.txt constraints.new
	@rm constraints.new
	@touch $(READY)

clean:  ## remove the virtual environments, caches and build outputs
	rm -rf $(VENV) $(NEWEST) build dist .mypy_cache .ruff_cache .pytest_cache .hypothesis \
	  .import_linter_cache *.egg-info
	find . -name __pycache__ -type d -prune -exec rm -rf {} +
