#!/usr/bin/env bash
# Builds fsstress, as e2fsprogs has it, from Debian's source package to the given path. It has no package of its own.
set -euo pipefail
cd "$(dirname "$0")/.."
to=$1
WORK=$PWD/target/tools/debian
sources=$WORK/sources
mkdir -p "$WORK" "$(dirname "$to")"
# Only one file of it is needed. Lists that a failed attempt has fetched may be old at the next.
trap 'rm -rf "$WORK"' EXIT
# shellcheck source=scripts/debian-source.sh
. scripts/debian-source.sh

fetch_debian e2fsprogs
cc -O1 -w -o "$to.part" "$sources/e2fsprogs/contrib/fsstress.c"
mv "$to.part" "$to"
