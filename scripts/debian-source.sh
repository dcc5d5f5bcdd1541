# Sourced by scripts that build from Debian's source packages. They set $WORK, $sources and $JOBS.

# Fetches a source package and unpacks it to $sources/PACKAGE, with its log below $WORK. The lists of sources are of that
# folder only: the machine's stay as they are.
fetch_debian() {
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

# Builds PnetCDF's library for an MPI library, in $WORK/build/pnetcdf.MPI. Debian has it for Open MPI alone.
make_pnetcdf() {
  local mpi=$1 to=$WORK/build/pnetcdf.$1
  [ -e "$to/src/libs/.libs/libpnetcdf.a" ] && return 0
  mkdir -p "$to"
  [ -x "$sources/pnetcdf/configure" ] || (cd "$sources/pnetcdf" && autoreconf -i) >"$WORK/autoreconf.log" 2>&1
  (cd "$to" &&
    "$sources/pnetcdf/configure" -q --disable-fortran --disable-cxx --disable-shared --disable-debug \
      MPICC="mpicc.$mpi" CFLAGS=-O1 &&
    make -s -j "$JOBS") >"$to.log" 2>&1
}
