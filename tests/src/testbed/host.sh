#!/usr/bin/env bash
# The first process of a host of a test bed (tests/src/testbed.rs), in network, mount, PID, UTS and
# IPC namespaces of its own. Arguments: the directory of the test bed, and the host's name.
# Reads the addresses of the host from standard input, and ends with it: so does the host.
set -euo pipefail
bed=$1 name=$2
own=$bed/$name

mount --make-rprivate /
# Mounts of the machine, such as volumes of other tests, are not of this host; but that of the test
# bed is.
awk -v bed="$bed/" '$5 !~ "^/(proc|sys|dev)?(/|$)" && index(bed, $5 "/") != 1 { print $5 }' \
  /proc/self/mountinfo | tac |
  while read -r place; do umount --lazy "$place" || true; done
mount -t proc proc /proc
hostname "$name"

if [ ! -d "$own/etc" ]; then
  mkdir -p "$own"/{root,home,mnt,srv,tmp,work,etc/ssh,var/{lib,log,tmp,spool}}
  # Of /etc, only what differs from the machine's.
  cp -a /etc/{passwd,shadow,group} "$own/etc"
  ln -s /run "$own/var/run"
  chmod 1777 "$own/tmp" "$own/var/tmp"
  chmod 700 "$own/root"
  # An ordinary user besides root.
  echo 'alice:x:4011:4011::/srv/alice:/bin/bash' >>"$own/etc/passwd"
  echo 'alice:*:19000:0:99999:7:::' >>"$own/etc/shadow"
  echo 'alice:x:4011:' >>"$own/etc/group"
  mkdir -p "$own/srv/alice"
  for home in "$own/root" "$own/srv/alice"; do
    mkdir -m 700 -p "$home/.ssh"
    cp "$bed/keys/user" "$home/.ssh/id_ed25519"
    cp "$bed/keys/user.pub" "$home/.ssh/authorized_keys"
    cp "$bed/known_hosts" "$home/.ssh/known_hosts"
  done
  chown -R 4011:4011 "$own/srv/alice"
  install -m 600 "$bed/keys/$name" "$own/etc/ssh/bed_key"
  cat >"$own/etc/ssh/bed_config" <<CONFIG
HostKey /etc/ssh/bed_key
UsePAM no
PermitRootLogin prohibit-password
PasswordAuthentication no
PrintMotd no
PidFile none
MaxStartups 100
Subsystem sftp internal-sftp
CONFIG
  echo "$name" >"$own/etc/hostname"
  tr -d - </proc/sys/kernel/random/uuid >"$own/etc/machine-id"
  # As on Debian, a host finds its own name on its loopback network.
  { printf '127.0.0.1 localhost\n127.0.1.1 %s\n' "$name"; cat "$bed/hosts"; } >"$own/etc/hosts"
fi

mount --bind "$bed/bin" /usr/local/bin
mount -o remount,bind,ro /usr/local/bin
mount -t tmpfs -o mode=755 tmpfs /run
mount -t tmpfs -o mode=1777 tmpfs /dev/shm
mkdir -p /run/sshd
# As on most machines, all users may mount.
[ -e "$own/fuse" ] || mknod -m 666 "$own/fuse" c 10 229
mount --bind "$own/fuse" /dev/fuse
# The directory of the test bed lies in /tmp, so that comes last.
# To copy and remove all of /etc takes a second a host, so it is laid over that of the machine. Not
# all file systems can be laid over another.
layers=lowerdir=/etc,upperdir=$own/etc,workdir=$own/work
if ! mount -t overlay -o "$layers" overlay /etc 2>/dev/null; then
  cp -a --no-clobber /etc/. "$own/etc"
  mount --bind "$own/etc" /etc
fi
for place in root home mnt srv var tmp; do mount --bind "$own/$place" "/$place"; done
# The rest of the file system is that of the machine, and cannot be changed.
mount -o remount,bind,ro /
cd /

echo made
read -ra addresses
ip link set lo up
for at in "${!addresses[@]}"; do
  # An address of IPv6 is usable at once, and not after a search for others with the same.
  [[ ${addresses[at]} != *:* ]] || nodad=nodad
  ip address add "${addresses[at]}" dev "eth$at" ${nodad:-}
  ip link set "eth$at" up
done
/usr/sbin/sshd -f /etc/ssh/bed_config -E /var/log/sshd.log
# It listens some time after the command has returned.
until (exec 3<>/dev/tcp/127.0.0.1/22) 2>/dev/null; do sleep 0.02; done
echo ready
# Adopted processes are waited for meanwhile. At the end of the input, the kernel ends them all.
while read -r _; do :; done
