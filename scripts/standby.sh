#!/usr/bin/env bash
# A standby of the throw-away server of scripts/bench.sh, which applies each commit 5 ms late, as if it were that
# far away. The driver of the benchmark calls this:
#   scripts/standby.sh start    copies the server that PG… variables name, and starts the copy
#   scripts/standby.sh stop     stops and removes it
# QUEEN_BENCH_STANDBY names the directory in which it may make one.
. "$(dirname "${BASH_SOURCE[0]}")/lib.sh"
choose_pg_config
describe_pg
. scripts/cluster.sh
: "${QUEEN_BENCH_STANDBY:?names the directory of the standby}"
data=$QUEEN_BENCH_STANDBY/standby
log=$ROOT/target/standby.log

standby_stop() {
  [ ! -f "$data/postmaster.pid" ] ||
    as_server "$PG_BIN/pg_ctl" --pgdata "$data" --wait --silent --mode immediate stop >>"$log" 2>&1 || true
  rm -rf "$data"
}

standby_start() {
  standby_stop
  as_server "$PG_BIN/pg_basebackup" --pgdata "$data" --checkpoint fast --wal-method stream \
    --write-recovery-conf --no-sync >"$log" 2>&1 || die "pg_basebackup failed, see $log"
  {
    echo "unix_socket_directories = '$PGHOST'"
    echo "port = $((PGPORT + 1))"
    echo "shared_buffers = 256MB"
    echo "recovery_min_apply_delay = '5ms'"
  } >>"$data/postgresql.conf"
  as_server "$PG_BIN/pg_ctl" --pgdata "$data" --wait --silent start >>"$log" 2>&1 ||
    { tail -20 "$log" >&2; die "the standby did not start"; }
}

case ${1:-} in
  start) standby_start ;;
  stop) standby_stop ;;
  *) die "usage: scripts/standby.sh start|stop" ;;
esac
