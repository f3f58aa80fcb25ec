# Every target sets itself up: the first call makes .venv and installs the exact versions of requirements.lock,
# later calls start at once.
# The first that starts, is new enough and can make environments (a shim of pyenv may be there and not start);
# `make PYTHON=/path/to/python …` names another.
PYTHON ?= $(shell for each in python3.11 python3.12 python3.13 python3 python; do \
	$$each -c 'import sys, venv, ensurepip; sys.exit(sys.version_info < (3, 11))' >/dev/null 2>&1 && { echo $$each; break; }; done)
BIN := .venv/bin
READY := .venv/.ready

.PHONY: help demo demo-images test quick breakages faults fuzz lint bench docs lock install-check clean
.DEFAULT_GOAL := help

help: ## this list
	@grep -E '^[a-z-]+:.*## ' $(MAKEFILE_LIST) | awk -F':.*## ' '{printf "make %-13s %s\n", $$1, $$2}'

$(READY): requirements.lock pyproject.toml
	@test -n "$(PYTHON)" || { echo "make: found no Python 3.11 or newer with venv and ensurepip (Debian, Ubuntu: apt install \
	python3-venv); install one, or name it: make PYTHON=/path/to/python" >&2; exit 1; }
	$(PYTHON) -m venv .venv
	$(BIN)/pip install --quiet --disable-pip-version-check -r requirements.lock
	$(BIN)/pip install --quiet --disable-pip-version-check --no-deps --no-build-isolation -e .
	@touch $@

# Rows of the demo. RINCE is told class and group; so is SCL summed over levels; SCL is told the class.
ROWS := frozen scl-in scl-levels rince-in scl-out rince-out-in
RUNS := $(ROWS:%=runs/demo/%)
DEFINITIONS := data.source=definitions optimizer.lr=0.003 train.epochs=30  # as in results/definitions

demo: $(READY) ## a pretrained text model, dictionary definitions, six rows, and a page that compares: runs/demo/report/index.html
	@rm -rf runs/demo
	@for row in $(ROWS); do $(BIN)/rince train text/$$row $(DEFINITIONS) --out runs/demo/$$row || exit 1; done
	$(BIN)/rince evaluate $(RUNS) --outliers definitions-outliers
	$(BIN)/rince report $(RUNS) --out runs/demo/report

demo-images: $(READY) ## small images from scratch: Fashion-MNIST, SCL-in and RINCE-in: runs/demo-images/report/index.html
	@rm -rf runs/demo-images
	$(BIN)/rince train demo/scl-in --out runs/demo-images/scl-in
	$(BIN)/rince train demo/rince-in --out runs/demo-images/rince-in
	$(BIN)/rince evaluate runs/demo-images/scl-in runs/demo-images/rince-in
	$(BIN)/rince report runs/demo-images/scl-in runs/demo-images/rince-in --out runs/demo-images/report

# A worker of pytest per core and one more (tests/conftest.py), and one thread of torch per worker: more of them would only wait for each other. Each
# worker begins with its own part of the files, so that what the tests of a file share is made once.
PYTEST := OMP_NUM_THREADS=1 $(BIN)/python -m pytest --numprocesses=auto --dist=worksteal

test: $(READY) ## all tests, on all cores (6 minutes on two)
	$(PYTEST)

quick: $(READY) ## tests of the parts, without training, compiling or other processes (a minute on two cores)
	$(PYTEST) -m "not slow" tests/unit tests/golden tests/properties

breakages: $(READY) ## break the source on purpose, one way at a time, and tell what no test noticed; ONLY=name for one
	$(BIN)/python tests/breakages.py $(ONLY)

faults: $(READY) ## every file-system call of every command that writes fails once, or kills; COMMANDS="train cp" EVERY=5 for some
	OMP_NUM_THREADS=1 $(BIN)/python tests/faults.py $(COMMANDS) $(if $(EVERY),--every $(EVERY))

SECONDS ?= 300
fuzz: $(READY) ## mutated recipes, calls and files for SECONDS=300 on all cores; what breaks is kept in tests/findings
	OMP_NUM_THREADS=1 PYTHONPATH=tests $(BIN)/python tests/fuzz.py $(SECONDS) $(SEED)

lint: $(READY) ## ruff and mypy
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy

bench: $(READY) ## speed and memory, as ratios (40 minutes; CIFAR=DIR/cifar100 adds one); leave the machine alone meanwhile
	$(BIN)/python benchmarks/loss_speed.py
	$(BIN)/python benchmarks/in_batch_speed.py
	$(BIN)/python benchmarks/cached_speed.py
	$(BIN)/python benchmarks/scaling.py
	$(BIN)/python benchmarks/views_speed.py
	$(BIN)/python benchmarks/step_speed.py
	$(BIN)/python benchmarks/video_speed.py
	$(BIN)/python benchmarks/large_images_speed.py
	$(BIN)/python benchmarks/pretrained_speed.py
	$(BIN)/python benchmarks/evaluation_speed.py $(CIFAR)
	$(BIN)/python benchmarks/search_speed.py

docs: $(READY) ## the documentation, into docs/_build/html
	$(BIN)/sphinx-build -W --keep-going -q docs docs/_build/html
	@echo "docs/_build/html/index.html"

lock: $(READY) ## rewrite requirements.lock from what is installed
	$(BIN)/python scripts/lock.py

install-check: $(READY) ## fresh environments, each extra alone: every command works or names the extra (pip: 10 minutes a Python)
	$(BIN)/python scripts/install_check.py $(foreach each,$(PYTHONS),--python $(each))

clean: ## remove .venv and everything made
	rm -rf .venv docs/_build dist .pytest_cache .mypy_cache .ruff_cache
