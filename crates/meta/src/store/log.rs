//! The write-ahead log: every commit in order, until the tables have it.
//!
//! ```text
//! log    := "TATAMI-L" │ format u32 │ number u64 │ end of the log before u64
//!           │ checksum u64, then batches, then zeros
//! batch  := length of the changes u32 │ synced u64 │ checksum of these u32
//!           │ checksum of the changes u64 │ changes
//! change := key length u16 │ value length u32 │ key │ value
//! ```
//!
//! Numbers are little-endian. A value length of all ones means that the key was removed. Checksums
//! are xxh3. Those of a batch are seeded with the number of the log and the batch's offset, so that
//! a stale batch is valid nowhere else. *Synced* is the offset up to which the log was known to be
//! on disk when the batch was written.
//!
//! The log ends before the first batch that is not whole. There are two causes, with different
//! treatment:
//!
//! - *A torn tail*. A power cut may leave holes in the unsynced part, with whole batches behind
//!   them. The death of the process leaves at most one batch that is not whole, and nothing behind
//!   it. None of that was acknowledged as durable.
//! - *Damage*. A synced batch cannot be read. Later batches record how far the log was synced, and
//!   so does the mark beside it ([`super::mark`]), which also records the end of a closed log.
//!
//! In both cases the bytes behind the end of the log are kept in a file beside it.
//!
//! A log is synced before the next one begins, and the next one knows where it ended.

use super::Change;
use super::mapped::MappedLog;
use std::fs::{File, OpenOptions};
use std::io::{self, Read, Seek, SeekFrom};
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};
use xxhash_rust::xxh3::{xxh3_64, xxh3_64_with_seed};

const MAGIC: [u8; 8] = *b"TATAMI-L";
const FORMAT: u32 = 1;
/// Bytes of the header.
pub(super) const HEAD: u64 = 36;
/// Bytes before a batch's changes.
const BATCH_HEAD: usize = 24;
/// Bytes of them that their own checksum covers.
const FIELDS: usize = 12;
const CHANGE_HEAD: usize = 6;
const REMOVED: u32 = u32::MAX;
/// Capacity of the batch buffer that is kept between batches.
const BUFFER_KEEP: usize = 1 << 20;

/// A log that is being written.
pub(super) struct WriteAheadLog {
    file: File,
    path: PathBuf,
    number: u64,
    end: u64,
    /// Up to where it is on disk.
    synced: u64,
    buffer: Vec<u8>,
    /// The reserved part of the file as mapped memory, where that is possible.
    mapped: Option<MappedLog>,
}

/// The reason why a log cannot be read.
#[derive(Debug)]
pub(super) enum ReadError {
    Io(io::Error),
    /// Another version of the program wrote it, with logs of this format.
    Format(u32),
    Damaged(&'static str),
}

impl From<io::Error> for ReadError {
    fn from(e: io::Error) -> ReadError {
        ReadError::Io(e)
    }
}

/// The extent of a log that was read.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct LogExtent {
    /// The end of the log before it.
    pub before: u64,
    /// The end of its last whole batch that only whole ones precede.
    pub end: u64,
    /// Up to where it was synced, by its own batches.
    pub synced: u64,
    /// The first whole batch behind one that is not whole.
    pub behind: Option<u64>,
}

/// The bytes that were cut off a log.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct LogCut {
    /// Where the log ends now, in bytes.
    pub at: u64,
    /// The bytes that followed, up to the last that was not zero.
    pub bytes: u64,
    /// Where they are kept, if the disk had room for them: until the next cut of this log.
    pub kept: Option<PathBuf>,
}

/// Returns the path of log `number`.
pub(super) fn log_path(dir: &Path, number: u64) -> PathBuf {
    dir.join(format!("{number:08}.log"))
}

/// Returns the numbers of the logs in `dir`, in order.
pub(super) fn list_logs(dir: &Path) -> io::Result<Vec<u64>> {
    let mut found = Vec::new();
    for entry in std::fs::read_dir(dir)? {
        let name = entry?.file_name();
        found.extend(name.to_str().and_then(|n| n.strip_suffix(".log")?.parse::<u64>().ok()));
    }
    found.sort_unstable();
    Ok(found)
}

impl WriteAheadLog {
    /// Makes log `number`, whose predecessor ended at `before`, durably. With `reserve`, that many
    /// bytes are allocated on the disk; where that fails, the log grows as it is written.
    pub fn create(
        dir: &Path,
        number: u64,
        before: u64,
        reserve: Option<u64>,
    ) -> io::Result<WriteAheadLog> {
        let path = log_path(dir, number);
        let file =
            OpenOptions::new().read(true).write(true).create(true).truncate(true).open(&path)?;
        let mut head = Vec::with_capacity(HEAD as usize);
        head.extend_from_slice(&MAGIC);
        head.extend_from_slice(&FORMAT.to_le_bytes());
        head.extend_from_slice(&number.to_le_bytes());
        head.extend_from_slice(&before.to_le_bytes());
        head.extend_from_slice(&xxh3_64(&head).to_le_bytes());
        assert_eq!(
            head.len() as u64,
            HEAD,
            "the first batch begins elsewhere than behind the header"
        );
        let mut log = WriteAheadLog {
            file,
            path,
            number,
            end: HEAD,
            synced: HEAD,
            buffer: Vec::new(),
            mapped: None,
        };
        // Header first, then the file, then its name: a log whose name survives has a header.
        log.file.write_all_at(&head, 0)?;
        log.reserve_blocks(reserve);
        log.file.sync_all()?;
        sync_dir(dir)?;
        Ok(log)
    }

    /// Resumes a log that was read up to `found`. Cuts off any bytes behind its last whole batch
    /// that are not zero, and syncs the rest.
    pub fn resume(
        dir: &Path,
        number: u64,
        found: &LogExtent,
        reserve: Option<u64>,
    ) -> io::Result<(WriteAheadLog, Option<LogCut>)> {
        assert!(found.end >= HEAD, "the first batch begins elsewhere than behind the header");
        let path = log_path(dir, number);
        let mut file = OpenOptions::new().read(true).write(true).open(&path)?;
        let cut = cut_tail(&mut file, &path, found.end)?;
        // New batches follow the resumed ones. These must not be lost in a power cut that the new
        // ones survive.
        file.sync_all()?;
        let (end, buffer) = (found.end, Vec::new());
        let mut log = WriteAheadLog { file, path, number, end, synced: end, buffer, mapped: None };
        log.reserve_blocks(reserve);
        Ok((log, cut))
    }

    fn reserve_blocks(&mut self, bytes: Option<u64>) {
        if let Some(bytes) = bytes {
            let bytes = bytes.max(self.end);
            // This sets the length, too: a write that moves the end of a file costs more.
            let flags = rustix::fs::FallocateFlags::empty();
            if rustix::fs::fallocate(&self.file, flags, 0, bytes).is_ok() {
                self.mapped = MappedLog::new(&self.file, bytes, self.end);
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

    /// Hands the batch to the kernel: through mapped memory, or with one system call. After an
    /// error of a system call the batch is not in the log: the next one takes its place.
    pub fn append_batch(&mut self, batch: &[Change]) -> io::Result<()> {
        // A reader takes a batch without changes for the end of the log.
        assert!(!batch.is_empty(), "a batch has no changes");
        assert!(self.synced <= self.end, "a log is synced beyond its end");
        let buffer = &mut self.buffer;
        buffer.clear();
        buffer.shrink_to(BUFFER_KEEP);
        buffer.resize(BATCH_HEAD, 0);
        for (key, value) in batch {
            assert!(key.len() <= usize::from(u16::MAX), "the length of a key exceeds its field");
            let len = value.as_ref().map_or(REMOVED, |v| v.len() as u32);
            buffer.extend_from_slice(&(key.len() as u16).to_le_bytes());
            buffer.extend_from_slice(&len.to_le_bytes());
            buffer.extend_from_slice(key);
            buffer.extend_from_slice(value.as_deref().unwrap_or_default());
        }
        let (head, changes) = buffer.split_at_mut(BATCH_HEAD);
        let len = u32::try_from(changes.len()).map_err(|_| io::ErrorKind::FileTooLarge)?;
        let value_len = |value: &Option<Vec<u8>>| value.as_ref().map_or(0, Vec::len);
        let lens = batch.iter().map(|(key, value)| CHANGE_HEAD + key.len() + value_len(value));
        assert_eq!(
            changes.len(),
            lens.sum::<usize>(),
            "a batch has another length than its changes"
        );
        // The batch carries the synced offset, which is durable with the next sync: reading needs
        // no other file to find damage.
        head.copy_from_slice(&encode_batch_head(
            len,
            self.synced,
            changes,
            checksum_seed(self.number, self.end),
        ));
        let put = match &mut self.mapped {
            Some(mapped) => mapped.write_bytes(&self.file, buffer, self.end)?,
            None => false,
        };
        if !put {
            // From here on with system calls, which report the cause of an error.
            self.mapped = None;
            self.file.write_all_at(buffer, self.end)?;
        }
        // Only a complete batch moves the end.
        self.end += buffer.len() as u64;
        Ok(())
    }

    /// Allocates the next `bytes` bytes on the disk, if possible: the next batches go there.
    pub fn allocate_next(&self, bytes: u64) {
        let flags = rustix::fs::FallocateFlags::empty();
        // If it fails, the next batch fails, too, with the same error.
        let _ = rustix::fs::fallocate(&self.file, flags, self.end, bytes);
    }

    /// Makes all batches survive a power cut.
    pub fn sync(&mut self) -> io::Result<()> {
        // fdatasync suffices: the length is allocated before, and otherwise metadata that is needed
        // to read the bytes is synced, too.
        self.file.sync_data()?;
        self.synced = self.end;
        Ok(())
    }

    /// Returns the work that makes all present batches survive a power cut, for another thread.
    /// Then [`WriteAheadLog::end_sync`] gets the end of the log at this call.
    pub fn begin_sync(&self) -> io::Result<super::SyncWork> {
        let file = self.file.try_clone()?;
        Ok(Box::new(move || file.sync_data()))
    }

    /// Records that another thread has synced the log up to `end`. A later sync may have gone
    /// further meanwhile.
    pub fn end_sync(&mut self, end: u64) {
        assert!(end <= self.end, "a log is synced beyond its end");
        self.synced = self.synced.max(end);
    }

    /// Returns up to where the log is synced, in bytes.
    pub fn synced(&self) -> u64 {
        self.synced
    }
}

fn encode_batch_head(len: u32, synced: u64, changes: &[u8], seed: u64) -> [u8; BATCH_HEAD] {
    let mut head = [0; BATCH_HEAD];
    head[..4].copy_from_slice(&len.to_le_bytes());
    head[4..FIELDS].copy_from_slice(&synced.to_le_bytes());
    let sum = fields_sum(&head[..FIELDS], seed);
    head[FIELDS..16].copy_from_slice(&sum.to_le_bytes());
    head[16..].copy_from_slice(&xxh3_64_with_seed(changes, seed).to_le_bytes());
    head
}

fn fields_sum(fields: &[u8], seed: u64) -> u32 {
    xxh3_64_with_seed(fields, seed) as u32
}

fn checksum_seed(number: u64, at: u64) -> u64 {
    number.rotate_left(40) ^ at
}

/// Makes the names in `dir` survive a power cut.
fn sync_dir(dir: &Path) -> io::Result<()> {
    File::open(dir)?.sync_all()
}

/// Reads log `number`, and shows `visit` each change of its whole batches up to the first that is
/// not. `None` when the creation of the log was interrupted, before any batch was written.
pub(super) fn read_log(
    dir: &Path,
    number: u64,
    visit: &mut dyn FnMut(Change),
) -> Result<Option<LogExtent>, ReadError> {
    let bytes = std::fs::read(log_path(dir, number))?;
    let Some((head, _)) = bytes.split_first_chunk::<{ HEAD as usize }>() else { return Ok(None) };
    let (fields, sum) = head.split_at(HEAD as usize - 8);
    if sum != xxh3_64(fields).to_le_bytes() {
        // A log's header is synced before its first batch is written. So bytes behind a broken
        // header mean damage.
        return match used_len(&bytes) > HEAD {
            true => Err(ReadError::Damaged("the header of a log")),
            false => Ok(None),
        };
    }
    let u64_at = |at: usize| fields[at..].first_chunk().map_or(0, |b| u64::from_le_bytes(*b));
    let format = fields[8..].first_chunk().map_or(0, |b| u32::from_le_bytes(*b));
    if fields[..8] != MAGIC || u64_at(12) != number {
        return Err(ReadError::Damaged("the header of a log"));
    }
    if format != FORMAT {
        return Err(ReadError::Format(format));
    }
    let mut found = LogExtent { before: u64_at(20), end: HEAD, synced: HEAD, behind: None };
    for batch in LogBatches::new(&bytes, number) {
        assert!(batch.at >= found.end, "two batches of a log overlap");
        found.synced = found.synced.max(batch.synced);
        // A gap: this batch lies behind one that is not whole. Its changes do not count, but its
        // synced offset does.
        if batch.at > found.end {
            found.behind.get_or_insert(batch.at);
        }
        if found.behind.is_some() {
            continue;
        }
        // The checksum is right, so these are the written changes.
        if !visit_changes(batch.changes, visit) {
            return Err(ReadError::Damaged("a batch of a log"));
        }
        found.end = batch.end_offset();
    }
    Ok(Some(found))
}

/// Shows `visit` each change of all whole batches of a damaged log, with any gaps between them.
pub(super) fn recover_batches(
    dir: &Path,
    number: u64,
    visit: &mut dyn FnMut(Change),
) -> io::Result<()> {
    let bytes = std::fs::read(log_path(dir, number))?;
    for batch in LogBatches::new(&bytes, number) {
        visit_changes(batch.changes, visit);
    }
    Ok(())
}

/// Moves a damaged log aside, where no store looks for it. Returns its new name.
pub(super) fn move_aside(dir: &Path, number: u64) -> io::Result<PathBuf> {
    let path = log_path(dir, number);
    let kept = kept_path(&path);
    std::fs::rename(path, &kept)?;
    // Durable before a new log begins: the damaged one must not be read again.
    sync_dir(dir)?;
    Ok(kept)
}

/// A batch that is whole.
struct LogBatch<'a> {
    at: u64,
    synced: u64,
    changes: &'a [u8],
}

impl LogBatch<'_> {
    fn end_offset(&self) -> u64 {
        self.at + (BATCH_HEAD + self.changes.len()) as u64
    }
}

/// All whole batches of a log in order. Behind one that is not whole, the next is searched at each
/// byte.
struct LogBatches<'a> {
    bytes: &'a [u8],
    number: u64,
    at: u64,
    /// No batch begins here or behind.
    used: u64,
}

impl<'a> LogBatches<'a> {
    fn new(bytes: &'a [u8], number: u64) -> LogBatches<'a> {
        LogBatches { bytes, number, at: HEAD, used: used_len(bytes) }
    }

    fn batch_at(&self, at: u64) -> Option<LogBatch<'a>> {
        let (head, rest) = self.bytes.get(at as usize..)?.split_first_chunk::<BATCH_HEAD>()?;
        let (fields, sums) = head.split_at(FIELDS);
        let len = fields.first_chunk().map_or(0, |b| u32::from_le_bytes(*b)) as usize;
        let synced = fields.last_chunk().map_or(0, |b| u64::from_le_bytes(*b));
        // The offset is in the seed, so stale bytes of a reused block are no batch.
        let seed = checksum_seed(self.number, at);
        // Cheap checks first: they run at each byte of a damaged part.
        if len == 0 || synced > at || sums[..4] != fields_sum(fields, seed).to_le_bytes() {
            return None;
        }
        let changes = rest.get(..len)?;
        let right = sums[4..] == xxh3_64_with_seed(changes, seed).to_le_bytes();
        right.then_some(LogBatch { at, synced, changes })
    }
}

impl<'a> Iterator for LogBatches<'a> {
    type Item = LogBatch<'a>;

    fn next(&mut self) -> Option<LogBatch<'a>> {
        let batch = (self.at..self.used).find_map(|at| self.batch_at(at))?;
        assert!(!batch.changes.is_empty(), "a batch has no changes");
        self.at = batch.end_offset();
        assert!(self.at <= self.bytes.len() as u64, "a whole batch ends beyond its log");
        Some(batch)
    }
}

/// Returns the end of the bytes that are not zero.
fn used_len(bytes: &[u8]) -> u64 {
    // Mostly zeros: this loop over words dominates the cost.
    let (words, rest) = bytes.as_chunks::<8>();
    if let Some(last) = rest.iter().rposition(|b| *b != 0) {
        return (words.len() * 8 + last + 1) as u64;
    }
    let Some(last) = words.iter().rposition(|word| *word != [0; 8]) else { return 0 };
    let zeros = words[last].iter().rev().take_while(|b| **b == 0).count();
    ((last + 1) * 8 - zeros) as u64
}

/// Cuts `file` off at byte `at`, if any byte behind it is not zero, and keeps the bytes beside it.
fn cut_tail(file: &mut File, path: &Path, at: u64) -> io::Result<Option<LogCut>> {
    let mut rest = Vec::new();
    file.seek(SeekFrom::Start(at))?;
    file.read_to_end(&mut rest)?;
    rest.truncate(used_len(&rest) as usize);
    if rest.is_empty() {
        return Ok(None);
    }
    let kept = kept_path(path);
    let keep = || {
        let copy = File::create(&kept)?;
        copy.write_all_at(&rest, 0)?;
        copy.sync_all()
    };
    // A copy that fails (the disk may be full) must not keep the store from opening.
    let kept = keep().is_ok().then(|| kept.clone());
    file.set_len(at)?;
    Ok(Some(LogCut { at, bytes: rest.len() as u64, kept }))
}

/// Returns the path of the bytes that were cut off a log.
fn kept_path(path: &Path) -> PathBuf {
    let mut name = path.as_os_str().to_owned();
    name.push(".cut");
    PathBuf::from(name)
}

/// Visits the changes of a batch. Returns whether it could be decoded.
fn visit_changes(mut changes: &[u8], visit: &mut dyn FnMut(Change)) -> bool {
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
    use super::super::mark::MarkContent;
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

    /// A log of those batches, and the end of each of them.
    fn written(dir: &Path) -> (Vec<u8>, Vec<usize>) {
        let mut log = WriteAheadLog::create(dir, 3, 77, None).expect("create");
        let mut ends = vec![log.end() as usize];
        for batch in batches() {
            log.append_batch(&batch).expect("append");
            ends.push(log.end() as usize);
        }
        (std::fs::read(log.path()).expect("read"), ends)
    }

    fn changes(dir: &Path) -> Result<Option<(LogExtent, Vec<Change>)>, ReadError> {
        let mut changes = Vec::new();
        let found = read_log(dir, 3, &mut |change| changes.push(change))?;
        Ok(found.map(|found| (found, changes)))
    }

    #[test]
    fn what_was_appended_is_read_again_with_or_without_room_behind_it() {
        let dir = tempfile::tempdir().expect("directory");
        let (bytes, ends) = written(dir.path());
        for zeros in [0, 1, 11, 12, 5000] {
            std::fs::write(log_path(dir.path(), 3), [bytes.clone(), vec![0; zeros]].concat())
                .expect("write");
            let (found, read) = changes(dir.path()).expect("reads").expect("whole");
            assert_eq!((found.before, found.end as usize), (77, ends[5]));
            assert_eq!(read, batches().concat());
        }
        assert_eq!(list_logs(dir.path()).expect("list"), [3]);
    }

    #[test]
    fn within_what_is_reserved_and_beyond_it_is_one_log() {
        let dir = tempfile::tempdir().expect("directory");
        let large = |n: u8| vec![(vec![n], Some(vec![n; 30_000])), (vec![n, n], None)];
        let mut log = WriteAheadLog::create(dir.path(), 3, 77, Some(400_000)).expect("create");
        let mut expected = Vec::new();
        for n in 0..20 {
            if n == 7 {
                let (found, _) = changes(dir.path()).expect("reads").expect("whole");
                assert_eq!(found.end, log.end());
                drop(log);
                let resumed =
                    WriteAheadLog::resume(dir.path(), 3, &found, Some(400_000)).expect("resume");
                assert_eq!(resumed.1, None, "behind it are zeros");
                log = resumed.0;
            }
            // Not every file system allocates ahead.
            let through_memory = log.mapped.is_some();
            log.append_batch(&large(n)).expect("append");
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
        let file = log_path(dir.path(), 3);
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
        assert!(matches!(changes(dir.path()), Err(ReadError::Format(257))));
    }

    #[test]
    fn a_hole_ends_the_log_and_what_follows_is_kept() {
        let dir = tempfile::tempdir().expect("directory");
        let (mut bytes, ends) = written(dir.path());
        bytes[ends[2] + 40..ends[2] + 60].fill(0xff);
        std::fs::write(log_path(dir.path(), 3), [&bytes[..], &[0; 100]].concat()).expect("write");
        let (found, _) = changes(dir.path()).expect("reads").expect("whole");
        assert_eq!((found.synced, found.behind), (HEAD, Some(ends[3] as u64)));
        let (mut log, cut) = WriteAheadLog::resume(dir.path(), 3, &found, None).expect("resume");
        let cut = cut.expect("cut");
        assert_eq!((cut.at, cut.bytes), (ends[2] as u64, (bytes.len() - ends[2]) as u64));
        assert_eq!(std::fs::read(cut.kept.expect("kept")).expect("read"), bytes[ends[2]..]);
        log.append_batch(&batches()[4]).expect("append");
        let (found, read) = changes(dir.path()).expect("reads").expect("whole");
        assert_eq!(read, [&batches()[..2], &batches()[4..]].concat().concat());
        assert_eq!(
            found.synced, ends[2] as u64,
            "what was read is synced before something follows"
        );
    }

    #[test]
    fn batches_tell_up_to_where_the_log_was_synced_before_them() {
        let dir = tempfile::tempdir().expect("directory");
        let mut log = WriteAheadLog::create(dir.path(), 3, 77, None).expect("create");
        let mut synced = HEAD;
        for batch in batches() {
            log.append_batch(&batch).expect("append");
            let (found, _) = changes(dir.path()).expect("reads").expect("whole");
            assert_eq!((found.synced, found.behind), (synced, None));
            log.sync().expect("sync");
            synced = log.end();
        }
    }

    #[test]
    fn all_that_is_whole_is_salvaged() {
        let dir = tempfile::tempdir().expect("directory");
        let (whole, ends) = written(dir.path());
        for bad in 0..5 {
            let mut bytes = whole.clone();
            // The length, which leads to the next batch, and the header of the log.
            bytes[ends[bad] + 1] ^= 0x10;
            bytes[3] ^= 1;
            std::fs::write(log_path(dir.path(), 3), &bytes).expect("write");
            let mut read = Vec::new();
            recover_batches(dir.path(), 3, &mut |change| read.push(change)).expect("reads");
            let mut left = batches();
            left.remove(bad);
            assert_eq!(read, left.concat());
        }
        let kept = move_aside(dir.path(), 3).expect("is put aside");
        assert!(kept.ends_with("00000003.log.cut") && kept.exists());
        assert!(list_logs(dir.path()).expect("list").is_empty());
    }

    /// A log of several batches, the last of them synced or not, as the kernel keeps it or as a
    /// power cut leaves it.
    #[derive(Debug)]
    struct Case {
        /// Batches that were synced.
        synced: usize,
        /// Batches that later ones, or the mark, know as synced.
        known: usize,
        /// The mark has the known offset, or else the batches do.
        marked: bool,
    }

    /// Writes such a log; returns its bytes, the ends of the batches, and the mark's content.
    fn synced_log(dir: &Path, case: &Case) -> (Vec<u8>, Vec<usize>, MarkContent) {
        let mut log = WriteAheadLog::create(dir, 3, 77, None).expect("create");
        let mut ends = vec![log.end() as usize];
        let mut marked = MarkContent { boot: 1, log: 3, end: HEAD, ..MarkContent::default() };
        for (n, batch) in batches().iter().enumerate() {
            log.append_batch(batch).expect("append");
            ends.push(log.end() as usize);
            if n + 1 == case.known || n + 1 == case.synced {
                log.sync().expect("sync");
            }
            if n + 1 == case.known && case.marked {
                marked.end = log.end();
            }
        }
        (std::fs::read(log.path()).expect("read"), ends, marked)
    }

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(512))]

        /// With any bits flipped in a log of synced batches, and with any cut, no batch is missing
        /// without an error: the mark knows all of them.
        #[test]
        fn no_synced_batch_is_lost_without_an_error(
            flips in proptest::collection::vec((any::<proptest::sample::Index>(), 0u8..8), 1..4),
            cut in proptest::option::of(any::<proptest::sample::Index>()),
            closed: bool,
            same_boot: bool,
        ) {
            let dir = tempfile::tempdir().expect("directory");
            let case = Case { synced: 5, known: 5, marked: true };
            let (mut bytes, _, marked) = synced_log(dir.path(), &case);
            bytes.extend([0; 200]);
            for (at, bit) in flips {
                let at = at.index(bytes.len());
                bytes[at] ^= 1 << bit;
            }
            if let Some(cut) = cut {
                bytes.truncate(cut.index(bytes.len() + 1));
            }
            std::fs::write(log_path(dir.path(), 3), &bytes).expect("write");
            let boot = if same_boot { 1 } else { 2 };
            // Without a header there is no log 3, which the mark knows.
            if let Ok(Some((found, read))) = changes(dir.path())
                && (MarkContent { closed, ..marked }).find_damage(3, &found, boot).is_none()
            {
                prop_assert_eq!(read, batches().concat());
            }
        }

        /// Where only the batches themselves record the synced offset, no synced batch is missed.
        #[test]
        fn a_batch_that_a_later_one_knows_as_synced_is_missed(
            known in 1usize..5, at: proptest::sample::Index, bit in 0u8..8,
        ) {
            let dir = tempfile::tempdir().expect("directory");
            let case = Case { synced: known, known, marked: false };
            let (mut bytes, ends, marked) = synced_log(dir.path(), &case);
            let at = HEAD as usize + at.index(ends[known] - HEAD as usize);
            bytes[at] ^= 1 << bit;
            std::fs::write(log_path(dir.path(), 3), &bytes).expect("write");
            let (found, _) = changes(dir.path()).expect("reads").expect("whole");
            prop_assert_eq!(marked.find_damage(3, &found, 2), Some("a batch that was synced does not read"));
        }

        /// A power cut: each unsynced sector has its content of some earlier moment. That is no
        /// damage, and the synced batches are there.
        #[test]
        fn a_torn_tail_is_no_damage(
            synced in 0usize..5, seconds in proptest::collection::vec(0usize..6, 64),
        ) {
            let dir = tempfile::tempdir().expect("directory");
            let case = Case { synced, known: synced, marked: true };
            let (mut bytes, ends, marked) = synced_log(dir.path(), &case);
            for (n, sector) in bytes.chunks_mut(64).enumerate() {
                // As it was with that many batches.
                let there = ends[seconds[n % seconds.len()].max(synced)];
                for (at, byte) in sector.iter_mut().enumerate() {
                    if n * 64 + at >= there {
                        *byte = 0;
                    }
                }
            }
            std::fs::write(log_path(dir.path(), 3), &bytes).expect("write");
            let (found, read) = changes(dir.path()).expect("reads").expect("whole");
            prop_assert_eq!(marked.find_damage(3, &found, 2), None);
            let there = ends.iter().position(|end| *end as u64 == found.end).expect("a batch ends");
            prop_assert!(there >= synced);
            prop_assert_eq!(read, batches()[..there].concat());
        }

        /// The death of the process leaves a part of the last batch at most. That is no damage
        /// either.
        #[test]
        fn half_a_batch_at_the_end_is_no_damage(at: proptest::sample::Index) {
            let dir = tempfile::tempdir().expect("directory");
            let (mut bytes, ends, marked) = synced_log(dir.path(), &Case { synced: 2, known: 2, marked: true });
            let at = ends[4] + at.index(ends[5] - ends[4]);
            bytes[at..].fill(0);
            std::fs::write(log_path(dir.path(), 3), &bytes).expect("write");
            let (found, _) = changes(dir.path()).expect("reads").expect("whole");
            prop_assert_eq!(marked.find_damage(3, &found, 1), None);
            prop_assert_eq!(found.end as usize, ends[4]);
        }

        /// Without a reboot, a batch that cannot be read with whole ones behind it is damage,
        /// synced or not.
        #[test]
        fn damage_in_the_middle_is_told_while_the_machine_runs(at: proptest::sample::Index, bit in 0u8..8) {
            let dir = tempfile::tempdir().expect("directory");
            let (mut bytes, ends, marked) = synced_log(dir.path(), &Case { synced: 0, known: 0, marked: true });
            let at = HEAD as usize + at.index(ends[4] - HEAD as usize);
            bytes[at] ^= 1 << bit;
            std::fs::write(log_path(dir.path(), 3), &bytes).expect("write");
            let (found, _) = changes(dir.path()).expect("reads").expect("whole");
            prop_assert!(marked.find_damage(3, &found, 1).is_some());
            prop_assert_eq!(marked.find_damage(3, &found, 2), None, "a power cut may have left it");
        }

        /// With any byte changed and the file cut anywhere, the read batches are a prefix that has
        /// all those before the damage.
        #[test]
        fn any_damage_leaves_a_prefix(at: proptest::sample::Index, to: u8, cut: proptest::sample::Index) {
            let dir = tempfile::tempdir().expect("directory");
            let (whole, ends) = written(dir.path());
            let mut bytes = whole.clone();
            let body = bytes.len() - HEAD as usize;
            let at = HEAD as usize + at.index(body);
            bytes[at] = to;
            bytes.truncate(HEAD as usize + cut.index(body + 1));
            std::fs::write(log_path(dir.path(), 3), &bytes).expect("write");
            let damage = if whole[at] == to { bytes.len() } else { at.min(bytes.len()) };
            let promised = ends.iter().filter(|end| **end <= damage).count() - 1;
            let (found, read) = changes(dir.path()).expect("reads").expect("a header");
            let batch = ends.iter().position(|end| *end as u64 == found.end).expect("a batch ends");
            prop_assert!(batch >= promised);
            prop_assert_eq!(read, batches()[..batch].concat());
        }
    }
}
