# Every target calls a script of scripts/. `make help` lists the targets.
#
# PG_CONFIG=/path/to/pg_config chooses the PostgreSQL (15 to 18) to build for. Without it, the scripts
# use Debian's PostgreSQL 15, or else the one on the PATH. If there is none, they install Debian's.

SHELL := bash
PG_CONFIG ?=
PROFILE ?=
export PG_CONFIG PROFILE

# How long `make torture` runs. It is not exported, because bash has a variable of this name, in which
# it counts seconds.
SECONDS ?= 600
unexport SECONDS
# How often `make torture-crashes` kills the server, and `make torture-failover` promotes a standby.
CRASHES ?= 50
PROMOTIONS ?= 10

.DEFAULT_GOAL := help
.PHONY: help demo test lint install torture torture-crashes torture-failover model bench \
  bench-quick flame

help: ## show this list
	@awk -F ':.*## ' '/^[a-z-]+:.*## / { printf "make %-16s  %s\n", $$1, $$2 }' Makefile

demo: ## charge five orders exactly once on a throw-away server, and check every claim
	@scripts/demo.sh

test: ## run every test: tidiness, engine, layer over PostgreSQL, SQL regression, concurrency, example, documentation
	@scripts/test.sh

lint: ## check formatting, clippy, tidiness, licences, spelling, shell scripts and the install script
	@scripts/lint.sh

install: ## build for release and install into the PostgreSQL of PG_CONFIG
	@scripts/install.sh

torture: ## run the concurrency tests for SECONDS=600 without a pause
	@scripts/torture.sh $(SECONDS)

torture-crashes: ## charge orders while the server is killed CRASHES=50 times, and its disks become full
	@scripts/torture.sh 0 --crashes $(CRASHES) --full-disks 5

torture-failover: ## charge orders while standbys are promoted PROMOTIONS=10 times, synchronous and not
	@scripts/torture.sh 0 --promotions $(PROMOTIONS)
	@scripts/torture.sh 0 --promotions $(PROMOTIONS) --asynchronous

model: ## explore every run of the protocol, within large bounds, in about an hour
	@cargo test --package queen-engine --test protocol -- --ignored --nocapture --test-threads=1

bench: ## measure queen_mq beside pgmq and a SKIP LOCKED table, in about an hour
	@scripts/bench.sh

bench-quick: ## run a short version of `make bench`, in about 8 minutes
	@scripts/bench.sh --quick

flame: ## draw flame graphs of queen_mq into docs/benchmarks, with perf
	@scripts/flame.sh
