# Every target is a thin name for a script in scripts/; run `make help` for the list.
#
# PG_CONFIG=/path/to/pg_config chooses the PostgreSQL (15 to 18) to build for. Without it, Debian's
# PostgreSQL 15 is used, and installed where there is no PostgreSQL yet.

SHELL := bash
PG_CONFIG ?=
PROFILE ?=
export PG_CONFIG PROFILE

# How long `make torture` runs. Not exported: bash counts in a variable of this name.
SECONDS ?= 600
unexport SECONDS

.DEFAULT_GOAL := help
.PHONY: help demo test lint install torture bench bench-quick

help: ## show this list
	@awk -F ':.*## ' '/^[a-z-]+:.*## / { printf "make %-11s  %s\n", $$1, $$2 }' Makefile

demo: ## charge five orders exactly once on a throw-away server, and check every claim
	@scripts/demo.sh

test: ## run every test: tidiness, engine, layer over PostgreSQL, SQL regression, concurrency, example, documentation
	@scripts/test.sh

lint: ## check formatting, clippy, tidiness, licences, spelling, shell scripts and the install script
	@scripts/lint.sh

install: ## build for release and install into the PostgreSQL of PG_CONFIG
	@scripts/install.sh

torture: ## run the concurrency tests for SECONDS=600 on end
	@scripts/torture.sh $(SECONDS)

bench: ## measure queen_mq beside pgmq and a SKIP LOCKED table, in about 15 minutes
	@scripts/bench.sh

bench-quick: ## the same in about 2 minutes
	@scripts/bench.sh --quick
