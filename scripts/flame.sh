#!/usr/bin/env bash
# Draws where sessions of queen_mq spend their time, while they push and pop, as flame graphs:
#   scripts/flame.sh
# The pictures go to docs/benchmarks/flame-*.svg. It needs perf, and takes about five minutes. inferno, which
# draws them, is built into target/tools.
. "$(dirname "${BASH_SOURCE[0]}")/lib.sh"
choose_pg_config
INFERNO_VERSION=0.12.8
command -v perf >/dev/null || die "this needs perf (Debian: linux-perf)"
if ! grep -qsF "\"inferno $INFERNO_VERSION " target/tools/.crates.toml; then
  say "building inferno $INFERNO_VERSION"
  cargo install --quiet --locked --root target/tools --no-default-features --features cli \
    --version $INFERNO_VERSION inferno
fi
PROFILE=release scripts/install.sh
describe_pg
. scripts/cluster.sh

say "building the driver"
driver=target/driver
cargo build --quiet --release --locked --manifest-path bench/Cargo.toml --target-dir $driver
cluster_start flame "shared_preload_libraries = 'queen_mq'" "max_connections = 400" \
  "shared_buffers = 1GB" "max_wal_size = 8GB" "checkpoint_timeout = 30min"
out=target/flame
rm -rf $out
$driver/release/queen-bench --out $out --profile $out
# Nothing below needs the server.
cluster_stop

# draw NAME TITLE: what is narrower than a two hundredth of the picture is left out, and the pictures stay small.
draw() {
  say "drawing $1"
  perf script --input "$out/$1.perf" 2>"$out/$1.log" | inferno-collapse-perf >"$out/$1.folded"
  inferno-flamegraph --title "$2" --minwidth 0.5 --countname ns --deterministic --colors rust \
    "$out/$1.folded" >"docs/benchmarks/flame-$1.svg"
}
draw push-1 "push 1 per transaction, 32 sessions"
draw push-100 "push 100 per call, 4 sessions"
draw pop-100 "pop 100 + ack, 4 sessions"
draw pop-1 "pop 1 + ack 1, 8 sessions"
ls -l docs/benchmarks/flame-*.svg
