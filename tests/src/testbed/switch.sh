#!/usr/bin/env bash
# The switch of a test bed (tests/src/testbed.rs): a bridge in a network namespace of its own, which
# is gone with this process. Argument: the directory of the test bed. Reads the numbers of the
# hosts' processes from standard input. At its end it waits for those and removes the directory: the
# test may have been killed.
set -euo pipefail
trap '' INT TERM HUP
ip link add name bridge type bridge
ip link set bridge up
echo ready
hosts=()
while read -r pid; do hosts+=("$pid"); done
for _ in {1..400}; do
  alive=no
  for pid in "${hosts[@]}"; do [ ! -d "/proc/$pid" ] || alive=yes; done
  [ $alive = yes ] || break
  sleep 0.05
done
# A test may have mounts of its hosts there (tests/src/cluster_hosts.rs).
awk -v below="$1/" 'index($5, below) == 1 { print $5 }' /proc/self/mountinfo | tac |
  while read -r place; do umount --lazy "$place" || true; done
rm -rf --one-file-system "$1"
