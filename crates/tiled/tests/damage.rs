//! Damage and death: bytes on the disk that differ from the written ones, killed writers, full
//! disks.
#![allow(clippy::unwrap_used)] // helpers of tests, too

use parking_lot::Mutex;
use rustix::io::Errno;
use std::io::{Read, Write};
use std::os::fd::{AsRawFd, FromRawFd, OwnedFd};
use std::os::unix::process::ExitStatusExt;
use std::path::Path;
use std::process::{Command, Stdio};
use std::sync::Arc;
use tatami_layout::{Appended, PieceTiles, Shape, View};
use tatami_skip::skip_test;
use tatami_tiled::journal::{self, JournalError, JournalReader, JournalWriter, WordSource};
use tatami_tiled::marker::PieceName;
use tatami_tiled::published::{PublishedIndex, PublishedPiece};
use tatami_tiled::recovery::DamagePolicy;
use tatami_tiled::shared::SharedWords;
use tatami_tiled::{Buffer, CollectiveOpen, Environment, Flags, Hints, OpenToken, RankFile};
use tatami_tiled::{begin_open, machine, relayout, stat};

const FLAGS: Flags = Flags(Flags::RDWR.0 | Flags::CREATE.0);

fn start(path: &Path, ranks: u32) -> OpenToken {
    begin_open(&CollectiveOpen {
        path,
        flags: FLAGS,
        mode: 0o644,
        hints: &Hints::new([("tatami_container", "true")]),
        environment: &Environment::default(),
        ranks,
        machine: machine::machine_id(),
        nodes: &[],
    })
    .unwrap()
}

fn join(path: &Path, token: &OpenToken, rank: u32) -> RankFile {
    RankFile::open(path, FLAGS, &Hints::default(), rank, token.clone()).unwrap()
}

fn write(file: &RankFile, stream: u64, data: &mut [u8]) -> tatami_tiled::Result<u64> {
    let byte = Shape::bytes(1).unwrap();
    // SAFETY: the elements lie in `data`.
    let buffer = unsafe { Buffer::new(data.as_mut_ptr(), data.len() as u64, &byte) }.unwrap();
    file.write(stream, &buffer)
}

fn read(file: &RankFile, stream: u64, len: usize) -> Vec<u8> {
    let byte = Shape::bytes(1).unwrap();
    let mut data = vec![0; len];
    // SAFETY: the elements lie in `data`.
    let mut buffer = unsafe { Buffer::new(data.as_mut_ptr(), len as u64, &byte) }.unwrap();
    let done = file.read(stream, &mut buffer).unwrap();
    data.truncate(done as usize);
    data
}

fn strided(block: u64, rank: u64, ranks: u64) -> View {
    let shape = Shape::resized(0, (block * ranks) as i64, &Shape::bytes(block).unwrap()).unwrap();
    View::new(block * rank, 1, shape).unwrap()
}

/// A piece with several views and patterns.
fn example(random: &mut fastrand::Rng, mut each: impl FnMut(Appended, &PieceTiles)) {
    let mut piece = PieceTiles::new(3);
    let views = [View::all_bytes(), strided(8, 3, 4), strided(100, 1, 2)];
    let (mut at, mut stream) = (0, [0u64; 3]);
    for _ in 0..random.usize(1..60) {
        let number = random.usize(0..3);
        let view = piece.add_view(&views[number]).unwrap();
        let len = [1, 8, 64][random.usize(0..3)];
        stream[number] += [0, 0, 64][random.usize(0..3)];
        let done = piece.append(random.u64(7..9), view, stream[number], len, at).unwrap();
        (at, stream[number]) = (at + len, stream[number] + len);
        each(done, &piece);
    }
}

/// A concurrent reader finds exactly the recorded tiles at any moment. While a tile is being
/// replaced, the reader finds tiles with the same meaning.
#[test]
fn a_journal_tells_what_was_written() {
    let dir = tempfile::tempdir().unwrap();
    for seed in 0..60 {
        let mut random = fastrand::Rng::with_seed(seed);
        let mapped = random.bool();
        let path = dir.path().join(format!("j{seed}"));
        let make = std::fs::OpenOptions::new().read(true).write(true).create_new(true).open(&path);
        let mut writer = JournalWriter::new(make.unwrap(), 5, 3, mapped).unwrap();
        let open = || std::fs::File::open(&path).unwrap();
        let mut follower = JournalReader::new(open(), 5, 3, random.bool(), false).unwrap().unwrap();
        let mut looks = random.clone();
        example(&mut random, |change, piece| {
            writer.reserve_room(&piece.views()[0]).unwrap();
            writer.record_change(change, piece).unwrap();
            if looks.bool() {
                follower.read_new_records().unwrap();
                assert_eq!(follower.to_piece_tiles(), *piece, "seed {seed}");
                let mut late =
                    JournalReader::new(open(), 5, 3, looks.bool(), false).unwrap().unwrap();
                late.read_new_records().unwrap();
                assert_eq!(late.to_piece_tiles(), *piece, "seed {seed}");
            }
        });
        assert!(JournalReader::new(open(), 5, 4, false, false).is_err(), "of another rank");
        assert!(JournalReader::new(open(), 6, 3, false, false).is_err(), "of another open");
    }
}

/// The writer of a journal: the recorded changes and those to come.
#[derive(Debug)]
struct Going {
    writer: JournalWriter,
    message: PieceTiles,
    steps: std::vec::IntoIter<(Appended, PieceTiles)>,
    random: fastrand::Rng,
}

impl Going {
    fn go_on(&mut self) {
        for _ in 0..self.random.usize(0..3) {
            let Some((change, piece)) = self.steps.next() else { return };
            self.writer.record_change(change, &piece).unwrap();
            self.message = piece;
        }
    }
}

/// The words of the journal; the writer changes some of them before each load.
#[derive(Debug)]
struct Meanwhile(SharedWords, Arc<Mutex<Going>>);

impl WordSource for Meanwhile {
    fn refresh_from(&mut self, _from: u64) -> std::result::Result<(), Errno> {
        Ok(())
    }

    fn ensure_loaded(&mut self, len: u64) -> std::result::Result<(), Errno> {
        self.0.ensure_mapped(len)
    }

    fn readable_len(&self) -> std::result::Result<u64, Errno> {
        self.0.readable_len()
    }

    fn load_words(&self, offset: u64, words: &mut [u64]) -> std::result::Result<(), Errno> {
        self.1.lock().go_on();
        self.0.load_words(offset, words)
    }
}

/// Between any two words that a reader loads, the writer may record more. The reader knows all
/// changes that were recorded before its read began, and never skips one for good.
#[test]
fn a_journal_that_is_read_while_it_is_written_tells_all() {
    let dir = tempfile::tempdir().unwrap();
    for seed in 0..300 {
        let mut random = fastrand::Rng::with_seed(seed);
        let path = dir.path().join(format!("j{seed}"));
        let make = std::fs::OpenOptions::new().read(true).write(true).create_new(true).open(&path);
        let writer = JournalWriter::new(make.unwrap(), 5, 3, random.bool()).unwrap();
        let mut steps = Vec::new();
        example(&mut random, |change, piece| steps.push((change, piece.clone())));
        let mapped = random.bool();
        let (message, steps) = (PieceTiles::new(3), steps.into_iter());
        let going = Arc::new(Mutex::new(Going { writer, message, steps, random }));
        let words = SharedWords::new(std::fs::File::open(&path).unwrap(), mapped, false).unwrap();
        let meanwhile = Meanwhile(words, going.clone());
        let mut reader = JournalReader::from_words(Box::new(meanwhile), false).unwrap().unwrap();
        let bytes = |piece: &PieceTiles| piece.tiles().iter().map(|tile| tile.len).sum::<u64>();
        loop {
            let (message, is_all) = {
                let going = going.lock();
                (going.message.clone(), going.steps.len() == 0)
            };
            reader.read_new_records().unwrap();
            let known = reader.to_piece_tiles();
            assert!(bytes(&known) >= bytes(&message), "seed {seed}: {known:?} of {message:?}");
            if is_all {
                assert_eq!(known, message, "seed {seed}");
                break;
            }
        }
    }
}

/// A change that an error of the disk kept out of the journal is recorded with the next change.
#[test]
fn a_journal_that_could_not_be_written_for_a_while_tells_all() {
    let dir = tempfile::tempdir().unwrap();
    let read_only = std::fs::File::open("/dev/null").unwrap();
    for seed in 0..100 {
        let mut random = fastrand::Rng::with_seed(seed);
        let path = dir.path().join(format!("j{seed}"));
        let make = std::fs::OpenOptions::new().read(true).write(true).create_new(true).open(&path);
        let file = make.unwrap();
        let good = file.try_clone().unwrap();
        let number = file.as_raw_fd();
        let mut writer = JournalWriter::new(file, 5, 3, false).unwrap();
        let becomes = |what: &std::fs::File| {
            // SAFETY: the descriptor is the writer's, which lives; it is not closed here.
            let mut fd = std::mem::ManuallyDrop::new(unsafe { OwnedFd::from_raw_fd(number) });
            rustix::io::dup2(what, &mut fd).unwrap();
        };
        let (mut faults, mut last) = (random.clone(), None);
        example(&mut random, |change, piece| {
            writer.reserve_room(&piece.views()[0]).unwrap();
            let fails = faults.u8(0..3) == 0;
            if fails {
                becomes(&read_only);
            }
            assert_eq!(writer.record_change(change, piece).is_err(), fails, "seed {seed}");
            becomes(&good);
            last = Some((piece.clone(), fails));
        });
        let (piece, failed) = last.unwrap();
        if !failed {
            let open = std::fs::File::open(&path).unwrap();
            let mut reader = JournalReader::new(open, 5, 3, false, false).unwrap().unwrap();
            reader.read_new_records().unwrap();
            assert_eq!(reader.to_piece_tiles(), piece, "seed {seed}");
        }
    }
}

/// For any bytes, reading a journal ends, and its whole records give tiles that the index accepts.
#[test]
fn a_damaged_journal_gives_what_makes_sense() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("j");
    let make = std::fs::OpenOptions::new().read(true).write(true).create_new(true).open(&path);
    let mut writer = JournalWriter::new(make.unwrap(), 5, 3, false).unwrap();
    let mut random = fastrand::Rng::with_seed(1);
    example(&mut random, |change, piece| writer.record_change(change, piece).unwrap());
    let good = std::fs::read(&path).unwrap();
    let used = writer.used_bytes() as usize;
    for _ in 0..3000 {
        let mut bytes = good.clone();
        for _ in 0..random.usize(1..4) {
            let at = random.usize(0..used);
            bytes[at] = random.u8(..);
        }
        bytes.truncate(random.usize(0..bytes.len() * 2).min(bytes.len()));
        std::fs::write(&path, &bytes).unwrap();
        let file = std::fs::File::open(&path).unwrap();
        let look_up = |piece| {
            let pieces = vec![(tatami_layout::Piece(1), piece)];
            tatami_layout::TileIndex::new(pieces, Vec::new(), 0).lookup(0, 4096);
        };
        if let Ok(Some(mut reader)) = JournalReader::new(file, 5, 3, random.bool(), false) {
            let _ = reader.read_new_records();
            look_up(reader.to_piece_tiles());
        }
        let mut file = std::fs::File::open(&path).unwrap();
        look_up(journal::recover_journal(&mut file, 3, 4096).unwrap().tiles);
    }
}

/// A flipped bit of a journal that is read while its writer lives, or later: the reader knows the
/// recorded tiles, or reports an error.
#[test]
fn a_flipped_bit_of_a_journal_is_no_shorter_journal() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("j");
    for seed in 0..4 {
        let _ = std::fs::remove_file(&path);
        let make = std::fs::OpenOptions::new().read(true).write(true).create_new(true).open(&path);
        let mut writer = JournalWriter::new(make.unwrap(), 5, 3, false).unwrap();
        let mut random = fastrand::Rng::with_seed(seed);
        let mut message = PieceTiles::new(3);
        example(&mut random, |change, piece| {
            writer.record_change(change, piece).unwrap();
            message = piece.clone();
        });
        let good = std::fs::read(&path).unwrap();
        for at in 0..writer.used_bytes() as usize + 64 {
            let mut bytes = good.clone();
            bytes[at] ^= 1 << random.u8(0..8);
            std::fs::write(&path, &bytes).unwrap();
            let open = std::fs::File::open(&path).unwrap();
            let read = JournalReader::new(open, 5, 3, random.bool(), false).and_then(|reader| {
                let mut reader = reader.unwrap();
                reader.read_new_records().map(|()| reader.to_piece_tiles())
            });
            match read {
                Ok(piece) => assert_eq!(piece, message, "seed {seed}, byte {at}"),
                Err(trouble) => assert!(matches!(trouble, JournalError::Damage(_)), "{trouble}"),
            }
        }
    }
}

/// All bytes of the container at `path`, as a program reads them after opening it now.
fn content(path: &Path) -> tatami_tiled::Result<Vec<u8>> {
    let (environment, hints) = (Environment::default(), Hints::default());
    let token = begin_open(&CollectiveOpen {
        path,
        flags: Flags::RDONLY,
        mode: 0,
        hints: &hints,
        environment: &environment,
        ranks: 1,
        machine: machine::machine_id(),
        nodes: &[],
    })?;
    let file = RankFile::open(path, Flags::RDONLY, &hints, 0, token)?;
    let byte = Shape::bytes(1).unwrap();
    let mut data = vec![0; file.file_size()? as usize];
    let done = file.read(0, &mut Buffer::from_slice(&mut data, &byte))?;
    data.truncate(done as usize);
    Ok(data)
}

/// A container with the tiles that one job published and synced, those that another published, and
/// the journals of a third that died.
fn container_of_a_dead_job(path: &Path) -> Vec<u8> {
    for (at, durable) in [(0, true), (100, false)] {
        let token = start(path, 1);
        let file = join(path, &token, 0);
        write(&file, at, &mut [at as u8 + 1; 100]).unwrap();
        let sealed = file.seal_piece(durable).unwrap();
        file.publish_pieces(&[&sealed], durable, true).unwrap();
    }
    let token = start(path, 2);
    let files: Vec<RankFile> = (0..2).map(|rank| join(path, &token, rank)).collect();
    for (file, rank) in files.iter().zip(0u8..) {
        write(file, 250 + u64::from(rank) * 30, &mut [rank + 201; 20]).unwrap();
        file.set_view(strided(8, u64::from(rank), 2));
        write(file, 20, &mut [rank + 211; 32]).unwrap();
        write(file, 52, &mut [rank + 211; 32]).unwrap();
    }
    drop(files);
    content(path).unwrap()
}

fn file_that_begins(path: &Path, start: &str) -> std::path::PathBuf {
    let entries = std::fs::read_dir(path).unwrap().map(|entry| entry.unwrap());
    let mut found: Vec<_> = entries
        .filter(|entry| entry.file_name().to_string_lossy().starts_with(start))
        .map(|entry| entry.path())
        .collect();
    found.sort();
    found.remove(0)
}

/// A flipped bit in each kind of file that a container has: a program that reads the file gets the
/// written bytes, or an error that names the damage and the remedy.
#[test]
fn a_flipped_bit_in_any_file_of_a_container_is_told_or_does_no_harm() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("f");
    let right = container_of_a_dead_job(&path);
    let mut random = fastrand::Rng::with_seed(8);
    // The text for people in the marker does not count, and neither do the words that jobs share.
    let kinds = ["j.", "o.", "index", "index.synced", ".tatami-container", "shared", "lock"];
    for kind in kinds {
        let file = file_that_begins(&path, kind);
        let good = std::fs::read(&file).unwrap();
        let mut message = 0;
        for at in 0..good.len().min(700) {
            let mut bytes = good.clone();
            bytes[at] ^= 1 << random.u8(0..8);
            std::fs::write(&file, &bytes).unwrap();
            match content(&path) {
                Ok(read) => assert!(read == right, "{kind} at {at}: other bytes"),
                Err(error) => {
                    message += 1;
                    let text = error.to_string();
                    let name = file.file_name().unwrap().to_string_lossy().into_owned();
                    assert!(text.contains(&name), "{kind} at {at}: {text}");
                    assert!(text.contains("restore"), "{kind} at {at}: {text}");
                    // No recovery runs without a request.
                    let recovered = tatami_tiled::recover_container(&path, DamagePolicy::Refuse);
                    assert!(recovered.is_err(), "{kind} at {at}");
                }
            }
        }
        std::fs::write(&file, &good).unwrap();
        assert_eq!(message > 0, !["index.synced", "shared", "lock"].contains(&kind), "{kind}");
    }
    assert!(content(&path).unwrap() == right);
}

/// A file with a damaged journal is not read, written or converted until the user accepts the loss.
/// Then all bytes outside the damage are there.
#[test]
fn the_loss_of_a_record_can_be_accepted() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("f");
    let right = container_of_a_dead_job(&path);
    let journal = file_that_begins(&path, "j.");
    let mut bytes = std::fs::read(&journal).unwrap();
    // The first tile of rank 0: bytes 250 to 269.
    let tile = bytes.chunks(8).position(|word| word[0] == 2 && word[1] == 8).unwrap() * 8;
    bytes[tile + 17] ^= 2;
    std::fs::write(&journal, bytes).unwrap();
    let refused = |error: tatami_tiled::TiledError| {
        let text = error.to_string();
        let journal = journal.to_string_lossy().into_owned();
        let parts = [&journal, "damaged at byte", "tatami recover --accept-loss"];
        assert!(parts.iter().all(|part| text.contains(part)), "{text}");
    };
    refused(content(&path).unwrap_err());
    refused(tatami_tiled::recover_container(&path, DamagePolicy::Refuse).unwrap_err());
    refused(relayout::to_whole(&path, 1, &|_| {}).unwrap_err());
    let begun = begin_open(&CollectiveOpen {
        path: &path,
        flags: FLAGS,
        mode: 0o644,
        hints: &Hints::new([("tatami_container", "true")]),
        environment: &Environment::default(),
        ranks: 1,
        machine: machine::machine_id(),
        nodes: &[],
    });
    refused(begun.unwrap_err());
    let settled = tatami_tiled::recover_container(&path, DamagePolicy::Accept).unwrap();
    assert_eq!((settled.len(), settled[0].damaged.len()), (1, 1), "{settled:?}");
    let left = content(&path).unwrap();
    assert_eq!(left.len(), right.len());
    let differs = left.iter().zip(&right).enumerate().filter(|(_, (a, b))| a != b);
    let differs: Vec<_> = differs.map(|(at, (byte, _))| (at, *byte)).collect();
    assert!(differs.iter().all(|(at, byte)| (250..270).contains(at) && *byte == 0), "{differs:?}");
    assert_eq!(relayout::to_whole(&path, 1, &|_| {}), Ok(right.len() as u64));
}

/// A hole in a journal that a power cut explains costs only unsynced bytes. All others stay
/// readable.
#[test]
fn a_power_cut_costs_what_was_not_synced_of_a_journal() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("f");
    let token = start(&path, 1);
    let file = join(&path, &token, 0);
    // Irregular offsets, so that each write is a tile.
    let offset = |tile: u64| tile * 1000 + tile * tile * 37 % 501;
    for tile in 0..40 {
        write(&file, offset(tile), &mut [tile as u8 + 1; 50]).unwrap();
        if tile == 9 {
            let sealed = file.seal_piece(true).unwrap();
            file.publish_pieces(&[&sealed], true, false).unwrap();
            file.mark_published();
        }
    }
    drop(file);
    let right = content(&path).unwrap();
    let journal = file_that_begins(&path, "j.");
    let hole = std::fs::File::options().write(true).open(&journal).unwrap();
    std::os::unix::fs::FileExt::write_all_at(&hole, &[0; 512], 512).unwrap();
    let error =
        tatami_tiled::recover_container(&path, DamagePolicy::Refuse).unwrap_err().to_string();
    assert!(error.contains("damaged at byte"), "{error}");
    let before = std::time::SystemTime::UNIX_EPOCH + std::time::Duration::from_secs(1000);
    hole.set_modified(before).unwrap();
    let settled = tatami_tiled::recover_container(&path, DamagePolicy::Refuse).unwrap();
    assert_eq!((settled.len(), settled[0].damaged.len()), (1, 1), "{settled:?}");
    let left = content(&path).unwrap();
    assert_eq!(left.len(), right.len());
    let is_lost = |tile: &u64| left[offset(*tile) as usize] == 0;
    let lost: Vec<u64> = (0..40).filter(is_lost).collect();
    assert!(!lost.is_empty() && lost.len() <= 9 && lost[0] >= 10, "{lost:?}");
    let same = left.iter().zip(&right).filter(|(left, right)| left != right);
    assert_eq!(same.count(), lost.len() * 50);
}

/// A new marker is written only where no program has the file open, and only in a container.
#[test]
fn a_marker_is_written_anew_for_a_container_at_rest() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("f");
    let token = start(&path, 1);
    let file = join(&path, &token, 0);
    write(&file, 0, &mut [7; 100]).unwrap();
    assert_eq!(tatami_tiled::restore_marker(&path), Ok(false), "it is whole");
    let marker = path.join(".tatami-container");
    std::fs::write(&marker, "tatami-container 1 no").unwrap();
    let error = tatami_tiled::restore_marker(&path).unwrap_err();
    assert_eq!(error.errno, Errno::BUSY, "{error}");
    // The writer goes on, and its bytes are there in the end.
    write(&file, 100, &mut [8; 100]).unwrap();
    drop(file);
    assert!(tatami_tiled::is_container(&path), "a file without a marker is no directory");
    let error = content(&path).unwrap_err().to_string();
    assert!(error.contains(".tatami-container") && error.contains("--accept-loss"), "{error}");
    assert_eq!(tatami_tiled::restore_marker(&path), Ok(true));
    assert_eq!(tatami_tiled::restore_marker(&path), Ok(false));
    assert_eq!(content(&path).unwrap(), [[7; 100], [8; 100]].concat());
    let plain = dir.path().join("plain");
    std::fs::create_dir(&plain).unwrap();
    assert_eq!(tatami_tiled::restore_marker(&plain), Ok(false));
    assert_eq!(std::fs::read_dir(&plain).unwrap().count(), 0);
}

/// The rank table of a dead job is damaged. The bytes of its ranks are still in their journals.
#[test]
fn a_job_without_its_roll_is_recovered_when_that_is_accepted() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("f");
    let right = container_of_a_dead_job(&path);
    let roll = file_that_begins(&path, "o.");
    let mut bytes = std::fs::read(&roll).unwrap();
    bytes[20] ^= 1;
    std::fs::write(&roll, bytes).unwrap();
    let error = content(&path).unwrap_err().to_string();
    assert!(error.contains("--accept-loss"), "{error}");
    tatami_tiled::recover_container(&path, DamagePolicy::Accept).unwrap();
    assert!(content(&path).unwrap() == right);
}

/// No bit of an index can change unnoticed.
#[test]
fn a_damaged_index_is_refused() {
    let mut random = fastrand::Rng::with_seed(2);
    let mut last = None;
    example(&mut random, |_, piece| last = Some(piece.clone()));
    let name = PieceName { open: 9, rank: 3 };
    let entry = PublishedPiece { name, changes: 4, tiles: last.unwrap() };
    let cuts = vec![tatami_layout::TileCut { stamp: 3, size: 77 }];
    let index = PublishedIndex { durable: true, generation: 6, pieces: vec![entry], cuts };
    let good = index.encode();
    assert_eq!(PublishedIndex::decode(&good).unwrap(), index);
    for at in 0..good.len() {
        let mut bytes = good.clone();
        bytes[at] ^= 1 << random.u8(0..8);
        assert!(PublishedIndex::decode(&bytes).is_err(), "byte {at}");
        assert!(PublishedIndex::decode(&good[..at]).is_err(), "length {at}");
    }
    // Random bytes with a right checksum.
    for _ in 0..3000 {
        let mut bytes = good[..good.len() - 4].to_vec();
        for _ in 0..random.usize(1..5) {
            let at = random.usize(8..bytes.len());
            bytes[at] = random.u8(..);
        }
        let sum = crc32c::crc32c(&bytes).to_le_bytes();
        bytes.extend(sum);
        // No panic, and nothing huge is allocated.
        let _ = PublishedIndex::decode(&bytes);
    }
}

/// An index that a power cut may have damaged is replaced by the last one that was synced.
/// Otherwise it is damage, and the published bytes are not dropped without a request.
#[test]
fn a_damaged_index_costs_what_was_not_synced() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("f");
    let token = start(&path, 1);
    let file = join(&path, &token, 0);
    write(&file, 0, &mut [1; 100]).unwrap();
    let sealed = file.seal_piece(true).unwrap();
    file.publish_pieces(&[&sealed], true, false).unwrap();
    file.mark_published();
    write(&file, 100, &mut [2; 100]).unwrap();
    let sealed = file.seal_piece(false).unwrap();
    file.publish_pieces(&[&sealed], false, true).unwrap();
    assert_eq!(stat::stat_file(&path).unwrap().size, 200);
    std::fs::write(path.join("index"), [7; 300]).unwrap();
    let error = stat::stat_file(&path).unwrap_err().to_string();
    assert!(error.contains("index") && error.contains("--accept-loss"), "{error}");
    // The last change is older than the start of the machine.
    let index = std::fs::File::options().write(true).open(path.join("index")).unwrap();
    let before = std::time::SystemTime::UNIX_EPOCH + std::time::Duration::from_secs(1000);
    index.set_modified(before).unwrap();
    assert_eq!(stat::stat_file(&path).unwrap().size, 100);
    index.set_modified(std::time::SystemTime::now()).unwrap();
    assert!(stat::stat_file(&path).is_err());
    assert_eq!(tatami_tiled::restore_synced_index(&path), Ok(true));
    assert_eq!(tatami_tiled::restore_synced_index(&path), Ok(false));
    assert_eq!(stat::stat_file(&path).unwrap().size, 100);
    std::fs::write(path.join("index"), [7; 300]).unwrap();
    assert_eq!(tatami_tiled::restore_synced_index(&path), Ok(false), "there is none before");
    let error = stat::stat_file(&path).unwrap_err();
    assert!(error.to_string().contains("index"), "{error}");
    std::fs::write(path.join(".tatami-container"), b"tatami-container 1 no").unwrap();
    let error = stat::stat_file(&path).unwrap_err();
    assert!(error.to_string().contains("marker"), "{error}");
}

/// The bytes of a rank in the test below: value of byte `at` of its stream.
fn value(rank: u32, at: u64) -> u8 {
    (at.wrapping_mul(2_654_435_761) >> 7) as u8 ^ rank as u8
}

/// The writing process of the test below: prints its progress after each write. Does nothing unless
/// its variable is set.
#[test]
fn child_that_writes_until_it_is_killed() {
    let Ok(asked) = std::env::var("TATAMI_TILED_CHILD") else { return };
    let mut words = asked.splitn(4, ' ');
    let mut number = || words.next().unwrap().to_owned();
    let (rank, seed, token, path) = (number(), number(), number(), number());
    let rank: u32 = rank.parse().unwrap();
    let mut random = fastrand::Rng::with_seed(seed.parse().unwrap());
    let token: Vec<u8> = (0..token.len() / 2)
        .map(|i| u8::from_str_radix(&token[2 * i..2 * i + 2], 16).unwrap())
        .collect();
    let path = Path::new(&path);
    let file = join(path, &OpenToken::decode(&token, path).unwrap(), rank);
    if seed.parse::<u64>().unwrap().is_multiple_of(3) {
        file.set_view(View::new(0, 1, Shape::bytes(1 << 20).unwrap()).unwrap());
    } else {
        file.set_view(strided(24, u64::from(rank), 3));
    }
    let first =
        if seed.parse::<u64>().unwrap().is_multiple_of(3) { u64::from(rank) << 30 } else { 0 };
    let mut out = std::io::stdout();
    let mut at = 0;
    loop {
        let len = random.u64(1..5000);
        let mut data: Vec<u8> = (at..at + len).map(|at| value(rank, at)).collect();
        write(&file, first + at, &mut data).unwrap();
        at += len;
        out.write_all(&at.to_le_bytes()).unwrap();
    }
}

/// Ranks are killed at any moment: every byte whose write had returned is there.
#[test]
fn killed_ranks_lose_nothing_that_was_written() {
    for seed in 0..12u64 {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("f");
        let token = start(&path, 3);
        let keeper = join(&path, &token, 0);
        let hex: String = token.encode().iter().map(|byte| format!("{byte:02x}")).collect();
        let mut children: Vec<_> = (0..3)
            .map(|rank| {
                // Rank 0's handle above has the rank table of this process; the children join by
                // path.
                Command::new(std::env::current_exe().unwrap())
                    .args(["--exact", "child_that_writes_until_it_is_killed", "--nocapture"])
                    .env("TATAMI_TILED_CHILD", format!("{rank} {seed} {hex} {}", path.display()))
                    .stdout(Stdio::piped())
                    .spawn()
                    .unwrap()
            })
            .collect();
        let mut random = fastrand::Rng::with_seed(seed);
        let mut message = Vec::new();
        for child in &mut children {
            // Wait for some output first; the kill then comes at a random moment.
            let mut some = vec![0; random.usize(100..20_000)];
            child.stdout.as_mut().unwrap().read_exact(&mut some).unwrap();
            child.kill().unwrap();
            assert_eq!(child.wait().unwrap().signal(), Some(9));
            child.stdout.as_mut().unwrap().read_to_end(&mut some).unwrap();
            message.push(some);
        }
        drop(keeper);
        let token = start(&path, 1);
        let file = join(&path, &token, 0);
        assert!(std::fs::read_dir(&path).unwrap().all(|entry| {
            let name = entry.unwrap().file_name();
            !name.to_string_lossy().starts_with("j.")
        }));
        for (rank, message) in message.iter().enumerate() {
            // Behind the harness's own lines come numbers of 8 bytes.
            let start =
                message.windows(8).position(|w| u64::from_le_bytes(w.try_into().unwrap()) < 5000);
            let numbers = message[start.unwrap()..].chunks_exact(8);
            let written = numbers.map(|n| u64::from_le_bytes(n.try_into().unwrap())).max().unwrap();
            assert!(written < 1 << 30);
            let whole = seed.is_multiple_of(3);
            let view = if whole { View::all_bytes() } else { strided(24, rank as u64, 3) };
            let first = if whole { (rank as u64) << 30 } else { 0 };
            file.set_view(view);
            let bytes = read(&file, first, written as usize);
            assert_eq!(bytes.len() as u64, written);
            let right = (0..).zip(&bytes).all(|(at, byte)| *byte == value(rank as u32, at));
            assert!(right, "seed {seed} rank {rank}");
        }
    }
}

/// A full disk is an error of the write that needs the space. Earlier bytes stay, and the file can
/// be written again when there is room.
#[test]
fn a_full_disk_is_an_error_and_no_damage() {
    let dir = tempfile::tempdir().unwrap();
    let mounted = Command::new("mount")
        .args(["-t", "tmpfs", "-o", "size=256k", "none"])
        .arg(dir.path())
        .output()
        .is_ok_and(|out| out.status.success());
    if !mounted {
        return skip_test("no right to mount a small file system");
    }
    let result = std::panic::catch_unwind(|| fill(dir.path()));
    let unmounted = Command::new("umount").arg(dir.path()).status().unwrap();
    assert!(unmounted.success());
    result.unwrap();
}

fn fill(dir: &Path) {
    let path = dir.join("f");
    let token = start(&path, 1);
    let file = join(&path, &token, 0);
    let mut written = 0;
    let mut random = fastrand::Rng::with_seed(4);
    let error = loop {
        let len = random.u64(1..3000);
        let mut data: Vec<u8> = (written..written + len).map(|at| value(0, at)).collect();
        // Every second write leaves a gap, so that the journal has to grow, too.
        match write(&file, written * 2, &mut data[..1])
            .and_then(|_| write(&file, written * 2 + 1, &mut data[1..]))
        {
            Ok(_) => written += len,
            Err(error) => break error,
        }
    };
    assert_eq!(error.errno, Errno::NOSPC, "{error}");
    assert!(written > 100_000, "{written}");
    std::fs::write(dir.join("ballast"), b"").unwrap();
    drop(file);
    // There is no room for an index either: the journals stay, and have the tiles.
    assert!(stat::stat_file(&path).unwrap().size > written);
}
