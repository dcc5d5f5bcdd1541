//! `tatami bench` as a command: its arguments, its output and its files. The figures depend on the
//! machine and are not tested. The tests need `tatami-bench` beside `tatami`: `cargo build
//! --workspace` puts it there.

mod common;

use common::{Said, command, tatami};
use std::path::Path;
use std::process::{Command, Stdio};

/// The suite in its short form, on files below `dir`.
fn suite(dir: &Path, only: &str) -> Command {
    let mut command = command(["bench", "suite", "--quick", "--runs", "1", "--only", only]);
    command.arg("--work").arg(dir.join("work")).arg("--out").arg(dir.join("summary.json"));
    command
}

#[test]
fn the_suite_takes_the_figures_that_are_asked_for() {
    let dir = tempfile::Builder::new().prefix("ttb").tempdir_in("/tmp").expect("a directory");
    let said: Said = suite(
        dir.path(),
        "remote read,passthrough write cached 4k,copy one file out,mount create,\
         mounts shared create,mounts latency mkdir,large directory restart,commands rm -r,\
         scaling library create 4 clients",
    )
    .output()
    .expect("tatami can be run")
    .into();
    said.works();
    let text = std::fs::read_to_string(dir.path().join("summary.json")).expect("a summary");
    let summary: serde_json::Value = serde_json::from_str(&text).expect("JSON");
    let figures = summary.as_array().expect("an array");
    assert!(!figures.is_empty());
    let some = [
        "passthrough write, cached, 4k",
        "remote read 1m",
        "copy one file out, cp",
        "mount create, CPU, floor",
        "mounts shared create, rate",
        "mounts latency mkdir, known elsewhere",
        "large directory, restart of the server",
        "commands rm -r",
        "scaling library create, 4 clients",
    ];
    for part in some {
        assert!(figures.iter().any(|f| f["name"] == part), "no {part} in {text}");
        assert!(said.out.contains(part), "{said:#?}");
    }
    for figure in figures {
        let name = figure["name"].as_str().expect("a name");
        let wanted = [
            "passthrough write, cached, 4k",
            "remote read",
            "copy one file out",
            "mount create",
            "mounts shared create",
            "mounts latency mkdir",
            "large directory, restart",
            "commands rm -r",
            "scaling library create, 4 clients",
        ];
        assert!(wanted.iter().any(|w| name.starts_with(w)), "{name} was not asked for");
        assert!(figure["value"].as_f64().is_some_and(|v| v > 0.0), "{figure}");
    }
    assert!(!dir.path().join("work").exists(), "it leaves nothing but the summary");
}

#[test]
fn a_figure_that_cannot_exist_is_refused_at_once() {
    tatami(["bench", "suite", "--only", "write"]).fails(
        2,
        &[
            "passthrough, remote, encryption, copy, mount, mounts",
            "commands, peers, library, preload, servers, large",
        ],
    );
    let help = tatami(["bench", "suite", "--help"]);
    assert!(help.works().out.contains("--only <NAMES>"), "{help:?}");
}

#[test]
fn workloads_that_are_not_installed_are_named() {
    let dir = tempfile::Builder::new().prefix("ttb").tempdir_in("/tmp").expect("a directory");
    let alone = dir.path().join("tatami");
    common::copy_program(common::TATAMI.as_ref(), &alone);
    let said: Said = Command::new(&alone).args(["bench", "wire"]).output().expect("it runs").into();
    said.fails(1, &["tatami-bench", "make install"]);
}

/// Runs the command with a standard output that no process reads; with `errors_too` also the
/// standard error.
fn unread(mut command: Command, errors_too: bool) -> Said {
    let piped = command.stdout(Stdio::piped()).stderr(Stdio::piped());
    let mut child = piped.spawn().expect("it starts");
    drop(child.stdout.take());
    if errors_too {
        drop(child.stderr.take());
    }
    child.wait_with_output().expect("it ends").into()
}

#[test]
fn a_reader_that_goes_away_is_no_error() {
    let dir = tempfile::Builder::new().prefix("ttb").tempdir_in("/tmp").expect("a directory");
    let wire = ["bench", "wire", "-p", "1", "-n", "50", "-i", "1"];
    for json in [&[][..], &["--json"]] {
        let said = unread(command([&wire, json].concat()), false);
        assert_eq!((said.code, said.err.as_str()), (Some(141), ""), "{said:?}");
    }
    let said = unread(suite(dir.path(), "remote"), true);
    assert_eq!(said.code, Some(141), "{said:?}");
    assert!(dir.path().join("summary.json").exists(), "the summary is written all the same");
}
