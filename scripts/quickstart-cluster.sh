#!/usr/bin/env bash
# Shows Tatami on a cluster of four hosts, which are namespaces of this machine. It builds Tatami and
# the programs, and runs target/release/quickstart-cluster, which says what it does. Needs root.
set -euo pipefail
cd "$(dirname "$0")/.."
built=$PWD/target/release

step() { printf '\n== %s\n' "$*"; }
fail() { printf 'quickstart-cluster: %s\n' "$*" >&2; exit 1; }

[ "$(id -u)" = 0 ] || fail "only root makes hosts of namespaces: run it with sudo"

# For PnetCDF with MPICH, which Debian has not.
WORK=$PWD/target/libraries sources=$WORK/sources JOBS=$(nproc)
# shellcheck source=scripts/debian-source.sh
. scripts/debian-source.sh

step "Installing what is missing from Debian, building Tatami"
scripts/packages.sh build jobs mpi hosts slurm sources
cargo build --locked --release -p tatami-cli -p tatami-capi -p tatami-preload
cargo build --locked --release -p tatami-tests --bin quickstart-cluster
make --silent -C mpi IO=../target/release BUILD=../target/release/mpi all \
  ../target/release/mpi/tests/mpich_finalize.so

step "Building PnetCDF for MPICH from Debian's sources, which takes a minute the first time"
fetch_debian pnetcdf || fail "no sources of PnetCDF: see $WORK/apt/log"
make_pnetcdf mpich || fail "PnetCDF cannot be built: see $WORK/build/pnetcdf.mpich.log"
from=$WORK/build/pnetcdf.mpich/src
mpicc.openmpi -O2 examples/pnetcdf_shared.c -lpnetcdf -o "$built/pnetcdf_shared.openmpi"
mpicc.mpich -O2 "-I$from/include" examples/pnetcdf_shared.c "$from/libs/.libs/libpnetcdf.a" -lm \
  -o "$built/pnetcdf_shared.mpich"

TATAMI_BIN=$built/tatami exec "$built/quickstart-cluster"
