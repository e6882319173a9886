#!/usr/bin/env bash
# Runs the concurrency torture for the given number of seconds (600).
. "$(dirname "${BASH_SOURCE[0]}")/lib.sh"
choose_pg_config
PROFILE=${PROFILE:-debug} scripts/install.sh
describe_pg
. scripts/cluster.sh

cluster_start torture "shared_preload_libraries = 'queen_mq'" "fsync = off"
export QUEEN_TORTURE_SECONDS=${1:-600}
say "torture for $QUEEN_TORTURE_SECONDS seconds"
cargo test --package queen-tests torture -- --nocapture
