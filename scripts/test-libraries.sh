#!/usr/bin/env bash
# The own test suites of the libraries that Tatami is for, from Debian's source packages: PnetCDF's `make check` and
# `make ptests`, HDF5's `testpar`, mpi4py's `test_io`. Each runs with both MPI libraries natively on the local disk,
# and through the layer: in a volume with a mount a rank ("ranks"), on one mount ("mount"), and in a container.
# Prints what passed where, and fails where something passes natively and not through the layer.
#
# LIBRARIES, MPIS and PLACES name fewer of each; PTESTS=ptest takes 4 ranks only; WORK is where all is built.
# PnetCDF is not tried in containers, nor are those tests of HDF5 that open files without MPI-IO: open(2) sees a directory
# there, as docs/MPI.md says.
set -euo pipefail
cd "$(dirname "$0")/.."

WORK=${WORK:-$PWD/target/libraries}
LIBRARIES=${LIBRARIES:-pnetcdf hdf5 mpi4py}
MPIS=${MPIS:-openmpi mpich}
PLACES=${PLACES:-native ranks mount container}
PTESTS=${PTESTS:-ptests}
TATAMI=${TATAMI:-$PWD/target/debug/tatami}
LAYER=${LAYER:-$PWD/target/mpi/libtatami_mpi.so}
NODES=4
# Seconds after which a program counts as one that hangs.
PATIENCE=600
JOBS=$(nproc)
multiarch=$(gcc -print-multiarch)
sources=$WORK/sources
results=$WORK/results
volume=$WORK/volume
mounts=$WORK/mounts

# Open MPI refuses root unless told, looks for ssh even on one machine, and spins where there are fewer processors.
export OMPI_ALLOW_RUN_AS_ROOT=1 OMPI_ALLOW_RUN_AS_ROOT_CONFIRM=1 OMPI_MCA_plm_rsh_agent=
export OMPI_MCA_rmaps_base_oversubscribe=1 OMPI_MCA_mpi_yield_when_idle=1
export OMPI_MCA_btl_vader_single_copy_mechanism=none

say() { printf '== %s\n' "$*"; }

# Fetches and unpacks a source package. The lists of sources are of this folder only: the machine's stay as they are.
fetch() {
  local package=$1 apt=$WORK/apt
  [ -d "$sources/$package" ] && return 0
  mkdir -p "$apt/lists/partial" "$apt/cache/archives/partial" "$sources"
  # shellcheck source=/dev/null
  . /etc/os-release
  echo "deb-src [signed-by=/usr/share/keyrings/debian-archive-keyring.gpg] http://deb.debian.org/debian $VERSION_CODENAME main" \
    >"$apt/sources.list"
  local options=(-q -o "Dir::Etc::sourcelist=$apt/sources.list" -o Dir::Etc::sourceparts=/dev/null
    -o "Dir::State::lists=$apt/lists" -o "Dir::Cache=$apt/cache" -o APT::Sandbox::User=root)
  [ -e "$apt/updated" ] || { apt-get "${options[@]}" update >"$apt/log" 2>&1 && touch "$apt/updated"; }
  (cd "$sources" && apt-get "${options[@]}" source --download-only --only-source "$package" &&
    dpkg-source -x "$package"_*.dsc "$package") >>"$apt/log" 2>&1 || { tail -n 5 "$apt/log" >&2; return 1; }
}

build_pnetcdf() {
  local mpi=$1 to=$WORK/build/pnetcdf.$1
  [ -e "$to/built" ] && return 0
  [ -x "$sources/pnetcdf/configure" ] || (cd "$sources/pnetcdf" && autoreconf -i) >"$WORK/autoreconf.log" 2>&1
  mkdir -p "$to"
  (cd "$to" &&
    "$sources/pnetcdf/configure" -q --disable-fortran --disable-cxx --disable-shared --disable-debug \
      MPICC="mpicc.$mpi" CFLAGS=-O1 &&
    make -s -j "$JOBS" && make -s -j "$JOBS" tests && touch built) >"$to.log" 2>&1
}

# The tests alone, against Debian's library: that is what programs use.
build_hdf5() {
  local mpi=$1 to=$WORK/build/hdf5.$1 from=$sources/hdf5 program part
  [ -e "$to/built" ] && return 0
  mkdir -p "$to"
  sed "s,@srcdir@,$from/test," "$from/test/H5srcdir_str.h.in" >"$to/H5srcdir_str.h"
  local flags=(-O1 -w "-I$to" "-I/usr/include/hdf5/$mpi" "-I$from/src" "-I$from/test" "-I$from/testpar")
  local libraries=("-L/usr/lib/$multiarch/hdf5/$mpi" -lhdf5 -lm)
  {
    for part in h5test testframe; do
      "mpicc.$mpi" "${flags[@]}" -c "$from/test/$part.c" -o "$to/$part.o" || return 1
    done
    for program in $HDF5_PROGRAMS; do
      local parts=("$from/testpar/$program.c")
      [ "$program" = testphdf5 ] && mapfile -t parts < <(hdf5_parts "$from/testpar")
      "mpicc.$mpi" "${flags[@]}" -o "$to/$program" "${parts[@]}" "$to/h5test.o" "$to/testframe.o" "${libraries[@]}" ||
        return 1
    done
  } >"$to.log" 2>&1
  touch "$to/built"
}

# t_bigio is left out: it writes files of many GiB. t_cache and t_cache_image test the cache of metadata by functions
# that the library keeps for itself.
HDF5_PROGRAMS="testphdf5 t_mpi t_pread t_pshutdown t_prestart t_init_term t_shapesame t_filters_parallel"

hdf5_parts() {
  sed -n '/^testphdf5_SOURCES=/,/[^\\]$/p' "$1/Makefile.am" | tr -d '\\' | grep -o '[a-z0-9_]*\.c' | sed "s,^,$1/,"
}

# Writes the programs that start one process, or NP ranks, in a place; the latter notes how the job ended.
write_launchers() {
  local suite=$1 mpi=$2 place=$3 layer=() inside=() one=()
  case $place in
  native) ;;
  ranks)
    layer=(env "LD_PRELOAD=$LAYER")
    inside=("$TATAMI" exec --dir "$volume" --node rank --)
    one=("$TATAMI" exec --dir "$volume" --node 0 --)
    ;;
  mount) layer=(env "LD_PRELOAD=$LAYER") ;;
  container) layer=(env "LD_PRELOAD=$LAYER" "TATAMI_CONTAINER=$out") ;;
  esac
  single=$WORK/single launcher=$WORK/launcher
  printf '#!/bin/sh\nexec %s "$@"\n' "${one[*]} ${layer[*]}" >"$single"
  printf '#!/bin/sh\nexec %s "$@"\n' "${one[*]}" >"$WORK/bare"
  cat >"$launcher" <<END
#!/bin/sh
np=\$1; shift
timeout $PATIENCE mpirun.$mpi -n \$np ${inside[*]} ${layer[*]} "\$@" >"$WORK/last.log" 2>&1 </dev/null
code=\$?
name=$suite/\$(basename "\$PWD")/\$(basename "\$1")
[ "$suite" = hdf5 ] && name=$suite/\$(basename "\$1")
[ \$code = 0 ] || { echo "-- \$name, \$np ranks, $mpi, $place: \$code"; tail -n 30 "$WORK/last.log"; } >>"$WORK/failed.log"
echo "\$name:\$np $mpi $place \$([ \$code = 0 ] && echo ok || echo failed)" >>"$results"
# The next program is to run, too: what failed has been noted.
exit 0
END
  chmod +x "$single" "$launcher" "$WORK/bare"
}

run_pnetcdf() {
  local mpi=$1 place=$2 build=$WORK/build/pnetcdf.$1 trs
  [ "$place" = container ] && return 0
  # Sequential programs, by their own scripts; with a mount a rank one process is what it is on one mount.
  if [ "$place" != ranks ]; then
    find "$build/test" -name '*.trs' -delete
    (cd "$build/test" && LD_PRELOAD=$([ "$place" = native ] || echo "$LAYER") timeout $((PATIENCE * 10)) \
      make -k check TESTOUTDIR="$out" >"$WORK/check.$mpi.$place.log" 2>&1) || true
    while read -r trs; do
      local name=${trs#"$build/test/"}
      grep -q ':test-result: PASS' "$trs" && echo "pnetcdf/${name%.trs}:check $mpi $place ok" ||
        echo "pnetcdf/${name%.trs}:check $mpi $place failed"
    done < <(find "$build/test" -name '*.trs') >>"$results"
  fi
  (cd "$build/test" && timeout $((PATIENCE * 20)) make -k "$PTESTS" TESTOUTDIR="$out" TESTMPIRUN="$launcher NP" \
    TESTSEQRUN="$WORK/bare" >"$WORK/ptests.$mpi.$place.log" 2>&1) || true
}

# Tests that make or open the same file without MPI-IO, by open(2). A container is no file for that.
HDF5_SERIAL="calloc fltread cmpdsetr atomicity"
HDF5_SERIAL_PROGRAM=t_filters_parallel

run_hdf5() {
  local mpi=$1 place=$2 build=$WORK/build/hdf5.$1 program name
  for program in $HDF5_PROGRAMS; do
    local options=()
    if [ "$place" = container ]; then
      [ "$program" = "$HDF5_SERIAL_PROGRAM" ] && continue
      [ "$program" = testphdf5 ] && for name in $HDF5_SERIAL; do options+=(-x "$name"); done
    fi
    # t_prestart reads what t_pshutdown leaves.
    (cd "$WORK" && HDF5_PARAPREFIX=$out "$launcher" 4 "$build/$program" "${options[@]}")
  done
}

run_mpi4py() {
  local mpi=$1
  # Debian builds it for one MPI library.
  [ "$mpi" = openmpi ] || return 0
  (cd "$sources/mpi4py/test" && TMPDIR=$out "$launcher" 2 /usr/bin/python3 "$PWD/test_io.py")
}

start_volume() {
  "$TATAMI" up --dir "$volume" --nodes "$NODES" --mount "$mounts" >"$WORK/up.log"
}

stop_volume() {
  [ -d "$volume" ] || return 0
  "$TATAMI" down --dir "$volume" >>"$WORK/up.log" 2>&1 || true
  rm -rf "$volume"
}

run_all() {
  local library mpi place
  for library in $LIBRARIES; do
    if ! fetch "$library"; then
      say "$library: its source package can't be had now; not tried"
      continue
    fi
    for mpi in $MPIS; do
      if declare -F "build_$library" >/dev/null; then
        say "$library, $mpi: building"
        "build_$library" "$mpi" || { tail -n 20 "$WORK/build/$library.$mpi.log" >&2; return 1; }
      fi
      for place in $PLACES; do
        say "$library, $mpi: $place"
        case $place in
        ranks) out=$mounts/suite ;;
        mount) out=$mounts/node0/suite ;;
        *) out=$WORK/$place ;;
        esac
        local made=$out
        [ "$place" = ranks ] && made=$mounts/node0/suite
        rm -rf "$made" && mkdir -p "$made"
        write_launchers "$library" "$mpi" "$place"
        "run_$library" "$mpi" "$place"
      done
    done
  done
}

# A row a test, a column a place. What passes natively and not through the layer is an error.
print_table() {
  awk -v places="$PLACES" -v mpis="$MPIS" -v serial="$HDF5_SERIAL_PROGRAM" '
    { key = $1 SUBSEP $2 SUBSEP $3; how[key] = $4 == "failed" || how[key] == "failed" ? "failed" : "ok"; tests[$1]; ran[suite($1), $2, $3] = 1 }
    function suite(test) { return substr(test, 1, index(test, "/") - 1) }
    END {
      np = split(places, place, " "); nm = split(mpis, mpi, " ")
      printf "%-46s", "test"
      for (m = 1; m <= nm; m++) for (p = 1; p <= np; p++) printf " %-18s", mpi[m] "." place[p]
      print ""
      for (test in tests) {
        line = sprintf("%-46s", test)
        for (m = 1; m <= nm; m++) for (p = 1; p <= np; p++) {
          found = how[test, mpi[m], place[p]]
          natively = how[test, mpi[m], "native"]
          untried = test ~ /:check$/ && place[p] == "ranks" || place[p] == "container" && test ~ "/" serial ":"
          if (found == "" && natively == "ok" && ran[suite(test), mpi[m], place[p]] && !untried) found = "not reached"
          if (natively == "ok" && found != "ok" && found != "") { found = found " !"; bad++ }
          if (found ~ /^ok/) passed[suite(test), mpi[m], place[p]]++
          if (found != "") all[suite(test), mpi[m], place[p]]++
          suites[suite(test)]
          line = line sprintf(" %-18s", found == "" ? "-" : found)
        }
        print line | "sort"
      }
      close("sort")
      print ""
      for (s in suites) for (m = 1; m <= nm; m++) for (p = 1; p <= np; p++)
        if (all[s, mpi[m], place[p]]) printf "%s, %s, %s: %d of %d pass\n", s, mpi[m], place[p], passed[s, mpi[m], place[p]], all[s, mpi[m], place[p]]
      if (bad) { printf "%d pass natively and not through the layer; what they said is in failed.log\n", bad; exit 1 }
    }' "$results"
}

scripts/packages.sh build mpi libraries
if [ "$TATAMI" = "$PWD/target/debug/tatami" ]; then
  cargo build --quiet --locked -p tatami-cli -p tatami-capi
  make --silent -C mpi IO=../target/debug all
fi
mkdir -p "$WORK/build"
: >"$results"
: >"$WORK/failed.log"
trap stop_volume EXIT
stop_volume
start_volume
run_all
print_table
