#!/usr/bin/env bash
# Checks the sources without running them.
set -euo pipefail
cd "$(dirname "$0")/.."

echo "== format"
cargo fmt --all --check
echo "== clippy"
cargo clippy --quiet --locked --workspace --all-targets -- -D warnings
