# shellcheck shell=bash
# shellcheck disable=SC2034 # most variables are for the scripts that source this
# What all scripts share; sourced, never run. Sets strict mode and goes to the root of the
# repository, so that every path below is relative to it.
set -euo pipefail

ROOT=$(cd "$(dirname "${BASH_SOURCE[0]}")/.." && pwd)
cd "$ROOT"

PGRX_VERSION=0.18.1
DEBIAN_PG_CONFIG=/usr/lib/postgresql/15/bin/pg_config

# cargo-pgrx and its settings live in the tree: nothing in the home directory is read or written.
export PGRX_HOME=$ROOT/target/pgrx
export PATH=$ROOT/target/tools/bin:$PATH
# With pgrx's work-around for section garbage collection, cargo-pgrx passes linker arguments that
# plain cargo does not, and the two would rebuild everything after each other.
export CARGO_PGRX_DISABLE_GC_SECTIONS_WORKAROUND=1
# A backtrace would end up in the DETAIL of every error.
export RUST_BACKTRACE=0

say() { printf '==> %s\n' "$*"; }
die() { printf 'error: %s\n' "$*" >&2; exit 1; }

# at_exit FUNCTION: calls it with the exit status on every way out, the last one named first.
exit_hooks=()
at_exit() { exit_hooks=("$1" "${exit_hooks[@]}"); }
run_exit_hooks() {
  local status=$? hook
  trap - EXIT INT TERM
  for hook in "${exit_hooks[@]}"; do "$hook" "$status" || status=$?; done
  exit "$status"
}
trap run_exit_hooks EXIT
trap 'exit 130' INT
trap 'exit 143' TERM

# as_root COMMAND...: for what needs the rights of root, whoever runs the script.
as_root() {
  if [ "$(id -u)" = 0 ]; then
    "$@"
  else
    command -v sudo >/dev/null || die "this needs root or sudo: $*"
    sudo "$@"
  fi
}

apt_install() {
  command -v apt-get >/dev/null || die "missing: $* (and there is no apt-get to install them with)"
  say "installing Debian packages: $*"
  as_root apt-get update -qq &&
    as_root env DEBIAN_FRONTEND=noninteractive \
      apt-get install -y -qq --no-install-recommends "$@" >/dev/null
}

# usable PG_CONFIG: a PostgreSQL one can build for and start: headers and server are there.
usable() {
  [ -x "$1" ] && [ -f "$("$1" --includedir-server)/postgres.h" ] && [ -x "$("$1" --bindir)/initdb" ]
}

# Which PostgreSQL: the one asked for, else Debian's 15, else a complete one on the path. Where
# there is none at all, this still names Debian's 15, which setup.sh installs.
choose_pg_config() {
  local on_path
  if [ -n "${PG_CONFIG:-}" ] && [ "$PG_CONFIG" != $DEBIAN_PG_CONFIG ]; then
    PG_CONFIG=$(command -v "$PG_CONFIG") || die "PG_CONFIG names no program"
    # Debian's /usr/bin/pg_config speaks for whatever is newest: take the one it speaks for.
    [ ! -x "$("$PG_CONFIG" --bindir)/pg_config" ] || PG_CONFIG=$("$PG_CONFIG" --bindir)/pg_config
  elif [ ! -x "$DEBIAN_PG_CONFIG" ] && on_path=$(command -v pg_config) && usable "$on_path"; then
    PG_CONFIG=$on_path
  else
    PG_CONFIG=$DEBIAN_PG_CONFIG
  fi
  export PG_CONFIG
}

# describe_pg: sets PG_MAJOR, PG_BIN and CARGO_FEATURES; needs an installed PostgreSQL.
describe_pg() {
  PG_MAJOR=$("$PG_CONFIG" --version | sed -E 's/^PostgreSQL ([0-9]+).*/\1/')
  PG_BIN=$("$PG_CONFIG" --bindir)
  case $PG_MAJOR in
    15 | 16 | 17 | 18) ;;
    *) die "$PG_CONFIG is of PostgreSQL $PG_MAJOR; queen_mq builds for 15, 16, 17 and 18" ;;
  esac
  CARGO_FEATURES=(--no-default-features --features "pg$PG_MAJOR")
}
