//! Shows Tatami on a cluster: four hosts of namespaces on this machine, which share nothing but a
//! network. A volume is started on them by ssh and then by batch jobs of Slurm. Parallel programs
//! of Open MPI write shared files, which must equal those of the local disk. Nothing is left
//! afterwards. `make quickstart-cluster` builds the programs and runs it, as root.

#![allow(clippy::print_stdout)] // a program for people

use tatami_tests::command::{sources, tatami_bin};
use tatami_tests::slurm::{find_slurm_obstacle, start_slurm};
use tatami_tests::testbed::{HostBed, TestHost};

/// The directory of each host for the runs on its local disk.
const DISK: &str = "/srv/disk";
/// Variables of all MPI programs: they run as root, and on the network of the hosts alone.
const SETTINGS: &str = "export OMPI_ALLOW_RUN_AS_ROOT=1 OMPI_ALLOW_RUN_AS_ROOT_CONFIRM=1 \
    OMPI_MCA_btl_tcp_if_include=eth0 OMPI_MCA_oob_tcp_if_include=eth0 \
    OMPI_MCA_rmaps_base_oversubscribe=1 \
    TATAMI_MPI_LIBRARY=/usr/local/bin/libtatami_mpi.so;";
/// The layer, and the programs that `make quickstart-cluster` has built, beside `tatami`.
const FILES: [&str; 4] = [
    "libtatami_io.so",
    "mpi/libtatami_mpi.so",
    "mpi/libtatami_mpi_openmpi.so",
    "pnetcdf_shared_openmpi",
];

/// A parallel program and its files.
struct Program {
    /// A name for people.
    title: &'static str,
    /// The directory of its files.
    dir: &'static str,
    /// The program and its arguments.
    line: &'static str,
    /// Arguments of `tatami mpirun` for four ranks on four hosts, one on each.
    hosts: &'static str,
    /// Arguments for four ranks on one host.
    one_host: &'static str,
}

fn main() -> std::process::ExitCode {
    if let Some(obstacle) = HostBed::find_obstacle().or_else(find_slurm_obstacle) {
        eprintln!("quickstart-cluster: {obstacle}");
        return std::process::ExitCode::FAILURE;
    }
    let programs = list_programs();
    print_step("Starting four hosts that share nothing but a network");
    let bed = HostBed::start(&["n1", "n2", "n3", "n4"]);
    FILES.iter().for_each(|name| bed.install_file(&tatami_bin().with_file_name(name)));
    bed.install_file(&sources().join("../examples/in.melt"));
    let one = bed.host(0);
    print_step("The same programs on the local disk of one host, to compare");
    for program in &programs {
        let Program { title, dir, line, one_host, .. } = program;
        println!("{title}");
        one.run(&format!("{SETTINGS} mkdir -p {DISK}/{dir}; cd {DISK}/{dir}; {one_host} {line}"));
    }
    print_step("tatami up --hosts n[1-4] --mount /srv/volume");
    print!("{}", one.run("tatami up --hosts n[1-4] --mount /srv/volume").out);
    print!("{}", bed.host(3).run("tatami status").out);
    for program in &programs {
        let Program { title, dir, line, hosts, .. } = program;
        print_step(&format!("{title}: a rank on each host writes to its own disk"));
        one.run(&format!(
            "{SETTINGS} mkdir /srv/volume/{dir}; cd /srv/volume/{dir}; tatami mpirun {hosts} {line}"
        ));
        bed.hosts().iter().for_each(|host| compare_files(one, host, dir, "/srv/volume"));
        print!("{}", bed.host(1).run(&format!("tatami where /srv/volume/{dir}")).out);
    }
    print!("{}", bed.host(2).run("tatami fsck && tatami down").out);
    expect_nothing(&bed, "after tatami down");

    print_step("The same in batch jobs: sbatch, and tatami job run");
    start_slurm(&bed, "");
    for program in &programs {
        run_job(one, program);
        compare_files(one, one, program.dir, "/srv/results");
    }
    expect_nothing(&bed, "after the jobs");
    print_step("All files are the same, and nothing is left on the hosts");
    std::process::ExitCode::SUCCESS
}

fn print_step(text: &str) {
    println!("\n== {text}");
}

/// Returns the programs.
fn list_programs() -> [Program; 2] {
    let (hosts, one_host) = ("--host n1,n2,n3,n4 -n 4", "mpirun -n 4");
    [
        Program {
            title: "LAMMPS with Open MPI",
            dir: "melt",
            line: "lmp -in /usr/local/bin/in.melt -screen none -log none",
            hosts,
            one_host,
        },
        Program {
            title: "PnetCDF with Open MPI",
            dir: "netcdf",
            line: "/usr/local/bin/pnetcdf_shared_openmpi shared.nc",
            hosts,
            one_host,
        },
    ]
}

/// Checks that the files of a program equal those of the local disk of the first host.
fn compare_files(one: &TestHost, host: &TestHost, dir: &str, place: &str) {
    let sums =
        |host: &TestHost, place: &str| host.run(&format!("cd {place}/{dir}; sha256sum $(ls)")).out;
    let (expected, found) = (sums(one, DISK), sums(host, place));
    assert_eq!(found, expected, "{dir} as {} sees it", host.name());
    println!("  same bytes as on the local disk, seen by {}: {dir}", host.name());
}

/// Runs a program in a batch job on all hosts, with a volume of its own.
fn run_job(host: &TestHost, program: &Program) {
    let Program { title, dir, line, hosts, .. } = program;
    println!("{title}");
    let script = format!(
        "#!/bin/bash\n{SETTINGS}\n\
         tatami job run -- sh -ec 'mkdir $TATAMI_MOUNT/{dir}; cd $TATAMI_MOUNT/{dir}; \
         tatami mpirun {hosts} {line}; mkdir -p /srv/results; cp -r . /srv/results/{dir}'\n"
    );
    let said = host.run(&format!(
        "cat > job.sh <<'END'\n{script}END\nsbatch -Q --wait -N 4 --ntasks-per-node=1 -o job.out job.sh || \
         {{ cat job.out; exit 1; }}; cat job.out"
    ));
    print!("{}", said.out);
}

/// Checks that no process, mount or directory of a volume is left.
fn expect_nothing(bed: &HostBed, when: &str) {
    const LOOK: &str = "pgrep -l tatami || true; grep fuse.tatami /proc/self/mountinfo || true; \
        ls -d /tmp/tatami* 2>/dev/null || true";
    for host in bed.hosts() {
        let left = host.run(LOOK).out;
        assert!(left.is_empty(), "{} {when}: {left}", host.name());
    }
}
