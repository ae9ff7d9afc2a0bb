# reread: one target per task. `make doctor` prints what is missing and the command that fixes it.

EXPERIMENT ?= default
VENV := $(CURDIR)/.venv
BIN := $(VENV)/bin
PYTHON := $(BIN)/python
REREAD := $(PYTHON) -m reread
# DVC starts `python` by name: the environment's own comes first.
export PATH := $(BIN):$(PATH)
export REREAD_PROJECT := $(CURDIR)
# Without --force DVC records only data that data.dvc describes already.
RECORD_DATA := dvc commit --quiet data.dvc </dev/null 2>/dev/null
NOT_DESCRIBED := data/ is not what data.dvc describes: 'dvc add data' if you added or changed data, then commit \
data.dvc and data.manifest.json; else remove data/ and run 'make data' again
# Python 3.11, or else the default one.
SYSTEM_PYTHON := $(shell command -v python3.11 || command -v python3)

.PHONY: install ext wheel checked-data data run repro test test-packages lint audit format docs docs-check screens tour ui serve \
        doctor clean

# Published runs have no weights. The first run trains here, whatever results/ has, so that there are models.
run: export REREAD_PUBLISHED ?= $(if $(filter default,$(EXPERIMENT)),false,true)
run: data
	$(REREAD) run --experiment $(EXPERIMENT)

install: $(VENV)/installed .cache/vega.js

PIP := $(BIN)/pip --quiet --disable-pip-version-check
# Of the builds of torch that pip finds (CPU or CUDA), the one that it prefers. Given the hashes of both, it takes CUDA's.
TORCH_BUILD = $(PIP) install --dry-run --ignore-installed --no-deps --only-binary=:all: --report - torch==2.13.0 | $(PYTHON) \
  -c 'import json, sys; print("cpu" if "+cpu" in json.load(sys.stdin)["install"][0]["metadata"]["version"] else "cuda")'

# --no-deps: the lock files are complete. pip's resolver would choose a newer release of a package that another one requires
# with extras, and then reject it because its hash is missing. `pip check` verifies the result. editable_mode: by default
# Python that starts in the folder of a clone named reread imports the clone's folder, in which there is nothing.
$(VENV)/installed: requirements.lock requirements-cpu.lock requirements-cuda.lock pyproject.toml
	$(SYSTEM_PYTHON) -m venv $(VENV)
	$(PIP) install --require-hashes --no-deps -r requirements.lock
	build=$$($(TORCH_BUILD)) && $(PIP) install --require-hashes --no-deps -r requirements-$$build.lock
	$(PIP) install --no-deps --no-build-isolation --config-settings editable_mode=compat --editable .
	$(BIN)/pip check --disable-pip-version-check
	touch $@

# The script of DVC's page of plots, which then needs no network.
.cache/vega.js: | $(VENV)/installed
	@$(PYTHON) -m reread.evaluation.vega

# Pull from a DVC remote, if one is configured. Then build data/ or check it against data.manifest.json. `dvc pull` would
# write to any path that the remote's list of files names: the list is checked first, and exit code 2 refuses it.
checked-data: install
	@if [ -n "$$(dvc remote list)" ]; then \
	  { $(PYTHON) -m tasks.dvc_cache && dvc fetch data.dvc && dvc checkout data.dvc; } || \
	  { test $$? -ne 2 && echo "no data from the remote: building it here"; }; fi
	@$(REREAD) data

# Let DVC cache data/ if data.dvc describes it. If not, print a note: a run needs the manifest only.
data: checked-data
	@$(RECORD_DATA) || echo "note: $(NOT_DESCRIBED)"

# Compile the CUDA kernels of cuda_ext/, for one compute capability with GPU=9.0. This needs nvcc and no GPU.
ext: install
	$(PYTHON) -m cuda_ext.build $(if $(GPU),--gpu $(GPU))

# Build the kernels as a wheel of their own, in dist/. This needs nvcc and no GPU.
wheel: install
	$(PYTHON) -m cuda_ext.wheel

repro: checked-data
	@$(RECORD_DATA) || { echo "error: $(NOT_DESCRIBED)" >&2; exit 2; }
	@$(PYTHON) -m tasks.machine
	dvc repro $(if $(filter default,$(EXPERIMENT)),,results/dvc.yaml:experiment@$(EXPERIMENT))

# Install the browser of the tests and, where they can be had, PostgreSQL and Slurm, in CI on Debian.
test-packages:
	@if [ -n "$$CI" ] && ! command -v chromedriver >/dev/null; then \
	  apt-get update -qq && apt-get install -y -qq chromium chromium-driver >/dev/null; fi
	@if [ -n "$$CI" ] && ! command -v pg_dump >/dev/null; then \
	  { apt-get update -qq && DEBIAN_FRONTEND=noninteractive apt-get install -y -qq postgresql >/dev/null; } \
	  || echo "note: PostgreSQL cannot be installed: the tests that need it are skipped"; fi
	@if [ -n "$$CI" ] && ! test -x /usr/sbin/slurmctld; then \
	  { apt-get update -qq && DEBIAN_FRONTEND=noninteractive timeout 180 apt-get install -y -qq slurm-wlm munge >/dev/null; } \
	  || echo "note: Slurm cannot be installed: the tests that need it are skipped"; fi

# Tests start hundreds of processes: bytecode is written, so that each need not compile the project again.
test: export PYTHONDONTWRITEBYTECODE =
test: data test-packages
	$(PYTHON) -m pytest -n 4 --dist loadfile --no-loadscope-reorder

lint: install
	ruff format --check .
	ruff check .
	mypy

# Compare the locked packages with an index of known vulnerabilities, if one answers.
audit: install
	$(PYTHON) -m venv .cache/audit
	.cache/audit/bin/pip install --quiet --disable-pip-version-check --require-hashes --no-deps -r .ci/audit.lock
	$(PYTHON) .ci/audit.py .cache/audit/bin/pip-audit requirements.lock requirements-cuda.lock

format: install
	ruff format .
	ruff check --fix .

# Build the site without a network. A broken reference or a module that cannot be imported is an error.
docs: install
	sphinx-build --quiet --fail-on-warning --keep-going -j auto -d .cache/docs docs site
	$(REREAD) index results --output site/claims --title "Claims that reread tested"

docs-check: docs
	$(PYTHON) docs/check.py site
	$(PYTHON) docs/tables.py --check
	$(PYTHON) docs/pictures.py --check

# Take the pictures in docs/ of the report, the page of attention, MLflow, Prefect and DVC, of the default experiment.
screens: install test-packages .cache/vega.js
	$(PYTHON) -m tests.reread.evaluation.pages
	$(PYTHON) -m tests.reread.tracking.comparison han gru-flat
	$(PYTHON) -m tests.reread.commands.screens

# Execute the notebook in docs/ on the runs of the tiny experiment.
tour: install
	$(REREAD) run --experiment tiny
	jupyter execute --inplace docs/tour.ipynb

ui: install
	$(REREAD) ui

serve: install
	$(REREAD) serve

doctor:
	@$(SYSTEM_PYTHON) reread/commands/preflight.py && $(REREAD) doctor

# Remove caches only. `reread prune` removes runs and prepared arrays.
clean:
	rm -rf .pytest_cache .ruff_cache .mypy_cache .cache/docs site docs/api
	find . -name __pycache__ -not -path './.venv/*' -prune -exec rm -rf {} +
