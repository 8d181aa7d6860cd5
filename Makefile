# `make search` and `make test` work on a fresh machine with Python 3.11 or newer and nothing else.

PYTHON ?= python3
VENV   ?= .venv
BIN    := $(VENV)/bin
QUICK  ?= runs/quickstart

.PHONY: search test lint bench install clean

install: $(VENV)/.installed

# torch first and by its exact version: a range would let pip prefer a build with gigabytes of CUDA libraries.
$(VENV)/.installed: pyproject.toml constraints.txt
	$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11) and "Python 3.11 or newer is needed: make PYTHON=python3.12")'
	$(PYTHON) -m venv $(VENV)
	$(BIN)/python -m pip install --quiet --upgrade pip
	$(BIN)/python -m pip install --quiet "$$(grep '^torch==' constraints.txt)"
	$(BIN)/python -m pip install --quiet -c constraints.txt -e '.[dev]'
	touch $@

# The quickstart: a small base, the same trial with and without the recurrence, and both scored on the test split.
# What is finished is kept, what was interrupted goes on.
RUN = test -e $(QUICK)/$(1)/result.json || $(BIN)/recur-tune $(2) --out $(QUICK)/$(1) $$(test -d $(QUICK)/$(1)/resume && echo --resume)

search: install
	$(call RUN,base,pretrain --preset tiny --corpus stdlib)
	$(call RUN,plain,train trials/quickstart.yaml --base $(QUICK)/base --recurrence none)
	$(call RUN,recurrent,train trials/quickstart.yaml --base $(QUICK)/base --recurrence memory)
	$(BIN)/recur-tune eval $(QUICK)/plain --split test
	$(BIN)/recur-tune eval $(QUICK)/recurrent --split test

test: install lint
	$(BIN)/python -m pytest $(PYTEST_ARGS)

lint: install
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy

bench: install
	$(BIN)/python benchmarks/train_step.py

clean:
	rm -rf $(VENV) runs .pytest_cache .mypy_cache .ruff_cache .hypothesis
