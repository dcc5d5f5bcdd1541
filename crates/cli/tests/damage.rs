//! A disk that returns wrong bytes, or refuses writes.

mod common;

use common::{Said, Volume};
use std::fs::OpenOptions;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};
use tatami_cluster::KeyFile;

const NOTHING: [&str; 0] = [];
/// Longest wait for an event that happens by itself.
const PATIENCE: Duration = Duration::from_secs(300);
/// Directories, and files in each.
const DIRS: usize = 12;
const FILES: usize = 40;

/// Flips a bit in the middle of the bytes of a file that are not zero. Returns its position.
fn flip_in_the_middle(file: &Path) -> usize {
    let mut bytes = std::fs::read(file).expect("read");
    let used = bytes.iter().rposition(|b| *b != 0).expect("something is in it");
    bytes[used / 2] ^= 4;
    std::fs::write(file, bytes).expect("written");
    used / 2
}

/// Counts the names that `tatami ls` shows; `None` if it reports an error.
fn names(volume: &Volume, dir: usize) -> Option<usize> {
    let said = volume.run("ls", [format!(":/tree/d{dir}")]);
    match said.code {
        Some(0) => Some(said.out.lines().count()),
        _ => {
            assert!(!said.err.is_empty(), "{said:?}");
            None
        }
    }
}

#[test]
fn one_flipped_bit_stops_one_executor_and_the_loss_can_be_accepted() {
    let volume = Volume::new();
    volume.run("up", ["--no-mount", "--executors", "2"]).works();
    let tree = volume.path("tree");
    for dir in 0..DIRS {
        let dir = tree.join(format!("d{dir}"));
        std::fs::create_dir_all(&dir).expect("made");
        for file in 0..FILES {
            std::fs::write(dir.join(format!("f{file}")), "x").expect("written");
        }
    }
    volume.run("cp", ["-r", tree.to_str().expect("UTF-8"), ":/"]).works();
    assert!((0..DIRS).all(|dir| names(&volume, dir) == Some(FILES)));
    volume.run("down", NOTHING).works();
    let log = volume.path("node0/meta/0001/00000001.log");
    flip_in_the_middle(&log);

    let refused = |said: &Said| {
        said.fails(3, &[log.to_str().expect("UTF-8"), "at byte", "--accept-loss"]);
    };
    refused(&volume.run("up", ["--no-mount"]));
    // Again, with the daemon running.
    refused(&volume.run("up", ["--no-mount"]));
    refused(&volume.run("node start", ["0"]));
    let status = volume.run("status", ["--json"]);
    assert_eq!((status.code, &status.json()["healthy"]), (Some(3), &false.into()), "{status:?}");
    let trouble = status.json()["nodes"][0]["trouble"].to_string();
    assert!(trouble.contains("00000001.log") && trouble.contains("executor 1"), "{trouble}");
    // The names of the other executor are complete. Of the damaged one none are shown, rather than
    // a part.
    let seen: Vec<_> = (0..DIRS).map(|dir| names(&volume, dir)).collect();
    assert!(seen.iter().all(|n| n.is_none_or(|n| n == FILES)), "{seen:?}");
    assert!(seen.iter().any(Option::is_some) && seen.iter().any(Option::is_none), "{seen:?}");
    assert!(!log.with_extension("log.cut").exists(), "nobody has decided anything yet");

    let said = volume.run("up", ["--no-mount", "--accept-loss"]);
    assert!(said.works().err.contains("00000001.log.cut"), "{said:?}");
    assert!(log.with_extension("log.cut").exists());
    volume.run("status", NOTHING).works();
    volume.run("fsck", ["--repair"]);
    volume.run("fsck", NOTHING).works();
    // The names of one batch are lost. The names were created one by one, so a batch has few.
    let left: usize = (0..DIRS).filter_map(|dir| names(&volume, dir)).sum();
    assert!(left > DIRS * FILES * 3 / 4, "{left} of {} names are left", DIRS * FILES);
    volume.run("down", NOTHING).works();
    volume.run("up", ["--no-mount"]).works();
    assert_eq!((0..DIRS).filter_map(|dir| names(&volume, dir)).sum::<usize>(), left);
}

/// Every command that needs the key reports the damage and a remedy.
#[test]
fn a_damaged_key_is_told_by_every_command() {
    let volume = Volume::new();
    volume.run("up", ["--no-mount"]).works();
    let file = volume.path("key");
    let mut bytes = std::fs::read(&file).expect("read");
    let good = bytes.clone();
    // The byte stays a hexadecimal digit.
    bytes[7] = if bytes[7] == b'4' { b'5' } else { b'4' };
    std::fs::write(&file, &bytes).expect("written");
    let report =
        [file.to_str().expect("UTF-8"), "does not match its checksum", "copy the file again"];
    for verb in ["ls", "status", "fsck"] {
        let said = volume.run(verb, NOTHING);
        let all = said.err.clone() + &said.out;
        assert!(said.code != Some(0) && report.iter().all(|part| all.contains(part)), "{said:?}");
    }
    volume.run("down", ["--force"]);
    volume.run("up", ["--no-mount"]).fails(1, &report);
    std::fs::write(&file, good).expect("written");
    volume.run("up", ["--no-mount"]).works();
    volume.run("ls", NOTHING).works();
}

/// The daemons have the key in memory. While they run, `up` reports a damaged key file, because a
/// copy of the key may still be found.
#[test]
fn a_bad_key_file_is_told_while_the_daemons_run() {
    let volume = Volume::up(2);
    let file = volume.path("key");
    let name = file.to_str().expect("UTF-8");
    let good = std::fs::read(&file).expect("read");
    let up = || volume.run("up", ["--no-mount"]);
    up().works();
    let mut bytes = good.clone();
    bytes[7] = if bytes[7] == b'4' { b'5' } else { b'4' };
    std::fs::write(&file, &bytes).expect("written");
    up().fails(1, &[name, "does not match its checksum", "before they end", "backup"]);
    // A key without a checksum.
    std::fs::write(&file, &good[..64]).expect("written");
    up().fails(1, &[name, "and their checksum", "copy the file again", "before they end"]);
    // A whole key, of some other volume.
    std::fs::remove_file(&file).expect("removed");
    KeyFile::create(&file).expect("made");
    up().fails(1, &["node0 runs with another key", name, "backup"]);
    std::fs::remove_file(&file).expect("removed");
    up().fails(1, &[name, "No such file", "before they end", "mktemp -d"]);
    // The daemons went on, and a copy of the file sets all right.
    let back = || {
        std::fs::write(&file, &good).expect("written");
        let mode = std::os::unix::fs::PermissionsExt::from_mode(0o600);
        std::fs::set_permissions(&file, mode).expect("the mode is set");
    };
    back();
    up().works();
    volume.run("ls", NOTHING).works();

    // Without a copy the command that is told makes another key.
    std::fs::remove_file(&file).expect("removed");
    let said = up();
    let line = said.err.lines().find(|line| line.contains("mktemp -d")).expect("a command");
    let line = line.trim().replace("tatami ", concat!(env!("CARGO_BIN_EXE_tatami"), " "));
    volume.run("down", NOTHING).works();
    up().fails(1, &[name, "No such file", "mktemp -d"]);
    let made = std::process::Command::new("sh").arg("-c").arg(&line).status().expect("sh runs");
    assert!(made.success(), "{line}");
    up().works();
    volume.run("ls", NOTHING).works();
}

/// Files below a directory.
fn files(dir: &Path) -> Vec<PathBuf> {
    let Ok(entries) = std::fs::read_dir(dir) else { return Vec::new() };
    let entries = entries.flatten().map(|entry| entry.path());
    entries.flat_map(|path| if path.is_dir() { files(&path) } else { vec![path] }).collect()
}

fn wait_for(what: &str, mut is_so: impl FnMut() -> bool) {
    let start = Instant::now();
    while !is_so() {
        assert!(start.elapsed() < PATIENCE, "it does not happen: {what}");
        let pause = Duration::from_millis(50);
        #[expect(
            clippy::disallowed_methods,
            reason = "nothing tells of what a daemon does by itself"
        )]
        std::thread::sleep(pause);
    }
}

/// Each line that a daemon logs fails. It serves and does its background work all the same.
#[test]
fn a_daemon_that_cannot_log_does_all_else() {
    let volume = Volume::up(1);
    volume.run("down", NOTHING).works();
    let full = || OpenOptions::new().write(true).open("/dev/full").expect("/dev/full");
    let mut run = common::command(["node", "run", "--node-dir"]);
    run.arg(volume.path("node0")).env("TATAMI_LOG", "trace").stdout(full()).stderr(full());
    let mut daemon = run.spawn().expect("the daemon starts");
    wait_for("it answers", || {
        assert_eq!(daemon.try_wait().expect("waited"), None, "it ended");
        volume.run("ls", [":/"]).code == Some(0)
    });
    let file = volume.path("file");
    std::fs::write(&file, "bytes").expect("written");
    volume.run("cp", [file.to_str().expect("UTF-8"), ":/"]).works();
    let objects = || files(&volume.path("node0/objects")).len();
    assert_eq!(objects(), 1);
    volume.run("rm", [":/file"]).works();
    wait_for("the object of a removed file is removed", || objects() == 0);
    volume.run("status", NOTHING).works();
    volume.run("down", NOTHING).works();
    assert!(daemon.wait().expect("waited").success());
}
