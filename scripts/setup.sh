#!/usr/bin/env bash
# Installs what a build needs and the machine does not have, and says so. If nothing is missing, it
# changes nothing.
. "$(dirname "${BASH_SOURCE[0]}")/lib.sh"
choose_pg_config

command -v cargo >/dev/null || die "there is no cargo: install Rust 1.89 or later (https://rustup.rs)"

packages=()
# Rust links with the C compiler, and crates that pgrx and cargo-pgrx use compile some C.
command -v cc >/dev/null || packages+=(gcc libc6-dev)
if ! usable "$PG_CONFIG"; then
  [ "$PG_CONFIG" = "$DEBIAN_PG_CONFIG" ] ||
    die "$PG_CONFIG: the server or its headers ($("$PG_CONFIG" --includedir-server)) are missing"
  # postgresql-server-dev-15 also installs libclang, with which pgrx makes its bindings from the headers.
  packages+=(postgresql-15 postgresql-server-dev-15)
fi
[ ${#packages[@]} = 0 ] || apt_install "${packages[@]}" ||
  die "install PostgreSQL 15 to 18 with its server headers, and name it: make PG_CONFIG=/path/to/pg_config"
describe_pg

if [ "$(cargo-pgrx pgrx --version 2>/dev/null || true)" != "cargo-pgrx $PGRX_VERSION" ]; then
  say "installing cargo-pgrx $PGRX_VERSION into target/tools (two minutes, once)"
  # A debug build takes a third of the time and is fast enough. It leaves out native TLS, which cargo-pgrx
  # needs only to download PostgreSQL.
  cargo install --quiet --locked --debug --no-default-features --force \
    cargo-pgrx --version "$PGRX_VERSION" --root target/tools
fi

# Write what `cargo pgrx init` would write: which pg_config each major version is built with. The lines of
# other versions stay. Cargo compiles pgrx anew when the file is newer, so an unchanged file is not
# written.
mkdir -p "$PGRX_HOME"
config=$PGRX_HOME/config.toml
wanted=$(
  echo '[configs]'
  {
    grep '^pg[0-9]' "$config" 2>/dev/null | grep -v "^pg$PG_MAJOR " || true
    echo "pg$PG_MAJOR = \"$PG_CONFIG\""
  } | sort
)
[ "$wanted" = "$(cat "$config" 2>/dev/null || true)" ] || printf '%s\n' "$wanted" >"$config"
