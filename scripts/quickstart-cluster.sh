#!/usr/bin/env bash
# Shows Tatami on a cluster of four hosts, which are namespaces of this machine. It builds Tatami and
# the programs, and runs target/release/quickstart-cluster, which says what it does. Needs root.
set -euo pipefail
cd "$(dirname "$0")/.."
built=$PWD/target/release

step() { printf '\n== %s\n' "$*"; }
fail() { printf 'quickstart-cluster: %s\n' "$*" >&2; exit 1; }

[ "$(id -u)" = 0 ] || fail "only root makes hosts of namespaces: run it with sudo"

step "Installing what is missing from Debian, building Tatami"
scripts/packages.sh build jobs mpi hosts slurm
cargo build --locked --release -p tatami-cli -p tatami-capi -p tatami-preload
cargo build --locked --release -p tatami-tests --bin quickstart-cluster
make --silent -C mpi IO=../target/release BUILD=../target/release/mpi

mpicc.openmpi -O2 examples/pnetcdf_shared.c -lpnetcdf -o "$built/pnetcdf_shared_openmpi"

TATAMI_BIN=$built/tatami exec "$built/quickstart-cluster"
