//! Shows Tatami on a cluster: four hosts of namespaces on this machine, which share nothing but a
//! network. A volume is started on them by ssh and then by batch jobs of Slurm. Parallel programs
//! of Open MPI and MPICH write shared files, which must equal those of the local disk. Nothing is
//! left afterwards. `make quickstart-cluster` builds the programs and runs it, as root.

#![allow(clippy::print_stdout)] // a program for people

use std::io::Write;
use std::time::Instant;
use tatami_tests::command::{Said, sources, tatami_bin};
use tatami_tests::mpi::{HOST_SETTINGS, install_layer, launch_on_hosts, launch_on_one_host};
use tatami_tests::slurm::{find_slurm_obstacle, start_slurm};
use tatami_tests::testbed::{HostBed, TestHost};

/// The hosts.
const HOSTS: [&str; 4] = ["n1", "n2", "n3", "n4"];
/// The directory of each host for the runs on its local disk.
const DISK: &str = "/srv/disk";
/// The programs that `make quickstart-cluster` has built, beside `tatami`.
const FILES: [&str; 2] = ["pnetcdf_shared.openmpi", "pnetcdf_shared.mpich"];

/// A parallel program and its files.
struct Program {
    /// A name for people.
    title: &'static str,
    /// Its MPI library.
    mpi: &'static str,
    /// The directory of its files.
    dir: &'static str,
    /// The program and its arguments.
    line: &'static str,
}

/// The programs. Debian has LAMMPS for Open MPI alone: a program runs with the MPI library that it
/// was linked with.
const PROGRAMS: [Program; 3] = [
    Program {
        title: "LAMMPS, Open MPI",
        mpi: "openmpi",
        dir: "melt",
        line: "lmp -in /usr/local/bin/in.melt -screen none -log none",
    },
    Program {
        title: "PnetCDF, Open MPI",
        mpi: "openmpi",
        dir: "netcdf-openmpi",
        line: "/usr/local/bin/pnetcdf_shared.openmpi shared.nc",
    },
    Program {
        title: "PnetCDF, MPICH",
        mpi: "mpich",
        dir: "netcdf-mpich",
        line: "/usr/local/bin/pnetcdf_shared.mpich shared.nc",
    },
];

fn main() -> std::process::ExitCode {
    // A step that fails ends this program by a panic, which has the output of the command.
    std::panic::set_hook(Box::new(|info| {
        let text = info.payload().downcast_ref::<String>().map_or("a step failed", String::as_str);
        eprintln!("\nquickstart-cluster: {text}");
    }));
    if let Some(obstacle) = HostBed::find_obstacle().or_else(find_slurm_obstacle) {
        eprintln!("quickstart-cluster: {obstacle}");
        return std::process::ExitCode::FAILURE;
    }
    let mut bed = None;
    run_step("start four hosts that share nothing but a network", || {
        let mut started = HostBed::start(&HOSTS);
        started.hide_commands();
        install_layer(&started, &tatami_bin().with_file_name("mpi"));
        FILES.iter().for_each(|name| started.install_file(&tatami_bin().with_file_name(name)));
        started.install_file(&sources().join("../examples/in.melt"));
        bed = Some(started);
        HOSTS.join(" ")
    });
    let bed = bed.expect("it was started");
    let one = bed.host(0);

    print_section("On the local disk of n1, to compare");
    for Program { title, mpi, dir, line } in &PROGRAMS {
        run_step(title, || {
            let alone = launch_on_one_host(mpi, HOSTS.len());
            let disk = format!("{DISK}/{dir}");
            one.run(&format!("{HOST_SETTINGS} mkdir -p {disk}; cd {disk}; {alone} {line}"));
            "written".to_owned()
        });
    }

    print_section("A volume over ssh; a rank on each host writes to its own disk");
    run_on_host(one, "tatami up --hosts n[1-4] --mount /srv/volume");
    run_on_host(bed.host(3), "tatami status");
    for program in &PROGRAMS {
        let Program { title, mpi, dir, line } = program;
        run_step(title, || {
            let layered = launch_on_hosts(mpi, &HOSTS);
            let place = format!("/srv/volume/{dir}");
            one.run(&format!("{HOST_SETTINGS} mkdir {place}; cd {place}; {layered} {line}"));
            bed.hosts().iter().for_each(|host| compare_files(one, host, dir, "/srv/volume"));
            format!("as on the disk, seen by all; bytes: {}", list_shares(bed.host(1), &place))
        });
    }
    run_on_host(bed.host(2), "tatami fsck");
    run_on_host(bed.host(2), "tatami down");
    expect_nothing(&bed);

    print_section("The same in batch jobs: sbatch, and in it tatami job run");
    run_step("start Slurm on the hosts", || {
        start_slurm(&bed, "");
        "all idle".to_owned()
    });
    for program in &PROGRAMS {
        run_step(program.title, || {
            run_job(one, program);
            compare_files(one, one, program.dir, "/srv/results");
            "as on the disk; the volume is gone with the job".to_owned()
        });
        expect_nothing(&bed);
    }
    println!("\nAll files are the same, and nothing is left on the hosts.");
    std::process::ExitCode::SUCCESS
}

fn print_section(text: &str) {
    println!("\n== {text}");
}

/// Runs a step, and prints a line of its title, its result and its time.
fn run_step(title: &str, step: impl FnOnce() -> String) {
    print!("  {title} … ");
    // It fails only if the reader has gone, and then the next print does, too.
    let _ = std::io::stdout().flush();
    let start = Instant::now();
    let result = step();
    println!("{result} ({:.1} s)", start.elapsed().as_secs_f64());
}

/// Runs a step that is a command on a host; its result is the first line that it prints.
fn run_on_host(host: &TestHost, line: &str) {
    run_step(&format!("{}: {line}", host.name()), || {
        let Said { out, err, .. } = host.run(line);
        out.lines().chain(err.lines()).next().unwrap_or("done").to_owned()
    });
}

/// Checks that the files of a program equal those of the local disk of the first host.
fn compare_files(one: &TestHost, host: &TestHost, dir: &str, place: &str) {
    let sums =
        |host: &TestHost, place: &str| host.run(&format!("cd {place}/{dir}; sha256sum $(ls)")).out;
    let (expected, found) = (sums(one, DISK), sums(host, place));
    assert_eq!(found, expected, "{dir} as {} sees it", host.name());
}

/// Returns the bytes of a directory on each node, as `n1 25% n2 25%`.
fn list_shares(host: &TestHost, dir: &str) -> String {
    let said = host.run(&format!("tatami where {dir} | awk '/%/ {{ print $1, $5 }}'"));
    said.out.split_whitespace().collect::<Vec<_>>().join(" ")
}

/// Runs a program in a batch job on all hosts, with a volume of its own.
fn run_job(host: &TestHost, Program { mpi, dir, line, .. }: &Program) {
    let layered = launch_on_hosts(mpi, &HOSTS);
    let script = format!(
        "#!/bin/bash\n{HOST_SETTINGS}\n\
         tatami job run -- sh -ec 'mkdir $TATAMI_MOUNT/{dir}; cd $TATAMI_MOUNT/{dir}; \
         {layered} {line}; mkdir -p /srv/results; cp -r . /srv/results/{dir}'\n"
    );
    host.run(&format!(
        "cat > job.sh <<'END'\n{script}END\nsbatch -Q --wait -N 4 --ntasks-per-node=1 -o job.out \
         job.sh || {{ cat job.out; exit 1; }}"
    ));
}

/// Checks that no process, mount or directory of a volume is left.
fn expect_nothing(bed: &HostBed) {
    const LOOK: &str = "pgrep -l tatami || true; grep fuse.tatami /proc/self/mountinfo || true; \
        ls -d /tmp/tatami* 2>/dev/null || true";
    for host in bed.hosts() {
        let left = host.run(LOOK).out;
        assert!(left.is_empty(), "left on {}: {left}", host.name());
    }
}
