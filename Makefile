# Everyday commands as one-line targets; the work is done by `python -m runner`.
SHELL := /bin/bash
.SHELLFLAGS := -euo pipefail -c
.DEFAULT_GOAL := help
MAKEFLAGS += --no-print-directory

VENV := .venv
BIN := $(VENV)/bin
RUNNER := $(BIN)/python -m runner
# Without the stand-in's scripts: they imitate NGC's files exactly.
SCRIPTS = $(shell find containers recipes runner -name '*.sh' -not -path '*/standin/rootfs/*')

# Unit tests share the processors, two to each, as half of them wait. 8: more cost more to start than they save.
SIDE_BY_SIDE := --numprocesses $(shell echo $$((2 * $$(nproc)))) --maxprocesses 8 --dist worksteal

# Tests call the virtual environment's tools by name.
unit test test-%: export PATH := $(CURDIR)/$(BIN):$(PATH)
# Else each process would compile all tests and the program anew, 10 s in all.
unit test test-%: export PYTHONDONTWRITEBYTECODE :=

.PHONY: help
help: ## list the targets
	@grep -E '^[a-z-]+:.*## ' Makefile | sed -E 's/:[^#]*## /\t/' | awk -F '\t' '{ printf "  make %-16s %s\n", $$1, $$2 }'

$(VENV)/.ready: requirements.lock pyproject.toml runner/setup/venv.sh runner/setup/python.sh
	@sh runner/setup/venv.sh $(VENV)

.PHONY: venv
venv: $(VENV)/.ready ## the virtual environment, from the lock

.PHONY: quickstart
quickstart: venv ## set everything up on this machine and run the main job
	@$(RUNNER) box quickstart

.PHONY: image-pytorch
image-pytorch: venv ## NGC PyTorch with a working Horovod
	@$(RUNNER) build pytorch

.PHONY: image-tensorflow
image-tensorflow: venv ## NGC TensorFlow with its own Horovod if that works, else with ours
	@$(RUNNER) build tensorflow

.PHONY: sqsh-pytorch
sqsh-pytorch: venv ## the PyTorch image as a squashfs
	@$(RUNNER) convert gpu-runner/horovod-pytorch:25.02-py3

.PHONY: sqsh-tensorflow
sqsh-tensorflow: venv ## the TensorFlow image as a squashfs
	@$(RUNNER) convert gpu-runner/horovod-tensorflow:25.02-tf2-py3

.PHONY: prove-gpu
prove-gpu: venv ## what works on this machine's GPUs, rung by rung (PROVE='--quick ...': options of `prove`)
	@$(RUNNER) prove $(PROVE)

.PHONY: proofs
proofs: venv ## write the tables of pages: proofs and README.md from runner/sites/proofs.yaml, failures, launchers
	.venv/bin/python -m tests.support.proof_pages

.PHONY: docs
docs: venv ## the pages as a site with search, in build/pages/site
	@sh runner/setup/pages/build.sh $(BIN)/python

.PHONY: dist
dist: venv ## the release file in dist/, for `pip install dist/*.whl`
	@mkdir -p dist; . runner/setup/python.sh; own_tmp dist; trap 'rm -rf "$$TMPDIR"' EXIT; \
	$(BIN)/python -m pip --disable-pip-version-check --quiet wheel --no-deps --no-build-isolation --wheel-dir dist .
	@ls dist/*.whl

.PHONY: release
release: venv ## wheel, sdist, list of components and checksums in dist/VERSION, of a clean tree; tags nothing
	@sh runner/setup/release.sh $(BIN)/python

.PHONY: install
install: ## for all users: PREFIX=/opt/gpu-runner [MODULEFILE=a directory of MODULEPATH] [PYTHON=...]; docs/security.md
	@sh runner/setup/install.sh

.PHONY: lint
lint: venv ## ruff, mypy, the layers, the shell scripts
	@$(BIN)/ruff format --check .
	@$(BIN)/ruff check .
	@$(BIN)/mypy
	@$(BIN)/lint-imports
	@$(BIN)/shellcheck --external-sources --source-path=SCRIPTDIR $(SCRIPTS)

.PHONY: unit
unit: venv ## unit and golden tests: no root, engine or Slurm needed
	@$(BIN)/pytest tests/unit tests/golden $(SIDE_BY_SIDE)

# CI=true: a selected test may not skip. COLD=1: an empty cache and a private engine without images, both removed at the
# end. As both are empty, COLD is unset for the commands: with it, each test would build everything again.
# Integration tests run one at a time, after the others; the last line counts all. Status 1 of pytest: tests failed.
.PHONY: test
test: venv ## everything: lint, then all tests on real parts (COLD=1: with an empty cache)
	@started=$$SECONDS; \
	cold='$(filter-out 0,$(COLD))'; \
	if [ "$$cold" ]; then \
		unset COLD; \
		RUNNER_CACHE="$$(mktemp -d)"; export RUNNER_CACHE; \
		trap '$(RUNNER) box clean --yes >/dev/null' EXIT; \
	fi; \
	$(MAKE) lint; \
	$(RUNNER) box quickstart --only-prepare $${cold:+--private-engine}; \
	if [ "$$cold" ]; then \
		DOCKER_HOST="$$($(BIN)/python -c 'from runner.images import engine as e; print(e.private_url(e.private_state()))')"; \
		export DOCKER_HOST; \
	fi; \
	echo "lint and preparation: $$((SECONDS - started)) s"; \
	export CI=true MAKE_TEST_BEGAN=$$((EPOCHSECONDS - SECONDS + started)); \
	reports="$$(mktemp)"; \
	trap 'rm -f "$$reports"; if [ "$$cold" ]; then $(RUNNER) box clean --yes >/dev/null; fi' EXIT; \
	units=0; \
	$(BIN)/pytest tests/unit tests/golden $(SIDE_BY_SIDE) --leave="$$reports" || units=$$?; \
	if [ $$units -gt 1 ]; then exit $$units; fi; \
	$(BIN)/pytest tests/integration --numprocesses 0 --count-in="$$reports"

# Each is a folder of tests/long. Record date and result of a run in docs/proofs.md.
.PHONY: test-faults test-images test-launchers test-prove test-recipes test-sites test-slurm-versions test-studies
test-faults test-images test-launchers test-prove test-recipes test-sites test-slurm-versions test-studies: test-%: venv ## a long test suite: faults, images, launchers, prove, recipes, sites, slurm-versions or studies
	@$(RUNNER) box quickstart --only-prepare
	@CI=true $(BIN)/pytest tests/long/$(subst -,_,$*)

.PHONY: test-gpu-image
test-gpu-image: venv ## Horovod compiled with CUDA and NCCL in an image, examined and tried on CPUs (6 GB; no GPU needed)
	@CI=true $(BIN)/pytest tests/long/gpu_image

.PHONY: bench-rendezvous
bench-rendezvous: export PATH := $(CURDIR)/$(BIN):$(PATH)
bench-rendezvous: venv ## our rendezvous and Horovod's, 16 to 512 clients, in the box
	@$(RUNNER) box quickstart --only-prepare
	@CI=true $(BIN)/pytest -s tests/long/benchmarks/test_rendezvous.py

.PHONY: bench-meter
bench-meter: export PATH := $(CURDIR)/$(BIN):$(PATH)
bench-meter: venv ## what the meter of your own script costs, on a small network on one processor
	@$(RUNNER) box quickstart --only-prepare
	@CI=true $(BIN)/pytest -s tests/long/benchmarks/test_meter.py

.PHONY: bench-recipes
bench-recipes: export PATH := $(CURDIR)/$(BIN):$(PATH)
bench-recipes: venv ## the benchmarks beside a plain Horovod script, and what each setting changes, on CPUs (ONLY=pytorch or tensorflow)
	@$(RUNNER) box quickstart --only-prepare
	@CI=true $(BIN)/pytest -s tests/long/benchmarks/test_recipes.py -k '$(ONLY)'

.PHONY: bench-convert
bench-convert: venv ## how fast an image becomes a squashfs, compared with Enroot and with lower bounds
	@$(RUNNER) box quickstart --only-prepare
	@$(BIN)/python -m benchmarks.convert

.PHONY: bench-start
bench-start: venv ## how fast a container starts on 2, 8 and 16 nodes of the box, in each way
	@$(RUNNER) box quickstart --only-prepare
	@$(BIN)/python -m benchmarks.start

.PHONY: bench-change
bench-change: venv ## from a changed line of a requirements file to 16 ranks that have started, in the box
	@$(RUNNER) quickstart --only-prepare
	@$(BIN)/python -m benchmarks.change

.PHONY: bench-cli
bench-cli: venv ## what the command line takes before it does anything, as multiples of bare Python
	@$(BIN)/python -m benchmarks.cli

.PHONY: bench-statistics
bench-statistics: venv ## how often the rules behind a figure err, by simulation
	@$(BIN)/python -m benchmarks.statistics

.PHONY: bench-scale
bench-scale: venv ## what watching and judging cost with many ranks and runs, and how that grows
	@$(BIN)/python -m benchmarks.scale

.PHONY: bench-tests
bench-tests: venv ## whether the tests notice the faults of benchmarks/faults.yaml, one by one (`python -m benchmarks.test_power mutants`: random ones)
	@$(BIN)/python -m benchmarks.test_power faults

.PHONY: clean
clean: venv ## stop boxes and the private engine; remove images, caches and the virtual environment
	@$(RUNNER) box clean --yes
	@rm -rf $(VENV) .mypy_cache .ruff_cache .pytest_cache .hypothesis .import_linter_cache
	@echo "removed $(VENV) and the tools' caches"
