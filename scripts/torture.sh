#!/usr/bin/env bash
# Runs the concurrency torture:  scripts/torture.sh [SECONDS [OPTION...]]
# `scripts/torture.sh 60 --help` lists its options, for instance the number of producers. With --crashes,
# --promotions or --full-disks it runs the torture of effects, on servers of its own, whatever SECONDS is.
. "$(dirname "${BASH_SOURCE[0]}")/lib.sh"
choose_pg_config
PROFILE=${PROFILE:-debug} scripts/install.sh
describe_pg
. scripts/cluster.sh

cluster_start torture "shared_preload_libraries = 'queen_mq'" "fsync = off" \
  "queen_mq.databases = 'none of these'"
seconds=${1:-600}
say "torture for $seconds seconds ${*:2}"
cargo run --quiet --package queen-tests --bin torture -- --seconds "$seconds" "${@:2}"
