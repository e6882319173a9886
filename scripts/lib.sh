# shellcheck shell=bash
# shellcheck disable=SC2034 # most variables are for the scripts that source this
# What all scripts share. They source this file; do not run it. It sets strict mode and changes to the
# root of the repository, so every path below is relative to the root.
set -euo pipefail

ROOT=$(cd "$(dirname "${BASH_SOURCE[0]}")/.." && pwd)
cd "$ROOT"

PGRX_VERSION=0.18.1
DEBIAN_PG_CONFIG=/usr/lib/postgresql/15/bin/pg_config

# cargo-pgrx and its settings are in this tree. They neither read nor write the home directory.
export PGRX_HOME=$ROOT/target/pgrx
export PATH=$ROOT/target/tools/bin:$PATH
# pgrx has a work-around for section garbage collection: cargo-pgrx then passes linker arguments that
# plain cargo does not pass. Each of the two would rebuild everything after the other had run.
export CARGO_PGRX_DISABLE_GC_SECTIONS_WORKAROUND=1
# pgrx would put a backtrace into the DETAIL of every error.
export RUST_BACKTRACE=0

say() { printf '==> %s\n' "$*"; }
die() { printf 'error: %s\n' "$*" >&2; exit 1; }

# at_exit FUNCTION: calls FUNCTION with the exit status whenever the script ends. The function that was
# added last is called first.
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

# as_root COMMAND...: runs the command as root, with sudo if the script does not run as root.
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

# usable PG_CONFIG: whether this PostgreSQL has headers to build for and a server to start.
usable() {
  [ -x "$1" ] && [ -f "$("$1" --includedir-server)/postgres.h" ] && [ -x "$("$1" --bindir)/initdb" ]
}

# choose_pg_config: sets PG_CONFIG to the PostgreSQL that the caller asks for, else to Debian's 15, else to
# a complete one on the PATH. If there is none at all, it sets Debian's 15, and setup.sh installs that.
choose_pg_config() {
  local on_path
  if [ -n "${PG_CONFIG:-}" ] && [ "$PG_CONFIG" != $DEBIAN_PG_CONFIG ]; then
    PG_CONFIG=$(command -v "$PG_CONFIG") || die "PG_CONFIG names no program"
    # Debian's /usr/bin/pg_config stands for the newest version: take the pg_config of that version.
    [ ! -x "$("$PG_CONFIG" --bindir)/pg_config" ] || PG_CONFIG=$("$PG_CONFIG" --bindir)/pg_config
  elif [ ! -x "$DEBIAN_PG_CONFIG" ] && on_path=$(command -v pg_config) && usable "$on_path"; then
    PG_CONFIG=$on_path
  else
    PG_CONFIG=$DEBIAN_PG_CONFIG
  fi
  export PG_CONFIG
}

# describe_pg: sets PG_MAJOR, PG_BIN and CARGO_FEATURES. PostgreSQL must be installed.
describe_pg() {
  PG_MAJOR=$("$PG_CONFIG" --version | sed -E 's/^PostgreSQL ([0-9]+).*/\1/')
  PG_BIN=$("$PG_CONFIG" --bindir)
  case $PG_MAJOR in
    15 | 16 | 17 | 18) ;;
    *) die "$PG_CONFIG is of PostgreSQL $PG_MAJOR; queen_mq builds for 15, 16, 17 and 18" ;;
  esac
  CARGO_FEATURES=(--no-default-features --features "pg$PG_MAJOR")
}
