# make check   set up .venv/ and judge this machine
# make test    set up .venv/ with the development tools and run everything that CI runs
#
# make lint, types, docs, bench, fuzz, dist, clean   one part each; docs writes docs/checks/ and README.md
#
# PYTHON  the interpreter of the environment that trains; its torch is used and never changed
# TORCH   what to install into .venv/ where PYTHON has no torch: a requirement, or empty for none
# TORCH_INDEX  where from; without an NVIDIA driver the index of CPU wheels
# ARGS    options of `fsdp-doctor check` (make check) or of pytest (make test)
PYTHON ?= python3
TORCH ?= torch==2.13.0
TORCH_INDEX ?= $(if $(wildcard /dev/nvidiactl),,https://download.pytorch.org/whl/cpu)
ARGS ?=

VENV := .venv
BIN := $(VENV)/bin
PIP := $(BIN)/python -m pip install --quiet --disable-pip-version-check
BASE := $(VENV)/.base
DEV := $(VENV)/.dev
# .venv/ is made anew where PYTHON is another interpreter than the one it was made from.
FROM := $(shell command -v "$(PYTHON)")
RENEW := $(if $(filter $(CURDIR)/$(BIN)/% $(shell cat $(VENV)/made-from 2>/dev/null),$(FROM)),,renew)

# What ARGS selects may be in one part of the tests alone.
NONE := $(if $(ARGS),|| [ $$? -eq 5 ])

.PHONY: check test lint types docs bench fuzz dist clean renew
.DEFAULT_GOAL := check

check: $(BASE)
	@$(BIN)/fsdp-doctor check --python "$$(cat $(VENV)/trained-with)" $(ARGS)

# Ranks that talk over gloo keep both cores busy, and their tests have deadlines: one at a time.
test: lint types
	$(BIN)/python -m pytest -n 2 --dist loadfile $(ARGS) tests/unit tests/fuzz $(NONE)
	$(BIN)/python -m pytest $(ARGS) tests/integration $(NONE)

lint: $(DEV)
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/lint-imports
	$(BIN)/interrogate --quiet doctor checks

types: $(DEV)
	$(BIN)/mypy

docs: $(DEV)
	$(BIN)/python -m tools.write_docs

bench: $(DEV)
	$(BIN)/python -m bench.spine
	$(BIN)/python -m bench.ranks
	$(BIN)/python -m bench.flight
	$(BIN)/python -m bench.diagnose
	$(BIN)/python -m bench.run

# Five minutes a reader; ARGS: names of readers, --seed N, --seconds S.
fuzz: $(DEV)
	$(BIN)/python -m tests.fuzz --seconds 300 --keep fuzz-failures $(ARGS)

dist: $(DEV)
	$(BIN)/python -m build --outdir dist .

clean:
	rm -rf $(VENV) build dist *.egg-info .mypy_cache .ruff_cache .pytest_cache

$(BASE): pyproject.toml tools/venv.py $(RENEW)
	$(PYTHON) tools/venv.py $(VENV) --made-from '$(FROM)' --torch '$(TORCH)' --torch-index '$(TORCH_INDEX)'
	$(PIP) --editable .
	@touch $@

$(DEV): $(BASE)
	$(PIP) --editable '.[dev,hf,live,logs,remote]'
	@touch $@
