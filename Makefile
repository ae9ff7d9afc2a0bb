# reread: one command each. `make doctor` says what is missing and the command that mends it.

EXPERIMENT ?= default
VENV := $(CURDIR)/.venv
BIN := $(VENV)/bin
PYTHON := $(BIN)/python
REREAD := $(PYTHON) -m commands
# DVC starts `python` by name: the environment's own comes first.
export PATH := $(BIN):$(PATH)
export REREAD_PROJECT := $(CURDIR)
# Without --force nothing is accepted that data.dvc does not describe.
TAKE_UP := dvc commit --quiet data.dvc </dev/null 2>/dev/null
NOT_DESCRIBED := data/ is not what data.dvc describes: 'dvc add data' if you added or changed data, then commit \
data.dvc and data.manifest.json; else remove data/ and run 'make data' again
# Python 3.11, or the nearest there is.
SYSTEM_PYTHON := $(shell command -v python3.11 || command -v python3)

.PHONY: install ext checked-data data run repro test test-packages lint format docs docs-check ui serve doctor clean

run: data
	$(REREAD) run --experiment $(EXPERIMENT)

install: $(VENV)/installed

# torch first and by itself: a user's pip takes the build that suits the machine (CPU or CUDA), whose hashes differ.
# The lock file is complete and is installed as it stands: pip's resolver, let loose on it, takes a new release of a
# package that another one asks for with extras, and then refuses it for want of a hash. `pip check` has the last word.
$(VENV)/installed: requirements.lock
	$(SYSTEM_PYTHON) -m venv $(VENV)
	$(BIN)/pip install --quiet --disable-pip-version-check torch==2.13.0
	$(BIN)/pip install --quiet --disable-pip-version-check --require-hashes --no-deps -r requirements.lock
	$(BIN)/pip install --quiet --disable-pip-version-check --no-deps --no-build-isolation --editable .
	$(BIN)/pip check --disable-pip-version-check
	touch $@

# A DVC remote is asked first, where one is configured. Then data/ is made or checked against data.manifest.json.
checked-data: install
	@if [ -n "$$(dvc remote list)" ]; then dvc pull data.dvc || echo "no data from the remote: building it here"; fi
	@$(REREAD) data

# DVC takes data/ up if it is what data.dvc describes. Where it is not, a run needs no more than the manifest.
data: checked-data
	@$(TAKE_UP) || echo "note: $(NOT_DESCRIBED)"

# The CUDA kernels of cuda_ext/, compiled ahead of time: needs nvcc, no GPU.
ext: install
	$(PYTHON) -m cuda_ext.build

repro: checked-data
	@$(TAKE_UP) || { echo "error: $(NOT_DESCRIBED)" >&2; exit 2; }
	dvc repro $(if $(filter default,$(EXPERIMENT)),,results/dvc.yaml:experiment@$(EXPERIMENT))

# What the tests need beside Python: a browser, on machines where Debian's packages can be installed.
test-packages:
	@if [ -n "$$CI" ] && ! command -v chromedriver >/dev/null; then \
	  apt-get update -qq && apt-get install -y -qq chromium chromium-driver >/dev/null; fi

test: data test-packages
	$(PYTHON) -m pytest -n 2 --dist worksteal

lint: install
	ruff format --check .
	ruff check .
	mypy

format: install
	ruff format .
	ruff check --fix .

# The site, without a network. -W: a broken reference or a module that cannot be imported fails the build.
docs: install
	sphinx-build --quiet --fail-on-warning --keep-going -d .cache/docs docs site

docs-check: docs
	$(PYTHON) docs/check.py site
	$(PYTHON) docs/tables.py --check

ui: install
	$(REREAD) ui

serve: install
	$(REREAD) serve

doctor:
	@$(SYSTEM_PYTHON) commands/preflight.py && $(REREAD) doctor

# Caches alone: runs, prepared arrays and what MLflow remembers stay (see `reread prune`).
clean:
	rm -rf .pytest_cache .ruff_cache .mypy_cache .cache/docs site docs/api
	find . -name __pycache__ -not -path './.venv/*' -prune -exec rm -rf {} +
