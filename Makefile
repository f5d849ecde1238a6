# Everything a person types here; `make` alone lists it. The first target that needs Python builds .venv.
VENV  := .venv
STAMP := $(VENV)/.installed
ONLY  ?=
ARGS  ?=
SEED  ?= 1
DURATION_S ?= 60
LAST  ?= 30
FROM  ?=
FILE  ?= docs/benchmarks/chaos/$(shell date -u +%F).jsonl
# Test files that run at the same time, each with engines of its own.
AT_ONCE ?= 2

.DEFAULT_GOAL := help
.PHONY: help up demo test check openapi bench chaos chaos-seeds upgrade test-floor lock clean
.PHONY: check-format check-lint check-types check-imports check-tree

help: ## List the targets
	@awk -F ':.*## ' '/^[a-z-]+:.*## / {printf "  make %-11s %s\n", $$1, $$2}' $(MAKEFILE_LIST)

up: $(STAMP) ## Start the whole stack on this machine; ARGS="--split --port 8080" passes options on
	@$(VENV)/bin/millpond up $(ARGS)

demo: $(STAMP) ## From nothing to an exact bill in two minutes, in a folder of its own
	@$(VENV)/bin/millpond demo $(ARGS)

test: $(STAMP) ## Run every test that this machine can run, in one pytest run; AT_ONCE=4 takes four files at a time
	@$(VENV)/bin/pytest -n $(AT_ONCE) --dist loadfile $(ARGS)

check: check-format check-lint check-types check-imports check-tree ## Format, lint, types, import rules and the rules of the tree

check-format: $(STAMP)
	@$(VENV)/bin/ruff format --check .
check-lint: $(STAMP)
	@$(VENV)/bin/ruff check .
check-types: $(STAMP)
	@$(VENV)/bin/mypy
check-imports: $(STAMP)
	@$(VENV)/bin/lint-imports --no-logo
check-tree: $(STAMP)
	@$(VENV)/bin/pytest -q tests/architecture

openapi: $(STAMP) ## Write all that is generated: API documents, events schema, settings and error pages, proxy file, asynchronous client
	@$(VENV)/bin/python -m tools.generate

bench: $(STAMP) ## Measure; one JSON object per figure; ONLY=name for one of them
	@$(VENV)/bin/python -m tests.benchmarks $(ONLY)

chaos: $(STAMP) ## Faults of every kind against a split stack under load, one JSON line: SEED=n DURATION_S=s
	@$(VENV)/bin/python -m tests.system.chaos --seed $(SEED) --duration-s $(DURATION_S) $(ARGS)

chaos-seeds: $(STAMP) ## The same with the seeds 1 to LAST, appended to FILE with a page beside it; goes on where it stopped
	@$(VENV)/bin/python -m tests.system.chaos.seeds $(FILE) --last $(LAST) --duration-s $(DURATION_S) $(ARGS)

upgrade: $(STAMP) ## The code of an earlier commit and this one side by side on one database, one JSON line: FROM=commit
	@$(VENV)/bin/python -m tests.system.upgrade --from "$(FROM)" $(ARGS)

test-floor: $(STAMP) ## Run the integration tests on the oldest supported versions (Debian 12's PostgreSQL 15, Redis 7.0)
	@tools/test-floor $(ARGS)

lock: $(STAMP) ## Pin every dependency with hashes: requirements.lock for the product, requirements-dev.lock for .venv
	@tools/lock

clean: ## Remove .venv and every cache (never the data of a stack)
	rm -rf $(VENV) .mypy_cache .ruff_cache .pytest_cache .hypothesis .import_linter_cache build dist
	find services client tests migrations tools -name __pycache__ -type d -prune -exec rm -rf {} +

.env: | $(STAMP)
	@$(VENV)/bin/python tools/compose_env.py

$(STAMP): pyproject.toml $(wildcard requirements-dev.lock)
	@VENV=$(VENV) tools/install
	@touch $@
