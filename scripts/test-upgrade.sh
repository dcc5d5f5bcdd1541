#!/usr/bin/env bash
# Upgrades a volume one daemon after the other from the release before, while programs use it, and
# back. PREVIOUS is the commit or tag of that release; its program is built in target/previous.
set -euo pipefail
cd "$(dirname "$0")/.."

# The last commit whose protocol could not be negotiated.
PREVIOUS=${PREVIOUS:-bc13f9a7819c89888a1afd8c4f26067414b099f5}
commit=$(git rev-parse --verify --quiet "$PREVIOUS^{commit}") || {
  echo "there is no commit $PREVIOUS here: fetch the whole history (git fetch --unshallow)" >&2
  exit 1
}
sources=target/previous/$commit
if [ ! -x "$sources/tatami" ]; then
  mkdir -p "$sources"
  git archive "$commit" | tar -x -C "$sources"
  cargo build --quiet --locked --manifest-path "$sources/Cargo.toml" --target-dir target/previous/build --bin tatami
  cp target/previous/build/debug/tatami "$sources/tatami"
fi
cargo build --quiet --locked --workspace --all-targets
TATAMI_PREVIOUS=$PWD/$sources/tatami TATAMI_TEST_MUST_RUN=1 \
  cargo test --quiet --locked --workspace --test e2e -- upgrade::
