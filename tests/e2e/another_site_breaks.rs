//! Programs over links to another site that break after random numbers of bytes: every operation is
//! done once, and the I/O process stays the same.

use crate::another_site_backends::{DISK, TwoSites, VOLUME, back_ends};
use std::io::{BufRead, BufReader};
use std::process::Stdio;
use tatami_tests::command::sources;
use tatami_tests::mpi::{ONE_AT_A_TIME, compiled};
use tatami_tests::seed::{root_seed, scaled};

/// Breaks of the links of one job.
const BREAKS: u64 = 10;
/// The MPI library of the programs. The tests of back ends run all.
const MPI: &str = "openmpi";

/// Runs a program over links that break, for at most two minutes. Returns how often they broke.
fn run_over_breaks(sites: &TwoSites, dir: &str, backend: &str, line: &str, seed: u64) -> u64 {
    let (one, breaks) = (sites.bed.host(0), scaled(BREAKS));
    sites.bed.install_file(&sources().join("src/testbed/breaks.py"));
    one.run(&format!(
        "rm -f /srv/breaks; printf 'Host siteb\\nProxyCommand /usr/local/bin/breaks.py %%h %%p \
         /srv/breaks {seed} {breaks}\\n' > ~/.ssh/config"
    ));
    let job =
        sites.line(MPI, dir, backend, line).replace("tatami mpirun", "timeout 120 tatami mpirun");
    one.run(&job);
    one.run("rm ~/.ssh/config");
    let count = one.run("cat /srv/breaks 2>/dev/null | wc -l").out;
    let count = count.trim().parse().expect("a number");
    println!("{backend}: {count} breaks, seed {seed}");
    count
}

#[test]
fn every_call_of_the_standard_is_done_once_over_links_that_break() {
    let Some(sites) = TwoSites::start() else { return };
    let _turn = ONE_AT_A_TIME.lock();
    sites.bed.install_file(&compiled("semantics", MPI));
    let program = format!("/usr/local/bin/semantics.{MPI} /site/semantics");
    for (at, (dir, backend)) in (0..).zip(back_ends(MPI)) {
        let seed = root_seed() % 1_000_000 + at;
        let count = run_over_breaks(&sites, dir, backend, &program, seed);
        assert!(count > 0, "no link broke");
        sites.expect_nothing_left(dir, "");
    }
}

#[test]
fn random_calls_leave_the_same_bytes_over_links_that_break() {
    let Some(sites) = TwoSites::start() else { return };
    let _turn = ONE_AT_A_TIME.lock();
    let (one, two) = (sites.bed.host(0), sites.bed.host(1));
    sites.bed.install_file(&compiled("random_calls", MPI));
    let program = format!("/usr/local/bin/random_calls.{MPI}");
    for (at, (dir, backend)) in (0..).zip(back_ends(MPI)) {
        let seed = root_seed() % 1_000_000 + at;
        sites.run_alone(
            MPI,
            &format!("{program} /srv/disk/reference.dat {seed} 6 /srv/disk/reference simple"),
        );
        let job = format!("{program} /site/ours.dat {seed} 6 /srv/disk/ours");
        let count = run_over_breaks(&sites, dir, backend, &job, seed);
        assert!(count > 0, "no link broke");
        for part in ["0", "1", "2", "bytes"] {
            one.run(&format!("cmp /srv/disk/reference.{part} /srv/disk/ours.{part}"));
        }
        let sum = two.run(&format!("sha256sum < {dir}/ours.dat")).out;
        assert_eq!(sum, one.run("sha256sum < /srv/disk/reference.dat").out, "{backend}");
        sites.expect_nothing_left(dir, "ours.dat");
        two.run(&format!("rm {dir}/ours.dat"));
    }
    two.run("tatami fsck");
}

/// A program whose ssh is killed goes on with the same I/O process, and the file that it writes in
/// pieces of a volume is whole.
#[test]
fn the_io_process_stays_the_same() {
    let Some(sites) = TwoSites::start() else { return };
    let _turn = ONE_AT_A_TIME.lock();
    sites.bed.install_file(&sources().join("e2e/mpi_programs/steady.py"));
    let (one, two) = (sites.bed.host(0), sites.bed.host(1));
    let steady = "/usr/bin/python3 /usr/local/bin/steady.py /site/steady 60";
    for (dir, backend) in [(VOLUME, "volume"), (DISK, "posix")] {
        let line = sites.line(MPI, dir, backend, steady);
        let line = line.replace("tatami mpirun", "timeout 120 tatami mpirun");
        let mut job = one.command(&line);
        let mut job = job.stdout(Stdio::piped()).spawn().expect("started");
        let lines = BufReader::new(job.stdout.take().expect("a pipe")).lines();
        let (mut before, mut breaks, mut said) = (String::new(), 0, String::new());
        for line in lines.map_while(Result::ok) {
            match line.as_str() {
                "step 10" => before = two.run("pgrep -xf 'tatami gateway'").out,
                "step 20" | "step 40" => {
                    // One that was killed before may not have come back yet.
                    one.run("for i in $(seq 1200); do pkill -KILL -f '^ssh .*[g]ateway' && exit 0; sleep 0.1; done; exit 1");
                    breaks += 1;
                }
                "step 59" => {
                    assert_eq!(before.split_whitespace().count(), 3, "{before}");
                    for pid in before.split_whitespace() {
                        two.run(&format!("grep -qx tatami /proc/{pid}/comm"));
                    }
                }
                _ => {}
            }
            said += &format!("{line}\n");
        }
        let ended = job.wait().expect("it ends");
        println!("{backend}: {breaks} breaks");
        assert!(ended.success() && said.contains("all values right"), "{backend}: {said}");
        sites.expect_nothing_left(dir, "steady");
        two.run(&format!("rm {dir}/steady"));
    }
    two.run("tatami fsck");
}
