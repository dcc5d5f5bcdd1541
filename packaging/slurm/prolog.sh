#!/bin/sh
# Prolog of Slurm: removes what a crash of this host has left of earlier jobs. No epilog ran then.
# In slurm.conf:
#
#   Prolog=/etc/slurm/tatami/prolog.sh
#
# It never fails: files of another job are no reason to drain the host.
set -u
. "$(dirname "$0")/tatami-common.sh"

command -v tatami >/dev/null || exit 0
# Names only, and not through links. The owners of the directories look into them.
# shellcheck disable=SC2086 # The places are words.
owners=$(find $TATAMI_PLACES -xdev -mindepth 1 -maxdepth 1 -type d -name 'tatami-job-*' \
  -printf '%U\n' 2>/dev/null | sort -u)
for owner in $owners; do
  clean_as_user "$owner" || echo "tatami: files of a job of user $owner are left" >&2
done
exit 0
