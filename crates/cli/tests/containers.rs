//! Containers from the command line: where, relayout, recover.
#![allow(clippy::unwrap_used)] // helpers of tests, too

mod common;

use common::tatami;
use std::ffi::OsStr;
use std::path::Path;
use tatami_layout::{Shape, View};
use tatami_tiled::{
    Buffer, CollectiveOpen, Environment, Flags, Hints, RankFile, begin_open, machine,
};

const RANKS: u32 = 3;
const BLOCK: u64 = 1000;
/// Blocks of each rank.
const BLOCKS: u64 = 40;

fn byte_at(at: u64) -> u8 {
    (at.wrapping_mul(2_654_435_761) >> 9) as u8
}

/// The bytes that the ranks write together.
fn expected() -> Vec<u8> {
    (0..BLOCK * BLOCKS * u64::from(RANKS)).map(byte_at).collect()
}

/// A job that writes a file in alternating blocks, and dies if `dies` is set.
fn job(path: &Path, dies: bool) {
    let flags = Flags::RDWR | Flags::CREATE;
    let hints = Hints::new([("tatami_container", "true")]);
    let (environment, machine) = (Environment::default(), machine::machine_id());
    let token = begin_open(&CollectiveOpen {
        path,
        flags,
        mode: 0o640,
        hints: &hints,
        environment: &environment,
        ranks: RANKS,
        machine,
        nodes: &[],
    })
    .unwrap();
    let byte = Shape::bytes(1).unwrap();
    let mut files = Vec::new();
    for rank in 0..RANKS {
        let file = RankFile::open(path, flags, &hints, rank, token.clone()).unwrap();
        let extent = (BLOCK * u64::from(RANKS)) as i64;
        let shape = Shape::resized(0, extent, &Shape::bytes(BLOCK).unwrap()).unwrap();
        let view = View::new(BLOCK * u64::from(rank), 1, shape).unwrap();
        let mut data: Vec<u8> = (0..BLOCK * BLOCKS).map(|at| byte_at(view.offset_of(at))).collect();
        file.set_view(view);
        file.write(0, &Buffer::from_slice(&mut data, &byte)).unwrap();
        files.push(file);
    }
    if !dies {
        let sealed: Vec<Vec<u8>> =
            files.iter().map(|file| file.seal_piece(false).unwrap()).collect();
        let sealed: Vec<&[u8]> = sealed.iter().map(Vec::as_slice).collect();
        files[0].publish_pieces(&sealed, false, true).unwrap();
    }
}

fn run<const N: usize>(args: [&OsStr; N]) -> common::Said {
    tatami(args)
}

#[test]
fn a_container_becomes_a_file_and_back_with_the_same_bytes() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("data");
    let os = path.as_os_str();
    job(&path, false);
    assert!(path.is_dir());
    let said = run(["where".as_ref(), os]);
    assert!(said.works().out.contains("120000 bytes"), "{said:?}");
    assert!(said.out.contains("3 pieces"), "{said:?}");
    let json = run(["where".as_ref(), "--json".as_ref(), os]).works().json();
    let file = &json["files"][0];
    assert_eq!((file["size"].as_str(), file["kind"].as_str()), (Some("120000"), Some("container")));
    assert_eq!(file["extents"].as_array().unwrap().len(), 120);
    assert_eq!(file["pieces"][1]["used"], "40000");
    assert_eq!(file["complete"], true);

    run(["relayout".as_ref(), os]).works();
    assert!(path.is_file());
    assert!(std::fs::read(&path).unwrap() == expected());
    let said = run(["relayout".as_ref(), os]);
    assert!(said.works().out.contains("already"), "{said:?}");
    use std::os::unix::fs::MetadataExt;
    assert_eq!(path.metadata().unwrap().mode() & 0o777, 0o640);

    run(["relayout".as_ref(), "--to".as_ref(), "container".as_ref(), os]).works();
    assert!(path.is_dir());
    run(["relayout".as_ref(), "--threads".as_ref(), "3".as_ref(), os]).works();
    assert!(std::fs::read(&path).unwrap() == expected());
    // No other file is left beside it.
    assert_eq!(std::fs::read_dir(dir.path()).unwrap().count(), 1);
}

#[test]
fn what_a_dead_job_left_is_told_and_recovered() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("data");
    let os = path.as_os_str();
    job(&path, true);
    let said = run(["where".as_ref(), os]);
    assert!(said.works().out.contains("died while writing"), "{said:?}");
    let json = run(["recover".as_ref(), "--json".as_ref(), os]).works().json();
    let job = &json["files"][0]["recovered"][0];
    assert_eq!((job["ranks"].as_u64(), job["writers"].as_u64()), (Some(3), Some(3)));
    assert_eq!((job["bytes"].as_str(), job["lost"].as_str()), (Some("120000"), Some("0")));
    let said = run(["recover".as_ref(), os]);
    assert!(said.works().out.contains("nothing to recover"), "{said:?}");
    run(["relayout".as_ref(), os]).works();
    assert!(std::fs::read(&path).unwrap() == expected());
}

#[test]
fn a_damaged_journal_is_told_and_its_loss_accepted() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("data");
    let os = path.as_os_str();
    job(&path, true);
    let entries = std::fs::read_dir(&path).unwrap().map(|entry| entry.unwrap().path());
    let is_journal =
        |path: &std::path::PathBuf| path.file_name().unwrap().to_string_lossy().starts_with("j.");
    let journal = entries.filter(is_journal).min().unwrap();
    let mut bytes = std::fs::read(&journal).unwrap();
    // The stamp of the only tile of rank 0.
    let tile = bytes.chunks(8).position(|word| word[..2] == [2, 8]).unwrap();
    bytes[tile * 8 + 16] ^= 1;
    std::fs::write(&journal, bytes).unwrap();
    let name = journal.to_str().unwrap();
    let report = [name, "damaged at byte", "tatami recover --accept-loss"];
    for verb in ["where", "relayout", "recover"] {
        run([verb.as_ref(), os]).fails(1, &report);
    }
    let json = run(["recover".as_ref(), "--accept-loss".as_ref(), "--json".as_ref(), os]);
    let json = json.works().json();
    let job = &json["files"][0]["recovered"][0];
    assert_eq!(job["damaged"].as_array().map(Vec::len), Some(1), "{job}");
    assert_eq!(job["bytes"], "80000", "{job}");
    run(["relayout".as_ref(), os]).works();
    let left = std::fs::read(&path).unwrap();
    let is_lost = |at: usize| (at as u64 / BLOCK).is_multiple_of(u64::from(RANKS));
    let right = expected();
    assert_eq!(left.len(), right.len());
    assert!((0..left.len()).all(|at| left[at] == if is_lost(at) { 0 } else { right[at] }));
}

/// The marker tells nothing on which bytes depend: the file is refused without it, and has all its
/// bytes with a new one.
#[test]
fn a_damaged_marker_is_told_and_written_anew() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("data");
    let os = path.as_os_str();
    job(&path, true);
    let marker = path.join(".tatami-container");
    let good = std::fs::read(&marker).unwrap();
    let name = marker.to_str().unwrap();
    let accept = || run(["recover".as_ref(), "--accept-loss".as_ref(), "--json".as_ref(), os]);
    let flipped = || {
        let mut bytes = good.clone();
        bytes[25] ^= 1;
        std::fs::write(&marker, bytes).unwrap();
    };
    for (damage, what) in [
        (&flipped as &dyn Fn(), "the marker's checksum is wrong"),
        (&|| std::fs::write(&marker, "").unwrap(), "the marker is no marker"),
        (&|| std::fs::remove_file(&marker).unwrap(), "the marker is missing"),
    ] {
        damage();
        let report = [name, what, "tatami recover --accept-loss"];
        for verb in ["relayout", "recover"] {
            run([verb.as_ref(), os]).fails(1, &report);
        }
        if marker.exists() {
            run(["where".as_ref(), os]).fails(1, &report);
        }
        let json = accept().works().json();
        assert_eq!(json["files"][0]["marker_written"], true, "{json}");
        assert_eq!(json["files"][0]["size"], "120000", "{json}");
        assert_eq!(accept().works().json()["files"][0]["marker_written"], false);
        run(["where".as_ref(), os]).works();
    }
    // One of another version is no damage.
    let newer = "tatami-container 2 0123456789abcdef c29d1095\n";
    std::fs::write(&marker, newer).unwrap();
    accept().fails(1, &[name, "another version"]);
    assert_eq!(std::fs::read(&marker).unwrap(), newer.as_bytes());
    std::fs::write(&marker, &good).unwrap();
    run(["relayout".as_ref(), os]).works();
    assert!(std::fs::read(&path).unwrap() == expected());

    // And no directory becomes a container by a file of that name.
    let plain = dir.path().join("plain");
    std::fs::create_dir(&plain).unwrap();
    std::fs::write(plain.join(".tatami-container"), "notes").unwrap();
    let said = run(["recover".as_ref(), "--accept-loss".as_ref(), plain.as_os_str()]);
    said.fails(1, &["plain/.tatami-container", "remove this file"]);
    assert_eq!(std::fs::read(plain.join(".tatami-container")).unwrap(), b"notes");
}

#[test]
fn what_is_no_container_is_refused_with_a_reason() {
    let dir = tempfile::tempdir().unwrap();
    let plain = dir.path().join("plain");
    std::fs::write(&plain, b"bytes").unwrap();
    run(["recover".as_ref(), plain.as_os_str()]).fails(1, &["cannot recover", "plain"]);
    run(["relayout".as_ref(), dir.path().as_os_str()]).fails(1, &["cannot look at"]);
    let missing = dir.path().join("missing");
    run(["relayout".as_ref(), missing.as_os_str()]).fails(1, &["missing", "No such file"]);
    assert_eq!(std::fs::read(&plain).unwrap(), b"bytes");
}
