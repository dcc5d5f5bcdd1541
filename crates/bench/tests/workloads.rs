//! mdtest and ior with two processes on a local directory, and predictions: structure of the
//! reports, clean-up, and the behaviour on errors. Speed is not tested.
//!
//! This program has no test harness, because it is started again as each
//! process of a workload.

use clap::Parser;
use std::path::Path;
use tatami_bench::ior::{self, IorArgs};
use tatami_bench::mdtest::{self, MdtestArgs, MdtestReport};
use tatami_bench::predict::{self, PredictArgs};
use tatami_bench::wire::{self, WireArgs};
use tatami_bench::{BenchError, Launcher};

#[derive(Parser)]
struct Cli<A: clap::Args> {
    #[command(flatten)]
    args: A,
}

fn parse<A: clap::Args>(line: &[&str]) -> A {
    Cli::<A>::parse_from([&["test"], line].concat()).args
}

fn no_volume() -> Result<tatami_client::ClientOptions, BenchError> {
    Err(BenchError::Usage("there is no volume in this test".into()))
}

fn is_empty(dir: &Path) -> bool {
    std::fs::read_dir(dir).expect("the directory is there").next().is_none()
}

fn mdtest_reports_six_phases_and_leaves_nothing(launcher: &Launcher) {
    for flags in [&["--shift", "1"][..], &["--shared"], &["--relative"]] {
        let base = tempfile::tempdir().expect("a temporary directory");
        let dir = base.path().to_str().expect("a plain path");
        let line = [&[dir, "-n", "20", "-p", "2", "-i", "3"], flags].concat();
        let report = mdtest::run(&parse::<MdtestArgs>(&line), launcher, no_volume)
            .expect("a local disk works");
        let names: Vec<&str> = report.phases.iter().map(|p| p.phase.as_str()).collect();
        assert_eq!(
            names,
            [
                "directory create",
                "directory stat",
                "directory remove",
                "file create",
                "file stat",
                "file remove"
            ]
        );
        for p in &report.phases {
            assert_eq!(p.ops, 40);
            assert!(p.ops_per_sec.min > 0.0 && p.ops_per_sec.min <= p.ops_per_sec.median);
            assert!(p.ops_per_sec.median <= p.ops_per_sec.max && p.cpu_us_per_op > 0.0);
            assert!((0.0..=1.0).contains(&p.stolen));
        }
        assert!(is_empty(base.path()));
        assert!(report.render().contains("file create"));
        let json = serde_json::to_string(&report).expect("plain data");
        let back: MdtestReport = serde_json::from_str(&json).expect("what we wrote");
        assert_eq!(back.phases.len(), 6);
    }
}

fn ior_writes_reads_and_verifies(launcher: &Launcher) {
    let methods: [&[&str]; 4] = [&[], &["-F", "-C"], &["--mmap", "-z"], &["-C", "-z", "-e"]];
    for flags in methods {
        let base = tempfile::tempdir().expect("a temporary directory");
        let file = base.path().join("data");
        let file = file.to_str().expect("a plain path");
        let common = [file, "-p", "2", "-t", "4k", "-b", "32k", "-s", "3", "-i", "2", "--verify"];
        let args = parse::<IorArgs>(&[&common, flags].concat());
        let report = ior::run(&args, launcher, no_volume).expect("a local disk works");
        let names: Vec<&str> = report.phases.iter().map(|p| p.phase.as_str()).collect();
        assert_eq!(names, ["write", "read", "verify"]);
        assert!(report.phases.iter().all(|p| p.bytes == 2 * 3 * 32 * 1024));
        assert!(report.phases.iter().all(|p| p.mib_per_sec.min > 0.0));
        assert!(is_empty(base.path()), "{flags:?}");
        assert!(report.render().contains("transfer 4k"));
    }
}

fn ior_finds_a_flipped_byte_in_what_an_earlier_run_kept(launcher: &Launcher) {
    let base = tempfile::tempdir().expect("a temporary directory");
    let path = base.path().join("data");
    let file = path.to_str().expect("a plain path");
    let common = [file, "-p", "2", "-t", "1k", "-b", "8k", "--verify"];
    let keep = parse::<IorArgs>(&[&common[..], &["-k"]].concat());
    ior::run(&keep, launcher, no_volume).expect("a local disk works");
    let mut bytes = std::fs::read(&path).expect("it was kept");
    bytes[9000] ^= 0x40;
    std::fs::write(&path, bytes).expect("writable");
    let again = parse::<IorArgs>(&[&common[..], &["-r"]].concat());
    let error = ior::run(&again, launcher, no_volume).expect_err("a byte was flipped");
    assert!(error.to_string().contains("byte 9000"), "{error}");
    assert!(path.exists(), "a run that only reads removes nothing");
}

fn a_failing_process_is_reported_by_its_rank(launcher: &Launcher) {
    let line = ["/nonexistent/data", "-p", "2", "-b", "1m"];
    let error =
        ior::run(&parse::<IorArgs>(&line), launcher, no_volume).expect_err("no such directory");
    assert!(error.to_string().starts_with("process "), "{error}");
    assert!(error.to_string().contains("/nonexistent/data"), "{error}");
    let error = mdtest::run(&parse::<MdtestArgs>(&["/nonexistent"]), launcher, no_volume);
    assert!(error.expect_err("no such directory").to_string().contains("/nonexistent"));
}

fn the_wire_echo_answers_all_its_clients(launcher: &Launcher) {
    for flags in [&[][..], &["--tcp"], &["--bytes"]] {
        let line = [&["-p", "2", "-n", "200", "-i", "2"], flags].concat();
        let report = wire::run(&parse::<WireArgs>(&line), launcher).expect("sockets work");
        assert_eq!(report.operations.len(), 3);
        assert!(report.operations.iter().all(|o| o.requests_per_sec.min > 0.0));
        assert!(report.render().contains("create"));
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

fn predictions_follow_from_times_alone(_: &Launcher) {
    let base = tempfile::tempdir().expect("a temporary directory");
    let path = |name: &str| base.path().join(name).to_str().expect("a plain path").to_owned();
    std::fs::write(path("times"), TIMES).expect("a file");
    let predict = |out: &str| {
        let (times, out) = (path("times"), path(out));
        let line = ["--quick", "--markdown", "--times", &times, "--out", &out];
        let more = ["--servers", "1,2", "--network", "ethernet,infiniband", "--clients", "8"];
        let args = parse::<PredictArgs>(&[&line[..], &more].concat());
        let mut said = Vec::new();
        predict::run(&args, &mut said).expect("nothing needs to be measured");
        let report = predict::PredictReport::read(out.as_ref()).expect("it was written");
        (String::from_utf8(said).expect("text"), report)
    };
    let (said, report) = predict("first.json");
    assert_eq!(predict("second.json").1.rows, report.rows, "the same seed");
    for part in ["InfiniBand, private", "| create, 2 servers |", "Ethernet, 2: create"] {
        assert!(said.contains(part), "{said}");
    }
    // Four kinds in one directory and in private ones, and those of displaced files.
    assert_eq!(report.rows.iter().filter(|row| !row.old).count(), 2 * 2 * 8);
    assert!(report.rows.iter().all(|row| row.rate > 0.0 && row.idle_share() < 1.0));
    assert!(report.rows.iter().filter(|row| row.servers == 1).all(|row| row.efficiency == 1.0));
    assert_eq!((report.growths.len(), report.checks.len()), (4, 1));
    let plot = std::fs::read_to_string(path("predicted-ethernet.svg")).expect("a plot");
    assert!(plot.contains("mkdir, private"));
    std::fs::write(path("times"), "{}").expect("a file");
    assert!(predict::PredictReport::read(path("times").as_ref()).is_err());
}

type Test = (&'static str, fn(&Launcher));

const TESTS: [Test; 6] = [
    ("mdtest_reports_six_phases_and_leaves_nothing", mdtest_reports_six_phases_and_leaves_nothing),
    ("ior_writes_reads_and_verifies", ior_writes_reads_and_verifies),
    (
        "ior_finds_a_flipped_byte_in_what_an_earlier_run_kept",
        ior_finds_a_flipped_byte_in_what_an_earlier_run_kept,
    ),
    ("a_failing_process_is_reported_by_its_rank", a_failing_process_is_reported_by_its_rank),
    ("the_wire_echo_answers_all_its_clients", the_wire_echo_answers_all_its_clients),
    ("predictions_follow_from_times_alone", predictions_follow_from_times_alone),
];

fn main() -> Result<(), BenchError> {
    if std::env::args().nth(1).as_deref() == Some("bench") {
        return tatami_bench::worker::main();
    }
    let launcher = Launcher::this_program()?;
    for (name, test) in TESTS {
        // A failure panics, and ends the program with the panic's exit code.
        test(&launcher);
        println!("test {name} ... ok");
    }
    println!("test result: ok. {} passed; 0 failed;", TESTS.len());
    Ok(())
}
