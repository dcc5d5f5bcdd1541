//! Shows files on another site: two hosts of namespaces on this machine, which share nothing but a
//! network. Programs of Open MPI and MPICH on site a write files on site b, through ssh. The files
//! must equal those of a run on the local disk, and nothing but them is left on site b. `make
//! quickstart-remote` builds the programs and runs it, as root.

#![allow(clippy::print_stdout)] // a program for people

use tatami_tests::command::{run, tatami_bin};
use tatami_tests::testbed::{HostBed, TestHost};

/// Variables of all MPI programs: they run as root, with more ranks than processors.
const SETTINGS: &str = "export OMPI_ALLOW_RUN_AS_ROOT=1 OMPI_ALLOW_RUN_AS_ROOT_CONFIRM=1 \
    OMPI_MCA_rmaps_base_oversubscribe=1 OMPI_MCA_mpi_yield_when_idle=1 \
    TATAMI_MPI_LIBRARY=/usr/local/bin/libtatami_mpi.so;";
/// The layer, and the programs that `make quickstart-remote` has built, beside `tatami`.
const FILES: [&str; 6] = [
    "libtatami_io.so",
    "mpi/libtatami_mpi.so",
    "mpi/libtatami_mpi_openmpi.so",
    "mpi/libtatami_mpi_mpich.so",
    "pnetcdf_remote",
    "hdf5_remote",
];
/// Fails while an I/O process or a file that is not data is on the host.
const LOOK: &str = "for i in $(seq 600); do pgrep -xf 'tatami gateway' > /dev/null || break; \
    sleep 0.1; done; test -z \"$(pgrep -l tatami || true)\"; test -z \"$(ls -A /tmp)\"; ls -A /srv/data | xargs";

fn main() -> std::process::ExitCode {
    if let Some(obstacle) = HostBed::find_obstacle() {
        eprintln!("quickstart-remote: {obstacle}");
        return std::process::ExitCode::FAILURE;
    }
    print_step("Starting sitea and siteb, two hosts that share nothing but a network");
    let bed = HostBed::start(&["sitea", "siteb"]);
    FILES.iter().for_each(|name| bed.install_file(&tatami_bin().with_file_name(name)));
    let (here, there) = (bed.host(0), bed.host(1));
    run_quietly(here, "mkdir /srv/disk");
    run_quietly(there, "mkdir /srv/data");

    print_step("Open MPI, 4 ranks on sitea: MPI_Info_set(info, \"host\", \"siteb\")");
    show(here, "tatami mpirun -n 4 pnetcdf_remote /srv/data/energy.nc siteb");
    print_step("The file on siteb, and the same program on the local disk of sitea");
    show(there, "ncdump -h /srv/data/energy.nc | xargs");
    run_quietly(here, "mpirun -n 4 pnetcdf_remote /srv/disk/energy.nc");
    compare_files(here, "energy.nc");

    print_step("MPICH, 4 ranks on sitea: the program is unmodified, the path names the site");
    let url = "tatami://siteb/srv/data/grid.h5";
    let launch = "tatami mpirun --launcher mpirun.mpich -n 4 hdf5_remote";
    show(here, &format!("{launch} write {url}"));
    show(here, &format!("{launch} read {url}"));
    print_step("The file on siteb, and the same program on the local disk of sitea");
    show(there, "h5ls /srv/data/grid.h5 | xargs -L 1 | paste -sd ';'");
    run_quietly(here, "mpirun.mpich -n 4 hdf5_remote write /srv/disk/grid.h5");
    compare_files(here, "grid.h5");

    let files = run(&mut there.command(LOOK)).out;
    print_step("Nothing is left on siteb but the data: no process, no other file");
    println!("   siteb: {}", files.trim());
    assert_eq!(files.trim(), "energy.nc grid.h5");
    std::process::ExitCode::SUCCESS
}

fn print_step(text: &str) {
    println!("== {text}");
}

fn run_quietly(host: &TestHost, line: &str) -> String {
    run(&mut host.command(&format!("{SETTINGS} {line}"))).out
}

/// Runs a command line on a host; prints it and its output.
fn show(host: &TestHost, line: &str) {
    let out = run_quietly(host, line);
    println!("   {}$ {line}", host.name());
    out.lines().for_each(|said| println!("   {said}"));
}

/// Compares a file on the other site with that of the local disk, byte for byte.
fn compare_files(here: &TestHost, name: &str) {
    show(
        here,
        &format!("ssh siteb cat /srv/data/{name} | cmp - /srv/disk/{name} && echo same bytes"),
    );
}
