# `make` alone lists the targets. GNU make and a POSIX shell; everything is installed into .venv.

VENV := .venv
NEWEST := .venv-newest
LIVE := .venv-live
BIN := $(VENV)/bin
DEMO := sweep traces/live/ddp-cpu-2 --cluster traces/live/net250.yaml \
  --resource scale_out.bandwidth --factors 0.5,1,2,4,8
# Of make atlas: where the site is written.
ATLAS := site/atlas
PACKAGES := simulator topologies collectives traces experiments

PYTHONS := python3.13 python3.12 python3.11 python3
# The newest first, those that pyenv keeps but has not put on PATH among them.
NEWEST_PYTHONS := python3.15 python3.14 \
  $(shell ls -d $(HOME)/.pyenv/versions/3.1[1-9].*/bin/python3 2>/dev/null | sort -rV) $(PYTHONS)
# Modules are compiled when they are imported: all of them take as long as the rest of an installation.
INSTALL := -m pip install --no-compile --quiet --quiet --disable-pip-version-check --progress-bar off
INSTALLED := $(VENV)/installed
READY := $(VENV)/ready
DOCUMENTED := $(VENV)/documented
BROWSED := $(VENV)/browsed
# Of make page-test: what Chromium is called here; CHROMIUM=PATH names another.
CHROMIUM := $(firstword $(shell command -v chromium chromium-browser google-chrome 2>/dev/null))
# Each process takes half of the tests, file after file, so that what a file shares is made once, and
# helps the other when it is done.
PYTEST := -m pytest --numprocesses auto --dist worksteal
# Of make fuzz: how long, which numbers of chance, where what fails is kept, by how many processes, and
# which of the parts chosen, systematic and random.
MINUTES := 10
SEED :=
KEEP :=
WORKERS :=
PARTS :=
# Of make faults and make mutants: how many.
COUNT := 500
# Of make determinism: how many hash seeds, which other Pythons, and where their environments are.
SEEDS := 20
OTHERS := .venv-others
OTHER_PYTHONS := python3.13 python3.12 python3.11 \
  $(shell ls -d $(HOME)/.pyenv/versions/3.1[1-3].*/bin/python3 2>/dev/null | sort -rV)
VERSION := import sys; print("%d.%d" % sys.version_info[:2])
# Of make tests and make newest-tests: the seed of a random order.
ORDER :=
SHUFFLED = $(if $(ORDER),--random-order $(ORDER))
# Of make newest: all, unless some are named.
TESTS ?=
# Of make validate-live: where recordings and pairs.csv are kept, nowhere unless named; and any other
# options of python -m benchmarks.live.
WRITE :=
OPTIONS :=
# An index that has PyTorch for CPUs only, a tenth of the size of PyPI's:
# https://download.pytorch.org/whl/cpu, where that can be reached.
TORCH_INDEX :=

# True of a Python that is new enough and can make virtual environments with pip in them.
SUITABLE := import ensurepip, sys, venv; sys.exit(sys.version_info < (3, 11))

# Numba keeps what it compiles with and without a check of indices under one name.
CHECKED := NUMBA_BOUNDSCHECK=1 NUMBA_CACHE_DIR="$(CURDIR)/.numba-boundscheck"
# Another Numba on the same Python would take the place of what is kept for .venv.
NEWEST_LOOPS := NUMBA_CACHE_DIR="$(CURDIR)/$(NEWEST)/loops"
# Tests that open pages.
PAGES := tests/experiments/output tests/experiments/explore
# Tests of hot loops, and of the readers whose files these index.
INDEXED := tests/simulator/routing tests/simulator/analytic tests/simulator/analysis \
  tests/simulator/test_*.py tests/traces/chakra tests/traces/goal tests/traces/matching

# $(call find_python,names) sets the shell's $python, or stops: a name on PATH need not be one that
# runs.
find_python = for python in $(1) ""; do \
	  $$python -c '$(SUITABLE)' >/dev/null 2>&1 && break; \
	done; \
	if [ -z "$$python" ]; then \
	  echo "make: needs Python 3.11 or later with its venv module, none of $(1) is" >&2; \
	  exit 1; \
	fi

# $(call stage,name,command): say what runs, and which stage it was if it fails.
define stage
	@echo "== $(1)"
	@$(2) || { status=$$?; echo "make $@: stage '$(1)' failed" >&2; exit $$status; }
endef

# Modules are compiled once and kept beside Numba's cache, not again in each process that tests start.
unexport PYTHONDONTWRITEBYTECODE

MAKEFLAGS += --no-print-directory
.DEFAULT_GOAL := help
.PHONY: help setup demo atlas test tests style layers types test-all page-test exhaustive bounds fuzz faults mutants determinism sbom check bench validate validate-live newest newest-setup newest-tests docs lock clean

help:  ## list the targets
	@awk -F ':.*## ' '/^[a-z-]+:.*## / { printf "make %-13s %s\n", $$1, $$2 }' $(firstword $(MAKEFILE_LIST))

setup: $(READY)  ## make .venv with the pinned versions; the other targets do it by themselves

# What answers need. Installing modules and compiling them keep two cores busy.
$(INSTALLED): pyproject.toml constraints.txt
	@if ! $(BIN)/python -c '$(SUITABLE)' >/dev/null 2>&1; then \
	  $(call find_python,$(PYTHONS)); \
	  echo "== setup: make $(VENV) with $$($$python --version)"; \
	  $$python -m venv --clear $(VENV); \
	fi
	@echo "== setup: install into $(VENV); the first time takes half a minute or more"
	@$(BIN)/python $(INSTALL) --constraint constraints.txt --editable .
	@touch $@

# What tests need besides. Never by the name of the distribution: an index may have another of that name.
$(READY): $(INSTALLED)
	@echo "== setup: install what checks and tests need, and compile the hot loops, once"
	@$(BIN)/twofold system warm & $(BIN)/python $(INSTALL) --constraint constraints.txt --editable '.[test]' \
	  && wait $$!
	@touch $@
	@echo "== setup: done"

# What documentation is built with.
$(DOCUMENTED): $(READY)
	@echo "== setup: install what builds the documentation"
	@$(BIN)/python $(INSTALL) --constraint constraints.txt --editable '.[test,docs]'
	@touch $@

# What drives a browser; the browser itself is the system's.
$(BROWSED): $(READY)
	@echo "== setup: install what drives a browser"
	@$(BIN)/python $(INSTALL) --constraint constraints.txt --editable '.[test,browser]'
	@touch $@

demo: $(INSTALLED)  ## run the main job on a sample that ships with the project
	$(BIN)/twofold $(DEMO)

atlas: $(INSTALLED)  ## a site in ATLAS=site/atlas: twelve models on twelve clusters, a page for each pair
	$(BIN)/twofold atlas experiments/studies/samples/atlas.yaml -o $(ATLAS) --workers 2

check: style layers types  ## format, lint, types, layers

style: $(READY)
	$(call stage,format,$(BIN)/ruff format --check --quiet .)
	$(call stage,lint,$(BIN)/ruff check --quiet .)

layers: $(READY)
	$(call stage,layers,$(BIN)/lint-imports --no-logo)

types: $(READY)
	$(call stage,types,$(BIN)/mypy)

# One process checks layers and types, which takes most of a minute the first time: beside the tests no
# core waits for it. What it says comes after them.
test: style  ## check, and all tests but the slow ones
	@said=$$(mktemp); $(MAKE) -k layers types >"$$said" 2>&1 & \
	  $(MAKE) tests; status=$$?; wait $$! || status=$$?; cat "$$said"; rm "$$said"; exit $$status

tests: $(READY)
	$(call stage,tests,$(BIN)/python $(PYTEST) -m "not slow and not exhaustive and not browser" $(SHUFFLED))

test-all: check bounds docs page-test  ## check, documents, then all tests, the slow ones and those with bounds too
	$(call stage,all tests,HYPOTHESIS_PROFILE=all $(BIN)/python $(PYTEST))

page-test: $(READY)  ## pages in a headless Chromium; skipped, with the reason, where there is none
	@if [ -n "$(CHROMIUM)" ]; then \
	  $(MAKE) $(BROWSED) && \
	  echo "== pages in $(CHROMIUM)" && \
	  CHROMIUM="$(CHROMIUM)" $(BIN)/python -m pytest -m browser -rs $(PAGES); \
	else \
	  echo "make page-test: skipped: there is no Chromium (apt-get install chromium)"; \
	fi

exhaustive: $(READY)  ## all tests on more and new random cases, some on thousands: an hour or more
	$(call stage,thousands of random cases,HYPOTHESIS_PROFILE=thorough $(BIN)/python $(PYTEST) -m "exhaustive or not exhaustive")

bounds: $(READY)  ## the tests of readers and hot loops with every index checked
	$(call stage,hot loops with checked indices,$(CHECKED) $(BIN)/twofold system warm)
	$(call stage,tests with checked indices,$(CHECKED) $(BIN)/python $(PYTEST) $(INDEXED))

fuzz: $(READY)  ## MINUTES=10 of bad inputs over every format, by SEED or a fresh one, which is printed
	$(BIN)/python -m benchmarks.fuzz --minutes $(MINUTES) $(if $(SEED),--seed $(SEED)) $(if $(KEEP),--keep $(KEEP)) $(if $(WORKERS),--workers $(WORKERS)) $(if $(PARTS),--parts $(PARTS))

faults: $(READY)  ## COUNT=500 of killed commands, full disks and places that cannot be written, by SEED
	$(BIN)/python -m benchmarks.faults --count $(COUNT) $(if $(SEED),--seed $(SEED))

mutants: $(READY)  ## COUNT of wrong lines, sampled by SEED over those that tests reach: which are noticed
	$(BIN)/python -m benchmarks.mutants --count $(COUNT) $(if $(SEED),--seed $(SEED))

determinism: $(READY)  ## every command of the README asked in SEEDS=20 and other ways, on other Pythons too: the same bytes
	@others=""; own=$$($(BIN)/python -c '$(VERSION)'); \
	for python in $(OTHER_PYTHONS); do \
	  version=$$($$python -c '$(SUITABLE)' >/dev/null 2>&1 && $$python -c '$(VERSION)') || continue; \
	  place=$(OTHERS)/$$version; \
	  case "$$own $$others" in *$$version*) continue;; esac; \
	  if [ ! -x $$place/bin/twofold ]; then \
	    echo "== setup: make $$place"; \
	    $$python -m venv --clear $$place || exit 1; \
	    $$place/bin/python $(INSTALL) --constraint constraints.txt --editable '.[report]' || exit 1; \
	  fi; \
	  others="$$others $$place/bin/python"; \
	done; \
	$(BIN)/python -m benchmarks.determinism --seeds $(SEEDS) $${others:+--python $$others}

sbom: $(READY)  ## sbom.json: what is installed with it, versions and licences, as CycloneDX
	$(BIN)/python -m benchmarks.sbom > sbom.json

bench: $(READY)  ## speed and memory against their targets
	$(BIN)/python -m benchmarks

docs: $(DOCUMENTED)  ## build the documentation into site/; a broken link or reference fails
	@$(BIN)/python -m sphinx --quiet --fail-on-warning --keep-going -d site/doctrees docs site/html
	@echo "site/html/index.html"

validate: $(READY)  ## results against published measurements
	$(BIN)/python -m benchmarks.validate
	$(BIN)/python -m benchmarks.steps

# A virtual environment of its own: what torch brings is nothing that tests or answers should see.
$(LIVE)/ready: pyproject.toml constraints.txt benchmarks/live/constraints.txt
	@$(call find_python,$(PYTHONS)); \
	echo "== setup: make $(LIVE) with $$($$python --version) and PyTorch: up to 5 GB, some minutes"; \
	$$python -m venv --clear $(LIVE)
	@$(LIVE)/bin/python $(INSTALL) $(if $(TORCH_INDEX),--extra-index-url $(TORCH_INDEX)) \
	  --constraint constraints.txt \
	  --constraint benchmarks/live/constraints.txt --editable '.[live]'
	@touch $@

validate-live: $(INSTALLED)  ## predictions against real runs on a network of namespaces; needs root
	@if reason=$$($(BIN)/python -m benchmarks.live.network); then \
	  $(MAKE) $(LIVE)/ready && \
	  $(LIVE)/bin/python -m benchmarks.live $(if $(WRITE),--write $(WRITE)) $(OPTIONS); \
	else \
	  echo "make validate-live: skipped: $$reason"; \
	fi

newest: newest-setup newest-tests  ## the tests with the newest versions on the newest Python that is here

newest-setup:
	@$(call find_python,$(NEWEST_PYTHONS)); \
	echo "== setup: make $(NEWEST) with $$($$python --version) and the newest versions"; \
	$$python -m venv --clear $(NEWEST)
	@$(NEWEST)/bin/python $(INSTALL) --editable '.[test]'
	@$(NEWEST_LOOPS) $(NEWEST)/bin/twofold system warm

newest-tests:
	@$(NEWEST_LOOPS) $(NEWEST)/bin/twofold $(DEMO)
	$(call stage,tests with the newest versions,$(NEWEST_LOOPS) $(NEWEST)/bin/python $(PYTEST) -m "not slow and not exhaustive and not browser" $(SHUFFLED) $(TESTS))

lock: $(DOCUMENTED) $(BROWSED)  ## write the versions that .venv holds to constraints.txt
	@echo "# What make setup installs, written by make lock. make newest tries other versions." \
	  > constraints.new
	@$(BIN)/python -m pip freeze --exclude-editable --disable-pip-version-check >> constraints.new
	@if grep -n '@\|://' constraints.new; then \
	  echo "make lock: the lines above were not installed by name and version" >&2; exit 1; \
	fi
	@LC_ALL=C sort -f -o constraints.txt constraints.new
	@rm constraints.new
	@touch $(INSTALLED) $(READY) $(DOCUMENTED) $(BROWSED)

clean:  ## remove the virtual environments, caches and build outputs
	rm -rf $(VENV) $(NEWEST) $(LIVE) $(OTHERS) build dist site .mypy_cache .ruff_cache .pytest_cache .hypothesis \
	  .import_linter_cache .mutants .numba-boundscheck *.egg-info
	find . -name __pycache__ -type d -prune -exec rm -rf {} +
