//! System calls of a write and of a read, counted by strace: the baseline is one.
#![allow(clippy::unwrap_used)] // helpers of tests, too

use std::collections::BTreeMap;
use std::path::Path;
use std::process::Command;
use tatami_layout::{Shape, View};
use tatami_tiled::{
    Buffer, CollectiveOpen, Environment, Flags, Hints, RankFile, begin_open, machine,
};

const RANKS: u32 = 4;
const LEN: usize = 4096;

fn open(path: &Path) -> Vec<RankFile> {
    let flags = Flags::RDWR | Flags::CREATE;
    let hints = Hints::new([("tatami_container", "true")]);
    let (environment, machine) = (Environment::default(), machine::machine_id());
    let begin = begin_open(&CollectiveOpen {
        path,
        flags,
        mode: 0o644,
        hints: &hints,
        environment: &environment,
        ranks: RANKS,
        machine,
        nodes: &[],
    });
    let token = begin.unwrap();
    (0..RANKS)
        .map(|rank| RankFile::open(path, flags, &hints, rank, token.clone()).unwrap())
        .collect()
}

/// Blocks of 512 bytes in turn.
fn view(rank: u32) -> View {
    let shape = Shape::resized(0, 512 * i64::from(RANKS), &Shape::bytes(512).unwrap()).unwrap();
    View::new(512 * u64::from(rank), 1, shape).unwrap()
}

/// The watched process. Without the variable that requests it, the test does nothing.
#[test]
fn child_that_is_watched() {
    let Ok(asked) = std::env::var("TATAMI_TILED_CALLS") else { return };
    let mut words = asked.splitn(3, ',');
    let (what, n) = (words.next().unwrap(), words.next().unwrap().parse::<u64>().unwrap());
    let files = open(Path::new(words.next().unwrap()));
    let byte = Shape::bytes(1).unwrap();
    let pairs = Shape::resized(0, 16, &Shape::bytes(8).unwrap()).unwrap();
    let mut memory = vec![7u8; LEN * 2];
    if what != "bytes" && what != "in turn" {
        files.iter().zip(0..).for_each(|(file, rank)| file.set_view(view(rank)));
    }
    for i in 0..n {
        for (file, rank) in files.iter().zip(0u64..) {
            let stream = match what {
                // Explicit offsets, each rank in its own region.
                "bytes" => (rank << 32) + i * LEN as u64,
                // All ranks in turn, so that the range of each covers those of the others.
                "in turn" => (i * u64::from(RANKS) + rank) * LEN as u64,
                _ => i * LEN as u64,
            };
            if what == "scattered" {
                let count = LEN as u64 / 8;
                // SAFETY: the elements lie in `memory`.
                let data = unsafe { Buffer::new(memory.as_mut_ptr(), count, &pairs) }.unwrap();
                file.write(stream, &data).unwrap();
            } else {
                file.write(stream, &Buffer::from_slice(&mut memory[..LEN], &byte)).unwrap();
            }
        }
    }
    if what == "read" {
        // Once, so that files are open; then the measured calls.
        for round in 0..2 {
            for (file, _) in files.iter().zip(0..) {
                for i in 0..n {
                    let mut into = Buffer::from_slice(&mut memory[..LEN], &byte);
                    let stream = if round == 0 { 0 } else { i * LEN as u64 };
                    assert_eq!(file.read(stream, &mut into).unwrap(), LEN as u64);
                }
            }
        }
    }
}

/// System calls by name.
fn watch(what: &str, n: u64) -> BTreeMap<String, u64> {
    let dir = tempfile::tempdir().unwrap();
    let log = dir.path().join("log");
    let watched = Command::new("strace")
        .arg("-f")
        .arg("-o")
        .arg(&log)
        .arg(std::env::current_exe().unwrap())
        .args(["--exact", "child_that_is_watched", "--test-threads", "1"])
        .env("TATAMI_TILED_CALLS", format!("{what},{n},{}", dir.path().join("f").display()))
        .output();
    let watched = watched.expect("`make test` installs strace");
    assert!(watched.status.success(), "{watched:?}");
    let mut calls = BTreeMap::new();
    for line in std::fs::read_to_string(&log).unwrap().lines() {
        let call = line.split_once(' ').map_or("", |(_, call)| call.trim_start());
        if let Some((name, _)) = call.split_once('(') {
            *calls.entry(name.to_owned()).or_default() += 1;
        }
    }
    calls
}

/// Calls that 100 more operations of each rank cost.
fn cost(what: &str) -> BTreeMap<String, u64> {
    let (few, many) = (watch(what, 20), watch(what, 120));
    let more = |(name, n): (String, u64)| {
        let before = few.get(&name).copied().unwrap_or(0);
        (n > before).then(|| (name, n - before))
    };
    many.into_iter().filter_map(more).collect()
}

/// Checks the calls of the file; those for memory and a growing heap do not count.
fn check(what: &str, wanted: &[(&str, u64)]) {
    let mut calls = cost(what);
    for (name, n) in wanted {
        assert_eq!(calls.remove(*name), Some(*n), "{what}: {name} beside {calls:?}");
    }
    let rest: u64 = calls.values().sum();
    assert!(rest <= 40, "{what}: {calls:?}");
}

#[test]
fn a_write_under_a_view_is_one_call() {
    check("view", &[("pwrite64", 400)]);
}

#[test]
fn a_write_of_scattered_memory_is_one_call() {
    check("scattered", &[("pwrite64", 400)]);
}

#[test]
fn a_write_at_an_explicit_offset_is_one_call() {
    check("bytes", &[("pwrite64", 400)]);
}

#[test]
fn a_write_between_those_of_others_is_one_call() {
    check("in turn", &[("pwrite64", 400)]);
}

#[test]
fn a_read_under_the_view_that_wrote_is_one_call() {
    check("read", &[("pwrite64", 400), ("pread64", 800)]);
}
