# Two commands do everything on a fresh machine: `make run` and `make test`.
PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
STAMP := $(VENV)/.installed

.DEFAULT_GOAL := help
.PHONY: help run test test-all quick check fix bench plant cluster cluster-shell cluster-do cluster-down cluster-test cluster-bench docs clean

help: ## show this list
	@awk -F ':.*## ' '/^[a-z-]+:.*## /{printf "  make %-14s %s\n", $$1, $$2}' Makefile

$(STAMP): pyproject.toml $(wildcard controller/retinue/sandbox/runtime/*)
	@.ci/prepare "$(PYTHON)"
	@$(PYTHON) -m venv $(VENV)
	@$(BIN)/python -m pip install -qq --disable-pip-version-check --editable '.[dev]'
	@touch $(STAMP)

run: $(STAMP) ## the demo: services, checks, sandboxes, a trainer, six kills, a clean end
	@PATH="$(CURDIR)/$(BIN):$$PATH" retinue run docs/quickstart/run.yaml -- python docs/quickstart/trainer.py

test: ## all tests; installs what they need (as root: also the root-only part, as two users)
	@.ci/test "$(PYTHON)"

test-all: export CLUSTER = 1
test-all: test bench ## tests, also those on a real Slurm (as root), and the slow extras, each with its time

quick: $(STAMP) ## pure part only (without the math library), under 15 s
	@$(BIN)/python -m pytest -q -n 2 tests/unit tests/sim tests/test_rooms.py tests/test_docs.py --ignore-glob="*/test_verifiers_*"

check: $(STAMP) ## format, lint, types, import walls; changes nothing
	@$(BIN)/ruff format --check .
	@$(BIN)/ruff check .
	@$(BIN)/mypy
	@$(BIN)/python -m pytest -q tests/test_rooms.py

fix: $(STAMP) ## format and apply safe fixes
	@$(BIN)/ruff format .
	@$(BIN)/ruff check --fix .

bench: $(STAMP) ## measurements, as medians and ratios; asserts nothing
	@for script in tests/bench/bench_*.py; do echo "== $$script"; $(BIN)/python "$$script" || exit 1; done

plant: $(STAMP) ## plant known bugs one by one and show that the suite catches each
	@$(BIN)/python tests/plants/plant.py

cluster: ## a throwaway real Slurm on this machine (root): NODES=4 NAME=main CLUSTER_USER=you SHARE="dirs in /tmp"
	@.ci/cluster up "$(PYTHON)"

cluster-shell: ## a shell on its login node as an ordinary user; ON=node1 for another host
	@.ci/cluster shell "$(PYTHON)"

cluster-do: ## a fault: DO='cut node2', heal, blackhole, kill-node, revive, 'slurmctld stop', 'slurmd kill node1', where
	@.ci/cluster do "$(PYTHON)"

cluster-down: ## end the throwaway Slurm NAME; leaves nothing
	@.ci/cluster down "$(PYTHON)"

cluster-test: ## tests/cluster on a Slurm of their own (root)
	@.ci/cluster test "$(PYTHON)"

cluster-bench: ## measure a run on four Slurm nodes beside one srun per service (root)
	@.ci/cluster measure "$(PYTHON)"

docs: $(STAMP) ## write the generated pages again
	@$(BIN)/python -m retinue.manifest.reference > docs/manifest.md
	@$(BIN)/python -m retinue.lifecycle.diagram > docs/architecture-lifecycle.md

clean: ## remove what make made
	@rm -rf $(VENV) build dist retinue-runs .mypy_cache .ruff_cache .pytest_cache
