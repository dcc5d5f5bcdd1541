#!/usr/bin/env bash
# Runs a command with an ext4 file system in memory as /tmp. For a mount namespace of its own:
# unshare --mount --propagation slave scripts/memory_disk.sh COMMAND ARGUMENT...
# Where no such disk can be made, the command runs with the /tmp that is there.
set -euo pipefail

make_disk() {
  mount -t tmpfs -o size=14g tatami-tests /tmp || return 1
  # Blocks that are freed leave the memory (discard).
  if truncate --size=12G /tmp/disk && mkfs.ext4 -q -F -m 0 /tmp/disk &&
    mount -o loop,discard /tmp/disk /tmp; then
    chmod 1777 /tmp
  else
    umount /tmp
    return 1
  fi
}

make_disk || echo "the tests have no disk in memory, and use the disk of /tmp" >&2
exec "$@"
