#!/usr/bin/env bash
# Shows Tatami at work on this machine: builds it, starts four nodes, runs two
# parallel programs on them, with the MPI-IO layer, and compares their files with
# the same runs on the local disk. Everything lies in one folder: TATAMI_QUICKSTART_DIR, by default
# /var/tmp/tatami-quickstart. It can be run again and again.
set -euo pipefail
cd "$(dirname "$0")/.."

dir=${TATAMI_QUICKSTART_DIR:-/var/tmp/tatami-quickstart}
volume=$dir/volume
mount=$dir/mnt
nodes=4
tatami=target/release/tatami
examples=$PWD/examples

step() { printf '\n== %s\n' "$*"; }
fail() { printf 'quickstart: %s\n' "$*" >&2; exit 1; }

# In a directory where all may write, another user may have made a folder of that name, or a link,
# to catch the files that this script puts there.
if [ -L "$dir" ]; then
  fail "$dir is a symbolic link: look who made it, or name another folder: TATAMI_QUICKSTART_DIR"
elif [ ! -e "$dir" ]; then
  mkdir -p "$(dirname "$dir")"
  (umask 022 && mkdir "$dir") || fail "cannot make $dir: name another folder: TATAMI_QUICKSTART_DIR"
fi
[ -d "$dir" ] && [ ! -L "$dir" ] && [ -O "$dir" ] ||
  fail "$dir belongs to somebody else: name another folder: TATAMI_QUICKSTART_DIR"
[ -z "$(find "$dir" -maxdepth 0 -perm /022)" ] ||
  fail "others can write to $dir: name another folder: TATAMI_QUICKSTART_DIR"

# Open MPI refuses root without these variables, and looks for ssh even on one machine.
export OMPI_ALLOW_RUN_AS_ROOT=1 OMPI_ALLOW_RUN_AS_ROOT_CONFIRM=1 OMPI_MCA_plm_rsh_agent=

# Runs a program with four ranks in a folder of the local disk.
on_disk() {
  (cd "$1" && shift && mpirun --oversubscribe -n "$nodes" "$@")
}
# Runs it with four ranks, each on the mount of its own node: rank 0 on node 0
# and so on. As on a real cluster, all see the volume under the same path. A
# rank's writes to a shared file go to its own node's disk.
on_tatami() {
  "$tatami" mpirun --oversubscribe -n "$nodes" "$PWD/$tatami" exec --dir "$volume" --node rank -- \
    sh -c 'cd "$0" && exec "$@"' "$@"
}
# Compares every file of a folder on the disk with the one on each node's mount.
same_everywhere() {
  local file node
  for file in "$1"/*; do
    for ((node = 0; node < nodes; node++)); do
      cmp "$file" "$mount/node$node/$2/$(basename "$file")" || fail "$(basename "$file") differs on node $node"
    done
    printf '  same bytes on disk and on all %d nodes: %s\n' "$nodes" "$(basename "$file")"
  done
}

# Checks that every node has bytes of the file, written by its rank.
on_all_nodes() {
  local found
  found=$("$tatami" where --json "$1" | grep -o '"node": *[0-9]*' | sort -u | wc -l)
  [ "$found" -eq "$nodes" ] || fail "$(basename "$1") lies on $found of $nodes nodes"
}

step "Installing what is missing from Debian, building Tatami"
scripts/packages.sh build jobs
cargo build --locked --release -p tatami-cli -p tatami-capi
make --silent -C mpi IO=../target/release BUILD=../target/release/mpi
mpicc -O2 "$examples/pnetcdf_shared.c" -lpnetcdf -o "$dir/pnetcdf_shared"

step "Is the MPI-IO layer active in these programs?"
"$tatami" mpi-check -- lmp
"$tatami" mpi-check -- "$dir/pnetcdf_shared"

step "Starting a file system of $nodes nodes on this machine, mounted once for each"
"$tatami" up --dir "$volume" --nodes "$nodes" --mount "$mount"
"$tatami" status --dir "$volume"

rm -rf "$dir/disk" "$mount/node0/melt" "$mount/node0/netcdf"
mkdir -p "$dir/disk/melt" "$dir/disk/netcdf" "$mount/node0/melt" "$mount/node0/netcdf"

step "LAMMPS melts a crystal: $nodes ranks write shared dump and restart files with MPI-IO"
melt=(lmp -in "$examples/in.melt" -screen none -log none)
on_disk "$dir/disk/melt" "${melt[@]}"
on_tatami "$mount/melt" "${melt[@]}"
same_everywhere "$dir/disk/melt" melt

step "A PnetCDF program: $nodes ranks write one shared netCDF file and read it back"
on_disk "$dir/disk/netcdf" "$dir/pnetcdf_shared" shared.nc
on_tatami "$mount/netcdf" "$dir/pnetcdf_shared" shared.nc
same_everywhere "$dir/disk/netcdf" netcdf
ncvalidator "$mount/node3/netcdf/shared.nc"
ncdump -h "$mount/node3/netcdf/shared.nc"

step "On which nodes the bytes lie"
"$tatami" where "$mount"/node0/melt/* "$mount"/node0/netcdf/shared.nc
for file in "$mount"/node0/melt/*.mpiio "$mount"/node0/netcdf/shared.nc; do on_all_nodes "$file"; done

step "All as it should be, after $SECONDS s. The file system is running. Try next:"
cat <<TXT
What another node sees:        ls -l $mount/node2/melt
Any program works:             cp -r examples $mount/node1/
Where those bytes lie now:     $tatami where $mount/node1/examples/*
Without a mount:               $tatami ls -l --dir $volume :/melt
Is all well?                   $tatami status --dir $volume
Names, inodes and bytes agree: $tatami fsck --dir $volume
Stop it:                       $tatami down --dir $volume
Start it again, all is there:  $tatami up --dir $volume
TXT
