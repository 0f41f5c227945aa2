# Everything a contributor does. Each target sets up what it needs first; `make` lists them.

PYTHON ?= python3
EXTRAS ?= dev,spark,delta
ONLY   ?=
export PYTHON EXTRAS

BIN := .venv/bin
PY  := $(BIN)/python

# The hot modules are listed in pyproject.toml. An edit to one of them, and going to or from
# PENSTOCK_PURE=1, makes `compiled` out of date.
HOT := $(shell $(PYTHON) -c 'import tomllib; print(*tomllib.load(open("pyproject.toml", "rb"))["tool"]["penstock"]["compiled"])' 2>/dev/null)
READY := .venv/.ready-$(EXTRAS)
COMPILED := .venv/.compiled$(if $(filter-out 0,$(PENSTOCK_PURE)),-pure)

# Fetches the jars of Delta, once for all checkouts of this user.
JARS := $(if $(findstring delta,$(EXTRAS)),$(PY) -m penstock.cli jars --set delta >/dev/null,:)

# What mypy reads, as far as it is there.
TYPED := $(wildcard src tests bench examples scripts hatch_build.py)

.DEFAULT_GOAL := help
.PHONY: help setup demo test test-fast check bench figures reference crash fuzz build lock clean
.DELETE_ON_ERROR:
MAKEFLAGS += --no-print-directory

help: ## list the targets
	@awk -F ':.*## ' '/^[a-z-]+:.*## / { printf "  make %-10s %s\n", $$1, $$2 }' $(MAKEFILE_LIST)

setup: $(COMPILED) ## make .venv with the locked versions, compile the hot modules, fetch jars
	@$(JARS) || echo "penstock: all but Delta tables works without them" >&2
	@$(PY) -c 'import penstock; b = penstock.build_info(); print(f"penstock {b.version} is ready in .venv, {len(b.compiled)} of $(words $(HOT)) hot modules compiled")'

demo: $(COMPILED) ## see Penstock at work
	@$(PY) examples/demo.py

test: $(COMPILED) ## run all tests, then most of them again uncompiled
	@$(JARS)
	@$(PY) -m pytest
	@echo "again as plain Python (PENSTOCK_PURE=1), without crash, spark and slow tests"
	@PENSTOCK_PURE=1 $(PY) -m pytest -m "not crash and not spark and not slow"

test-fast: $(COMPILED) ## run the tests that take moments
	@$(PY) -m pytest -q -m "not crash and not spark and not slow"

check: $(COMPILED) ## lint, format, types, and who may import whom
	@$(BIN)/ruff check
	@$(BIN)/ruff format --check
	@$(BIN)/mypy $(TYPED)
	@$(BIN)/lint-imports --no-logo
	@$(PY) scripts/reference.py --check

bench: $(COMPILED) ## measure; ONLY=log measures one thing
	@$(PY) -m bench $(ONLY)

figures: $(COMPILED) ## put what bench and crash measured last into the README
	@$(PY) -m bench.readme

reference: $(COMPILED) ## write docs/configuration.md from the code
	@$(PY) scripts/reference.py

crash: $(COMPILED) ## kill the log 200 times and check that nothing confirmed was lost
	@PENSTOCK_CRASH_ROUNDS=200 PENSTOCK_CRASH_OUT=bench/out/crash.json $(PY) -m pytest -s tests/crash

fuzz: $(COMPILED) ## throw malformed bytes at every codec
	@$(PY) -m tests.fuzz

build: $(COMPILED) ## make the source archive and the wheel in dist/
	@rm -rf dist
	@$(PY) -m hatchling build -d dist

lock: $(READY) ## resolve all dependencies anew into requirements.lock
	@$(PY) scripts/lock.py

clean: ## remove .venv, extensions, caches and build products
	@rm -rf .venv build dist .mypy_cache .ruff_cache .pytest_cache .hypothesis .import_linter_cache
	@find src tests bench -name __pycache__ -prune -exec rm -rf {} + 2>/dev/null || true
	@find src -name '*.so' -delete

$(READY): pyproject.toml requirements.lock hatch_build.py scripts/setup.sh
	@scripts/setup.sh
	@touch $@

$(COMPILED): $(READY) $(HOT)
	@$(if $(HOT),$(if $(filter %-pure,$@),:,echo "penstock: compiling $(words $(HOT)) hot modules ..." >&2))
	@$(PY) hatch_build.py
	@rm -f .venv/.compiled* && touch $@
