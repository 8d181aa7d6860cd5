# `make search` and `make test` work on a fresh machine with Python 3.11 or newer and nothing else.

PYTHON ?= python3
VENV   ?= .venv
BIN    := $(VENV)/bin

.PHONY: help search test test-quick test-unit test-ray test-slurm test-gpu soak lint docs pictures bench bench-gpu newest install packages clean

help:  ## what can be made here
	@sed -n 's/^\([a-z-]*\):.*## /\1\t/p' $(MAKEFILE_LIST) | expand -t 14

install: $(VENV)/.installed  ## an environment in .venv with everything in it

# setuptools warns of every editable installation, which looks like an error at the end.
# torch first and by its exact version: a range would let pip prefer a build with gigabytes of CUDA libraries.
$(VENV)/.installed: pyproject.toml constraints.txt
	$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11) and "Python 3.11 or newer is needed: make PYTHON=python3.12")'
	@echo "installing into $(VENV): about 180 packages, 3 GB; some minutes, by the network"
	$(PYTHON) -m venv $(VENV)
	$(BIN)/python -m pip install --quiet --upgrade pip
	@echo "installing torch, the largest of them ..."
	$(BIN)/python -m pip install --quiet "$$(grep '^torch==' constraints.txt)"
	@echo "installing the others: Ray, transformers, MLflow, Optuna and what the tests need ..."
	PYTHONWARNINGS='ignore:Editable installation' $(BIN)/python -m pip install --quiet -c constraints.txt -e '.[dev]'
	@echo "installed; next: . $(BIN)/activate"
	touch $@

# A small base is pretrained once, and a search adds recurrence to it.
search: install  ## a front from nothing, in minutes
	$(BIN)/recur-tune search

# PYTEST_ARGS goes to each leg's pytest: make test-unit PYTEST_ARGS="-k front"
test: install packages  ## all tests, side by side, and what took the time
	$(BIN)/python -m tests.legs $(PYTEST_ARGS)

test-quick: install  ## while writing: no cluster, server, browser or compiler
	$(BIN)/python -m tests.legs --only quick $(PYTEST_ARGS)

test-unit: install packages  ## everything without a cluster: models, training, costs, commands, MLflow, pages in a browser
	$(BIN)/python -m tests.legs --only unit $(PYTEST_ARGS)

test-ray: install packages  ## whole searches on Ray, and what can happen to them
	$(BIN)/python -m tests.legs --only ray $(PYTEST_ARGS)

test-slurm: install packages  ## searches in a SLURM of three nodes on this machine (Linux, root)
	$(BIN)/python -m tests.legs --only slurm $(PYTEST_ARGS)

# On any machine with CUDA and our packages. Above tests/kernels is a conftest.py that hides GPUs, so it is left out.
test-gpu:  ## every Triton kernel compiled for a GPU, by the tests that run it in Triton's interpreter elsewhere
	$(PYTHON) -m pytest --confcutdir=tests/kernels tests/kernels $(PYTEST_ARGS)

# Not a part of the tests: make soak MINUTES=10 SEED=7
MINUTES ?= 60
SEED    ?= 1
soak: install packages  ## an hour of searches in that SLURM with a fault every minute; the report is build/soak
	$(BIN)/python -m tests.soak --minutes $(MINUTES) --seed $(SEED)

packages:  ## what the tests need beside Python, from Debian's packages
	@sh tests/packages.sh

lint: install  ## style and types
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy

newest: install  ## a report: the unit tests against the newest Ray, Optuna and MLflow that we allow
	VENV=$(VENV) .ci/newest $(PYTEST_ARGS)

docs: install  ## a site in build/site, from docs/ and the README files
	$(BIN)/python -m mkdocs build --strict

pictures: install packages  ## every picture of the docs, from a real search; it takes minutes
	$(BIN)/python docs/make_pictures.py
	$(BIN)/python docs/make_search_pictures.py

bench: install  ## tables of speed and of search quality, for a CPU
	$(BIN)/python benchmarks/train_step.py
	$(BIN)/python benchmarks/search_overhead.py
	$(BIN)/python benchmarks/search_quality.py --seeds 3 --skip-slow
	$(BIN)/python benchmarks/report_scale.py
	$(BIN)/python benchmarks/log_scale.py

# On any machine with CUDA and our packages: first that every fast way is right, then how fast it is. Training
# steps read random tokens, or real ones: make bench-gpu CORPUS=text:BOOKS TOKENIZER=gpt2
bench-gpu:  ## the same for a GPU, after checking that every fast way is right
	$(PYTHON) benchmarks/check_gpu.py
	$(PYTHON) benchmarks/train_step.py --base gpt2 --batch 16 64 --window 300 --bptt-windows 20 --budget 16GiB 80GiB --steps 3 \
	  --stock best --micro-batch 256 \
	  $(if $(CORPUS),--corpus $(CORPUS)) $(if $(TOKENIZER),--tokenizer $(TOKENIZER))
	$(PYTHON) benchmarks/mechanisms.py --base mini --batch 16 --window 300 --bptt-windows 10
	$(PYTHON) benchmarks/first_step.py --base mini --window 300 --bptt-windows 10 --batch 16
	$(PYTHON) benchmarks/shared_gpu.py --trials 64 --alone 4 --shares 1 auto
	$(PYTHON) benchmarks/evaluation.py --base gpt2 --window 300 --overlap 30 --documents 20 --length 40000 --batch 20

clean:  ## remove the environment, single runs and caches; searches in results/ stay
	rm -rf $(VENV) runs .pytest_cache .mypy_cache .ruff_cache .hypothesis
