#!/usr/bin/env bash
# Installs the missing Debian packages for the named purposes: build, test, jobs,
# mpi, shared, libraries, sources, gfarm, hosts, sites, slurm, peers, bench, deb.
# Does nothing where all are installed.
set -euo pipefail

declare -A packages=(
  # A linker, and fusermount3 for mounts without root.
  [build]="build-essential fuse3"
  # The two programs of the quickstart and their MPI.
  [jobs]="lammps openmpi-bin libopenmpi-dev openssh-client pnetcdf-bin libpnetcdf-dev netcdf-bin"
  # The MPI-IO layer and its workloads: both MPI libraries' headers, and the languages of its
  # tests.
  [mpi]="libopenmpi-dev libmpich-dev mpich openmpi-bin openssh-client gfortran python3-mpi4py"
  # Libraries and programs that write shared files by MPI-IO.
  [shared]="abinit abinit-data hdf5-tools lammps libhdf5-mpich-dev libhdf5-openmpi-dev libnetcdf-mpi-dev libpnetcdf-dev netcdf-bin"
  # What the libraries' own test suites are built with.
  [libraries]="libhdf5-mpich-dev libhdf5-openmpi-dev libpetsc-real3.18-dev libpetsc3.18-dev-examples python3-h5py-mpi python3-pip python3-pytest-mpi"
  # What Debian's sources of PnetCDF are built with.
  [sources]="autoconf automake dpkg-dev libtool m4"
  # A file system of many machines, as a home of containers: its servers, clients and mount.
  [gfarm]="gfmd gfsd gfarm-client gfarm2fs"
  # A file system that `tatami bench suite` compares with, where it is installed.
  [peers]="iproute2 moosefs-chunkserver moosefs-client moosefs-master"
  # What `tatami bench regions` and the small files of `tatami bench suite` are compared with.
  [bench]="e2fsprogs fio util-linux xfsprogs"
  # Debian packages of Tatami, their check, and the check of their units.
  [deb]="debhelper dpkg-dev lintian systemd"
  # Hosts of the end-to-end tests: namespaces with a network, a login on each, and wrong clocks.
  [hosts]="faketime iproute2 openssh-client openssh-server util-linux"
  # Programs whose files lie on another host, and the file system that they are measured against.
  [sites]="hdf5-tools libhdf5-mpich-dev libpnetcdf-dev netcdf-bin sshfs"
  # Batch jobs on these hosts, and the headers of the SPANK plugin.
  [slurm]="libslurm-dev munge slurm-client slurmctld slurmd"
  # The programs that the end-to-end tests run on mounts.
  [test]="acl attr e2fsprogs fio git jq make man-db rsync sqlite3 strace stress-ng util-linux xz-utils zsh fish"
)
packages[libraries]+=" ${packages[sources]}"
packages[test]+=" ${packages[jobs]} ${packages[mpi]} ${packages[shared]} ${packages[gfarm]} ${packages[hosts]} ${packages[slurm]} ${packages[deb]}"

wanted=()
for purpose in "$@"; do
  read -ra more <<<"${packages[$purpose]}"
  wanted+=("${more[@]}")
done

missing=()
for package in "${wanted[@]}"; do
  [ "$(dpkg-query -W -f '${db:Status-Status}' "$package" 2>/dev/null)" = installed ] || missing+=("$package")
done
[ "${#missing[@]}" -eq 0 ] && exit 0

if [ "$(id -u)" -ne 0 ]; then
  echo "These Debian packages are missing: ${missing[*]}" >&2
  echo "Install them: sudo apt-get install -y --no-install-recommends ${missing[*]}" >&2
  exit 1
fi
echo "Installing from Debian: ${missing[*]}"
export DEBIAN_FRONTEND=noninteractive
install() { apt-get install -y -q --no-install-recommends "${missing[@]}" >"$log" 2>&1; }
log=$(mktemp)
# Fetches package lists only if the present ones do not suffice.
if ! install; then
  apt-get update -q >>"$log" 2>&1 || { cat "$log" >&2; exit 1; }
  install || { cat "$log" >&2; exit 1; }
fi
rm -f "$log"
