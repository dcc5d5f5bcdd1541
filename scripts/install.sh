#!/usr/bin/env bash
# Builds and installs tatami, the programs of `tatami bench`, the MPI-IO layer, the library of
# `tatami run`, man pages and shell completions below a prefix.
set -euo pipefail
cd "$(dirname "$0")/.."
prefix=$(realpath -m "${1:-/usr/local}")

scripts/build-release.sh
scripts/install-files.sh target/release target/mpi-release target/mpi-bench "$prefix"
echo "Installed $("$prefix/bin/tatami" --version) in $prefix/bin. Try: tatami up"
