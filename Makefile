# builder: make help lists what can be made. Everything that is made here lies in .venv, .cache, dist and reports.

MAKEFLAGS += --no-builtin-rules --no-print-directory
SHELL := /bin/bash
.DEFAULT_GOAL := help

VENV := .venv
STAMP := $(VENV)/.set-up
BIN := $(VENV)/bin
TARGET ?= cpu
PYTEST_ARGS ?=

# In CI nothing is kept outside the clone.
ifeq ($(CI),true)
export BUILDER_CACHE ?= $(CURDIR)/.cache/builder
export XDG_CACHE_HOME := $(CURDIR)/.cache/xdg
export PIP_CACHE_DIR := $(CURDIR)/.cache/pip
export UV_CACHE_DIR := $(CURDIR)/.cache/uv
export PYTEST_DEBUG_TEMPROOT := $(CURDIR)/.cache/tmp
endif

APT_IMAGE := ca-certificates mmdebstrap uidmap
APT_TEST := $(APT_IMAGE) apache2-utils apparmor buildah chromium containerd docker-compose docker.io docker-registry fuse-overlayfs libseccomp2 \
	libsqlite3-0 munge openssl podman runc shellcheck siftool skopeo slurm-wlm squashfs-tools squashfuse umoci util-linux
SHELL_SCRIPTS := .ci/run scripts/apt-install scripts/setup

.PHONY: help setup apt-image apt-test parts image test lint format bench clean

help: ## list what can be made
	@grep -hE '^[a-z-]+:.*## ' $(MAKEFILE_LIST) | sed -E 's/^([a-z-]+):.*## (.*)/  \1\t\2/' | expand -t 14

setup: $(STAMP) ## make .venv with builder (editable) and everything for its tests

$(STAMP): pyproject.toml scripts/setup
	@scripts/setup $(VENV)
	@touch $@

apt-image: ## install the Debian packages that make image needs (root or sudo)
	@scripts/apt-install "make image" $(APT_IMAGE)

apt-test: ## install the Debian packages that make test needs: engines, a registry, tools (root or sudo)
	@scripts/apt-install "make test" $(APT_TEST)

parts: setup ## put Apptainer into .cache/parts, for the tests
	@$(BIN)/python -m tests.support.install $(CURDIR)/.cache/parts/apptainer

image: apt-image setup ## build an image (TARGET=cpu), smoke-test it, and say where it is
	@$(BIN)/builder build $(TARGET)
	@$(BIN)/builder smoke $(TARGET)
	@echo "image: oci:$(CURDIR)/dist:$(TARGET)"

# Without its parts a test is skipped with the reason; with CI=true it fails.
test: setup ## run the tests (PYTEST_ARGS="-k name" for some)
	@scripts/apt-install "make test" $(APT_TEST) || [ "$(CI)" != true ]
	@$(BIN)/python -m tests.support.install $(CURDIR)/.cache/parts/apptainer >/dev/null || [ "$(CI)" != true ]
	@mkdir -p .cache/tmp
	@$(BIN)/python -m pytest -o tmp_path_retention_policy=failed $(PYTEST_ARGS)

lint: setup ## ruff, mypy --strict and shellcheck
	@$(BIN)/ruff check .
	@$(BIN)/ruff format --check .
	@$(BIN)/mypy
	@if command -v shellcheck >/dev/null; then shellcheck $(SHELL_SCRIPTS); else echo "no shellcheck (make apt-test)"; fi

format: setup ## let ruff put the sources in order
	@$(BIN)/ruff check --fix .
	@$(BIN)/ruff format .

bench: apt-test setup ## measure against docker build and buildah, into docs/performance.md (root; about half an hour)
	@$(BIN)/python -m benchmarks.bench_publish
	@$(BIN)/python -m benchmarks.bench_sif

clean: ## remove what was made, but for the package caches
	rm -rf $(VENV) dist reports .mypy_cache .ruff_cache .pytest_cache .cache/bench/work
	find . -name __pycache__ -type d -prune -exec rm -rf {} +
