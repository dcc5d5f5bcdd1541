#!/usr/bin/env bash
# Runs all checks and tests of the sources. `make test` installs the packages for
# them. TATAMI_TEST_SCALE (1) multiplies the work of the end-to-end tests. A test
# that cannot run here fails; with TATAMI_TEST_MUST_RUN=0 it is skipped. Tests that hang are ended
# TATAMI_TEST_SECONDS (4200) after the start of this script; without a limit in long form.
#
# Root with 16 GiB of free memory has the files of the tests on a disk in memory, since the tests
# mostly wait for syncs of the disk otherwise. TATAMI_TEST_MEMORY=0 leaves them on the disk of /tmp.
set -euo pipefail
cd "$(dirname "$0")/.."
start=$SECONDS

# In a mount namespace of its own the disk is gone with the last process, however this one ends.
free=$(awk '/^MemAvailable:/ { print int($2 / 1048576) }' /proc/meminfo)
if [ "$UID" = 0 ] && [ "${TATAMI_TEST_MEMORY:-$free}" -ge 16 ]; then
  export TATAMI_TEST_MEMORY=0
  exec unshare --mount --propagation slave scripts/memory_disk.sh "$0" "$@"
fi

log=$(mktemp)
trap 'rm -f "$log"' EXIT
# Half of the mounts get their requests over io_uring, if this kernel has it.
uring=/sys/module/fuse/parameters/enable_uring
if [ -w $uring ]; then
  before=$(cat $uring)
  trap 'rm -f "$log"; echo "$before" > $uring' EXIT
  echo Y > $uring
fi

scripts/lint.sh

echo "== tests"
# One build for all of it, with the program that the end-to-end tests run.
cargo build --quiet --locked --workspace --all-targets
# The MPI-IO layer over the library of that build, and its test programs.
make --silent -C mpi IO=../target/debug tests
export TATAMI_TEST_MUST_RUN=${TATAMI_TEST_MUST_RUN:-1}
status=0
limit=${TATAMI_TEST_SECONDS:-4200}
if [ "${TATAMI_TEST_SCALE:-1}" -gt 1 ]; then limit=${TATAMI_TEST_SECONDS:-0}; fi
# A test that hangs has been named by "has been running for over 60 seconds" before the end.
run_tests() {
  local result=0 left=0
  # Lint and build count, too: the log of a run that something ends from outside is lost.
  if [ "$limit" != 0 ]; then left=$((limit > SECONDS ? limit - SECONDS : 1)); fi
  timeout --kill-after=60 "$left" cargo test --locked --workspace "$@" 2>&1 | tee --append "$log" || result=$?
  if [ "$result" = 124 ]; then echo "the tests were ended $limit s after the start" | tee --append "$log"; fi
  return "$result"
}
run_tests --no-fail-fast || status=$?

# The same tests with each node on a host of its own: a telling part of them, or all in long form.
some=(names:: unlinked:: tiled:: shared:: mpi_programs::mpi4py relayout::nodes visibility::names
  visibility::data visibility::mapped locks::locks_reach locks::locks_survive delegations::what_is_known_of)
all=(coreutils delegations files lent locks mpi_programs model names posix relayout removal shared
  tiled unlinked visibility)
echo "== tests on hosts"
if [ "${TATAMI_TEST_SCALE:-1}" -gt 1 ]; then some=("${all[@]/%/::}"); fi
# After a hang there may be no time left for them.
if [ "$status" != 124 ]; then
  TATAMI_TEST_HOSTS=1 run_tests --test e2e -- "${some[@]}" --skip silent:: || status=$?
fi

# In long form, also with all files beside their inodes and in regions of a device: all tests but
# those of other things than volumes, and of volumes that the tests do not start themselves.
if [ "${TATAMI_TEST_SCALE:-1}" -gt 1 ] && [ "$status" != 124 ]; then
  echo "== tests with policies"
  left_out=(another_site{,_backends,_bed,_breaks,_copy,_faults,_files,_logins,_mount,_routers,_streams}
    completion format help hosts{,_mpi,_network} jobs{,_slurm} packages sim)
  skipped=()
  for module in "${left_out[@]}"; do skipped+=(--skip "$module::"); done
  TATAMI_TEST_REGIONS=1 TATAMI_TEST_POLICIES="--engine region --inline 4k" \
    run_tests --test e2e -- "${skipped[@]}" || status=$?
fi

# What failed once more at the end, where a reader of a long log finds it. A test says why it failed
# in its last lines, so that those of a long output are shown.
awk '
  function show(  at) {
    if (count > 80) { print first; print "[" count - 80 " lines left out]" }
    for (at = (count > 80 ? count - 79 : 1); at <= count; at++) print lines[at]
    count = 0
  }
  /^---- .* stdout ----$/ { show(); shown = 1; first = $0 }
  /^failures:$/ || /^test result: / { show(); shown = 0 }
  shown { lines[++count] = $0 }
  END { show() }
' "$log"

# Every test binary reports "test result: ok. 3 passed; 0 failed; …".
awk -v seconds=$((SECONDS - start)) '
  /^test result: / { for (i = 2; i < NF; i++) { if ($(i + 1) == "passed;") passed += $i; if ($(i + 1) == "failed;") failed += $i } }
  # A test that cannot run prints "skipped: NAME: REASON", and counts as passed above. Another test
  # of its binary may have begun the line.
  match($0, /skipped: [a-z0-9_:]+: .*/) {
    split(substr($0, RSTART), words, ": ")
    if (!(words[2] in named)) { named[words[2]] = 1; skipped += 1 }
  }
  END { printf "%d passed, %d failed, %d skipped, %d s\n", passed - skipped, failed, skipped, seconds }
' "$log"
exit "$status"
