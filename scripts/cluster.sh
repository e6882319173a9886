# shellcheck shell=bash
# A throw-away PostgreSQL cluster; sourced after lib.sh, never run.
#
#   cluster_start NAME ['setting = value'...]   creates and starts it, and points psql, libpq and
#                                               the tests of tests/concurrency to it
#   cluster_up                                  starts it again, after a crash for instance
#   cluster_stop                                stops and removes it; called on every way out
#
# It listens on a Unix socket alone, trusts whoever may enter the socket's directory, and lives in
# target/NAME, or in /tmp where the server needs another user than the owner of this tree.

# PostgreSQL refuses to run as root. A user namespace in which root's id is another number needs
# neither sudo nor a change of owner; inside a container it may be forbidden, and then the server
# runs as the real user postgres.
server_user=postgres
id -u "$server_user" >/dev/null 2>&1 || server_user=nobody
if [ "$(id -u)" != 0 ]; then
  server_mode=plain
elif unshare -U true 2>/dev/null; then
  server_mode=namespace
else
  server_mode=runuser
fi

as_server() {
  case $server_mode in
    plain) "$@" ;;
    namespace)
      unshare -U --map-user="$(id -u $server_user)" --map-group="$(id -g $server_user)" \
        env USER=$server_user "$@"
      ;;
    runuser) runuser -u $server_user -- "$@" ;;
  esac
}

cluster_start() {
  local name=$1
  shift
  # The path of a socket is limited to 107 bytes, and this tree may lie deep.
  cluster_socket=$(mktemp -d /tmp/queen_mq.XXXXXX)
  at_exit cluster_stop
  if [ $server_mode = runuser ]; then
    cluster_dir=$cluster_socket/data
    chown $server_user "$cluster_socket"
  else
    mkdir -p target
    cluster_dir=$(mktemp -d "$ROOT/target/$name.XXXXXX")
  fi
  cluster_log=$ROOT/target/$name.log

  as_server "$PG_BIN/initdb" --pgdata "$cluster_dir/pg" --username postgres --auth trust \
    --encoding UTF8 --locale C.UTF-8 --no-sync >"$cluster_log" || die "initdb failed, see $cluster_log"
  {
    echo "listen_addresses = ''"
    echo "port = 5432"
    echo "unix_socket_directories = '$cluster_socket'"
    echo "max_connections = 200"
    echo "max_prepared_transactions = 20"
    [ $# = 0 ] || printf '%s\n' "$@"
  } >>"$cluster_dir/pg/postgresql.conf"

  # No setting of the caller's own databases may leak in.
  local variable
  for variable in $(compgen -e PG | grep -vE '^(PG_|PGRX)'); do unset "$variable"; done
  export PGHOST=$cluster_socket PGPORT=5432 PGUSER=postgres PGDATABASE=postgres
  export QUEEN_TEST_URL="host=$PGHOST port=$PGPORT user=$PGUSER dbname=$PGDATABASE"
  export QUEEN_TEST_PGBIN=$PG_BIN
  cluster_up || { tail -20 "$cluster_log"; die "the server did not start"; }
}

# cluster_up: starts the server that cluster_start made; again after a crash, for instance.
cluster_up() {
  # The log is opened here, so that it is in target/ whoever the server runs as.
  as_server "$PG_BIN/pg_ctl" --pgdata "$cluster_dir/pg" --wait --silent start >>"$cluster_log" 2>&1
}

cluster_stop() {
  if [ -n "${cluster_dir:-}" ] && [ -f "$cluster_dir/pg/postmaster.pid" ]; then
    as_server "$PG_BIN/pg_ctl" --pgdata "$cluster_dir/pg" --wait --silent --mode immediate stop || true
  fi
  rm -rf "${cluster_dir:-}" "$cluster_socket"
}
