#!/usr/bin/env bash
# Builds what is installed and packed: programs and libraries into target/release, the MPI-IO layer
# into target/mpi-release, and the workloads of `tatami bench mpi` into target/mpi-bench.
set -euo pipefail
cd "$(dirname "$0")/.."

cargo build --quiet --locked --release --bin tatami --bin tatami-bench
cargo build --quiet --locked --release -p tatami-capi -p tatami-preload
# For the MPI libraries whose development packages are installed.
make --silent -C mpi BUILD=../target/mpi-release IO=../target/release
if [ -n "$(command -v mpicc.openmpi mpicc.mpich)" ]; then
  make --silent -C mpi-bench
else
  echo "There is no MPI here: \`tatami mpirun\` and \`tatami bench mpi\` need libopenmpi-dev or libmpich-dev" \
    "(scripts/packages.sh mpi), and this command again." >&2
fi
