//! Explicit offsets of ranks that write between one another: few tiles, and the last of two writes
//! wins.
#![allow(clippy::unwrap_used)] // helpers of tests, too

use parking_lot::Mutex;
use std::path::Path;
use tatami_layout::Shape;
use tatami_tiled::{
    Buffer, CollectiveOpen, Environment, Flags, Hints, RankFile, begin_open, machine,
};

const RANKS: u32 = 4;

fn open(path: &Path, flags: Flags, ranks: u32) -> Vec<RankFile> {
    let hints = Hints::new([("tatami_container", "true")]);
    let (environment, machine) = (Environment::default(), machine::machine_id());
    let begin = begin_open(&CollectiveOpen {
        path,
        flags,
        mode: 0o644,
        hints: &hints,
        environment: &environment,
        ranks,
        nodes: &[],
        machine,
    });
    let token = begin.unwrap();
    (0..ranks)
        .map(|rank| RankFile::open(path, flags, &hints, rank, token.clone()).unwrap())
        .collect()
}

fn close(files: Vec<RankFile>) {
    let sealed: Vec<Vec<u8>> = files.iter().map(|file| file.seal_piece(false).unwrap()).collect();
    let sealed: Vec<&[u8]> = sealed.iter().map(Vec::as_slice).collect();
    files[0].publish_pieces(&sealed, false, true).unwrap();
    files.iter().for_each(RankFile::mark_published);
}

fn write(file: &RankFile, at: u64, bytes: &mut [u8]) {
    let byte = Shape::bytes(1).unwrap();
    file.write(at, &Buffer::from_slice(bytes, &byte)).unwrap();
}

fn read(file: &RankFile, at: u64, len: usize) -> Vec<u8> {
    let byte = Shape::bytes(1).unwrap();
    let mut bytes = vec![0x5a; len];
    let n = file.read(at, &mut Buffer::from_slice(&mut bytes, &byte)).unwrap();
    bytes.truncate(n as usize);
    bytes
}

fn writing() -> Flags {
    Flags::RDWR | Flags::CREATE
}

/// A grid of `SIDE`³ points of 8 bytes, cut in two in each direction. Each rank has two of the
/// eight cells and writes them row by row, while the others write theirs.
#[test]
fn rows_of_a_grid_are_a_few_tiles() {
    const SIDE: u64 = 24;
    const HALF: u64 = SIDE / 2;
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("f");
    let files = open(&path, writing(), RANKS);
    let mut want = vec![0u8; (SIDE * SIDE * SIDE * 8) as usize];
    let rows =
        (0..2).flat_map(|cell| (0..HALF).flat_map(move |z| (0..HALF).map(move |y| (cell, z, y))));
    let seed = fastrand::u64(..);
    println!("seed {seed}");
    let mut random = fastrand::Rng::with_seed(seed);
    for (cell, z, y) in rows {
        // In any order: what the others have written by then differs.
        let mut ranks: Vec<u64> = (0..u64::from(RANKS)).collect();
        random.shuffle(&mut ranks);
        for rank in ranks {
            let (i, j) = (rank % 2, rank / 2);
            let (z, y) = (cell * HALF + z, (i ^ cell) * HALF + y);
            let at = ((z * SIDE + y) * SIDE + j * HALF) * 8;
            let mut row: Vec<u8> = (0..HALF * 8).map(|_| random.u8(..)).collect();
            want[at as usize..][..row.len()].copy_from_slice(&row);
            write(&files[rank as usize], at, &mut row);
            // All ranks see the written bytes at once.
            let reader = &files[random.usize(0..RANKS as usize)];
            if random.u8(0..8) == 0 {
                assert_eq!(read(reader, at, row.len()), row);
            }
        }
    }
    close(files);
    let index = std::fs::metadata(path.join("index")).unwrap().len();
    assert!(index < 1024, "the index has {index} bytes");
    let reader = open(&path, Flags::RDONLY, 1);
    assert_eq!(read(&reader[0], 0, want.len() + 1), want);
    for _ in 0..2000 {
        let from = random.usize(0..want.len());
        let len = random.usize(1..200).min(want.len() - from);
        assert_eq!(read(&reader[0], from as u64, len), want[from..][..len]);
    }
}

/// Threads write their own places between those of the others, all the time, and shared places in
/// turn. Of the writes in turn the last wins, by the order of the lock: its next holder knows the
/// earlier writes.
#[test]
fn of_writes_in_order_the_last_wins() {
    const COMMON: u64 = 400;
    const ROUNDS: u64 = 300;
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("f");
    let files = open(&path, writing(), RANKS);
    let seed = fastrand::u64(..);
    println!("seed {seed}");
    let model = Mutex::new(vec![0u8; COMMON as usize]);
    std::thread::scope(|threads| {
        for (file, rank) in files.iter().zip(0u64..) {
            let model = &model;
            threads.spawn(move || {
                let mut random = fastrand::Rng::with_seed(seed ^ rank);
                for round in 0..ROUNDS {
                    let own = COMMON + (round * u64::from(RANKS) + rank) * 16;
                    write(file, own, &mut [rank as u8 + 1; 16]);
                    let mut common = model.lock();
                    let from = random.usize(0..COMMON as usize - 32);
                    let mut bytes = vec![random.u8(1..); random.usize(1..32)];
                    write(file, from as u64, &mut bytes);
                    common[from..][..bytes.len()].copy_from_slice(&bytes);
                    if random.u8(0..16) == 0 {
                        assert_eq!(read(file, 0, COMMON as usize)[..], common[..]);
                    }
                }
            });
        }
    });
    close(files);
    let reader = open(&path, Flags::RDONLY, 1);
    let mut want = model.into_inner();
    for at in 0..ROUNDS * u64::from(RANKS) {
        want.extend([(at % u64::from(RANKS)) as u8 + 1; 16]);
    }
    assert_eq!(read(&reader[0], 0, want.len() + 1), want);
}
