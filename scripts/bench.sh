#!/usr/bin/env bash
# Measures queen_mq beside pgmq and a textbook table, on a server of its own:
#   scripts/bench.sh [--contender] [OPTION...]
# Without options it takes about an hour. `scripts/bench.sh --help` lists the options of the driver,
# for instance --quick, --only and --rounds. Results and plots go to target/bench/.
# With --contender, graphile-worker takes part in scenarios 4 and 16. It is installed from npm into
# target/contender, and needs Node.
. "$(dirname "${BASH_SOURCE[0]}")/lib.sh"
choose_pg_config

contender=no
options=()
for option in "$@"; do
  case $option in
    --contender) contender=yes ;;
    *) options+=("$option") ;;
  esac
done
if [ $contender = yes ]; then
  { command -v node && command -v npm; } >/dev/null || die "--contender needs Node and npm"
  mkdir -p target/contender
  cp bench/contender/package.json bench/contender/graphile.js target/contender/
  package=$(node -p "Object.entries(require('./bench/contender/package.json').dependencies)[0].join(' ')")
  say "installing $package from npm into target/contender"
  npm install --prefix target/contender --no-audit --no-fund --no-package-lock --loglevel error
  options+=(--contender target/contender)
fi

# Always measure the release build, whatever PROFILE says.
PROFILE=release scripts/install.sh
describe_pg
. scripts/cluster.sh

say "building the driver"
# The driver is a workspace of its own, with other features of its dependencies. So it does not share
# target/release.
driver=target/driver
cargo build --quiet --release --locked --manifest-path bench/Cargo.toml --target-dir $driver

say "starting a throw-away server"
# Commits are durable, as in production. No checkpoint falls into a measurement.
cluster_start bench "shared_preload_libraries = 'queen_mq'" "max_connections = 400" \
  "shared_buffers = 1GB" "max_wal_size = 8GB" "checkpoint_timeout = 30min" \
  "fsync = on" "synchronous_commit = on"
# Scenario 19 starts a standby, and stops it. If the driver is interrupted, it is stopped here.
export QUEEN_BENCH_STANDBY=$cluster_dir
at_exit standby_stop
standby_stop() { scripts/standby.sh stop; }
$driver/release/queen-bench --standby scripts/standby.sh --out target/bench "${options[@]}"
