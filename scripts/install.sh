#!/usr/bin/env bash
# Builds queen_mq and installs it into the PostgreSQL of PG_CONFIG.
# PROFILE=debug builds with assertions and without optimisation. The default is release.
# With WITH_TESTS=1, the library also has the functions of #[pg_test]. pgrx-tests calls this script so, in
# place of cargo-pgrx, with arguments that ask for the same; the script ignores them.
. "$(dirname "${BASH_SOURCE[0]}")/lib.sh"
choose_pg_config
scripts/setup.sh
describe_pg

build=()
[ "${PROFILE:-release}" = release ] || build+=(--debug)
[ -z "${WITH_TESTS:-}" ] || build+=(--test --features pg_test)

say "building queen_mq (${PROFILE:-release}) for PostgreSQL $PG_MAJOR"
package=target/package/pg$PG_MAJOR
rm -rf "$package"
mkdir -p "$package"
cargo pgrx package "${build[@]}" --pg-config "$PG_CONFIG" "${CARGO_FEATURES[@]}" \
  --out-dir "$package" >"$package.log" || { cat "$package.log"; die "the build failed"; }

# cargo-pgrx packages the upgrade scripts. The install scripts of released versions are needed as well:
# the tests begin with them, and upgrade.
cp sql/queen_mq--*.sql "$package$("$PG_CONFIG" --sharedir)/extension/"

# Not `cargo pgrx install`: with sudo it overwrites the library in place, while running servers have it
# mapped. install(1) makes a new file. It runs as root only if the directories cannot be written without.
say "installing into $("$PG_CONFIG" --pkglibdir) and $("$PG_CONFIG" --sharedir)/extension"
put=()
[ -w "$("$PG_CONFIG" --pkglibdir)" ] && [ -w "$("$PG_CONFIG" --sharedir)/extension" ] || put=(as_root)
while read -r file; do
  mode=644
  [[ $file != *.so ]] || mode=755
  "${put[@]}" install -m "$mode" "$package/$file" "/$file"
done < <(cd "$package" && find . -type f -printf '%P\n')
