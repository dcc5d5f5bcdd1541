//! fsstress: random operations of many processes at a time, with the local disk as the model.

use std::collections::BTreeMap;
use std::path::Path;
use std::time::{Duration, Instant};
use tatami_skip::skip_unavailable;
use tatami_tests::Cluster;
use tatami_tests::command::{ask, program, run, tail, target_dir, tool};
use tatami_tests::seed::scaled;

const PROCESSES: u64 = 20;
/// Operations of each process.
const OPERATIONS: u64 = 400;

/// The operations of a process, in order. A line names the operation, its arguments and its error
/// number.
type Lines = BTreeMap<u64, Vec<String>>;

/// Runs fsstress in `dir` and leaves its files. Returns what each process has done.
///
/// A process works in a directory of its own, and takes its choices from the seed and its number
/// alone. So its lines depend on the file system only if that gives another answer.
fn run_fsstress(dir: &Path, seed: u64) -> (Lines, Duration) {
    let operations = scaled(OPERATIONS);
    let mut stress = program(tool("fsstress").to_str().expect("UTF-8"));
    stress.args(["-v", "-c", "-p", &PROCESSES.to_string(), "-n", &operations.to_string()]);
    stress.args(["-s", &seed.to_string()]);
    let start = Instant::now();
    let said = ask(stress.arg("-d").arg(dir));
    let time = start.elapsed();
    assert!(said.code == Some(0) && said.err.is_empty(), "{:?}: {}", said.code, tail(&said.err));
    let mut lines = Lines::new();
    for line in said.out.lines() {
        let process = line.split('/').next().and_then(|number| number.parse().ok());
        let process = process.unwrap_or_else(|| panic!("no process has done this: {line}"));
        lines.entry(process).or_default().push(line.to_owned());
    }
    for (process, lines) in &lines {
        assert_eq!(lines.len() as u64, operations, "process {process} ended early");
    }
    assert_eq!(lines.len() as u64, PROCESSES, "a process has done nothing");
    (lines, time)
}

/// Returns all files below a directory: type, mode, owner, links, length, target, and a checksum of
/// the bytes. The length of a directory is the file system's own.
fn describe_tree(dir: &Path) -> String {
    let mut found = run(program("find . -mindepth 1")
        .args(["-type", "d", "-printf", "%P %y %m %U %n\n", "-o"])
        .args(["-printf", "%P %y %m %U %n %s %l\n"])
        .current_dir(dir))
    .out;
    found += &run(program("find . -type f -exec cksum {} +").current_dir(dir)).out;
    let mut lines: Vec<&str> = found.lines().collect();
    lines.sort_unstable();
    lines.join("\n")
}

fn assert_same_lines(ours: &str, disk: &str, subject: &str) {
    for (ours, disk) in ours.lines().zip(disk.lines()) {
        assert_eq!(ours, disk, "{subject}: the first difference from a local disk");
    }
    assert_eq!(ours.lines().count(), disk.lines().count(), "{subject}");
}

/// Every operation gives the result that it gives on a local disk, and leaves the same files, also
/// as another mount shows them. `finish` checks the volume with `tatami fsck`.
#[test]
fn fsstress_gives_the_results_of_a_local_disk() {
    if !target_dir().join("tools/bin/fsstress").is_file() {
        return skip_unavailable("Debian's source package of fsstress could not be fetched");
    }
    let cluster = Cluster::start(2);
    let seed = (cluster.seed() >> 33) + 1;
    let disk = cluster.dir().join("disk");
    let (expected, disk_time) = run_fsstress(&disk, seed);
    let (ours, time) = run_fsstress(&cluster.mount(0).join("stress"), seed);
    println!("seed {seed}: {time:.1?}, and {disk_time:.1?} on the local disk");
    for (process, lines) in &expected {
        let subject = format!("process {process}, seed {seed}");
        assert_same_lines(&ours[process].join("\n"), &lines.join("\n"), &subject);
    }
    let expected = describe_tree(&disk);
    for node in 0..2 {
        let subject = format!("mount {node}, seed {seed}");
        let found = describe_tree(&cluster.mount(node).join("stress"));
        assert_same_lines(&found, &expected, &subject);
    }
    cluster.finish();
}
