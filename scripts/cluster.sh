# shellcheck shell=bash
# A throw-away PostgreSQL cluster. Scripts source this file after lib.sh; do not run it.
#
#   cluster_start NAME ['setting = value'...]   creates and starts the cluster; psql, libpq and the
#                                               tests of tests/concurrency then connect to it
#   cluster_up                                  starts the cluster again, for instance after a crash
#   cluster_stop                                stops and removes it; runs whenever the script ends
#
# The cluster listens only on a Unix socket. Every user who may enter the socket's directory may connect,
# without a password. Its files are in target/NAME.…, or in /tmp if the server runs as another user than
# the owner of this tree.

# PostgreSQL refuses to run as root. In a user namespace, root can have another number as its id; that
# needs no sudo and no change of owners. A container may forbid user namespaces. Then the server runs
# as the user postgres.
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
  # The path of a socket has at most 107 bytes, and the path of this tree may be long.
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

  # The caller's own PG… variables must not change what the script connects to.
  local variable
  for variable in $(compgen -e PG | grep -vE '^(PG_|PGRX)'); do unset "$variable"; done
  export PGHOST=$cluster_socket PGPORT=5432 PGUSER=postgres PGDATABASE=postgres
  export QUEEN_TEST_URL="host=$PGHOST port=$PGPORT user=$PGUSER dbname=$PGDATABASE"
  export QUEEN_TEST_PGBIN=$PG_BIN
  cluster_up || { tail -20 "$cluster_log"; die "the server did not start"; }
}

# cluster_up: starts the server of the cluster, also again after a crash.
cluster_up() {
  # The shell opens the log, so it is in target/ even if the server's user may not write there.
  as_server "$PG_BIN/pg_ctl" --pgdata "$cluster_dir/pg" --wait --silent start >>"$cluster_log" 2>&1
}

cluster_stop() {
  if [ -n "${cluster_dir:-}" ] && [ -f "$cluster_dir/pg/postmaster.pid" ]; then
    as_server "$PG_BIN/pg_ctl" --pgdata "$cluster_dir/pg" --wait --silent --mode immediate stop || true
  fi
  rm -rf "${cluster_dir:-}" "$cluster_socket"
}
