#!/usr/bin/env bash
# The short check: format, lints, unit tests. It needs no root, no packages and no network, starts no
# daemon, and mounts nothing. `make test` does all of this and more.
set -euo pipefail
cd "$(dirname "$0")/.."

scripts/lint.sh
echo "== unit tests"
cargo test --quiet --locked --workspace --lib --bins --exclude tatami-tests
echo "== house rules"
cargo test --quiet --locked -p tatami-tests --test sources
