# Everything a person types. `make demo` and `make test` set up what they need on a fresh machine.
PYTHON      ?= python3.11
VENV        := .venv
BIN         := $(VENV)/bin
STAMP       := $(VENV)/.installed
PACKAGES    := $(VENV)/.packages
LOCK        := requirements/cpu.lock
ENVS        := $(VENV)/.envs
ENVS_LOCK   := requirements/envs.lock
DOCS        := $(VENV)/.docs
DOCS_LOCK   := requirements/docs.lock
TOOLS       := $(VENV)/.tools
TOOLS_LOCK  := requirements/tools.lock
TORCH       := torch==2.13.0+cpu
# Where the CPU build of torch is taken from when pip does not already know a folder that has it.
TORCH_INDEX ?= https://download.pytorch.org/whl/cpu
FIND_LINKS   = $(shell $(BIN)/pip config get global.find-links 2>/dev/null)

# One thread each for engine, learner and driver: more only contend on small machines.
export OMP_NUM_THREADS ?= 1
export TOKENIZERS_PARALLELISM ?= false

.DEFAULT_GOAL := help
.PHONY: help setup envs demo test test-release test-fast test-python check format docs docs-serve walkthrough dist peers oracles bench serve clean

help: ## this list
	@grep -hE '^[a-z-]+:.*##' $(MAKEFILE_LIST) | awk -F':.*## ' '{printf "  make %-11s %s\n", $$1, $$2}'

setup: $(STAMP) ## create .venv with the tested set of packages

$(STAMP): $(PACKAGES) pyproject.toml
	VIRTUAL_ENV=$(VENV) $(BIN)/uv pip install --quiet --no-deps --editable .
	@touch $@

$(PACKAGES): $(LOCK)
	@command -v $(PYTHON) >/dev/null || { echo "$(PYTHON) is not installed; install it, or name another: make PYTHON=/path/to/python3.11 $(MAKECMDGOALS)"; exit 1; }
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info[:2] != (3, 11))' || { echo "the CPU set is locked for Python 3.11, and $(PYTHON) is another; name one: make PYTHON=/path/to/python3.11"; exit 1; }
	$(PYTHON) -m venv --clear $(VENV)
	$(BIN)/pip install --quiet --disable-pip-version-check uv==0.13.9
	$(BIN)/pip install --quiet --disable-pip-version-check --no-deps "$(TORCH)" \
	  || $(BIN)/pip install --quiet --disable-pip-version-check --no-deps --index-url $(TORCH_INDEX) "$(TORCH)"
	VIRTUAL_ENV=$(VENV) $(BIN)/uv pip install --quiet --compile-bytecode --no-deps $(if $(FIND_LINKS),--find-links $(FIND_LINKS)) -r $(LOCK)
	@touch $@

envs: $(ENVS) ## add the packages of the environments (compiles two of them once: about a minute)

# uv keeps what it compiled, so that a new .venv gets it at once.
$(ENVS): $(ENVS_LOCK) $(PACKAGES)
	VIRTUAL_ENV=$(VENV) $(BIN)/uv pip install --quiet --compile-bytecode --no-deps $(if $(FIND_LINKS),--find-links $(FIND_LINKS)) -r $(ENVS_LOCK)
	@touch $@

$(TOOLS): $(TOOLS_LOCK) $(PACKAGES)
	VIRTUAL_ENV=$(VENV) $(BIN)/uv pip install --quiet --no-deps $(if $(FIND_LINKS),--find-links $(FIND_LINKS)) -r $(TOOLS_LOCK)
	@touch $@

demo: $(STAMP) ## watch a small model learn to use a calculator (minutes, no GPU)
	$(BIN)/agentfly train recipes/demo.toml $(ARGS)

# The many small tests side by side; then, two at a time and the longest first, those that start engines, learners and
# containers.
SMALL := not stack and not slow and not container

test: $(STAMP) ## run the tests, or some: make test ARGS=tests/store
ifdef ARGS
	$(BIN)/python -m pytest $(ARGS)
else
	$(BIN)/python -m pytest -m "$(SMALL)" -n auto --maxprocesses 8 --dist loadfile --durations=25
	$(BIN)/python -m pytest -m "not ($(SMALL)) and not release" -n auto --maxprocesses 2 --dist loadfile --no-loadscope-reorder --durations=25
endif

test-release: $(STAMP) ## run the few tests that `make test` leaves out
	$(BIN)/python -m pytest -m release $(ARGS)

test-fast: $(STAMP) ## run the tests that take milliseconds
	$(BIN)/python -m pytest -m "$(SMALL)" -n auto --maxprocesses 8 --dist loadfile $(ARGS)

test-python: ## run the tests that need no engine on another Python: make test-python PYTHON=python3.12
	$(PYTHON) -m venv --clear .venv-light
	.venv-light/bin/pip install --quiet --disable-pip-version-check uv==0.13.9
	VIRTUAL_ENV=.venv-light .venv-light/bin/uv pip install --quiet ".[dev]"
	.venv-light/bin/python -m pytest -q -m "$(SMALL)" $(ARGS)

check: $(STAMP) $(ENVS) $(DOCS) $(TOOLS) ## formatting, lint, types, import direction
	$(BIN)/ruff format --check .
	$(BIN)/ruff check .
	$(BIN)/pyright
	$(BIN)/lint-imports

format: $(STAMP) ## rewrite formatting, fix what can be fixed
	$(BIN)/ruff format .
	$(BIN)/ruff check --fix .

$(DOCS): $(DOCS_LOCK) $(PACKAGES)
	VIRTUAL_ENV=$(VENV) $(BIN)/uv pip install --quiet --compile-bytecode --no-deps $(if $(FIND_LINKS),--find-links $(FIND_LINKS)) -r $(DOCS_LOCK)
	@touch $@

# The theme's own news is not ours.
docs: $(STAMP) $(DOCS) ## the documentation as a site that opens without a network: site/index.html
	NO_MKDOCS_2_WARNING=1 $(BIN)/mkdocs build --strict $(ARGS)

docs-serve: $(STAMP) $(DOCS) ## the same while you write it, on 127.0.0.1:8080
	NO_MKDOCS_2_WARNING=1 $(BIN)/mkdocs serve --dev-addr 127.0.0.1:8080 $(ARGS)

walkthrough: ## follow docs/getting-started.md word for word in a fresh clone (before a release: about ten minutes)
	$(PYTHON) tests/docs/walkthrough.py $(ARGS)

dist: $(STAMP) ## wheel and source distribution in dist/
	$(BIN)/python -m hatchling build --directory dist

# Each in an environment of its own, from complete lists of pinned packages; the project itself needs none of them.
peers: $(STAMP) ## add the peers that benchmarks compare with: TRL, verifiers, verl
	for peer in trl verifiers verl; do \
	  test -x .venv-$$peer/bin/python || $(PYTHON) -m venv .venv-$$peer; \
	  VIRTUAL_ENV=.venv-$$peer $(BIN)/uv pip install --quiet --no-deps $(if $(FIND_LINKS),--find-links $(FIND_LINKS)) -r requirements/peers/$$peer.txt; \
	done

# It sees the project's packages too: what is compared runs in one process.
oracles: $(STAMP) ## hold algorithms against verl's and TRL's own code, and run what needs bitsandbytes
	test -x .venv-oracles/bin/python || $(PYTHON) -m venv .venv-oracles
	realpath $(VENV)/lib/python3*/site-packages >"$$(echo .venv-oracles/lib/python3*/site-packages)/ours.pth"
	VIRTUAL_ENV=.venv-oracles $(BIN)/uv pip install --quiet --no-deps $(if $(FIND_LINKS),--find-links $(FIND_LINKS)) -r requirements/peers/oracles.txt
	.venv-oracles/bin/python -m pytest tests/training/test_oracles.py tests/training/test_lora.py -k "TestVerl or TestTrl or four_bits" $(ARGS)

bench: $(STAMP) ## measure: every benchmark, as ratios within one run
	$(BIN)/python -m benchmarks $(ARGS)

serve: $(STAMP) ## Prefect and MLflow servers, a worker and the deployments, until Ctrl-C
	$(BIN)/agentfly serve $(ARGS)

clean: ## remove the environment and caches (never runs/)
	rm -rf $(VENV) .pytest_cache .ruff_cache .hypothesis .import_linter_cache
