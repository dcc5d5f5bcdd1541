#!/usr/bin/env bash
# Runs `tatami` on a host of a cluster whose test is outside (tests/src/cluster_hosts.rs): on the
# host that has a path among the arguments, or the current directory, else on the first. Started by
# a link in the directory of the test bed. Under the name `run`, the first argument is the program.
set -euo pipefail
bed=$(dirname "$(dirname "$0")")
mapfile -t inits <"$bed/processes"
volume=$(<"$bed/volume")

# Sets the host of a path here and the path there, with the text before it.
find_host() {
  if [[ $1 =~ ^(.*)"$bed"/node([0-9]+)(/.*)$ ]]; then
    host=${BASH_REMATCH[2]} there=${BASH_REMATCH[1]}${BASH_REMATCH[3]}
  elif [[ $1 =~ ^(.*)"$bed"/([0-9]+)(/.*)$ ]]; then
    host=${BASH_REMATCH[2]} there=${BASH_REMATCH[1]}$volume/mnt${BASH_REMATCH[3]}
  else
    return 1
  fi
}

at=0 dir=/ dir_at=0
if find_host "$(pwd -P)"; then at=$host dir=$there dir_at=$host; fi
words=(/usr/local/bin/tatami)
[ "${0##*/}" != run ] || words=()
for word in "$@"; do
  # Also as a part of a longer argument: --name=PATH.
  if find_host "$word"; then at=$host word=$there; fi
  words+=("$word")
done
[ "$at" = "$dir_at" ] || dir=/
user=${TATAMI_TEST_USER:-0}
become=()
[ "$user" = 0 ] || become=(--clear-groups --reuid "$user" --regid "$user")
exec nsenter --net --mount --pid --uts --ipc --target "${inits[at]}" --wdns="$dir" \
  setpriv "${become[@]}" --pdeathsig KILL "${words[@]}"
