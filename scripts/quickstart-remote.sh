#!/usr/bin/env bash
# Shows files on another site, on two hosts that are namespaces of this machine. It builds Tatami and
# the programs, and runs target/release/quickstart-remote, which says what it does. Needs root.
set -euo pipefail
cd "$(dirname "$0")/.."
built=$PWD/target/release

step() { printf '== %s\n' "$*"; }
fail() { printf 'quickstart-remote: %s\n' "$*" >&2; exit 1; }

[ "$(id -u)" = 0 ] || fail "only root makes hosts of namespaces: run it with sudo"

step "Installing what is missing from Debian, building Tatami"
scripts/packages.sh build mpi hosts sites
cargo build --quiet --locked --release -p tatami-cli -p tatami-capi -p tatami-preload
cargo build --quiet --locked --release -p tatami-tests --bin quickstart-remote
make --silent -C mpi IO=../target/release BUILD=../target/release/mpi

step "mpicc examples/pnetcdf_remote.c for Open MPI, and an HDF5 program for MPICH"
mpicc.openmpi -O2 examples/pnetcdf_remote.c -lpnetcdf -o "$built/pnetcdf_remote"
# Debian has PnetCDF for Open MPI alone.
hdf5=$(gcc -print-multiarch)/hdf5/mpich
mpicc.mpich -O2 -I/usr/include/hdf5/mpich tests/e2e/mpi_programs/hdf5_shared.c \
  -L"/usr/lib/$hdf5" -lhdf5 -o "$built/hdf5_remote"

TATAMI_BIN=$built/tatami exec "$built/quickstart-remote"
