#!/usr/bin/env bash
# Shows Tatami on a cluster of four hosts, which are namespaces of this machine: builds the programs
# of Open MPI and MPICH and runs target/release/quickstart-cluster, which says what it does. Debian
# has PnetCDF for Open MPI only, so it is built for MPICH from Debian's source package, once, in
# TATAMI_QUICKSTART_DIR (by default /var/tmp/tatami-quickstart-cluster). Needs root.
set -euo pipefail
cd "$(dirname "$0")/.."
WORK=${TATAMI_QUICKSTART_DIR:-/var/tmp/tatami-quickstart-cluster}
sources=$WORK/sources built=$PWD/target/release
# shellcheck source=scripts/debian-source.sh
. scripts/debian-source.sh

step() { printf '\n== %s\n' "$*"; }
fail() { printf 'quickstart-cluster: %s\n' "$*" >&2; exit 1; }

[ "$(id -u)" = 0 ] || fail "only root makes hosts of namespaces: run it with sudo"
if [ -L "$WORK" ] || { [ -e "$WORK" ] && [ ! -O "$WORK" ]; }; then
  fail "$WORK belongs to somebody else: name another folder: TATAMI_QUICKSTART_DIR"
fi
mkdir -p "$WORK"

step "Installing what is missing from Debian, building Tatami"
scripts/packages.sh build jobs mpi hosts slurm
cargo build --locked --release -p tatami-cli -p tatami-capi -p tatami-preload
cargo build --locked --release -p tatami-tests --bin quickstart-cluster
make --silent -C mpi IO=../target/release BUILD=../target/release/mpi

pnetcdf=$WORK/pnetcdf
if [ ! -e "$pnetcdf/built" ]; then
  step "Building PnetCDF for MPICH, from Debian's source package"
  fetch_debian pnetcdf || fail "Debian's source package of PnetCDF cannot be fetched"
  [ -x "$sources/pnetcdf/configure" ] || (cd "$sources/pnetcdf" && autoreconf -i) >"$WORK/autoreconf.log" 2>&1
  mkdir -p "$pnetcdf"
  (cd "$pnetcdf" &&
    "$sources/pnetcdf/configure" -q --disable-fortran --disable-cxx --disable-shared --disable-debug \
      MPICC=mpicc.mpich CFLAGS=-O1 && make -s -j "$(nproc)" && touch built) >"$WORK/pnetcdf.log" 2>&1 ||
    fail "PnetCDF does not build: $WORK/pnetcdf.log says why"
fi
mpicc.openmpi -O2 examples/pnetcdf_shared.c -lpnetcdf -o "$built/pnetcdf_shared_openmpi"
mpicc.mpich -O2 "-I$pnetcdf/src/include" "-L$pnetcdf/src/libs/.libs" examples/pnetcdf_shared.c -lpnetcdf -lm \
  -o "$built/pnetcdf_shared_mpich"

TATAMI_BIN=$built/tatami exec "$built/quickstart-cluster"
