# builder: make help lists the targets. Everything they make is in .venv, .cache, dist and reports.

MAKEFLAGS += --no-builtin-rules --no-print-directory
SHELL := /bin/bash
.DEFAULT_GOAL := help

VENV := .venv
STAMP := $(VENV)/.set-up
BIN := $(VENV)/bin
PYTEST_ARGS ?=
BENCH_ARGS ?=
# Tests wait for other programs half of the time.
WORKERS ?= $(shell n=$$(nproc); echo $$((n < 4 ? n + 1 : 4)))

# In CI nothing is written outside the clone, and the heavy parts are tested too.
HEAVY :=
ifeq ($(CI),true)
HEAVY := yes
export BUILDER_CACHE ?= $(CURDIR)/.cache/builder
export XDG_CACHE_HOME := $(CURDIR)/.cache/xdg
export PIP_CACHE_DIR := $(CURDIR)/.cache/pip
export UV_CACHE_DIR := $(CURDIR)/.cache/uv
export PYTEST_DEBUG_TEMPROOT := $(CURDIR)/.cache/tmp
endif

APT_IMAGE := ca-certificates mmdebstrap uidmap
APT_TEST := $(APT_IMAGE) apache2-utils apparmor containerd docker.io docker-registry fuse-overlayfs gcc jq libc6-dev \
	libseccomp2 libslurm-dev libsqlite3-0 munge openssl podman \
	qemu-user-static runc shellcheck siftool skopeo slurm-wlm squashfs-tools squashfuse umoci util-linux
APT_HEAVY := chromium docker-compose iproute2 libmpich12
APT_BENCH := $(APT_TEST) debian-archive-keyring
SHELL_SCRIPTS := .ci/run scripts/apt-install scripts/bundle scripts/setup $(wildcard findings/*.sh)
# Texts of builder: some have no first line, and all may have @NAME@ where builder writes a value. They are part
# of images, where a comment for shellcheck would change the digest.
SHELL_PARTS := $(wildcard builder/*/*.sh builder/*/*/*.sh)

.PHONY: help setup apt-image apt-test parts image test test-unit test-user test-all newest soak lint format bench \
	requirements schemas audit clean

help: ## list the targets
	@grep -hE '^[a-z-]+:.*## ' $(MAKEFILE_LIST) | sed -E 's/^([a-z-]+):.*## (.*)/  \1\t\2/' | expand -t 14

setup: $(STAMP) ## make .venv with builder (editable) and the tools for its tests
	@mkdir -p .cache/tmp

$(STAMP): pyproject.toml requirements/dev.txt scripts/setup
	@scripts/setup $(VENV)
	@touch $@

apt-image: ## install the Debian packages that make image needs (root or sudo)
	@scripts/apt-install "make image" $(APT_IMAGE)

apt-test: ## install the Debian packages that make test needs: engines, a registry, tools (root or sudo)
	@scripts/apt-install "make test" $(APT_TEST) $(if $(HEAVY),$(APT_HEAVY))

parts: setup ## put what tests share into .cache/parts: a Debian base; for heavy tests Apptainer, torch and Ray
	@$(BIN)/python -m tests.support.install $(CURDIR)/.cache/parts $(HEAVY)

# Unless TARGET names a target, it is cpu, or cpu-jax where nothing has torch for the CPU (tests/support/first_target).
# Where conda-forge does not answer, a channel of Debian's python takes its place (tests/support/debian_channel).
image: apt-image setup ## build an image (of TARGET=NAME if given), smoke-test it, and print the next command
	@target=$(or $(TARGET),$$($(BIN)/python -m tests.support.first_target)) && \
	mirrors=$$($(BIN)/python -m tests.support.debian_channel .cache/channel) && \
	export BUILDER_MIRRORS="$$mirrors" && \
	$(BIN)/builder build $$target && $(BIN)/builder smoke $$target && \
	case $$target in cpu) module=torch;; cpu-jax) module=jax;; *) module=numpy;; esac && \
	echo "image: oci:$(CURDIR)/dist:$$target" && \
	echo "next:  $(BIN)/builder run $$target -- python -c 'import $$module; print($$module.__version__)'"

# A file stays on one worker, with the parts that its tests share; the slow files come first.
PYTEST = $(BIN)/python -m pytest -n $(WORKERS) --dist loadfile --no-loadscope-reorder

test-unit: setup ## run the unit tests: no daemon, no network
	@$(PYTEST) tests/unit $(PYTEST_ARGS)

SELECT ?= $(if $(HEAVY),,-m "not heavy")
# A test without its part is skipped with the reason; with CI=true it fails.
test: setup ## run all tests but the heavy ones (PYTEST_ARGS="-k name" for some); with CI=true all
	@$(MAKE) apt-test || [ "$(CI)" != true ]
	@$(MAKE) parts >/dev/null || [ "$(CI)" != true ]
	@$(PYTEST) -o tmp_path_retention_policy=failed $(SELECT) $(PYTEST_ARGS)

test-user: setup ## run make image, unit tests and walks as an ordinary user of a plain Debian, in a folder (root)
	@$(MAKE) apt-test
	@$(BIN)/python -m tests.ordinary_user

test-all: ## run all tests, those with heavy parts (engines, Slurm, a browser, torch) too
	@$(MAKE) test HEAVY=yes

newest: setup ## run the quick tests with Debian sid and the newest dependencies, outside CI (root; PYTEST_ARGS)
	@$(BIN)/python -m tests.newest $(APT_TEST) "$(PYTEST_ARGS)"

soak: setup parts ## run the fuzz tests for long, with 77 killed builds, 100 flipped bits, full disks (root)
	@HYPOTHESIS_PROFILE=soak $(PYTEST) tests/unit tests/integration/test_chaos.py -k "fuzz or chaos" $(PYTEST_ARGS)

lint: setup ## ruff, mypy --strict and shellcheck
	@$(BIN)/ruff check .
	@$(BIN)/ruff format --check .
	@$(BIN)/mypy
	@if command -v shellcheck >/dev/null; then shellcheck $(SHELL_SCRIPTS) && \
		shellcheck --shell=sh --exclude=SC1090,SC1091,SC2043 $(SHELL_PARTS); \
		else echo "no shellcheck (make apt-test)"; fi

format: setup ## let ruff format the sources
	@$(BIN)/ruff check --fix .
	@$(BIN)/ruff format .

.PHONY: bundle docs docs-serve pictures
BUNDLE ?= bundle
BUNDLE_PYTHON_VERSION ?= 3.11
BUNDLE_ARCHITECTURE ?= x86_64
bundle: setup ## put the wheels of builder and its requirements into bundle/, for a host without a package index
	@BUNDLE_PYTHON=$(BIN)/python scripts/bundle $(BUNDLE) $(BUNDLE_PYTHON_VERSION) $(BUNDLE_ARCHITECTURE)

MKDOCS = NO_MKDOCS_2_WARNING=1 $(BIN)/mkdocs

docs: setup ## build the documentation as a site, into site/
	@$(MKDOCS) build --strict --quiet
	@echo "documentation: file://$(CURDIR)/site/index.html (open it in a browser)"

pictures: setup ## make the picture of the README again, from a real run
	@$(BIN)/python scripts/docs/pictures.py

docs-serve: setup ## show the documentation at http://127.0.0.1:8000, and build it again after each change
	@$(MKDOCS) serve --strict --dev-addr 127.0.0.1:8000

bench: setup ## measure beside docker, buildah and apptainer, into docs/performance.md (root; BENCH_ARGS=--quick: 6 minutes)
	@scripts/apt-install "make bench" $(APT_BENCH)
	@$(BIN)/python -m benchmarks $(BENCH_ARGS)

REQUIREMENTS = $(BIN)/uv pip compile -q --universal --python-version 3.11 --generate-hashes --no-header --no-annotate \
	--no-emit-index-url --no-emit-find-links pyproject.toml

requirements: setup ## lock builder's own dependencies again, by hash (REQUIREMENTS_ARGS=--upgrade for newer versions)
	@$(REQUIREMENTS) $(REQUIREMENTS_ARGS) --extra dev --output-file requirements/dev.txt
	@$(REQUIREMENTS) --constraint requirements/dev.txt --output-file requirements/run.txt

schemas: setup ## write docs/schemas/ again: of recipes, site files, and what --json prints
	@$(BIN)/python -c 'from builder.cli.schemas import SCHEMAS; print(*SCHEMAS, sep="\n")' | \
		while read -r name; do $(BIN)/builder help schema $$name >docs/schemas/$$name.schema.json; done

audit: setup ## look up the locked dependencies in the advisory database, and what advice names in the index (network)
	@$(BIN)/pip-audit --strict --disable-pip --require-hashes --requirement requirements/dev.txt
	@$(BIN)/python -m pytest -q tests/integration/test_advice.py

clean: ## remove what was made, but not the package caches
	rm -rf $(VENV) dist reports site bundle .mypy_cache .ruff_cache builder/.ruff_cache .pytest_cache .cache/bench/work
	find . -name __pycache__ -type d -prune -exec rm -rf {} +
