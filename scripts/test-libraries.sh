#!/usr/bin/env bash
# The own test suites of the libraries that Tatami is for, from Debian's source packages:
#   pnetcdf: `make check` and `make ptests`
#   hdf5: `testpar`
#   mpi4py: its tests of files
#   h5py: its tests under MPI
#   netcdf: what netCDF-C's scripts run with HDF5 and PnetCDF under mpiexec
#   mpich: the programs of its test suite that use MPI-IO, in C, C++ and Fortran
#   romio: what ROMIO's `runtests` runs
#   petsc: its tests of binary files by MPI-IO
# Each runs with both MPI libraries natively on the local disk, and through the layer: in a volume with a mount a rank
# ("ranks"), on one mount ("mount"), and in a container. Prints what passed where, and fails where something passes
# natively and not through the layer. Lists the programs that are much slower than natively.
#
# LIBRARIES, MPIS and PLACES name fewer of each; PTESTS=ptest takes 4 ranks only; WORK is where all is built.
# Not tried in containers: PnetCDF, tests that open files without MPI-IO (open(2) sees a directory there, as docs/reference/mpi.md
# says), and those of Python, which begin with files that others have made.
set -euo pipefail
cd "$(dirname "$0")/.."

WORK=${WORK:-$PWD/target/libraries}
LIBRARIES=${LIBRARIES:-pnetcdf hdf5 mpi4py h5py netcdf mpich romio petsc}
MPIS=${MPIS:-openmpi mpich}
PLACES=${PLACES:-native ranks mount container}
PTESTS=${PTESTS:-ptests}
TATAMI=${TATAMI:-$PWD/target/debug/tatami}
LAYER=${LAYER:-$PWD/target/mpi/libtatami_mpi.so}
NODES=4
# Seconds after which a program counts as one that hangs.
PATIENCE=${PATIENCE:-600}
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

# shellcheck source=scripts/debian-source.sh
. scripts/debian-source.sh

say() { printf '== %s\n' "$*"; }

# Fetches and unpacks the sources of a library.
fetch() {
  case $1 in
  mpi4py) fetch_debian mpi4py || fetch_python mpi4py ;;
  romio) fetch_debian mpich ;;
  h5py) [ -d "$H5PY_TESTS" ] ;;
  petsc) [ -d "$PETSC_EXAMPLES" ] ;;
  netcdf) fetch_debian pnetcdf && fetch_debian netcdf ;;
  *) fetch_debian "$1" ;;
  esac
}

# Fetches the sources of Debian's version of a Python package from PyPI.
fetch_python() {
  local package=$1 version
  [ -d "$sources/$package" ] && return 0
  version=$(dpkg-query -W -f '${Version}' "python3-$package") || return 1
  (cd "$sources" && python3 -m pip download --no-deps --no-binary "$package" "$package==${version%%-*}" &&
    mkdir "$package.part" && tar -xzf "$package-${version%%-*}.tar.gz" -C "$package.part" --strip-components 1 &&
    mv "$package.part" "$package") >"$WORK/pip.log" 2>&1 || { tail -n 5 "$WORK/pip.log" >&2; return 1; }
}

build_pnetcdf() {
  local mpi=$1 to=$WORK/build/pnetcdf.$1
  [ -e "$to/built" ] && return 0
  make_pnetcdf "$mpi" && make -s -j "$JOBS" -C "$to" tests >>"$to.log" 2>&1 && touch "$to/built"
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

# The library itself, too, as Debian has it for one MPI library only.
build_netcdf() {
  local mpi=$1 to=$WORK/build/netcdf.$1 pnetcdf=$WORK/build/pnetcdf.$1/src script folder
  [ -e "$to/built" ] && return 0
  build_pnetcdf "$mpi" || return 1
  mkdir -p "$to"
  (cd "$to" &&
    "$sources/netcdf/configure" -q --disable-shared --disable-dap --disable-byterange --disable-nczarr --disable-libxml2 \
      --disable-utilities --enable-pnetcdf --enable-parallel-tests CC="mpicc.$mpi" CFLAGS="-O1 -w" \
      CPPFLAGS="-I/usr/include/hdf5/$mpi -I$pnetcdf/include" \
      LDFLAGS="-L/usr/lib/$multiarch/hdf5/$mpi -L$pnetcdf/libs/.libs" &&
    for folder in include libdispatch libsrc libsrc4 libhdf5 libsrcp liblib; do make -s -j "$JOBS" -C "$folder" || exit; done &&
    for script in $NETCDF_SCRIPTS; do
      # shellcheck disable=SC2046
      make -s -j "$JOBS" -C "${script%/*}" $(netcdf_programs "$script" | cut -d ' ' -f 2 | sort -u) || exit
    done &&
    touch built) >"$to.log" 2>&1
}

NETCDF_SCRIPTS="nc_test4/run_par_test.sh h5_test/run_par_tests.sh nc_test/run_pnetcdf_tests.sh"

# The ranks and the name of each program that a script starts with mpiexec.
netcdf_programs() {
  sed -n 's,^ *@MPIEXEC@ -n \([0-9]*\) \./\([a-z0-9_]*\)$,\1 \2,p' "$sources/netcdf/$1.in"
}

# Its test suite is made for any MPI library. A program that one library's headers don't compile is left out.
build_mpich() {
  local mpi=$1 to=$WORK/build/mpich.$1 from=$sources/mpich/test/mpi folder
  [ -e "$to/built" ] && return 0
  mkdir -p "$to"
  # Open MPI declares functions that MPI-3 removed as errors; dtpools calls them, and the library has them.
  (cd "$to" &&
    "$from/configure" -q --disable-rma --disable-spawn MPICC="mpicc.$mpi" MPICXX="mpicxx.$mpi" MPIF77="mpif77.$mpi" \
      MPIFC="mpif90.$mpi" CC=gcc CFLAGS="-O1 -w" CPPFLAGS=-DOMPI_OMIT_MPI1_COMPAT_DECLS=1 \
      FFLAGS="-w -fallow-argument-mismatch" FCFLAGS="-w -fallow-argument-mismatch" &&
    make -s -j "$JOBS" -C dtpools && make -s -j "$JOBS" -C util || exit
    for folder in $MPICH_FOLDERS; do make -s -k -j "$JOBS" -C "$folder" || true; done
    # Some programs repeat the smallest access 4,000 times for each of three communicators, which two processors with
    # four ranks that spin do not end in ten minutes. A twentieth of it takes the same ways.
    grep -rlE '\b1, *4000' --include='*.f' --include='*.f90' --include='*.cxx' . | xargs sed -i -E 's/\b1, *4000/1, 200/'
    for folder in $MPICH_FOLDERS; do make -s -k -j "$JOBS" -C "$folder" || true; done
    touch built) >"$to.log" 2>&1
}

MPICH_FOLDERS="io f77/io f90/io f08/io cxx/io errors/io errors/f77/io errors/f90/io errors/f08/io errors/cxx/io"

# ROMIO's own configure has nothing to find out that is needed here. Programs that use what MPI-3 removed are left out
# where the MPI library's headers have it no more.
build_romio() {
  local mpi=$1 to=$WORK/build/romio.$1 from=$sources/mpich/src/mpi/romio/test program
  [ -e "$to/built" ] && return 0
  mkdir -p "$to"
  sed 's,@LL@,lld,' "$from/misc.c.in" >"$to/misc.c"
  for program in fcoll_test fmisc pfcoll_test; do
    sed -e 's,@F77MPIOINC@,,' -e 's,@FORTRAN_MPI_OFFSET@,integer(MPI_OFFSET_KIND),' -e 's,@F77IARGC@,iargc(),' \
      -e 's#@F77GETARG@#call getarg(i,str)#' "$from/$program.f.in" >"$to/$program.f"
  done
  for program in $(romio_programs | cut -d ' ' -f 2); do
    if [ -e "$to/$program.f" ]; then
      "mpif77.$mpi" -O1 -w -fallow-argument-mismatch -o "$to/$program" "$to/$program.f" || true
    elif [ -e "$to/$program.c" ]; then
      "mpicc.$mpi" -O1 -w -o "$to/$program" "$to/$program.c" || true
    else
      "mpicc.$mpi" -O1 -w -o "$to/$program" "$from/$program.c" || true
    fi
  done >"$to.log" 2>&1
  touch "$to/built"
}

# The ranks, the name and the arguments of each program. syshints reads a file of the sources, and error wants the very
# words of ROMIO: both are left out.
romio_programs() {
  sed -n 's,^[[:space:]]*[$]mpirun -np \([0-9]*\) \./\(.*\)$,\1 \2,p' "$sources/mpich/src/mpi/romio/test/runtests.in" |
    sed 's/[$]FILENAME/testfile/' | grep -vw -e syshints -e error
}

# Builds a library that lets a rank of MPICH which finds no message give up its processor. Without it, ranks that
# outnumber the processors spin for a scheduler's tick at each message.
build_yield() {
  [ -e "$WORK/yield.so" ] && return 0
  gcc -x c -O2 -shared -fPIC -o "$WORK/yield.so" - <<'END'
#define _GNU_SOURCE
#include <dlfcn.h>
#include <sched.h>
unsigned ucp_worker_progress(void *worker) {
  static unsigned (*progress)(void *);
  if (!progress) progress = (unsigned (*)(void *))dlsym(RTLD_NEXT, "ucp_worker_progress");
  unsigned messages = progress(worker);
  if (!messages) sched_yield();
  return messages;
}
END
}

# Writes the programs that start one process, or NP ranks, in a place; the latter notes how the job ended. Its
# environment may give the test's NAME, the directory IN which the ranks run, and what the program SAYS if it passes.
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
  # MPICH has no such setting as Open MPI's mpi_yield_when_idle.
  if [ "$mpi" = mpich ]; then
    build_yield
    case ${#layer[@]} in
    0) layer=(env "LD_PRELOAD=$WORK/yield.so") ;;
    *) layer[1]+=:$WORK/yield.so ;;
    esac
  fi
  single=$WORK/single launcher=$WORK/launcher
  printf '#!/bin/sh\nexec %s "$@"\n' "${one[*]} ${layer[*]}" >"$single"
  printf '#!/bin/sh\nexec %s "$@"\n' "${one[*]}" >"$WORK/bare"
  cat >"$launcher" <<END
#!/bin/sh
np=\$1; shift
began=\$(date +%s)
timeout -k 10 $PATIENCE mpirun.$mpi -n \$np ${inside[*]} \${IN:+env -C "\$IN"} ${layer[*]} "\$@" \
  >"$WORK/last.log" 2>&1 </dev/null
code=\$?
# A layer that could not start leaves all to the MPI library, and nothing would have been tested.
! grep -q "MPI-IO goes to the MPI library" "$WORK/last.log" || code="without the layer"
[ "\$code" != 0 ] || [ -z "\$SAYS" ] || grep -qi -- "\$SAYS" "$WORK/last.log" || code="no \"\$SAYS\""
name=$suite/\${NAME:-\$(basename "\$PWD")/\$(basename "\$1")}
[ "\$code" = 0 ] || { echo "-- \$name, \$np ranks, $mpi, $place: \$code"; tail -n 30 "$WORK/last.log"; } >>"$WORK/failed.log"
echo "\$name:\$np $mpi $place \$([ "\$code" = 0 ] && echo ok || echo failed) \$((\$(date +%s) - began))" >>"$results"
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
    (cd "$WORK" && HDF5_PARAPREFIX=$out NAME=$program "$launcher" 4 "$build/$program" "${options[@]}")
  done
}

run_mpi4py() {
  local mpi=$1 place=$2 test
  # Debian builds it for one MPI library.
  [ "$mpi" = openmpi ] || return 0
  # Its tests open ordinary files that mkstemp has made: none becomes a container.
  [ "$place" = container ] && return 0
  for test in $(cd "$sources/mpi4py/test" && grep -l "MPI.File" test_*.py); do
    (cd "$sources/mpi4py/test" && TMPDIR=$out NAME=${test%.py} "$launcher" 2 /usr/bin/python3 "$PWD/$test")
  done
}

# Debian's package has the tests, and is for one MPI library.
H5PY_TESTS=/usr/lib/python3/dist-packages/h5py/_debian_h5py_mpi/tests

run_h5py() {
  local mpi=$1 place=$2
  if [ "$mpi" = openmpi ] && [ "$place" != container ]; then
    TMPDIR=$out NAME=TestMPI "$launcher" 2 /usr/bin/python3 -m pytest -p no:cacheprovider --with-mpi -k TestMPI \
      "$H5PY_TESTS/test_file.py"
  fi
}

run_netcdf() {
  local mpi=$1 place=$2 build=$WORK/build/netcdf.$1 script np program
  for script in $NETCDF_SCRIPTS; do
    while read -r np program; do
      [ "$place" = container ] && [[ ${script%/*}/$program =~ $NETCDF_POSIX ]] && continue
      IN=$out NAME=${script%/*}/$program "$launcher" "$np" "$build/${script%/*}/$program"
    done < <(netcdf_programs "$script")
  done
}

# Those of PnetCDF, and one that makes its file without MPI-IO.
NETCDF_POSIX='nc_test/|tst_parallel5'

run_mpich() {
  local mpi=$1 place=$2 build=$WORK/build/mpich.$1 folder program np rest list
  for folder in $MPICH_FOLDERS; do
    list=$build/$folder/testlist
    [ -e "$list" ] || list=$sources/mpich/test/mpi/$folder/testlist
    while read -r program np rest; do
      # Left out are those that need memory by the GiB. tst_fileview wants an error of ROMIO's for file types that the
      # layer takes; fileerrret wants that an error handler changes what the call returns, which MPICH alone does.
      case $program$rest in *mem=* | tst_fileview* | fileerrret | "#"* | "") continue ;; esac
      [ -x "$build/$folder/$program" ] || continue
      local arguments=()
      [[ $rest =~ arg=([^ ]*) ]] && arguments=("${BASH_REMATCH[1]}")
      IN=$out NAME=$folder/$program SAYS="no errors" "$launcher" "$np" "$build/$folder/$program" "${arguments[@]}"
    done <"$list"
  done
}

run_romio() {
  local mpi=$1 build=$WORK/build/romio.$1 np program arguments
  while read -r np program arguments; do
    [ -x "$build/$program" ] || continue
    # shellcheck disable=SC2086
    IN=$out NAME=$program SAYS="no errors" "$launcher" "$np" "$build/$program" $arguments
  done < <(romio_programs)
}

# Debian's package has the examples, and is for one MPI library.
PETSC_EXAMPLES=/usr/share/doc/libpetsc3.18-dev-examples/examples/src

# The example, its numbers of ranks and its arguments: those of its own tests that open files by MPI-IO.
PETSC_PROGRAMS="
sys/classes/viewer/tests/ex6:1 2 3:-viewer_view -viewer_binary_mpiio 1
dm/tutorials/ex15:12:-usempiio
mat/tests/ex16:1 2 3 4 5:-viewer_binary_mpiio 1
mat/tests/ex44:1 2 3 4 15:-viewer_binary_mpiio 1
mat/tests/ex45:1 2 3 4 5:-viewer_binary_mpiio 1
mat/tests/ex50:1 2 3 4 5:-viewer_binary_mpiio 1
vec/is/tests/ex2:1 2 3:-viewer_binary_mpiio 1
vec/vec/tests/ex46:1 6 12:-usempiio
vec/vec/tutorials/ex5:1 2:
vec/vec/tutorials/ex10:2 3 5:-binary -viewer_binary_mpiio 1"

build_petsc() {
  local mpi=$1 to=$WORK/build/petsc.$1 program rest flags
  [ "$mpi" = openmpi ] || return 0
  [ -e "$to/built" ] && return 0
  mkdir -p "$to"
  read -ra flags < <(pkg-config --cflags --libs petsc)
  while IFS=: read -r program rest; do
    [ -n "$program" ] || continue
    "mpicc.$mpi" -O1 -w -o "$to/${program//\//.}" "$PETSC_EXAMPLES/$program.c" \
      "-I/usr/include/hdf5/$mpi" "${flags[@]}" "-L/usr/lib/$multiarch/hdf5/$mpi" -lhdf5 -lm || return 1
  done <<<"$PETSC_PROGRAMS" >"$to.log" 2>&1
  touch "$to/built"
}

# Those that read with read(2) the file that they wrote by MPI-IO.
PETSC_POSIX='dm/tutorials/ex15|vec/vec/tests/ex46'

run_petsc() {
  local mpi=$1 place=$2 build=$WORK/build/petsc.$1 program numbers arguments np
  [ "$mpi" = openmpi ] || return 0
  while IFS=: read -r program numbers arguments; do
    [ "$place" = container ] && [[ $program =~ $PETSC_POSIX ]] && continue
    for np in $numbers; do
      # shellcheck disable=SC2086
      IN=$out NAME=$program "$launcher" "$np" "$build/${program//\//.}" $arguments
    done
  done <<<"$PETSC_PROGRAMS"
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
  awk -v places="$PLACES" -v mpis="$MPIS" -v serial="$HDF5_SERIAL_PROGRAM" -v posix="$NETCDF_POSIX|$PETSC_POSIX" '
    { key = $1 SUBSEP $2 SUBSEP $3; how[key] = $4 == "failed" || how[key] == "failed" ? "failed" : "ok"; took[key] += $5; tests[$1]; ran[suite($1), $2, $3] = 1 }
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
          untried = test ~ /:check$/ && place[p] == "ranks" || place[p] == "container" && test ~ "/" serial ":|" posix
          if (found == "" && natively == "ok" && ran[suite(test), mpi[m], place[p]] && !untried) found = "not reached"
          if (natively == "ok" && found != "ok" && found != "") { found = found " !"; bad++ }
          alone = took[test, mpi[m], "native"]; through = took[test, mpi[m], place[p]]
          if (through >= 10 && through >= 5 * alone) slow = slow sprintf("%s, %s: %d s natively, %d s in %s\n", test, mpi[m], alone, through, place[p])
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
      if (slow) printf "\ntook 10 s or more, and five times as long as natively:\n%s", slow
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
