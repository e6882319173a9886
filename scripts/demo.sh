#!/usr/bin/env bash
# Builds, installs, and runs the example on a server of its own.
. "$(dirname "${BASH_SOURCE[0]}")/lib.sh"
choose_pg_config
PROFILE=release scripts/install.sh
describe_pg
. scripts/cluster.sh

say "starting a throw-away server"
cluster_start demo "shared_preload_libraries = 'queen_mq'"
"$PG_BIN/psql" -Xq -v ON_ERROR_STOP=1 -c 'CREATE EXTENSION queen_mq'

say "running examples/exactly_once.sql"
# Both streams go into one, so the errors that the example provokes appear in their place.
"$PG_BIN/psql" -X -v ON_ERROR_STOP=1 -f examples/exactly_once.sql 2>&1
