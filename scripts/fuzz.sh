#!/usr/bin/env bash
# Runs the fuzz targets of the decoders, SECONDS_EACH (60) seconds each, one after the other. Fails
# where one panics, hangs or takes too much memory; the input that did it stays in
# target/fuzz/crashes. TARGETS names fewer of them.
set -euo pipefail
cd "$(dirname "$0")/.."

SECONDS_EACH=${SECONDS_EACH:-60}
TARGETS=${TARGETS:-$(cd fuzz/src/bin && printf '%s\n' *.rs | sed 's/\.rs$//')}
out=$PWD/target/fuzz
host=$(rustc -vV | sed -n 's/^host: //p')

# Counters of edges and compared values guide the search. With --target, build scripts and macros
# stay without them.
flags=(-Cpasses=sancov-module -Cllvm-args=-sanitizer-coverage-level=4
  -Cllvm-args=-sanitizer-coverage-inline-8bit-counters -Cllvm-args=-sanitizer-coverage-pc-table
  -Cllvm-args=-sanitizer-coverage-trace-compares --cfg fuzzing -Ccodegen-units=1)
RUSTFLAGS=${flags[*]} cargo build --quiet --locked --release --manifest-path fuzz/Cargo.toml \
  --target "$host" --target-dir "$out"

mkdir -p "$out/crashes"
for target in $TARGETS; do
  mkdir -p "$out/corpus/$target"
  echo "== $target, $SECONDS_EACH s"
  "$out/$host/release/$target" -max_total_time="$SECONDS_EACH" -max_len=4096 -timeout=10 \
    -rss_limit_mb=2048 -artifact_prefix="$out/crashes/$target-" -print_final_stats=1 \
    "$out/corpus/$target" >"$out/$target.log" 2>&1 || {
    tail -n 40 "$out/$target.log"
    echo "$target failed: the input is in $out/crashes" >&2
    exit 1
  }
  grep -E 'number_of_executed_units|new_units_added' "$out/$target.log"
done
