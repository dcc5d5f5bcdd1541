#!/usr/bin/env bash
# Builds Debian packages: tatami, tatami-mpi, tatami-slurm, and tatami-dbgsym and others with the
# symbols. debhelper does it: a Rust tool would pack the files of cargo alone, and what debhelper
# does by itself (symbols, dependencies, maintainer scripts) would be a script of our own.
#
#   scripts/deb.sh                          from target/release, which it builds, to target/deb
#   scripts/deb.sh OUT BINARIES MPI BENCH   from these directories, without a build
#
# MAINTAINER ("Name <address>") is the maintainer that the packages name. REVISION (1) is the part of
# the version behind the one of Tatami. DEB_COMPRESSION has options of dpkg-deb.
set -euo pipefail
cd "$(dirname "$0")/.."
out=$(realpath -m "${1:-target/deb}")
if [ $# -lt 2 ]; then
  scripts/build-release.sh
  set -- "$out" target/release target/mpi-release target/mpi-bench
fi
maintainer=${MAINTAINER:-Tatami developers <tatami@example.org>}
version=$(sed -n 's/^version = "\(.*\)"/\1/p' Cargo.toml | head -1)-${REVISION:-1}

work=$out/work
rm -rf "$work" "$out"/tatami*_*
mkdir -p "$work"
cp -r packaging/debian README.md docs CHANGELOG.md "$work"
root=$work/files
ZSH=share/zsh/vendor-completions scripts/install-files.sh "$2" "$3" "$4" "$root/usr"
install -D -m 644 -t "$root/etc/tatami" packaging/system/tatami.toml
install -D -m 644 -t "$root/lib/systemd/system" packaging/system/tatami-node@.service
[ ! -d "$root/usr/lib/tatami/mpi-bench" ] || echo usr/lib/tatami/mpi-bench >>"$work/debian/tatami-mpi.install"
if [ -d packaging/slurm ]; then
  cat "$work/debian/control.slurm" >>"$work/debian/control"
  slurm=$root/usr/lib/tatami/slurm
  find packaging/slurm -maxdepth 1 -type f -perm -u+x -exec install -D -t "$slurm" {} +
  for source in packaging/slurm/*.c; do
    [ -e "$source" ] || continue
    plugin=$slurm/$(basename "$source" .c).so
    mkdir -p "$slurm"
    gcc -std=gnu11 -O2 -g -Wall -Wextra -Werror -fPIC -shared -o "$plugin" "$source"
  done
  echo usr/lib/tatami/slurm >"$work/debian/tatami-slurm.install"
fi
rm "$work/debian/control.slurm"
sed -i "s|@MAINTAINER@|$maintainer|" "$work/debian/control"
# The changes are in CHANGELOG.md, which becomes changelog.gz.
date=$(git log -1 --format=%cD 2>/dev/null || date -R)
cat >"$work/debian/changelog" <<CHANGELOG
tatami ($version) unstable; urgency=medium

  * Packages of Tatami ${version%-*}.

 -- $maintainer  $date
CHANGELOG

# Without a git repository around it, in which the work would be ignored files.
(cd "$work" && dpkg-buildpackage --build=binary --no-sign --no-check-builddeps >"$out/log" 2>&1) || {
  tail -40 "$out/log" >&2
  echo "The packages were not built; see $out/log. scripts/packages.sh deb installs the tools." >&2
  exit 1
}
rm -rf "$work"
echo "Packages of Tatami $version in $out:"
(cd "$out" && ls *.deb)
