//! The benchmarks of small files, on volumes that they start themselves: each kind of file is read
//! as it was written, and nothing is left. Speed is not tested.

use rustix::process::{Pid, Signal, kill_process, kill_process_group};
use serde_json::Value;
use std::os::unix::process::CommandExt;
use std::path::Path;
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};
use tatami_tests::command::{ask, tatami_bin};
use tatami_tests::process::{mounts_below, pause, processes_of};

fn text(path: &Path) -> &str {
    path.to_str().expect("UTF-8")
}

/// Runs a benchmark that works below `dir`, and returns its output. Nothing may be left of it.
fn run_bench(dir: &Path, line: &[&str]) -> String {
    let said = ask(Command::new(tatami_bin()).arg("bench").args(line));
    assert_eq!(said.code, Some(0), "{line:?}: {said:?}");
    assert!(mounts_below(dir).is_empty(), "{:?}", mounts_below(dir));
    assert!(processes_of(dir).is_empty(), "{:?}", processes_of(dir));
    said.out
}

#[test]
fn a_data_set_of_each_kind_has_a_volume_of_its_own() {
    let dir = tempfile::tempdir().expect("a directory");
    let (work, peer) = (dir.path().join("work"), dir.path().join("peer"));
    let line = ["smallfiles", "-n", "60", "--directories", "5", "-p", "4", "-s", "3k"];
    let more = ["--all-kinds", "--json", "--work", text(&work), "--peer", text(&peer)];
    let said = run_bench(dir.path(), &[&line[..], &more].concat());
    assert!(!work.exists(), "the volumes are gone");
    let report: Value = serde_json::from_str(&said).expect("JSON");
    let sides = report["sides"].as_array().expect("sides");
    let names: Vec<_> = sides.iter().filter_map(|side| side["name"].as_str()).collect();
    assert_eq!(names, [text(&peer), "file", "region", "inline"]);
    for side in &sides[1..] {
        for phase in side["phases"].as_array().expect("phases") {
            let rate = phase["files_per_sec"].as_f64();
            assert!(rate.is_some_and(|rate| rate > 0.0), "{phase}");
            for servers in ["daemons", "mounts"] {
                assert_eq!(phase[servers]["processes"], 4, "{phase}");
                assert!(phase[servers]["peak_mib"].as_f64() > Some(1.0), "{phase}");
            }
        }
    }
    // A block of the disk, or of the device with the head of a region. Bytes beside inodes lie in
    // the log of the metadata, which has room for so few from the beginning.
    let bytes = |side: usize| sides[side]["bytes_per_file"].as_f64();
    assert!(bytes(1) >= Some(4096.0) && bytes(2) >= Some(4096.0 + 128.0), "{}", sides[2]);
}

/// Ctrl-C reaches the benchmark and its processes, and a signal of a batch system the benchmark
/// alone: both end it without a trace.
#[test]
fn an_interrupted_benchmark_leaves_nothing() {
    for (signal, to_all) in [(Signal::INT, true), (Signal::TERM, false)] {
        let dir = tempfile::tempdir().expect("a directory");
        let work = dir.path().join("work");
        let mut command = Command::new(tatami_bin());
        command.args(["bench", "smallfiles", "--work", text(&work)]).process_group(0);
        let child = command.stdout(Stdio::null()).stderr(Stdio::piped()).spawn().expect("started");
        let begun = Instant::now();
        while has_no_files(&work) {
            assert!(begun.elapsed() < Duration::from_secs(60), "it begins");
            pause();
        }
        let pid = Pid::from_child(&child);
        match to_all {
            true => kill_process_group(pid, signal).expect("sent"),
            false => kill_process(pid, signal).expect("sent"),
        }
        let ended = child.wait_with_output().expect("it ends");
        let said = String::from_utf8_lossy(&ended.stderr).into_owned();
        assert!(ended.status.code() == Some(130) && said.contains("interrupted"), "{ended:?}");
        assert!(mounts_below(dir.path()).is_empty(), "{:?}", mounts_below(dir.path()));
        assert!(processes_of(dir.path()).is_empty(), "{:?}", processes_of(dir.path()));
        assert!(!work.exists(), "{said}");
    }
}

/// Whether no file of the data set is there yet.
fn has_no_files(work: &Path) -> bool {
    let mount = work.join("tatami-smallfiles/region/mnt/node0");
    std::fs::read_dir(mount).map_or(true, |entries| entries.count() == 0)
}

#[test]
fn the_suite_compares_small_files_with_local_file_systems() {
    let dir = tempfile::tempdir().expect("a directory");
    let (work, out) = (dir.path().join("work"), dir.path().join("summary.json"));
    let only = "smallfiles write 4k,smallfiles read cold 100,smallfiles create 16 clients";
    let line = ["suite", "--quick", "--runs", "1", "--only", only, "--work", text(&work)];
    run_bench(dir.path(), &[&line[..], &["--out", text(&out)]].concat());
    assert!(!work.exists(), "volumes and disks are gone");
    let summary = std::fs::read_to_string(&out).expect("it was written");
    let figures: Vec<Value> = serde_json::from_str(&summary).expect("JSON");
    let figure = |name: &str| {
        let found = figures.iter().find(|figure| figure["name"] == name);
        found.unwrap_or_else(|| panic!("no {name}: {summary}"))
    };
    for kind in ["file", "region", "inline"] {
        for through in ["", " by one mount", " by the library"] {
            let figure = figure(&format!("smallfiles write 4k, {kind}{through}"));
            assert_eq!((&figure["against"], &figure["runs"]), (&"ext4".into(), &1.into()));
            assert!(figure["ratio"].as_f64() > Some(0.0), "{figure}");
        }
        assert!(figure(&format!("smallfiles read cold 100, {kind}"))["value"].as_f64() > Some(0.0));
    }
    assert!(figure("smallfiles create, 16 clients")["ratio"].as_f64() > Some(0.0));
    let loops = std::fs::read_to_string("/proc/mounts").expect("mounts");
    assert!(!loops.contains(text(dir.path())), "{loops}");
}
