#!/usr/bin/env bash
# Every check that needs no running server. A tool that cannot be installed is a failure.
. "$(dirname "${BASH_SOURCE[0]}")/lib.sh"
choose_pg_config
scripts/setup.sh
describe_pg

# The linters come as binary wheels, at the versions of lint-tools.txt, into an environment that is
# made anew when that list changes.
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

# The install script as PostgreSQL will run it. Whoever creates the extension runs it with all
# rights, so that a name without its schema would be a way in.
install_script() {
  local script=target/install-script.sql
  cargo pgrx schema --pg-config "$PG_CONFIG" "${CARGO_FEATURES[@]}" --out "$script" >/dev/null &&
    "$tools/bin/pgspot" "$script"
}

# A script that upgrades the extension ends as the install script does: with sql/grants.sql, which hands
# what is new to the extension's owner and takes it from PUBLIC.
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
