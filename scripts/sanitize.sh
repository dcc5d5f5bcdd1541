#!/usr/bin/env bash
# Runs the unit and integration tests of the crates that have `unsafe` blocks with AddressSanitizer,
# and the test of MPI datatypes with those of gcc. An access outside of an object or to a freed one,
# and a leak, end the test and name the place. CRATES names fewer crates.
set -euo pipefail
cd "$(dirname "$0")/.."

CRATES=${CRATES:-capi client fuse layout meta mount net tables tiled}
host=$(rustc -vV | sed -n 's/^host: //p')
packages=()
for crate in $CRATES; do packages+=(-p "tatami-$crate"); done

# The sanitizers have no stable flag. RUSTC_BOOTSTRAP lets the pinned compiler take the unstable one,
# so that no second toolchain is needed. With --target, build scripts and macros stay without them.
# One test counts the system calls of its process: the sanitizer makes its own.
ASAN_OPTIONS=detect_stack_use_after_return=1:strict_string_checks=1 \
  RUSTC_BOOTSTRAP=1 RUSTFLAGS=-Zsanitizer=address \
  cargo test --quiet --locked --lib --tests --no-fail-fast --target "$host" \
  --target-dir target/sanitize "${packages[@]}" -- --skip is_one_call

echo "== MPI datatypes"
cargo build --quiet --locked -p tatami-capi
make --silent -C mpi IO=../target/debug sanitized
# The suppressed leak is of a library of MPICH. Its frames need the slow unwinder.
LSAN_OPTIONS=suppressions=mpi/tests/leaks.txt:print_suppressions=0 \
  ASAN_OPTIONS=fast_unwind_on_malloc=0 target/mpi/tests/flatten_test.sanitized $RANDOM 5000
