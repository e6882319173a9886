#!/usr/bin/env bash
# Runs the tests. The last line is `N passed, N failed`.
#
#   scripts/test.sh [PART...]                      tidy, engine, layer, sql, isolation, concurrency, example,
#                                                  docs; all of them without a name
#   TESTS='settle kv' scripts/test.sh sql          only these files of the part (of layer: only
#                                                  tests with one of these in their names)
#   ACCEPT=1 TESTS=settle scripts/test.sh sql      writes what the tests print into their expected output
#   ACCEPT=1 scripts/test.sh docs                  writes what the SQL prints into the pages
#
# Installs a debug build, with assertions, into the PostgreSQL of PG_CONFIG; `make install` puts a release
# build back. PROFILE=release tests the release build, which users get.
. "$(dirname "${BASH_SOURCE[0]}")/lib.sh"
choose_pg_config
export PROFILE=${PROFILE:-debug}
[ $# -gt 0 ] || set -- tidy engine layer sql isolation concurrency example docs
read -ra only <<<"${TESTS:-}"
out=target/test
mkdir -p "$out"

passed=0
failed=0
ok() {
  passed=$((passed + 1))
  echo "ok: $1"
}
not_ok() {
  failed=$((failed + 1))
  echo "FAILED: $1"
}

# The totals are the last line, however the run ends. A run that did not come to its end has failed.
complete=no
totals() {
  local status=$1
  [ $complete = yes ] || failed=$((failed + 1))
  [ $failed = 0 ] || status=1
  printf '\n%s\n' "$passed passed, $failed failed"
  return "$status"
}
at_exit totals

# psql DATABASE [OPTION...]: without the caller's language, time zone and ~/.psqlrc. The slowest test
# takes seconds, so after 300 seconds psql is stopped.
psql() {
  local database=$1
  shift
  LC_ALL=C.UTF-8 PGTZ=UTC timeout 300 "$PG_BIN/psql" --no-psqlrc --quiet --dbname "$database" "$@"
}

# fresh_database NAME: makes an empty database with the extension.
fresh_database() {
  psql postgres -c "SET client_min_messages = error" -c "DROP DATABASE IF EXISTS \"$1\"" \
    -c "CREATE DATABASE \"$1\"" && psql "$1" -c 'CREATE EXTENSION queen_mq'
}

# cargo_tests PACKAGE [OPTION...]: adds what cargo test reports to the totals. If it reports no test, that is
# a failure, too.
cargo_tests() {
  local log=$out/$1.log status=0 p f
  ${as:-} timeout 1500 cargo test --no-fail-fast --package "$@" 2>&1 | tee "$log" || status=1
  read -r p f < <(awk '/^test result:/ { p += $4; f += $6 } END { print p + 0, f + 0 }' "$log")
  passed=$((passed + p))
  failed=$((failed + f))
  if [ $((p + f)) = 0 ] || { [ $status != 0 ] && [ "$f" = 0 ]; }; then
    not_ok "cargo test --package $1"
  fi
}

# golden KIND INPUT EXPECTED COMMAND...: runs COMMAND on INPUT, in a new database test_KIND. What it prints
# must be the content of EXPECTED. If there is no such file, the test fails.
golden() {
  local kind=$1 input=$2 expected=$3 name actual
  shift 3
  name=$kind/$(basename "${input%.*}")
  actual=$out/$kind-$(basename "$expected")
  if ! fresh_database "test_$kind"; then
    not_ok "$name: no database to run it in"
    return
  fi
  timeout 300 "$@" <"$input" >"$actual" 2>&1 || echo "ended with status $?" >>"$actual"
  [ -z "${ACCEPT:-}" ] || cp "$actual" "$expected"
  if [ ! -f "$expected" ]; then
    not_ok "$name: there is no $expected; ACCEPT=1 writes one, to be read before it is committed"
  elif diff -u "$expected" "$actual"; then
    ok "$name"
  else
    not_ok "$name: the difference is above"
  fi
}

# all_golden KIND INPUTS EXPECTED SUFFIX COMMAND...: calls golden for each file of the directory INPUTS, or
# for those that TESTS names.
all_golden() {
  local kind=$1 inputs=$2 expected=$3 suffix=$4 file name
  shift 4
  for file in "$inputs"/*"$suffix"; do
    name=$(basename "$file" "$suffix")
    [[ " ${TESTS:-$name} " != *" $name "* ]] || golden "$kind" "$file" "$expected/$name.out" "$@"
  done
  for file in "$expected"/*.out; do
    name=$(basename "$file" .out)
    [ -f "$inputs/$name$suffix" ] || not_ok "$kind/$name: has an expected output and no test"
  done
}

# Tests the layer over PostgreSQL by itself, with #[pg_test] functions. They run inside a server that
# pgrx-tests makes and starts. pgrx-tests calls CARGO_PGRX to build the library with these functions, and
# to install it.
test_layer() {
  . scripts/cluster.sh
  local data=$ROOT/target/layer
  if [ $server_mode = runuser ]; then
    # pgrx-tests changes the user with sudo. Root may not have sudo, so this is a sudo that calls runuser.
    mkdir -p "$out/bin"
    printf '#!/bin/sh\nshift 2\nexec runuser -u %s -- env "$@"\n' $server_user >"$out/bin/sudo"
    chmod +x "$out/bin/sudo"
    data=$(mktemp -d /tmp/queen_mq.XXXXXX)
    chown $server_user "$data"
    export PATH=$ROOT/$out/bin:$PATH CARGO_PGRX_TEST_RUNAS=$server_user
  fi
  rm -rf "$data/pg"
  # Asks for backtraces, so that a test can check that errors have none.
  WITH_TESTS=1 CARGO_PGRX=$ROOT/scripts/install.sh CARGO_PGRX_TEST_PGDATA=$data/pg RUST_BACKTRACE=1 \
    USER=${USER:-$(id -un)} as=as_layer cargo_tests queen_mq --lib "${CARGO_FEATURES[@]}" --features pg_test \
    -- "${only[@]}"
  rm -rf "$data"
}

# as_layer COMMAND...: runs the command as the user of the server, unless pgrx-tests changes the user with
# sudo.
as_layer() { if [ "$server_mode" = runuser ]; then "$@"; else as_server "$@"; fi; }

test_sql() {
  all_golden sql tests/sql tests/expected .sql \
    env LC_ALL=C.UTF-8 PGTZ=UTC "$PG_BIN/psql" --no-psqlrc --quiet --echo-all --dbname test_sql
}

# Sessions whose steps interleave, in the language of PostgreSQL's own isolation tests. The program that
# runs them is in the package of the server headers, or in that of the client. It shows of an error its
# message alone. Ids in messages are masked. Which of several messages a serialization failure has depends
# on what PostgreSQL, or the extension, comes upon first, so they are made one, with their SQLSTATE.
test_isolation() {
  local tester mask
  tester=$("$PG_CONFIG" --pgxs | sed 's|/makefiles/pgxs.mk$|/test/isolation/isolationtester|')
  mask='s/lease [0-9a-f-]{36}/lease ID/g; s/message [0-9]+/message ID/g
    s/(could not serialize access) due to .*/\1 (40001)/'
  # shellcheck disable=SC2016 # the inner shell expands them
  all_golden isolation tests/isolation/specs tests/isolation/expected .spec \
    bash -o pipefail -c '"$1" dbname=test_isolation | sed -E "$2"' isolation "$tester" "$mask"
}

test_concurrency() {
  # One of the tests goes through a pooler.
  [ -x /usr/sbin/pgbouncer ] || [ -x /usr/bin/pgbouncer ] || apt_install pgbouncer ||
    die "install PgBouncer"
  cargo_tests queen-tests "${only[@]/#/--test=}"
}

# leftovers DATABASE: prints what a run of the example has left: its tables, and rows in the extension's
# tables.
leftovers() {
  local table rows
  psql "$1" -At -c "SELECT oid::regclass FROM pg_class WHERE relname IN ('charges', 'deliveries', 'checks')"
  for table in $(psql "$1" -At -c "SELECT relname FROM pg_class
      WHERE relnamespace = 'queen_mq'::regnamespace AND relkind = 'r'
      AND relname NOT IN ('identity', 'installation', 'owner', 'sweep')"); do
    rows=$(psql "$1" -At -c "SELECT count(*) FROM queen_mq.$table")
    [ "$rows" = 0 ] || echo "$rows rows in $table"
  done
}

# example_leaves_nothing NAME: tests that the run NAME has left nothing.
example_leaves_nothing() {
  local rest
  rest=$(leftovers test_example)
  if [ -z "$rest" ]; then ok "$1 leaves nothing behind"; else not_ok "$1 leaves: $rest"; fi
}

test_example() {
  local broken
  fresh_database test_example
  if psql test_example -v ON_ERROR_STOP=1 -f examples/exactly_once.sql 2>&1 | tee "$out/example.log" &&
    tail -1 "$out/example.log" | grep -qx 'PASS: [0-9]* checks'; then
    ok "the example passes"
  else
    not_ok "the example passes"
  fi
  example_leaves_nothing "the example"

  # With a false check, or a statement that fails, the example must fail, and must clean up as well.
  for broken in 's/count(\*) = 5/count(*) = 4/' "s/status => 'failed'/status => 'no such status'/"; do
    sed "$broken" examples/exactly_once.sql >"$out/broken.sql"
    if cmp -s "$out/broken.sql" examples/exactly_once.sql; then
      not_ok "the example has changed, and '$broken' breaks nothing in it"
    elif psql test_example -f "$out/broken.sql" >"$out/broken.log" 2>&1; then
      not_ok "the example with $broken has passed"
    else
      ok "the example with $broken fails"
    fi
    example_leaves_nothing "the example with $broken"
  done
}

# Runs the SQL of each page, in order, in a new database. It must print what the page shows.
test_docs() {
  local page name
  for page in README.md docs/*.md docs/howto/*.md docs/reference/*.md; do
    name=$(basename "$page" .md)
    grep -q '^```sql$' "$page" || continue
    [[ " ${TESTS:-$name} " == *" $name "* ]] || continue
    if fresh_database test_docs && scripts/check-docs.sh "$page" "$out" \
      env LC_ALL=C.UTF-8 PGTZ=UTC timeout 300 "$PG_BIN/psql" --no-psqlrc --quiet --dbname test_docs; then
      ok "the SQL in $page"
    else
      not_ok "the SQL in $page: the difference is above; ACCEPT=1 takes what it prints into the page"
    fi
  done
}

scripts/setup.sh
describe_pg
for part; do
  case $part in
    tidy) cargo_tests queen-tidy ;;
    engine)
      cargo_tests queen-engine
      cargo_tests queen-history
      # The pictures of the docs are those that the program draws.
      cargo_tests queen-drawings
      ;;
    layer) test_layer ;;
    sql | isolation | concurrency | example | docs)
      if [ -z "${cluster_dir:-}" ]; then
        scripts/install.sh
        . scripts/cluster.sh
        # No worker serves this cluster: it would move timers and sweep while a test waits to do so itself.
        # The tests of the worker start servers of their own.
        cluster_start test "shared_preload_libraries = 'queen_mq'" "fsync = off" \
          "queen_mq.databases = 'none of these'"
      fi
      say "testing: $part"
      "test_$part"
      ;;
    *) die "no such part: $part" ;;
  esac
done
complete=yes
