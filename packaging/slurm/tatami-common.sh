# Read by the prolog and the epilog. The job's user can write to the directories below, and root runs
# these scripts. So they touch nothing there themselves: tatami does, as that user.

PATH=/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin
export PATH
# Directories in which jobs have their volumes: /tmp, and where TMPDIR and --scratch point.
TATAMI_PLACES="/tmp /var/tmp"
# Longest time for one call, in seconds.
TATAMI_LIMIT=120
# The administrator's own values.
if [ -r /etc/default/tatami-slurm ]; then . /etc/default/tatami-slurm; fi

# Runs tatami as a user, who may be none of this machine, with nothing of the environment.
clean_as_user() {
  user=$1
  shift
  case $user in '' | *[!0-9]*) return 0 ;; esac
  group=$(id -g "$user" 2>/dev/null) || group=$user
  runtime=/run/user/$user
  [ -d "$runtime" ] || runtime=
  # shellcheck disable=SC2086 # The places are words.
  timeout -k 10 "$TATAMI_LIMIT" setpriv --reuid "$user" --regid "$group" --clear-groups \
    env -i PATH="$PATH" HOME=/ XDG_RUNTIME_DIR="$runtime" \
    tatami host clean "$@" $TATAMI_PLACES </dev/null
}
