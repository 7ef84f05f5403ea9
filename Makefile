# Everything happens in a virtual environment in this folder; nothing else on the machine is changed.

PYTHON ?= python3
TORCH ?= tested

ifeq ($(TORCH),tested)
VENV := .venv
# The pins, less that of torch where a torch is installed already.
INSTALL = if $(BIN) -c 'from importlib.metadata import version; version("torch")' 2> /dev/null; \
	then grep -v '^torch==' constraints.txt; else cat constraints.txt; fi > $(VENV)/constraints.txt; \
	$(BIN) -m pip install -c $(VENV)/constraints.txt
else ifeq ($(TORCH),newest)
VENV := .venv-newest
INSTALL = $(BIN) -m pip install --upgrade torch
# Asked for each time: yesterday's newest may not be today's.
AGAIN := again
else ifneq ($(filter 2.%,$(TORCH)),)
VENV := .venv-$(TORCH)
INSTALL = $(BIN) -m pip install torch==$(TORCH)
else
$(error TORCH=$(TORCH) is not known: leave it out for the tested version, or say TORCH=2.11.0, say, or TORCH=newest)
endif
BIN := $(VENV)/bin/python

.PHONY: help tour test test-all test-twice rehearse mutations gpu notebooks docs site constraints lint again

help:
	@echo "make tour         run the first program, the lessons that lead to DDP, and those on the calls"
	@echo "make test         run the tests but the slow ones; ARGS='tests/cli/test_cli.py -x' goes to pytest"
	@echo "make test-all     run all tests"
	@echo "make rehearse     run on GPUs that are played on the CPU; needs Linux, g++ and the CPU build of torch"
	@echo "make mutations    plant random faults one by one, and list those that no test notices"
	@echo "make gpu          run on a machine with GPUs what nobody has run yet, for 12 minutes, and write an archive to send in"
	@echo "make notebooks    make the notebooks from the lessons, and execute them; ARGS=all_reduce makes one"
	@echo "make docs         make the generated parts of the documentation that take seconds; ARGS=claims makes one"
	@echo "make site         build the website into site/: open site/index.html then"
	@echo "make constraints  pin the versions in constraints.txt anew; ARGS=--upgrade takes the newest"
	@echo "make lint         check style, format and types"
	@echo
	@echo "The first of them makes the virtual environment $(VENV) and installs there what constraints.txt names."
	@echo "A torch that is in $(VENV) already, a CPU build for instance, is kept."
	@echo "  PYTHON=python3.12   make it with this Python, 3.11 or newer"
	@echo "  TORCH=newest        use the newest torch, without any pin, in .venv-newest"
	@echo "  TORCH=2.11.0        or this one, 2.9 or newer, in .venv-2.11.0"

tour: $(VENV)/installed
	$(BIN) -m torch.distributed.run --nproc-per-node 2 examples/first_training.py
	$(BIN) -m collectives run --route
	$(BIN) -m collectives run calls

# A test also waits for ranks: with twice as many processes as cores, no core is idle meanwhile.
WORKERS := $(shell echo $$(( $$(getconf _NPROCESSORS_ONLN) * 2 )))
PYTEST = $(BIN) -m pytest -n $(WORKERS) --dist worksteal --durations=15

test: $(VENV)/installed-for-tests
	$(PYTEST) -m "not slow" $(ARGS)

test-all: $(VENV)/installed-for-tests
	$(PYTEST) $(ARGS)

# A busy machine may exceed the time limits of a test. So tests that fail run once more, one after the other, and must pass then. Status 1 of
# pytest says that tests have failed; with any other one it has not run them all.
test-twice: $(VENV)/installed-for-tests
	$(PYTEST) -m "not weekly" || { [ $$? -eq 1 ] && $(BIN) -m pytest -m "not weekly" --last-failed; }

# What plays the GPUs is built once, in the virtual environment.
rehearse: $(VENV)/installed-for-tests
	$(BIN) tests/rehearsal/rehearse.py $(PYTEST) tests/rehearsal $(ARGS)

mutations: $(VENV)/installed-for-tests
	@$(INSTALL) -q -e '.[test,mutations]'
	$(BIN) -m tools.mutations $(ARGS)

# With .venv if it is there, else with PYTHON and what that has: a machine with GPUs may have no network.
gpu:
	@$(if $(wildcard $(BIN)),$(BIN),$(PYTHON)) -m tools.first_gpu_run $(ARGS)

notebooks: $(VENV)/installed-for-tests
	$(BIN) -m tools.notebooks $(ARGS)

# The translations need Babel, which the site brings.
docs: $(VENV)/installed-for-$(if $(filter translations,$(ARGS)),site,tests)
	$(BIN) -m tools.docs $(ARGS)

# Nothing is executed: the pages show what the committed notebooks hold.
site: $(VENV)/installed-for-site
	$(BIN) -m tools.site.build

# Keeps the pins that still fit; ARGS=--upgrade takes the newest versions. torch stays the tested one.
constraints: $(VENV)/made
	$(BIN) -m pip install uv
	echo 'torch==2.13.0' | $(BIN) -m uv pip compile -q pyproject.toml - --extra test --extra site --universal --python-version 3.11.5 \
		--no-annotate --no-emit-index-url --custom-compile-command 'make constraints' -o constraints.txt $(ARGS)

lint: $(VENV)/installed-for-tests
	$(BIN) -m ruff check
	$(BIN) -m ruff format --check
	$(BIN) -m mypy

# A virtual environment that somebody made here is used as it is.
$(VENV)/made:
	@$(BIN) -m pip --version > /dev/null 2>&1 || \
	$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' || { \
	echo "$(PYTHON) is not Python 3.11 or newer. Name one that is: make $(MAKECMDGOALS) PYTHON=python3.12" >&2; exit 2; }
	@$(BIN) -m pip --version > /dev/null 2>&1 || $(PYTHON) -m venv $(VENV)
	@touch $@

$(VENV)/installed: $(VENV)/made pyproject.toml constraints.txt $(AGAIN)
	@echo "Installing into $(VENV). The first time this takes minutes: torch is large."
	@$(INSTALL) -e '.[training]'
	@touch $@

$(VENV)/installed-for-tests: $(VENV)/made pyproject.toml constraints.txt $(AGAIN)
	@echo "Installing into $(VENV). The first time this takes minutes: torch is large."
	@$(INSTALL) -e '.[test]'
	@touch $@

$(VENV)/installed-for-site: $(VENV)/installed-for-tests
	@$(INSTALL) -e '.[test,site]'
	@touch $@
