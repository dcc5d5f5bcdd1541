#!/usr/bin/env bash
# Installs files that are built: install-files.sh BINARIES MPI BENCH PREFIX. BINARIES has programs
# and libraries of cargo, MPI the MPI-IO layer, BENCH the workloads of `tatami bench mpi`; the last
# two may be missing. ZSH names the directory of completions of zsh below PREFIX.
set -euo pipefail
cd "$(dirname "$0")/.."
binaries=$1 mpi=$2 bench=$3 prefix=$4
tatami=$binaries/tatami

install -D -t "$prefix/bin" "$tatami" "$tatami-bench"
install -D -m 644 -t "$prefix/lib/tatami" "$binaries"/libtatami_{io,preload}.so
if [ -d "$mpi" ]; then
  find "$mpi" -maxdepth 1 \( -name 'libtatami_mpi*.so' -o -name 'libtatami_gateway_*.so' \) \
    -exec install -D -m 644 -t "$prefix/lib/tatami" {} +
fi
if [ -d "$bench" ]; then
  (cd "$bench" && find . -type f -perm -u+x -exec install -D {} "$prefix/lib/tatami/mpi-bench/{}" \;)
fi
install -D -m 644 crates/capi/include/tatami_io.h "$prefix/include/tatami_io.h"
zsh=$prefix/${ZSH:-share/zsh/site-functions}
mkdir -p "$prefix/share/man/man8" "$prefix/share/bash-completion/completions" "$zsh" \
  "$prefix/share/fish/vendor_completions.d"
"$tatami" man "$prefix/share/man/man1"
mv "$prefix"/share/man/man1/*.8 "$prefix/share/man/man8"
"$tatami" completions bash >"$prefix/share/bash-completion/completions/tatami"
"$tatami" completions zsh >"$zsh/_tatami"
"$tatami" completions fish >"$prefix/share/fish/vendor_completions.d/tatami.fish"
