//! MPI programs whose files lie on another site: a machine that shares nothing with this one but a
//! network, and has no MPI of its own in use. Their I/O process there is started by ssh.

use crate::hosts::start_bed;
use std::io::{BufRead, BufReader};
use std::path::PathBuf;
use std::process::Stdio;
use tatami_tests::command::{program, run, sources, target_dir};
use tatami_tests::mpi::{MPIS, ONE_AT_A_TIME, compiled};
use tatami_tests::process::wait_ms;
use tatami_tests::seed::{Rng, root_seed, scaled};
use tatami_tests::testbed::HostBed;

/// Variables of all jobs: they run as root, with more ranks than processors, and a directory stands
/// for one of the other site.
const SETTINGS: &str = "export OMPI_ALLOW_RUN_AS_ROOT=1 OMPI_ALLOW_RUN_AS_ROOT_CONFIRM=1 \
    OMPI_MCA_rmaps_base_oversubscribe=1 OMPI_MCA_mpi_yield_when_idle=1 \
    TATAMI_MPI_LIBRARY=/usr/local/bin/libtatami_mpi.so \
    TATAMI_SITES=/site=tatami://siteb/srv/data;";

/// Two sites: on the first, programs and the layer; on the second, a directory.
fn start_sites() -> Option<HostBed> {
    let bed = start_bed(&["sitea", "siteb"])?;
    let library = |name: &str| target_dir().join("mpi").join(name);
    let backends = MPIS.map(|mpi| format!("libtatami_mpi_{mpi}.so"));
    let backends: Vec<PathBuf> = backends.iter().map(|name| library(name)).collect();
    for file in [library("libtatami_mpi.so"), library("libtatami_io.so")].iter().chain(&backends) {
        bed.install_file(file);
    }
    bed.host(1).run("mkdir /srv/data");
    bed.host(0).run("mkdir /srv/disk");
    Some(bed)
}

/// Nothing of a job is left on the other site: no process and no file but its data.
fn expect_nothing_left(bed: &HostBed, files: &str) {
    let two = bed.host(1);
    two.run(
        "for i in $(seq 600); do pgrep -xf 'tatami gateway' || exit 0; sleep 0.1; done; exit 1",
    );
    assert_eq!(two.run("ls -A /srv/data").out.trim(), files);
    two.run("test -z \"$(ls -A /tmp)\"");
}

#[test]
fn every_call_of_the_standard_works_on_another_site() {
    let Some(bed) = start_sites() else { return };
    let _turn = ONE_AT_A_TIME.lock();
    let one = bed.host(0);
    for mpi in MPIS {
        bed.install_file(&compiled("semantics", mpi));
        let program = format!("/usr/local/bin/semantics.{mpi}");
        let layered = format!("tatami mpirun --launcher mpirun.{mpi} -n 3");
        one.run(&format!("{SETTINGS} {layered} {program} /site/semantics"));
        one.run("test ! -e /site");
        expect_nothing_left(&bed, "");
    }
}

/// Random views, types and calls: the file on the other site is byte for byte the one that the same
/// calls make on a local disk, and every rank reads the same.
#[test]
fn random_calls_leave_the_same_bytes_on_another_site() {
    let Some(bed) = start_sites() else { return };
    let _turn = ONE_AT_A_TIME.lock();
    let (one, root) = (bed.host(0), root_seed() % 1_000_000_000);
    for mpi in MPIS {
        bed.install_file(&compiled("random_calls", mpi));
        let program = format!("/usr/local/bin/random_calls.{mpi}");
        // A process that has the file to itself writes behind and reads ahead.
        for (round, ranks) in (0..scaled(3)).map(|round| (round, 3)).chain([(0, 1)]) {
            let seed = root + round;
            let layered = format!("tatami mpirun --launcher mpirun.{mpi} -n {ranks}");
            one.run(&format!(
                "{SETTINGS} rm -rf /srv/disk/*; mpirun.{mpi} -n {ranks} {program} \
                 /srv/disk/reference.dat {seed} 6 /srv/disk/reference simple"
            ));
            one.run(&format!(
                "{SETTINGS} {layered} {program} /site/ours.dat {seed} 6 /srv/disk/ours"
            ));
            for part in (0..ranks).map(|rank| rank.to_string()).chain(["bytes".to_owned()]) {
                one.run(&format!("cmp /srv/disk/reference.{part} /srv/disk/ours.{part}"));
            }
            one.run("ssh siteb cat /srv/data/ours.dat | cmp - /srv/disk/reference.dat");
            expect_nothing_left(&bed, "ours.dat");
            one.run("ssh siteb rm /srv/data/ours.dat");
        }
    }
}

/// Compiles a C program for an MPI library and installs it on all hosts.
pub(crate) fn install_program(bed: &HostBed, source: &str, mpi: &str, flags: &str) {
    let from = match source {
        "pnetcdf_shared" => sources().parent().expect("the workspace").join("examples"),
        _ => sources().join("e2e/mpi_programs"),
    };
    let to = bed.dir().join(format!("{source}.{mpi}"));
    let mut compiler = program(&format!("mpicc.{mpi} -O1 -o"));
    let from = from.join(format!("{source}.c"));
    run(compiler.arg(&to).arg(from).args(flags.split_whitespace()));
    bed.install_file(&to);
}

/// A program with a library on MPI-IO: the MPI library, the source, the flags of the compiler, and
/// what the program is called with to write and to read.
pub type LibraryJob = (&'static str, &'static str, String, &'static str, &'static str);

/// Returns a program of each library.
pub fn library_jobs() -> [LibraryJob; 4] {
    let multiarch = run(&mut program("gcc -print-multiarch")).out.trim().to_owned();
    let hdf5 =
        |mpi: &str| format!("-I/usr/include/hdf5/{mpi} -L/usr/lib/{multiarch}/hdf5/{mpi} -lhdf5");
    let netcdf = format!(
        "-I/usr/lib/{multiarch}/netcdf/mpi/include -I/usr/include/hdf5/openmpi -lnetcdf_mpi"
    );
    [
        ("openmpi", "hdf5_shared", hdf5("openmpi"), "write FILE", "read FILE"),
        ("mpich", "hdf5_shared", hdf5("mpich"), "write FILE", "read FILE"),
        ("openmpi", "netcdf4_shared", netcdf, "write FILE", "read FILE"),
        ("openmpi", "pnetcdf_shared", "-lpnetcdf".to_owned(), "FILE 300 write", "FILE 300 read"),
    ]
}

/// The libraries that programs use write the same file on another site as on a local disk, and read
/// it from there.
#[test]
fn libraries_write_the_same_files_on_another_site() {
    let Some(bed) = start_sites() else { return };
    let _turn = ONE_AT_A_TIME.lock();
    let one = bed.host(0);
    let jobs = library_jobs();
    for (mpi, source, flags, write, read) in jobs {
        install_program(&bed, source, mpi, &flags);
        let native = format!("mpirun.{mpi} -n 3 /usr/local/bin/{source}.{mpi}");
        let layered =
            format!("tatami mpirun --launcher mpirun.{mpi} -n 3 /usr/local/bin/{source}.{mpi}");
        let there = |words: &str| words.replace("FILE", "/site/shared");
        one.run(&format!("{SETTINGS} {native} {}", write.replace("FILE", "/srv/disk/shared")));
        one.run(&format!("{SETTINGS} {layered} {}", there(write)));
        one.run("ssh siteb cat /srv/data/shared | cmp - /srv/disk/shared");
        let said = one.run(&format!("{SETTINGS} {layered} {}", there(read)));
        assert!(said.out.contains("all values right"), "{source} with {mpi}: {said:?}");
        expect_nothing_left(&bed, "shared");
        one.run("rm /srv/disk/shared; ssh siteb rm /srv/data/shared");
    }
}

/// LAMMPS writes its dumps to the other site. It begins its restart files with fwrite(3), which
/// knows no other site, so these are left out.
#[test]
fn lammps_writes_its_dumps_to_another_site() {
    let Some(bed) = start_sites() else { return };
    let _turn = ONE_AT_A_TIME.lock();
    let one = bed.host(0);
    bed.install_file(&sources().parent().expect("the workspace").join("examples/in.melt"));
    let job = |launcher: &str, dir: &str| {
        let script = format!("/restart/d; s,melt[.](dump|atom),{dir}/&,");
        one.run(&format!(
            "{SETTINGS} sed -E '{script}' /usr/local/bin/in.melt > /srv/disk/in && {launcher} -n 3 \
             lmp -in /srv/disk/in -log none -screen none -var edge 5 -var steps 100"
        ));
    };
    job("mpirun.openmpi", "/srv/disk");
    job("tatami mpirun --launcher mpirun.openmpi", "/site");
    for name in ["melt.dump.mpiio", "melt.atom.mpiio"] {
        one.run(&format!("test -s /srv/disk/{name}"));
        one.run(&format!("ssh siteb cat /srv/data/{name} | cmp - /srv/disk/{name}"));
    }
    expect_nothing_left(&bed, "melt.atom.mpiio\nmelt.dump.mpiio");
}

/// Installs a program in Python that writes a known pattern, and returns the command that runs it
/// with the layer. Debian's own Python has mpi4py for Open MPI.
fn install_steady(bed: &HostBed, ranks: u32) -> String {
    bed.install_file(&sources().join("e2e/mpi_programs/steady.py"));
    let program = "/usr/bin/python3 /usr/local/bin/steady.py";
    format!("{SETTINGS} tatami mpirun --launcher mpirun.openmpi -n {ranks} {program}")
}

/// The I/O processes are killed again and again while a program writes. The program goes on, and
/// the file has every byte.
#[test]
fn a_program_survives_the_death_of_its_io_processes() {
    let Some(bed) = start_sites() else { return };
    let _turn = ONE_AT_A_TIME.lock();
    let steady = install_steady(&bed, 2);
    let mut job = bed.host(0).command(&format!("{steady} /site/steady 100"));
    let mut job = job.stdout(Stdio::piped()).spawn().expect("started");
    let mut lines = BufReader::new(job.stdout.take().expect("a pipe")).lines();
    let mut rng = Rng::with_seed(root_seed());
    let mut killed = 0;
    let mut next = 5;
    let mut said = String::new();
    while let Some(Ok(line)) = lines.next() {
        let step: Option<u64> = line.strip_prefix("step ").and_then(|step| step.parse().ok());
        if step.is_some_and(|step| step >= next && step < 90) {
            bed.host(1).run("pkill -KILL -xf 'tatami gateway'");
            killed += 1;
            next = step.unwrap_or(0) + rng.u64(5..20);
        }
        said += &format!("{line}\n");
    }
    assert!(job.wait().expect("ended").success() && said.contains("all values right"), "{said}");
    assert!(killed >= 3, "{killed}");
    expect_nothing_left(&bed, "steady");
}

/// A network that is away for some seconds costs these seconds, and nothing else.
#[test]
fn a_program_waits_for_a_link_that_is_down_for_seconds() {
    let Some(bed) = start_sites() else { return };
    let _turn = ONE_AT_A_TIME.lock();
    let steady = install_steady(&bed, 2);
    let mut job = bed.host(0).command(&format!("{steady} /site/steady 40"));
    let mut job = job.stdout(Stdio::piped()).spawn().expect("started");
    let mut lines = BufReader::new(job.stdout.take().expect("a pipe")).lines();
    let mut said = String::new();
    while let Some(Ok(line)) = lines.next() {
        if line == "step 10" || line == "step 25" {
            bed.unplug(1);
            wait_ms(2000);
            bed.plug_in(1);
        }
        said += &format!("{line}\n");
    }
    assert!(job.wait().expect("ended").success() && said.contains("all values right"), "{said}");
    expect_nothing_left(&bed, "steady");
}

/// A job that is killed at any moment leaves no process on the other site, also where one waits for
/// the lock of atomic mode.
#[test]
fn a_killed_job_leaves_no_process_on_the_other_site() {
    let Some(bed) = start_sites() else { return };
    let _turn = ONE_AT_A_TIME.lock();
    let steady = install_steady(&bed, 2);
    let mut rng = Rng::with_seed(root_seed());
    for round in 0..scaled(4) {
        let mut job = bed.host(0).command(&format!("{steady} /site/steady 100000"));
        let mut job = job.stdout(Stdio::piped()).spawn().expect("started");
        let mut lines = BufReader::new(job.stdout.take().expect("a pipe")).lines();
        let last = rng.u64(0..20);
        // In one round of two, another process there has the lock for which the job then waits.
        if round % 2 == 1 {
            bed.host(1).run("touch /srv/data/steady");
        }
        while let Some(Ok(line)) = lines.next() {
            if line == format!("step {last}") {
                break;
            }
        }
        bed.host(0).run("pkill -KILL -f '[s]teady.py'");
        drop(lines);
        let _ = job.wait();
        expect_nothing_left(&bed, "steady");
    }
}

/// Each cause of a failure is named, and nothing is left.
#[test]
fn failures_at_the_other_site_are_named() {
    let Some(bed) = start_sites() else { return };
    let _turn = ONE_AT_A_TIME.lock();
    let (one, two) = (bed.host(0), bed.host(1));
    let steady = install_steady(&bed, 1);
    let expect = |path: &str, words: &[&str]| {
        let said = one.ask(&format!("export TATAMI_MPI_VERBOSE=1; {steady} {path} 4"));
        assert!(said.code != Some(0), "{path}: {said:?}");
        for word in words {
            assert!(said.err.contains(word), "{path}: {word:?} is missing in {}", said.err);
        }
    };
    expect(
        "tatami://siteb/srv/none/x",
        &["siteb: ", "/srv/none/x: No such file or directory (os error 2)\n"],
    );
    expect("tatami://nobody.invalid/x", &["nobody.invalid: ", "Could not resolve hostname"]);
    let unasked = one.ask(&format!("{steady} tatami://nobody.invalid/x 4"));
    assert!(unasked.err.contains("nobody.invalid: "), "{unasked:?}");
    expect("tatami://-oProxyCommand=x/y", &["is no [user@]host[:port]"]);
    expect("tatami://alice@siteb/srv/data/x", &["alice@siteb: ", "ermission denied"]);
    two.run("mount -t tmpfs -o size=64k tmpfs /mnt");
    expect("tatami://siteb/mnt/x", &["siteb: ", "No space left on device"]);
    two.unmount("/mnt");
    two.run("mount --bind /mnt /usr/local/bin");
    expect("/site/x", &["siteb: ", "tatami is not found there"]);
    let other = r#"HELLO='{"version":"9.9.9","protocol":99,"name":""}';
        printf '#!/bin/sh\necho tatami-gateway %s\ncat >/dev/null\n' "'$HELLO'" > /mnt/tatami"#;
    two.run(&format!("{other}; chmod +x /mnt/tatami"));
    expect("/site/x", &["siteb: tatami 9.9.9 there speaks version 99"]);
    two.unmount("/usr/local/bin");
    two.run("rm /mnt/tatami");
    // A shared login that is still there would need no look at the key.
    one.run("pkill -x ssh || true; until ! pgrep -x ssh >/dev/null; do sleep 0.05; done");
    one.run("cd ~/.ssh && cp known_hosts good");
    one.run(
        "cd ~/.ssh && k=$(awk '/^sitea/ { print $2, $3 }' good) && echo \"siteb $k\" > known_hosts",
    );
    expect("/site/x", &["siteb: ", "Host key verification failed"]);
    one.run("cd ~/.ssh && cp good known_hosts");
    expect_nothing_left(&bed, "");
}
