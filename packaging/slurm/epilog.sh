#!/bin/sh
# Epilog of Slurm: removes the volume of the job that has ended from this host, whatever ended it.
# It does nothing where nothing is left. In slurm.conf:
#
#   Epilog=/etc/slurm/tatami/epilog.sh
#
# A volume that cannot be removed drains the host: Slurm does so for an epilog that fails.
set -u
. "$(dirname "$0")/tatami-common.sh"

command -v tatami >/dev/null || exit 0
job=${SLURM_JOB_ID:-}
case $job in '' | *[!0-9]*) exit 0 ;; esac
clean_as_user "${SLURM_JOB_UID:-}" --job "$job"
