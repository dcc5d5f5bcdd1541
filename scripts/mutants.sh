#!/usr/bin/env bash
# Plants faults, one at a time, in the code where a wrong answer would be silent, and runs its tests:
# the transactions of `meta` with the simulator, `layout`, `tiled`, and the datatypes of the MPI
# layer. A fault that no test finds fails the script: it needs a test, or its code goes.
#
# All of them take days: SHARD names a part, as 7/40 (0/1: all), and is drawn where it is not given.
# PARTS names fewer of: meta layout tiled mpi.
set -euo pipefail
cd "$(dirname "$0")/.."

parts=${PARTS:-meta layout tiled mpi}
shard=${SHARD:-$((RANDOM % 40))/40}
out=$PWD/target/mutants
tools=$PWD/target/tools
status=0

# Plants faults in the Rust files of a pattern and runs the tests of the packages that are named.
mutate_rust() {
  local name=$1 pattern=$2 tests=$3
  echo "== $name, shard $shard"
  mkdir -p "$out/$name"
  # An exit status of 2 says that faults were missed, 3 that a test took too long for its fault.
  "$tools/bin/cargo-mutants" mutants --file "$pattern" --shard "$shard" --output "$out/$name" \
    --baseline skip --timeout 300 --test-package "$tests" -- --lib --tests || status=$?
}

# Plants faults in a C file of the backend. `flatten_test` packs random datatypes beside MPI_Pack,
# with the sanitizers of addresses, leaks and undefined behaviour.
mutate_c() {
  local file=$1 dir=$out/mpi source mutant number=0 found=0 invalid=0 missed=0
  local compile=(mpicc.mpich -std=gnu11 -O1 -w -Impi/backend -c)
  local sanitize=(-fsanitize=address,undefined -fno-sanitize-recover=undefined)
  echo "== $file.c, shard $shard"
  rm -rf "$dir" && mkdir -p "$dir/objects" "$dir/mutants"
  for source in mpi/backend/*.c mpi/tests/random_types.c mpi/tests/flatten_test.c; do
    "${compile[@]}" "${sanitize[@]}" -o "$dir/objects/$(basename "$source" .c).o" "$source"
  done
  "${compile[@]}" -o "$dir/right.o" "mpi/backend/$file.c"
  mv "$dir/objects/$file.o" "$dir/right_sanitized.o"
  # The lines that `mutants.ignore` names check what a right MPI library with enough memory never
  # does.
  "$tools/python/bin/mutate" "mpi/backend/$file.c" --only mpi/tests/mutants.rules \
    --ignore mpi/tests/mutants.ignore --noCheck --mutantDir "$dir/mutants" >"$dir/log"
  # The suppressed leak is of a library of MPICH. Its frames need the slow unwinder.
  export LSAN_OPTIONS=suppressions=mpi/tests/leaks.txt:print_suppressions=0
  export ASAN_OPTIONS=fast_unwind_on_malloc=0
  flatten_with "$dir" "$dir/right_sanitized.o" || { echo "flatten_test fails without a fault" >&2; exit 1; }
  for mutant in "$dir/mutants"/*.c; do
    number=$((number + 1))
    [ $((number % ${shard#*/})) -eq "${shard%/*}" ] || continue
    # No faults: what the compiler refuses, and what changes no instruction.
    if ! "${compile[@]}" -o "$dir/mutant.o" "$mutant" 2>"$dir/log" ||
      cmp -s "$dir/mutant.o" "$dir/right.o" ||
      ! "${compile[@]}" "${sanitize[@]}" -o "$dir/mutant.o" "$mutant"; then
      invalid=$((invalid + 1))
    elif flatten_with "$dir" "$dir/mutant.o"; then
      missed=$((missed + 1))
      diff "mpi/backend/$file.c" "$mutant" || true
    else
      found=$((found + 1))
    fi
  done
  echo "$file.c: $found found, $missed missed, $invalid are no faults"
  [ "$missed" -eq 0 ] || status=2
}

# Whether `flatten_test` passes with this object in place of the one that is missing.
flatten_with() {
  mpicc.mpich -fsanitize=address,undefined -o "$1/flatten_test" "$1"/objects/*.o "$2" \
    -L"$PWD/target/mpi" -ltatami_io -Wl,-rpath,"$PWD/target/mpi" -pthread 2>"$1/log" &&
    (timeout -s KILL 60 "$1/flatten_test" 7 500) >"$1/log" 2>&1
}

for part in $parts; do
  case $part in
  meta) mutate_rust meta 'crates/meta/src/transaction/**' tatami-meta ;;
  layout) mutate_rust layout 'crates/layout/src/**' tatami-layout,tatami-tiled ;;
  tiled) mutate_rust tiled 'crates/tiled/src/**' tatami-tiled ;;
  mpi)
    cargo build --quiet --locked -p tatami-capi
    make --silent -C mpi IO=../target/debug "$PWD/target/mpi/libtatami_io.so" BUILD="$PWD/target/mpi"
    mutate_c flatten
    mutate_c arrays
    ;;
  *) echo "PARTS: no part is named $part" >&2 && exit 1 ;;
  esac
done
exit "$status"
