# A shell line for each everyday command; what they do is in `python -m runner`.
SHELL := /bin/bash
.SHELLFLAGS := -euo pipefail -c
.DEFAULT_GOAL := help
MAKEFLAGS += --no-print-directory

VENV := .venv
BIN := $(VENV)/bin
RUNNER := $(BIN)/python -m runner
# Not the stand-in's: those imitate NGC's files as they are.
SCRIPTS = $(shell find containers recipes runner -name '*.sh' -not -path '*/standin/rootfs/*')

# Tests call tools of the virtual environment by name.
unit test test-%: export PATH := $(CURDIR)/$(BIN):$(PATH)

.PHONY: help
help: ## list the targets
	@grep -E '^[a-z-]+:.*## ' Makefile | sed -E 's/:[^#]*## /\t/' | awk -F '\t' '{ printf "  make %-16s %s\n", $$1, $$2 }'

$(VENV)/.ready: requirements.lock pyproject.toml runner/setup/venv.sh
	@sh runner/setup/venv.sh $(VENV)

.PHONY: venv
venv: $(VENV)/.ready ## the virtual environment, from the lock

.PHONY: quickstart
quickstart: venv ## set everything up on this machine and run the main job
	@$(RUNNER) quickstart

.PHONY: image-pytorch
image-pytorch: venv ## PyTorch of NGC with a Horovod that works
	@$(RUNNER) build pytorch

.PHONY: image-tensorflow
image-tensorflow: venv ## TensorFlow of NGC with its own Horovod, proven, or one that works
	@$(RUNNER) build tensorflow

.PHONY: sqsh-pytorch
sqsh-pytorch: venv ## the newest PyTorch image as a squashfs
	@$(RUNNER) convert gpu-runner/horovod-pytorch:25.02-py3

.PHONY: sqsh-tensorflow
sqsh-tensorflow: venv ## the newest TensorFlow image as a squashfs
	@$(RUNNER) convert gpu-runner/horovod-tensorflow:25.02-tf2-py3

.PHONY: lint
lint: venv ## ruff, mypy, the layers, the shell scripts
	@$(BIN)/ruff format --check .
	@$(BIN)/ruff check .
	@$(BIN)/mypy
	@$(BIN)/lint-imports
	@$(BIN)/shellcheck $(SCRIPTS)

.PHONY: unit
unit: venv ## the tests that need nothing, in seconds
	@$(BIN)/pytest -m 'not integration'

# CI=true: a selected test may not skip. COLD=1: an empty cache and an engine of its own with no image in it, both
# removed again. As both are empty, the verbs need no COLD then: it would make everything anew for each test.
.PHONY: test
test: venv ## everything: lint, then all tests on real parts (COLD=1: with an empty cache)
	@started=$$SECONDS; \
	cold='$(filter-out 0,$(COLD))'; \
	if [ "$$cold" ]; then \
		unset COLD; \
		RUNNER_CACHE="$$(mktemp -d)"; export RUNNER_CACHE; \
		trap '$(RUNNER) clean >/dev/null' EXIT; \
	fi; \
	$(MAKE) lint; \
	$(RUNNER) quickstart --only-prepare $${cold:+--private-engine}; \
	if [ "$$cold" ]; then \
		DOCKER_HOST="$$($(BIN)/python -c 'from runner.images import engine as e; print(e.private_url(e.default_state()))')"; \
		export DOCKER_HOST; \
	fi; \
	echo "lint and preparation: $$((SECONDS - started)) s"; \
	CI=true MAKE_TEST_BEGAN=$$((EPOCHSECONDS - SECONDS + started)) $(BIN)/pytest

# Each is a folder of tests/long; date and result of a run belong into docs/proofs.md.
.PHONY: test-faults test-images test-sites test-slurm-versions
test-faults test-images test-sites test-slurm-versions: test-%: venv ## a long proof
	@$(RUNNER) quickstart --only-prepare
	@CI=true $(BIN)/pytest tests/long/$(subst -,_,$*)

.PHONY: bench-rendezvous
bench-rendezvous: export PATH := $(CURDIR)/$(BIN):$(PATH)
bench-rendezvous: venv ## ours and Horovod's rendezvous side by side, 16 to 512 clients, in the box
	@$(RUNNER) quickstart --only-prepare
	@CI=true $(BIN)/pytest -s tests/long/benchmarks/test_rendezvous.py
.PHONY: bench-convert
bench-convert: venv ## how fast an image becomes a squashfs, beside Enroot's way and what bounds both
	@$(RUNNER) quickstart --only-prepare
	@$(BIN)/python -m benchmarks.convert

.PHONY: bench-start
bench-start: venv ## from an image to a first line on 2, 8 and 16 nodes of the box, each way of starting
	@$(RUNNER) quickstart --only-prepare
	@$(BIN)/python -m benchmarks.start

.PHONY: clean
clean: venv ## stop boxes and the private engine, remove all that is ours: images, caches, the virtual environment
	@$(RUNNER) clean
	@rm -rf $(VENV) .mypy_cache .ruff_cache .pytest_cache .hypothesis .import_linter_cache
	@echo "removed $(VENV) and the tools' caches"
