#!/usr/bin/env bash
# Runs all checks and tests of the sources. `make test` installs the packages for
# them. TATAMI_TEST_SCALE (1) multiplies the work of the end-to-end tests.
set -euo pipefail
cd "$(dirname "$0")/.."
start=$SECONDS
log=$(mktemp)
trap 'rm -f "$log"' EXIT

scripts/lint.sh

echo "== tests"
# One build for all of it, with the program that the end-to-end tests run.
cargo build --quiet --locked --workspace --all-targets
# The MPI-IO layer over the library of that build, and its test programs.
make --silent -C mpi IO=../target/debug tests
status=0
cargo test --locked --workspace --no-fail-fast 2>&1 | tee "$log" || status=$?

# Every test binary reports "test result: ok. 3 passed; 0 failed; …".
awk -v seconds=$((SECONDS - start)) '
  /^test result: / { for (i = 2; i < NF; i++) { if ($(i + 1) == "passed;") passed += $i; if ($(i + 1) == "failed;") failed += $i } }
  END { printf "%d passed, %d failed, %d s\n", passed, failed, seconds }
' "$log"
exit "$status"
