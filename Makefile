# `make search` and `make test` work on a fresh machine with Python 3.11 or newer and nothing else.

PYTHON ?= python3
VENV   ?= .venv
BIN    := $(VENV)/bin

.PHONY: search test lint docs pictures bench bench-gpu install packages clean

install: $(VENV)/.installed

# torch first and by its exact version: a range would let pip prefer a build with gigabytes of CUDA libraries.
$(VENV)/.installed: pyproject.toml constraints.txt
	$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11) and "Python 3.11 or newer is needed: make PYTHON=python3.12")'
	$(PYTHON) -m venv $(VENV)
	$(BIN)/python -m pip install --quiet --upgrade pip
	$(BIN)/python -m pip install --quiet "$$(grep '^torch==' constraints.txt)"
	$(BIN)/python -m pip install --quiet -c constraints.txt -e '.[dev]'
	touch $@

# A front from nothing: a small base is pretrained once, and a search adds recurrence to it.
search: install
	$(BIN)/recur-tune search

# What starts clusters runs alone: a dozen processes of Ray are enough for two cores.
test: install lint packages
	$(BIN)/python -m pytest -n auto -m "not ray and not slurm" $(PYTEST_ARGS)
	$(BIN)/python -m pytest -m ray $(PYTEST_ARGS)
	$(BIN)/python -m pytest -m slurm $(PYTEST_ARGS)

packages:
	@sh tests/packages.sh

lint: install
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy

# A site in build/site, from docs/ and the README files.
docs: install
	$(BIN)/python -m mkdocs build --strict

# Every picture in them, from a real search; it takes minutes.
pictures: install packages
	$(BIN)/python docs/make_pictures.py

bench: install
	$(BIN)/python benchmarks/train_step.py
	$(BIN)/python benchmarks/search_overhead.py
	$(BIN)/python benchmarks/search_quality.py
	$(BIN)/python benchmarks/report_scale.py

# On any machine with CUDA and our packages: first that every fast way is right, then how fast it is. Training
# steps read random tokens, or real ones: make bench-gpu CORPUS=text:BOOKS TOKENIZER=gpt2
bench-gpu:
	$(PYTHON) benchmarks/check_gpu.py
	$(PYTHON) benchmarks/train_step.py --base gpt2 --batch 16 64 --window 300 --windows 20 --budget 16GiB 80GiB --steps 5 \
	  $(if $(CORPUS),--corpus $(CORPUS)) $(if $(TOKENIZER),--tokenizer $(TOKENIZER))
	$(PYTHON) benchmarks/first_step.py --base mini --window 300 --windows 10 --batch 16
	$(PYTHON) benchmarks/shared_gpu.py
	$(PYTHON) benchmarks/evaluation.py --base gpt2 --window 300 --overlap 30 --documents 20 --length 40000 --lanes 20

clean:
	rm -rf $(VENV) runs .pytest_cache .mypy_cache .ruff_cache .hypothesis
