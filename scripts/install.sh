#!/usr/bin/env bash
# Installs tatami, the programs of `tatami bench`, the MPI-IO layer, the library of `tatami run`, man
# pages and shell completions below a prefix.
set -euo pipefail
cd "$(dirname "$0")/.."
prefix=$(realpath -m "${1:-/usr/local}")

cargo build --quiet --locked --release --bin tatami --bin tatami-bench
cargo build --quiet --locked --release -p tatami-capi -p tatami-preload
tatami=target/release/tatami
install -D -t "$prefix/bin" "$tatami" "$tatami-bench"
# The MPI-IO layer, for the MPI libraries whose development packages are installed.
make --silent -C mpi BUILD=../target/mpi-release IO=../target/release
install -D -t "$prefix/lib/tatami" target/mpi-release/libtatami_*.so
install -D -t "$prefix/lib/tatami" target/release/libtatami_preload.so
# The workloads of `tatami bench mpi`, for the same ones.
if [ -n "$(command -v mpicc.openmpi mpicc.mpich)" ]; then
  make --silent -C mpi-bench
  (cd target && find mpi-bench -type f -perm -u+x -exec install -D {} "$prefix/lib/tatami/{}" \;)
else
  echo "There is no MPI here: \`tatami mpirun\` and \`tatami bench mpi\` need libopenmpi-dev or libmpich-dev" \
    "(scripts/packages.sh mpi), and \`make install\` again." >&2
fi
install -D -m 644 crates/capi/include/tatami_io.h "$prefix/include/tatami_io.h"
mkdir -p "$prefix/share/man/man1" "$prefix/share/bash-completion/completions" \
  "$prefix/share/zsh/site-functions" "$prefix/share/fish/vendor_completions.d"
"$tatami" man "$prefix/share/man/man1"
"$tatami" completions bash >"$prefix/share/bash-completion/completions/tatami"
"$tatami" completions zsh >"$prefix/share/zsh/site-functions/_tatami"
"$tatami" completions fish >"$prefix/share/fish/vendor_completions.d/tatami.fish"
echo "Installed $("$tatami" --version) in $prefix/bin. Try: tatami up"
