#!/usr/bin/env bash
# Runs every check that needs no running server. If a tool cannot be installed, lint fails.
. "$(dirname "${BASH_SOURCE[0]}")/lib.sh"
choose_pg_config
scripts/setup.sh
describe_pg

# The linters are binary wheels, at the versions of lint-tools.txt. They are in a Python environment of
# their own, which is made anew when that list changes.
tools=target/tools/lint
list=scripts/lint-tools.txt
if ! cmp -s "$list" "$tools/installed.txt"; then
  say "installing the linters of $list into $tools"
  rm -rf "$tools"
  python3 -m venv "$tools" 2>/dev/null || {
    rm -rf "$tools"
    apt_install python3-venv
    python3 -m venv "$tools"
  }
  "$tools/bin/pip" install --quiet --disable-pip-version-check --only-binary :all: --requirement "$list"
  cp "$list" "$tools/installed.txt"
fi

failures=()
check() {
  local name=$1
  shift
  say "$name"
  "$@" || failures+=("$name")
}

# pgspot checks the install script as PostgreSQL runs it, with the rights of a superuser. If a name in it
# had no schema, another role could put an object of that name in front, and run code as a superuser.
install_script() {
  local script=target/install-script.sql
  cargo pgrx schema --pg-config "$PG_CONFIG" "${CARGO_FEATURES[@]}" --out "$script" >/dev/null &&
    "$tools/bin/pgspot" "$script"
}

# Every upgrade script must end with sql/grants.sql, as the install script does. It gives new objects to
# the extension's owner, and takes from PUBLIC the right to call new routines.
upgrade_scripts() {
  local script
  for script in sql/queen_mq--*--*.sql; do
    [ -e "$script" ] || continue
    tail -n "$(wc -l <sql/grants.sql)" "$script" | cmp -s - sql/grants.sql ||
      { echo "$script does not end with sql/grants.sql"; return 1; }
  done
}

check "upgrade scripts" upgrade_scripts
check "rustfmt" cargo fmt --all --check
check "clippy" cargo clippy --quiet --workspace --all-targets "${CARGO_FEATURES[@]}" -- -D warnings
# The benchmark's driver is a workspace of its own.
check "rustfmt, bench" cargo fmt --manifest-path bench/Cargo.toml --check
check "clippy, bench" cargo clippy --quiet --manifest-path bench/Cargo.toml --all-targets \
  --target-dir target/driver --locked -- -D warnings
check "tidy" cargo test --quiet --package queen-tidy
check "licences and sources" "$tools/bin/cargo-deny" --log-level warn check bans licenses sources
check "typos" "$tools/bin/typos"
check "shellcheck" "$tools/bin/shellcheck" -x scripts/*.sh .ci/run
check "pgspot" install_script

[ ${#failures[@]} = 0 ] || die "lint: $(IFS=,; echo "${failures[*]}")"
say "lint: all good"
