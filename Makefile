# Everything a fresh machine needs, from what is in this folder: `make demo` and `make test`.
#
# Downloads are kept in $RINGFENCE_CACHE (~/.cache/ringfence) and shared by all checkouts; once it
# is filled, nothing here needs the network.

SHELL := /bin/bash
.SHELLFLAGS := -eu -o pipefail -c
.DEFAULT_GOAL := help
.DELETE_ON_ERROR:
MAKEFLAGS += --no-builtin-rules

PYTHON ?= python3
BIN := .venv/bin
READY := .venv/.ready
CACHE := $(or $(RINGFENCE_CACHE),$(HOME)/.cache/ringfence)
PYTEST_FLAGS ?=
# Processes that the tests run in: most of them wait for brokers. One after the other: -n0.
PYTEST_PROCESSES ?= 4
BENCH_FLAGS ?=
ROUNDS ?= 22
ACCURACY_FLAGS ?=

.PHONY: help setup demo up test slow chaos parts lint format bench accuracy kafka schemas lock clean

help: ## Say what there is to make
	@grep -hE '^[a-z-]+:.*## ' $(MAKEFILE_LIST) | awk -F ':.*## ' '{ printf "  make %-8s %s\n", $$1, $$2 }'

setup: $(READY) ## Create .venv with exactly what requirements.lock names

demo: $(READY) ## Watch a faulty GPU being found, from its kernel log to the acknowledged command
	$(BIN)/ringfence demo

up: $(READY) ## Run all parts on this machine until Ctrl-C
	$(BIN)/ringfence up

test: $(READY) ## Run the tests; on Apache Kafka too where Java 17 and Maven are there
	@$(FETCH_KAFKA)
	$(BIN)/pytest -m "not slow" -n $(PYTEST_PROCESSES) $(PYTEST_FLAGS)
	@$(SAY_LEFT_OUT)

slow: $(READY) ## Run the tests that take long (5 is pytest's word for: there are none)
	@$(FETCH_KAFKA)
	$(BIN)/pytest -m slow $(PYTEST_FLAGS) || [ $$? -eq 5 ]

chaos: $(READY) ## Break things in the middle of streams of faults (ROUNDS=22; root for some of it)
	@$(FETCH_KAFKA)
	CHAOS_ROUNDS=$(ROUNDS) $(BIN)/pytest -m slow -s tests/chaos/test_rounds.py $(PYTEST_FLAGS)

parts: ## Install the Debian packages that some tests run against (as root), build Kubernetes
	bash deploy/test-parts.sh
	@bash deploy/test-apiserver.sh > /dev/null || echo "Left out: the tests on Kubernetes." >&2

lint: $(READY) ## ruff, ruff format, mypy and codespell
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy
	$(BIN)/mypy deploy/kafka/local_kafka.py
	$(BIN)/mypy deploy/kubernetes/local_plane.py
	MYPYPATH=bench $(BIN)/mypy bench/accuracy.py bench/fleet
	$(BIN)/codespell

format: $(READY) ## Format the code and mend what ruff can mend
	$(BIN)/ruff check --fix .
	$(BIN)/ruff format .

bench: $(READY) ## Measure: parsers, rules, Kafka and Faust, sink, latency
	@$(FETCH_KAFKA)
	$(BIN)/python bench/run.py $(BENCH_FLAGS)

accuracy: $(READY) ## Measure how right the verdicts are, on a simulated fleet with known faults
	$(BIN)/python bench/accuracy.py $(ACCURACY_FLAGS)

kafka: $(READY) ## Run one Apache Kafka on 127.0.0.1:9092 until Ctrl-C
	$(BIN)/python deploy/kafka/local_kafka.py

schemas: $(READY) ## Write the JSON Schemas of all records into docs/schemas
	$(BIN)/python -m evidence.schemas docs/schemas

lock: ## Resolve requirements.lock anew (needs uv)
	uv pip compile --universal --python-version 3.11 --generate-hashes --no-emit-index-url \
		--no-emit-find-links --all-extras --no-header --upgrade --quiet \
		-o requirements.lock pyproject.toml requirements.in

clean: ## Remove .venv and what the tools left; data and downloads stay
	rm -rf .venv .mypy_cache .ruff_cache .pytest_cache .hypothesis build dist *.egg-info
	find . -name __pycache__ -type d -prune -exec rm -rf {} +

# Fetched before pytest starts its clocks. Not having it is no error: the tests say what they left
# out (in CI, RINGFENCE_REQUIRE_KAFKA makes it one).
define FETCH_KAFKA
if [ -z "$${KAFKA_BOOTSTRAP:-}" ]; then \
	$(BIN)/python deploy/kafka/local_kafka.py --fetch > /dev/null \
		|| { [ -z "$${RINGFENCE_REQUIRE_KAFKA:-}" ] || exit 1; }; \
fi
endef

define SAY_LEFT_OUT
if [ -z "$${KAFKA_BOOTSTRAP:-}" ] && ! $(BIN)/python deploy/kafka/local_kafka.py --fetch > /dev/null 2>&1; then \
	echo "Left out: the tests on Apache Kafka (marked kafka); the others ran on the embedded broker."; \
fi
endef

$(READY): requirements.lock pyproject.toml
	@command -v $(PYTHON) > /dev/null \
		|| { echo "Ringfence needs Python 3.11 or newer; there is no $(PYTHON)." >&2; exit 2; }
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' \
		|| { echo "Ringfence needs Python 3.11 or newer; $(PYTHON) is $$($(PYTHON) --version 2>&1)." \
			"Name another: make PYTHON=python3.12" >&2; exit 2; }
	@$(PYTHON) -m venv .venv \
		|| { echo "$(PYTHON) cannot make virtual environments (Debian: apt install python3-venv)." >&2; exit 2; }
	@PYTHON=$(BIN)/python CACHE="$(CACHE)" bash deploy/install.sh
	@touch $@
