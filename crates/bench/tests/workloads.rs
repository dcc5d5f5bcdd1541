//! mdtest and ior with two processes on a local directory, predictions, and the null file system:
//! structure of the reports, clean-up, and the behaviour on errors. Speed is not tested.

use serde_json::Value;
use std::path::Path;
use std::process::{Command, Output, Stdio};

const PROGRAM: &str = env!("CARGO_BIN_EXE_tatami-bench");

fn run(line: &[&str]) -> Output {
    Command::new(PROGRAM).args(line).env_remove("TATAMI_DIR").output().expect("it starts")
}

/// Runs a workload that succeeds and returns its output.
fn run_well(line: &[&str]) -> String {
    let said = run(line);
    let text = String::from_utf8_lossy(&said.stderr);
    assert!(said.status.success(), "{line:?}: {text}");
    String::from_utf8(said.stdout).expect("text")
}

fn run_json(line: &[&str]) -> Value {
    serde_json::from_str(&run_well(&[line, &["--json"]].concat())).expect("JSON")
}

/// Runs a workload that fails and returns its message.
fn run_badly(line: &[&str]) -> String {
    let said = run(line);
    assert!(!said.status.success(), "{line:?}");
    String::from_utf8(said.stderr).expect("text")
}

fn list<'a>(report: &'a Value, field: &str) -> &'a Vec<Value> {
    report[field].as_array().expect("a list")
}

fn number(value: &Value) -> f64 {
    value.as_f64().expect("a number")
}

fn names(phases: &[Value]) -> Vec<&str> {
    phases.iter().filter_map(|p| p["phase"].as_str()).collect()
}

fn is_empty(dir: &Path) -> bool {
    std::fs::read_dir(dir).expect("the directory is there").next().is_none()
}

fn text(path: &Path) -> &str {
    path.to_str().expect("a plain path")
}

#[test]
fn mdtest_reports_six_phases_and_leaves_nothing() {
    for flags in [&["--shift", "1"][..], &["--shared"], &["--relative"]] {
        let base = tempfile::tempdir().expect("a temporary directory");
        let line = ["mdtest", text(base.path()), "-n", "20", "-p", "2", "-i", "3"];
        let line = [&line, flags].concat();
        let report = run_json(&line);
        let phases = list(&report, "phases");
        assert_eq!(
            names(phases),
            [
                "directory create",
                "directory stat",
                "directory remove",
                "file create",
                "file stat",
                "file remove"
            ]
        );
        for p in phases {
            assert_eq!(p["ops"], 40);
            let rate = |which: &str| number(&p["ops_per_sec"][which]);
            assert!(rate("min") > 0.0 && rate("min") <= rate("median"));
            assert!(rate("median") <= rate("max") && number(&p["cpu_us_per_op"]) > 0.0);
            assert!((0.0..=1.0).contains(&number(&p["stolen"])));
        }
        assert!(is_empty(base.path()));
        assert!(run_well(&line).contains("file create"));
    }
}

#[test]
fn ior_writes_reads_and_verifies() {
    let methods: [&[&str]; 4] = [&[], &["-F", "-C"], &["--mmap", "-z"], &["-C", "-z", "-e"]];
    for flags in methods {
        let base = tempfile::tempdir().expect("a temporary directory");
        let file = base.path().join("data");
        let shape = ["-p", "2", "-t", "4k", "-b", "32k", "-s", "3", "-i", "2", "--verify"];
        let line = [&["ior", text(&file)], &shape[..], flags].concat();
        let report = run_json(&line);
        let phases = list(&report, "phases");
        assert_eq!(names(phases), ["write", "read", "verify"]);
        assert!(phases.iter().all(|p| p["bytes"] == 2 * 3 * 32 * 1024));
        assert!(phases.iter().all(|p| number(&p["mib_per_sec"]["min"]) > 0.0));
        assert!(is_empty(base.path()), "{flags:?}");
        assert!(run_well(&line).contains("transfer 4k"));
    }
}

#[test]
fn ior_finds_a_flipped_byte_in_what_an_earlier_run_kept() {
    let base = tempfile::tempdir().expect("a temporary directory");
    let path = base.path().join("data");
    let line = ["ior", text(&path), "-p", "2", "-t", "1k", "-b", "8k", "--verify"];
    run_well(&[&line[..], &["-k"]].concat());
    let mut bytes = std::fs::read(&path).expect("it was kept");
    bytes[9000] ^= 0x40;
    std::fs::write(&path, bytes).expect("writable");
    let error = run_badly(&[&line[..], &["-r"]].concat());
    assert!(error.contains("byte 9000"), "{error}");
    assert!(path.exists(), "a run that only reads removes nothing");
}

#[test]
fn small_files_are_made_read_and_removed_on_all_sides() {
    let base = tempfile::tempdir().expect("a temporary directory");
    let path = |name: &str| text(&base.path().join(name)).to_owned();
    let peer = path("peer");
    let line = ["smallfiles", &path("own"), &path("own"), "--peer", &peer, "-n", "50", "-p", "3"];
    let line = [&line[..], &["--directories", "7", "-s", "5000"]].concat();
    let report = run_json(&line);
    let sides = list(&report, "sides");
    assert_eq!((sides.len(), sides[0]["name"].as_str()), (2, Some(&*peer)));
    assert_eq!(sides[1]["paths"], 2);
    for (side, is_baseline) in sides.iter().zip([true, false]) {
        let phases = list(side, "phases");
        assert_eq!(names(phases), ["make", "read", "read again", "remove"]);
        for phase in phases {
            assert!(number(&phase["files_per_sec"]) > 0.0 && number(&phase["median_us"]) > 0.0);
            assert!(number(&phase["p99_us"]) >= number(&phase["median_us"]));
            assert_eq!(phase["ratio"].is_null(), is_baseline);
            // The servers of a file system that was there already are not known.
            assert!(phase["daemons"].is_null() && phase["server_cpu_us_per_file"].is_null());
        }
    }
    assert!(["own", "peer"].iter().all(|name| is_empty(&base.path().join(name))));
    assert!(run_well(&line).contains("50 files of 5000 in 7 directories, 3 processes"));
    let nowhere = run_badly(&["smallfiles", "-n", "5", "/proc/nowhere"]);
    assert!(nowhere.contains("/proc/nowhere"), "{nowhere}");
    let large = run_badly(&["smallfiles", "-n", "5", "--kind", "inline", "-s", "1m"]);
    assert!(large.contains("65536"), "{large}");
}

#[test]
fn the_engine_of_regions_keeps_all_bytes_and_leaves_nothing() {
    let base = tempfile::tempdir().expect("a temporary directory");
    let work = text(base.path());
    let line = ["regions", "-n", "64", "--depth", "1,3", "--work", work, "--size", "5000"];
    let report = run_json(&line);
    let phases = list(&report, "phases");
    let each = ["make", "change", "read", "read again", "change and sync"];
    assert_eq!(names(phases), each.map(|name| [name; 2]).concat());
    assert!(phases.iter().all(|phase| number(&phase["ops_per_sec"]) > 0.0));
    // A write goes to the journal, and then to its region.
    let written = |phase: &Value| phase["written_per_op"].as_f64();
    assert!(phases[..4].iter().all(|phase| written(phase).is_some_and(|bytes| bytes > 10_000.0)));
    assert!(phases[4..].iter().all(|phase| written(phase).is_none()));
    let fio = report["without_fio"].is_null();
    assert!(phases.iter().all(|phase| {
        let has_baseline = fio && phase["phase"] != "read again";
        phase["fio_per_sec"].is_null() != has_baseline && phase["ratio"].is_null() != has_baseline
    }));
    assert!(number(&report["bytes_per_object"]) >= 8192.0);
    assert!(base.path().read_dir().is_err() || is_empty(base.path()));
}

#[test]
fn a_device_with_other_data_is_refused_and_keeps_them() {
    let base = tempfile::tempdir().expect("a temporary directory");
    let device = base.path().join("device");
    let mut options = std::fs::File::options();
    let file = options.read(true).write(true).create_new(true).open(&device).expect("a file");
    file.set_len(600 << 20).expect("extended");
    std::os::unix::fs::FileExt::write_all_at(&file, b"my data", 1000).expect("written");
    let work = base.path().join("work");
    let line = ["regions", "-n", "64", "--depth", "1", "--work", text(&work), "--device"];
    let line = [&line[..], &[text(&device)]].concat();
    let error = run_badly(&line);
    assert!(error.contains("data of something else"), "{error}");
    let mut bytes = [0; 7];
    std::os::unix::fs::FileExt::read_exact_at(&file, &mut bytes, 1000).expect("read");
    assert_eq!((&bytes, work.exists()), (b"my data", false));
    std::os::unix::fs::FileExt::write_all_at(&file, &[0; 7], 1000).expect("written");
    run_json(&line);
    let bytes = std::fs::read(&device).expect("it is there");
    assert!(bytes.len() == 600 << 20 && bytes.iter().all(|b| *b == 0), "it is empty again");
    // Half of it is for fio.
    file.set_len(100 << 20).expect("cut");
    assert!(run_badly(&line).contains("give fewer with -n"));
}

#[test]
fn a_failing_process_is_reported_by_its_rank() {
    // A directory is no file to write to.
    let error = run_badly(&["ior", "/proc", "-p", "2", "-b", "1m"]);
    assert!(error.contains("process "), "{error}");
    assert!(error.contains("/proc"), "{error}");
    assert!(run_badly(&["mdtest", "/proc/nowhere"]).contains("/proc/nowhere"));
    let nowhere = run(&["--dir", "/nonexistent", "mdtest", "--library", "/"]);
    assert_eq!(nowhere.status.code(), Some(2));
}

#[test]
fn the_wire_echo_answers_all_its_clients() {
    for flags in [&[][..], &["--tcp"], &["--bytes"]] {
        let line = [&["wire", "-p", "2", "-n", "200", "-i", "2"], flags].concat();
        let report = run_json(&line);
        let operations = list(&report, "operations");
        assert_eq!(operations.len(), 3);
        assert!(operations.iter().all(|o| number(&o["requests_per_sec"]["min"]) > 0.0));
        assert!(run_well(&line).contains("create"));
    }
}

/// The costs of operations, as a run of `predict` writes them.
const TIMES: &str = r#"{
    "command": "by hand", "machine": {"cpu": "", "cpus": 1, "memory_mib": 1, "kernel": "", "disk": ""},
    "times": {
        "request": {"create": 20, "mkdir": 20, "stat": 12, "unlink": 18},
        "wake": 6, "send": 5, "message": 10, "record": 1,
        "client": {"create": 20, "mkdir": 20, "stat": 15, "unlink": 18}
    },
    "points": [
        {"servers": 2, "procs": 4, "operation": "create", "server_us": 25, "client_us": 20, "sleeps": 1, "rate": 20000}
    ],
    "items": 400, "stolen": 0, "clients": 1, "checks": [], "rows": [], "growths": []
}"#;

#[test]
fn predictions_follow_from_times_alone() {
    let base = tempfile::tempdir().expect("a temporary directory");
    let path = |name: &str| text(&base.path().join(name)).to_owned();
    std::fs::write(path("times"), TIMES).expect("a file");
    let predict = |out: &str| {
        let (times, out) = (path("times"), path(out));
        let line = ["predict", "--quick", "--markdown", "--times", &times, "--out", &out];
        let more = ["--servers", "1,2", "--network", "ethernet,infiniband", "--clients", "8"];
        let said = run_well(&[&line[..], &more].concat());
        let report = std::fs::read_to_string(out).expect("it was written");
        (said, serde_json::from_str::<Value>(&report).expect("JSON"))
    };
    let (said, report) = predict("first.json");
    assert_eq!(predict("second.json").1["rows"], report["rows"], "the same seed");
    for part in ["InfiniBand, private", "| create, 2 servers |", "Ethernet, 2: create"] {
        assert!(said.contains(part), "{said}");
    }
    let rows = list(&report, "rows");
    // Four kinds in one directory and in private ones, and those of displaced files.
    assert_eq!(rows.iter().filter(|row| row["old"] == false).count(), 2 * 2 * 8);
    assert!(rows.iter().all(|row| number(&row["rate"]) > 0.0 && number(&row["own"]) > 0.0));
    assert!(rows.iter().filter(|row| row["servers"] == 1).all(|row| row["efficiency"] == 1.0));
    assert_eq!((list(&report, "growths").len(), list(&report, "checks").len()), (4, 1));
    let plot = std::fs::read_to_string(path("predicted-ethernet.svg")).expect("a plot");
    assert!(plot.contains("mkdir, private"));
    std::fs::write(path("times"), "{}").expect("a file");
    run_badly(&["predict", "--times", &path("times"), "--out", &path("third.json")]);
}

#[test]
fn the_empty_file_system_keeps_names() {
    use std::io::{BufRead, BufReader};
    let dir = tempfile::tempdir().expect("a directory");
    let mut command = Command::new(PROGRAM);
    command.arg("null-mount").arg(dir.path()).stdin(Stdio::piped()).stdout(Stdio::piped());
    let mut mount = command.spawn().expect("it starts");
    let mut line = String::new();
    BufReader::new(mount.stdout.take().expect("its output")).read_line(&mut line).expect("a line");
    if line.is_empty() {
        mount.wait().expect("it has ended");
        return eprintln!("not allowed to mount here");
    }
    let sub = dir.path().join("sub");
    std::fs::create_dir(&sub).expect("mkdir");
    for i in 0..300 {
        std::fs::File::create(sub.join(format!("file {i}"))).expect("create");
    }
    assert_eq!(std::fs::read_dir(&sub).expect("list").count(), 300);
    assert!(std::fs::remove_dir(&sub).is_err());
    for i in 0..300 {
        std::fs::remove_file(sub.join(format!("file {i}"))).expect("unlink");
    }
    std::fs::remove_dir(&sub).expect("rmdir");
    // The end of its input ends it.
    drop(mount.stdin.take());
    assert!(mount.wait().expect("it has ended").success());
}
