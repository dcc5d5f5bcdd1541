//! The log: every commit in its order, until the tables have it.
//!
//! ```text
//! log    := "TATAMI-L" │ format u32 │ number u64 │ end of the log before u64 │ checksum u64, then batches, then zeros
//! batch  := length of the changes u32 │ checksum u64 │ changes
//! change := key length u16 │ value length u32 │ key │ value
//! ```
//!
//! Numbers are little-endian. A value length of all ones says that the key was removed. Checksums
//! are xxh3; a batch's is seeded with the number of the log and the place in it, so that it counts
//! nowhere else. The log ends before the first batch that is not whole: a power cut may leave holes
//! in what was not synced. What follows was never promised, and is kept in a file beside it all the
//! same, because a broken disk looks like that too.
//!
//! A log is synced before the next one begins, and the next one knows where it ended.

use super::Change;
use super::journal::{self, Cut};
use super::mapped::Mapped;
use std::fs::{File, OpenOptions};
use std::io::{self, BufReader, Read};
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};
use xxhash_rust::xxh3::{xxh3_64, xxh3_64_with_seed};

const MAGIC: [u8; 8] = *b"TATAMI-L";
const FORMAT: u32 = 1;
/// Bytes of the header.
pub(super) const HEAD: u64 = 36;
/// Bytes before a batch's changes.
const BATCH_HEAD: usize = 12;
const CHANGE_HEAD: usize = 6;
const REMOVED: u32 = u32::MAX;
/// Bytes of room for a batch that are kept.
const BUFFER_KEEP: usize = 1 << 20;
/// Bytes read at a time.
const BUFFER: usize = 1 << 16;

/// A log that is being written.
pub(super) struct Log {
    file: File,
    path: PathBuf,
    number: u64,
    end: u64,
    buffer: Vec<u8>,
    /// The reserved part of the file as memory, where that can be had.
    mapped: Option<Mapped>,
}

/// Why a log cannot be read.
#[derive(Debug)]
pub(super) enum ReadError {
    Io(io::Error),
    /// A newer program wrote it.
    Newer(u32),
    Damaged(&'static str),
}

impl From<io::Error> for ReadError {
    fn from(e: io::Error) -> ReadError {
        ReadError::Io(e)
    }
}

/// What was read of a log.
pub(super) struct Found {
    /// Where the log before it ended.
    pub before: u64,
    /// Where its last whole batch ends.
    pub end: u64,
}

/// Where log `number` lies.
pub(super) fn path(dir: &Path, number: u64) -> PathBuf {
    dir.join(format!("{number:08}.log"))
}

/// The numbers of the logs in `dir`, in order.
pub(super) fn list(dir: &Path) -> io::Result<Vec<u64>> {
    let mut found = Vec::new();
    for entry in std::fs::read_dir(dir)? {
        let name = entry?.file_name();
        found.extend(name.to_str().and_then(|n| n.strip_suffix(".log")?.parse::<u64>().ok()));
    }
    found.sort_unstable();
    Ok(found)
}

impl Log {
    /// Makes log `number`, whose predecessor ended at `before`, and makes sure that a
    /// power cut does not take it away. With `reserve`, that many bytes are reserved on the disk;
    /// where that cannot be done, the log grows as it is written.
    pub fn create(dir: &Path, number: u64, before: u64, reserve: Option<u64>) -> io::Result<Log> {
        let path = path(dir, number);
        let file =
            OpenOptions::new().read(true).write(true).create(true).truncate(true).open(&path)?;
        let mut head = Vec::with_capacity(HEAD as usize);
        head.extend_from_slice(&MAGIC);
        head.extend_from_slice(&FORMAT.to_le_bytes());
        head.extend_from_slice(&number.to_le_bytes());
        head.extend_from_slice(&before.to_le_bytes());
        head.extend_from_slice(&xxh3_64(&head).to_le_bytes());
        let mut log = Log { file, path, number, end: HEAD, buffer: Vec::new(), mapped: None };
        log.file.write_all_at(&head, 0)?;
        log.reserve(reserve);
        log.file.sync_all()?;
        sync_dir(dir)?;
        Ok(log)
    }

    /// Goes on with a log that was read up to `found`. What follows its last whole batch, if
    /// it is not zero, is cut off.
    pub fn resume(
        dir: &Path,
        number: u64,
        found: &Found,
        reserve: Option<u64>,
    ) -> io::Result<(Log, Option<Cut>)> {
        let path = path(dir, number);
        let mut file = OpenOptions::new().read(true).write(true).open(&path)?;
        let cut = journal::cut(&mut file, &path, found.end)?;
        let mut log = Log { file, path, number, end: found.end, buffer: Vec::new(), mapped: None };
        log.reserve(reserve);
        Ok((log, cut))
    }

    fn reserve(&mut self, bytes: Option<u64>) {
        if let Some(bytes) = bytes {
            let bytes = bytes.max(self.end);
            // The length too: a write that moves the end of a file costs more.
            let flags = rustix::fs::FallocateFlags::empty();
            if rustix::fs::fallocate(&self.file, flags, 0, bytes).is_ok() {
                self.mapped = Mapped::new(&self.file, bytes, self.end);
            }
        }
    }

    pub fn number(&self) -> u64 {
        self.number
    }

    /// Bytes written so far.
    pub fn end(&self) -> u64 {
        self.end
    }

    pub fn path(&self) -> &Path {
        &self.path
    }

    /// Puts the batch into the kernel's hands: through memory, or with one system call. After an
    /// error of a system call the batch is not in the log: the next one takes its place.
    pub fn append(&mut self, batch: &[Change]) -> io::Result<()> {
        let buffer = &mut self.buffer;
        buffer.clear();
        buffer.shrink_to(BUFFER_KEEP);
        buffer.resize(BATCH_HEAD, 0);
        for (key, value) in batch {
            let len = value.as_ref().map_or(REMOVED, |v| v.len() as u32);
            buffer.extend_from_slice(&(key.len() as u16).to_le_bytes());
            buffer.extend_from_slice(&len.to_le_bytes());
            buffer.extend_from_slice(key);
            buffer.extend_from_slice(value.as_deref().unwrap_or_default());
        }
        let (head, changes) = buffer.split_at_mut(BATCH_HEAD);
        let len = u32::try_from(changes.len()).map_err(|_| io::ErrorKind::FileTooLarge)?;
        head[..4].copy_from_slice(&len.to_le_bytes());
        let sum = xxh3_64_with_seed(changes, seed(self.number, self.end));
        head[4..].copy_from_slice(&sum.to_le_bytes());
        let put = match &mut self.mapped {
            Some(mapped) => mapped.put(&self.file, buffer, self.end)?,
            None => false,
        };
        if !put {
            // From here on with system calls: they tell what is the matter.
            self.mapped = None;
            self.file.write_all_at(buffer, self.end)?;
        }
        self.end += buffer.len() as u64;
        Ok(())
    }

    /// Makes all batches survive a power cut.
    pub fn sync(&self) -> io::Result<()> {
        self.file.sync_data()
    }
}

fn seed(number: u64, at: u64) -> u64 {
    number.rotate_left(40) ^ at
}

/// Makes the names in `dir` survive a power cut.
fn sync_dir(dir: &Path) -> io::Result<()> {
    File::open(dir)?.sync_all()
}

/// Reads log `number` and shows `visit` each change of its whole batches. `None` when the making of
/// the log was cut short, before anything could be written to it.
pub(super) fn read(
    dir: &Path,
    number: u64,
    visit: &mut dyn FnMut(Change),
) -> Result<Option<Found>, ReadError> {
    let mut file = File::open(path(dir, number))?;
    let len = file.metadata()?.len();
    let mut reader = BufReader::with_capacity(BUFFER, &mut file);
    let mut head = [0; HEAD as usize];
    let whole = len >= HEAD;
    if whole {
        reader.read_exact(&mut head)?;
    }
    let (fields, sum) = head.split_at(HEAD as usize - 8);
    if !whole || sum != xxh3_64(fields).to_le_bytes() {
        // A log's header is synced before its first batch is written.
        if journal::last_nonzero(&mut file, HEAD.min(len))? > HEAD {
            return Err(ReadError::Damaged("the header of a log"));
        }
        return Ok(None);
    }
    let u64_at = |at: usize| fields[at..].first_chunk().map_or(0, |b| u64::from_le_bytes(*b));
    let format = fields[8..].first_chunk().map_or(0, |b| u32::from_le_bytes(*b));
    if fields[..8] != MAGIC || u64_at(12) != number {
        return Err(ReadError::Damaged("the header of a log"));
    }
    if format != FORMAT {
        return Err(ReadError::Newer(format));
    }
    let mut found = Found { before: u64_at(20), end: HEAD };
    let mut changes = Vec::new();
    while let Some(end) = batch(&mut reader, number, found.end, len, &mut changes)? {
        // The checksum is right, so these are the changes that were written.
        if !each(&changes, visit) {
            return Err(ReadError::Damaged("a batch of a log"));
        }
        found.end = end;
    }
    Ok(Some(found))
}

/// Reads the changes of the batch at `at`, if it is whole; where it ends.
fn batch(
    reader: &mut impl Read,
    number: u64,
    at: u64,
    len: u64,
    changes: &mut Vec<u8>,
) -> io::Result<Option<u64>> {
    let left = len - at;
    if left < BATCH_HEAD as u64 {
        return Ok(None);
    }
    let mut head = [0; BATCH_HEAD];
    reader.read_exact(&mut head)?;
    let [a, b, c, d, sum @ ..] = head;
    let n = u32::from_le_bytes([a, b, c, d]);
    if n == 0 || u64::from(n) > left - BATCH_HEAD as u64 {
        return Ok(None);
    }
    changes.resize(n as usize, 0);
    reader.read_exact(changes)?;
    let right = u64::from_le_bytes(sum) == xxh3_64_with_seed(changes, seed(number, at));
    Ok(right.then_some(at + BATCH_HEAD as u64 + u64::from(n)))
}

/// Takes a batch apart; whether that was possible.
fn each(mut changes: &[u8], visit: &mut dyn FnMut(Change)) -> bool {
    while !changes.is_empty() {
        let Some(([a, b, c, d, e, f], rest)) = changes.split_first_chunk::<CHANGE_HEAD>() else {
            return false;
        };
        let key = usize::from(u16::from_le_bytes([*a, *b]));
        let value = u32::from_le_bytes([*c, *d, *e, *f]);
        let Some((key, rest)) = rest.split_at_checked(key) else { return false };
        let len = if value == REMOVED { 0 } else { value as usize };
        let Some((bytes, rest)) = rest.split_at_checked(len) else { return false };
        visit((key.to_vec(), (value != REMOVED).then(|| bytes.to_vec())));
        changes = rest;
    }
    true
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn batches() -> Vec<Vec<Change>> {
        (0..5u8)
            .map(|n| {
                vec![
                    (vec![n], Some(vec![n; 300])),
                    (b"z".to_vec(), None),
                    (vec![n, n], Some(vec![])),
                ]
            })
            .collect()
    }

    /// A log of those batches, and where each of them ends.
    fn written(dir: &Path) -> (Vec<u8>, Vec<usize>) {
        let mut log = Log::create(dir, 3, 77, None).expect("create");
        let mut ends = vec![log.end() as usize];
        for batch in batches() {
            log.append(&batch).expect("append");
            ends.push(log.end() as usize);
        }
        (std::fs::read(log.path()).expect("read"), ends)
    }

    fn changes(dir: &Path) -> Result<Option<(Found, Vec<Change>)>, ReadError> {
        let mut changes = Vec::new();
        let found = read(dir, 3, &mut |change| changes.push(change))?;
        Ok(found.map(|found| (found, changes)))
    }

    #[test]
    fn what_was_appended_is_read_again_with_or_without_room_behind_it() {
        let dir = tempfile::tempdir().expect("directory");
        let (bytes, ends) = written(dir.path());
        for zeros in [0, 1, 11, 12, 5000] {
            std::fs::write(path(dir.path(), 3), [bytes.clone(), vec![0; zeros]].concat())
                .expect("write");
            let (found, read) = changes(dir.path()).expect("reads").expect("whole");
            assert_eq!((found.before, found.end as usize), (77, ends[5]));
            assert_eq!(read, batches().concat());
        }
        assert_eq!(list(dir.path()).expect("list"), [3]);
    }

    #[test]
    fn within_what_is_reserved_and_beyond_it_is_one_log() {
        let dir = tempfile::tempdir().expect("directory");
        let large = |n: u8| vec![(vec![n], Some(vec![n; 30_000])), (vec![n, n], None)];
        let mut log = Log::create(dir.path(), 3, 77, Some(400_000)).expect("create");
        let mut expected = Vec::new();
        for n in 0..20 {
            if n == 7 {
                let (found, _) = changes(dir.path()).expect("reads").expect("whole");
                assert_eq!(found.end, log.end());
                drop(log);
                let resumed = Log::resume(dir.path(), 3, &found, Some(400_000)).expect("resume");
                assert_eq!(resumed.1, None, "behind it are zeros");
                log = resumed.0;
            }
            // Not every file system reserves.
            let through_memory = log.mapped.is_some();
            log.append(&large(n)).expect("append");
            if through_memory {
                assert_eq!(log.mapped.is_some(), log.end() <= 400_000);
            }
            log.sync().expect("sync");
            expected.extend(large(n));
        }
        let (found, read) = changes(dir.path()).expect("reads").expect("whole");
        assert_eq!((found.end, read), (log.end(), expected));
        assert!(log.end() > 400_000);
    }

    #[test]
    fn a_header_that_was_not_finished_is_no_log_and_a_damaged_one_is_told() {
        let dir = tempfile::tempdir().expect("directory");
        let (mut bytes, _) = written(dir.path());
        let file = path(dir.path(), 3);
        for unfinished in [0, 10, 35] {
            std::fs::write(&file, &bytes[..unfinished]).expect("write");
            assert!(changes(dir.path()).expect("reads").is_none());
        }
        std::fs::write(&file, [0; 4096]).expect("write");
        assert!(changes(dir.path()).expect("reads").is_none());
        bytes[9] ^= 1;
        std::fs::write(&file, &bytes).expect("write");
        assert!(matches!(changes(dir.path()), Err(ReadError::Damaged(_))));
        let sum = xxh3_64(&bytes[..28]).to_le_bytes();
        bytes[28..36].copy_from_slice(&sum);
        std::fs::write(&file, &bytes).expect("write");
        assert!(matches!(changes(dir.path()), Err(ReadError::Newer(257))));
    }

    #[test]
    fn a_hole_ends_the_log_and_what_follows_is_kept() {
        let dir = tempfile::tempdir().expect("directory");
        let (mut bytes, ends) = written(dir.path());
        bytes[ends[2] + 40..ends[2] + 60].fill(0xff);
        std::fs::write(path(dir.path(), 3), [&bytes[..], &[0; 100]].concat()).expect("write");
        let (found, _) = changes(dir.path()).expect("reads").expect("whole");
        let (mut log, cut) = Log::resume(dir.path(), 3, &found, None).expect("resume");
        let cut = cut.expect("cut");
        assert_eq!((cut.at, cut.bytes), (ends[2] as u64, (bytes.len() - ends[2]) as u64));
        assert_eq!(std::fs::read(cut.kept.expect("kept")).expect("read"), bytes[ends[2]..]);
        log.append(&batches()[4]).expect("append");
        let (_, read) = changes(dir.path()).expect("reads").expect("whole");
        assert_eq!(read, [&batches()[..2], &batches()[4..]].concat().concat());
    }

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(64))]

        /// Whatever a byte is changed to and wherever the file ends, what is read is a
        /// prefix of the batches that has all those before the damage.
        #[test]
        fn any_damage_leaves_a_prefix(at: proptest::sample::Index, to: u8, cut: proptest::sample::Index) {
            let dir = tempfile::tempdir().expect("directory");
            let (whole, ends) = written(dir.path());
            let mut bytes = whole.clone();
            let body = bytes.len() - HEAD as usize;
            let at = HEAD as usize + at.index(body);
            bytes[at] = to;
            bytes.truncate(HEAD as usize + cut.index(body + 1));
            std::fs::write(path(dir.path(), 3), &bytes).expect("write");
            let damage = if whole[at] == to { bytes.len() } else { at.min(bytes.len()) };
            let promised = ends.iter().filter(|end| **end <= damage).count() - 1;
            let (found, read) = changes(dir.path()).expect("reads").expect("a header");
            let batch = ends.iter().position(|end| *end as u64 == found.end).expect("a batch ends");
            prop_assert!(batch >= promised);
            prop_assert_eq!(read, batches()[..batch].concat());
        }
    }
}
