//! The store on disk: a write-ahead log of our own before the tables of fjall, a log-structured
//! merge tree.
//!
//! A commit is one batch in the log ([`log`]), handed to the kernel before it returns, so it
//! survives the death of the process; a sync is an fsync of the log. The log's changes are kept in
//! memory, too ([`recent`]), over the tables. When a log is long enough, a new one begins, and the
//! old one's records are written to a table at once, in order: a [`BackgroundTask`] that any thread
//! may run. So a record that changes often, or is removed soon, is written to the log alone.
//!
//! ```text
//! commit ─▶ log ─▶ recent ──(log full)──▶ sealed ──(chore)──▶ table of fjall,
//!                                                               then the old log goes
//! get, scan ◀── recent over sealed over tables
//! ```
//!
//! A full disk is no reason to stop, and users fill it with the bytes of files, so there are four
//! lines of defence against it:
//!
//! 1. A [`Reserve`](super::reserve::Reserve) is given back step by step when there is no room left,
//!    so that operations on names go on.
//! 2. [`FjallStore::has_room`] counts the free space and the reserve, so that the namespace refuses
//!    to grow before both are used up.
//! 3. The log's blocks are allocated ahead of time, so that removals, which free space, can still
//!    be written then.
//! 4. If a commit fails with `ENOSPC` nevertheless, the log keeps its end. If a table cannot be
//!    written, its log stays, and the store retries.

use super::disk_error::{
    accept_full_disk, io_error, is_full, no_space, path_text, read_error, store_error,
};
use super::log::{self, WriteAheadLog};
use super::mark::{self, LogMark, MarkContent};
use super::memtable::{self, Memtable, MergedChanges};
use super::reserve::Reserve;
use super::{
    BackgroundTask, Change, PairVisitor, Store, StoreError, SyncWork, manifest, prefix_end,
};
use fjall::compaction::Leveled;
use fjall::config::{PartitioningPolicy, PinningPolicy};
use fjall::{Database, Keyspace, KeyspaceCreateOptions, PersistMode};
use std::ops::Bound;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::mpsc::{Receiver, TryRecvError, channel};

const KEYSPACE: &str = "meta";
/// Block cache, in bytes.
const CACHE_BYTES: u64 = 64 << 20;
/// Length at which a log is followed by the next, in bytes. The changes of two logs are in memory.
const LOG_BYTES: u64 = 64 << 20;
/// Bytes allocated for a log.
const LOG_RESERVED: u64 = 68 << 20;
/// This many tables, as logs make them, are merged with the first level at once. A lookup checks
/// the filter of each table, so fewer is better; but the fewer are merged at once, the more often
/// the first level is rewritten.
const TABLES_MERGED: u8 = 8;
/// Length of the tables that merging makes, in bytes: about that of one made from a log. The first
/// level may be as long as [`TABLES_MERGED`] of them.
const MERGED_TABLE_BYTES: u64 = 32 << 20;
/// The largest ratio between a level and the one before it. A merge into a level rewrites up to
/// this many times the merged bytes.
const LEVEL_RATIO: f32 = 4.0;
/// Free space, or reserve, that the store requires before it grows, in bytes: a table, and a
/// compaction's beginning. On small disks a part of them.
const ROOM_BYTES: u64 = 64 << 20;
/// That part of a small disk: one part in 32. With half of the reserve gone, names are still
/// removed.
const SMALL_SHARE: u64 = 32;
/// Free space above which the next checks are skipped, in bytes.
const PLENTY_BYTES: u64 = 8 * ROOM_BYTES;
/// Requests for room that are answered without a check, after one that found plenty. A check is a
/// system call, and users do not write [`PLENTY_BYTES`] so fast. If they do, the other two defences
/// hold.
const CHECKS_SPARED: u32 = 256;
/// More inode numbers, and more of anything else that is counted, than the changes of two logs can
/// record: they have no more bytes, and a small disk on which they grow beyond that is full.
const LOST_BOUND: u64 = 4 * LOG_BYTES;
/// Bytes committed between two checks of the log's length and of the chore.
const CHECK_EVERY: u64 = 1 << 20;

/// Options of opening a store.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct StoreOptions {
    /// A number that distinguishes two boots of the machine, 0 where it is unknown: only a power
    /// cut leaves holes in a log.
    pub boot: u64,
    /// Go on with the readable rest of a damaged log, though acknowledged changes are lost.
    pub accept_loss: bool,
}

/// A store in a directory of its own.
pub struct FjallStore {
    path: PathBuf,
    open: Option<OpenTables>,
    poisoned: Option<&'static str>,
    /// The boot of the machine.
    boot: u64,
    /// Records beside the log up to where it was synced. It exists before the first log.
    mark: Option<LogMark>,
    /// `None` until the first commit, see [`FjallStore::commit_first`].
    log: Option<WriteAheadLog>,
    /// The changes of the log.
    recent: Memtable,
    /// The changes of older logs that the tables may not have.
    sealed: Arc<Memtable>,
    /// The newest of those logs.
    sealed_log: Option<u64>,
    /// Writes the sealed records to a table; not taken yet.
    background_task: Option<BackgroundTask>,
    /// Receives the result of that chore.
    task_result: Option<Receiver<Result<(), fjall::Error>>>,
    /// Bytes committed since the last check.
    since_check: u64,
    /// Requests for room still to be answered without a check.
    checks_spared: u32,
    /// Blocks that are given back when the disk is full.
    reserve: Reserve,
    /// Describes the bytes that were cut off the log when the store was opened.
    cut: Option<String>,
    /// See [`Store::lost_bound`].
    lost: u64,
    /// Number and end of the log when another thread began to sync it.
    syncing: Option<(u64, u64)>,
}

struct OpenTables {
    db: Database,
    keyspace: Keyspace,
}

impl FjallStore {
    /// Opens the store in directory `path`, and makes it if it is not there.
    ///
    /// # Errors
    /// [`StoreError::Locked`] when another process has it open, [`StoreError::Format`] when another
    /// version wrote it, [`StoreError::Lost`] when a log is damaged and `opening` does not accept
    /// that, and those of the disk.
    pub fn open(path: &Path, opening: StoreOptions) -> Result<FjallStore, StoreError> {
        std::fs::create_dir_all(path).map_err(|e| io_error(path, "create directory", e))?;
        clear_unfinished(path)?;
        // The lock keeps another daemon from changing the lists during the check. fjall takes the
        // same lock, so it is released before.
        let lock = lock_for_check(path)?;
        manifest::check_manifests(path)?;
        drop(lock);
        // From here on fjall holds the lock.
        let open = Some(open_database(path)?);
        let mut store = FjallStore {
            path: path.to_owned(),
            open,
            poisoned: None,
            boot: opening.boot,
            mark: None,
            log: None,
            recent: Memtable::default(),
            sealed: Arc::default(),
            sealed_log: None,
            background_task: None,
            task_result: None,
            since_check: 0,
            checks_spared: 0,
            reserve: Reserve::default(),
            cut: None,
            lost: 0,
            syncing: None,
        };
        match store.read_logs() {
            Err(StoreError::Lost { .. }) if opening.accept_loss => store.recover_records()?,
            result => result?,
        }
        // Logs that were sealed in the last run still wait for their table.
        store.prepare_task();
        Ok(store)
    }

    /// Reserves up to `bytes` of the disk for this store from now on, at most a sixteenth of the
    /// disk. Blocks that are not free now are taken when there is room.
    ///
    /// # Errors
    /// [`StoreError::Io`]: the reserve's file can be neither opened nor made.
    pub fn with_reserve(mut self, bytes: u64) -> Result<FjallStore, StoreError> {
        let (free, total) = self.disk_space().unwrap_or_default();
        match Reserve::open(&self.path, bytes, total, free) {
            Ok(reserve) => self.reserve = reserve,
            Err(e) => accept_full_disk(e).map_err(|e| io_error(&self.path, "make a reserve", e))?,
        }
        Ok(self)
    }

    /// Gives back as much of the reserve as `bytes` on the disk need.
    fn make_room(&mut self, bytes: u64) {
        let Some((free, _)) = self.disk_space() else { return };
        self.reserve.release_blocks(bytes.saturating_sub(free));
    }

    /// Appends to the log; where the disk is full, with room from the reserve.
    fn append_batch(&mut self, batch: &[Change]) -> std::io::Result<()> {
        let Some(log) = &mut self.log else { return Ok(()) };
        loop {
            match log.append_batch(batch) {
                // Each round leaves less of the reserve, so the loop ends.
                Err(e)
                    if no_space(&e) && self.reserve.release_blocks(self.reserve.step_bytes()) =>
                {
                    // Allocate the freed blocks at once, before another writer of the disk takes
                    // them.
                    log.allocate_next(self.reserve.step_bytes());
                }
                appended => return appended,
            }
        }
    }

    /// Returns a sentence about the bytes that were cut off the log when the store was opened.
    /// After a power cut they are unsynced batches; after the death of the process, at most one
    /// batch that was never acknowledged; where a loss was accepted, the lost records.
    pub fn cut_description(&self) -> Option<&str> {
        self.cut.as_deref()
    }

    /// Reads the changes of the logs into memory.
    fn read_logs(&mut self) -> Result<(), StoreError> {
        let dir = self.path.clone();
        let numbers = log::list_logs(&dir).map_err(|e| io_error(&dir, "list", e))?;
        let marked =
            mark::read_mark(&dir).map_err(|e| io_error(&mark::mark_path(&dir), "read", e))?;
        let marked = match (marked, numbers.last()) {
            (Some(marked), _) => marked,
            (None, None) => MarkContent::default(),
            // Logs without a mark: synced batches could be missing without a trace.
            (None, Some(_)) => {
                let (path, what) =
                    (path_text(&mark::mark_path(&dir)), "it is missing or does not read");
                return Err(StoreError::Lost { path, at: 0, what });
            }
        };
        let mut sealed = Memtable::default();
        let mut former: Option<(u64, log::LogExtent)> = None;
        for number in numbers {
            let path = log::log_path(&dir, number);
            let mut changes = Memtable::default();
            let found = log::read_log(&dir, number, &mut |(key, value)| {
                changes.apply_change(&key, value.as_deref());
            });
            let found = match found.map_err(|e| read_error(&path, e))? {
                Some(found) => found,
                // The mark is written after the log's header, so this log had one.
                None if number <= marked.log => {
                    let what = "the log has no header";
                    return Err(StoreError::Lost { path: path_text(&path), at: 0, what });
                }
                // The process died while it made the log.
                None => {
                    std::fs::remove_file(&path)
                        .map_err(|e| io_error(&path, "remove unfinished file", e))?;
                    continue;
                }
            };
            if let Some((before, whole)) = former.take() {
                // Each log records the end of its predecessor: a shorter one has lost its tail.
                if number != before + 1 || whole.end != found.before {
                    let what = "the log does not go on to where the next one begins";
                    let path = path_text(&log::log_path(&dir, before));
                    return Err(StoreError::Lost { path, at: whole.end, what });
                }
                let older = std::mem::take(&mut self.recent);
                older.visit_all(|key, value| sealed.apply_change(key, value));
                self.sealed_log = Some(before);
            }
            self.recent = changes;
            former = Some((number, found));
        }
        let newest = former.as_ref().map_or(0, |(number, _)| *number);
        if newest < marked.log {
            let (path, what) =
                (path_text(&log::log_path(&dir, marked.log)), "the log is not there");
            return Err(StoreError::Lost { path, at: 0, what });
        }
        if let Some((number, found)) = former {
            let path = log::log_path(&dir, number);
            if let Some(what) = marked.find_damage(number, &found, self.boot) {
                return Err(StoreError::Lost { path: path_text(&path), at: found.end, what });
            }
            let resumed = WriteAheadLog::resume(&dir, number, &found, self.log_reservation());
            let (log, cut) = resumed.map_err(|e| io_error(&path, "open", e))?;
            // The mark must lose its flag `closed` durably before a new batch follows.
            self.begin_mark(MarkContent { log: number, end: log.end(), ..marked })?;
            self.lost = if marked.lost { LOST_BOUND } else { 0 };
            self.log = Some(log);
            self.cut = cut.map(|cut| describe_cut(&path, cut));
        }
        self.sealed = Arc::new(sealed);
        Ok(())
    }

    /// Recovers the readable records of damaged logs into a table, and moves the logs aside.
    fn recover_records(&mut self) -> Result<(), StoreError> {
        let dir = self.path.clone();
        (self.recent, self.sealed, self.sealed_log) = Default::default();
        let numbers = log::list_logs(&dir).map_err(|e| io_error(&dir, "list", e))?;
        let mut all = Memtable::default();
        for &number in &numbers {
            log::recover_batches(&dir, number, &mut |(key, value)| {
                all.apply_change(&key, value.as_deref())
            })
            .map_err(|e| io_error(&log::log_path(&dir, number), "read", e))?;
        }
        // The table is durable before a log is moved: a crash in between repeats the recovery.
        let OpenTables { db, keyspace } = self.open_tables()?;
        write_table(db, keyspace, &all).map_err(|e| self.wrap_error("write a table", e))?;
        // The oldest first: if this is interrupted, the remaining logs are the newer ones, and lie
        // over the table.
        let mut kept = Vec::new();
        for &number in &numbers {
            let put = log::move_aside(&dir, number);
            let put = put.map_err(|e| io_error(&log::log_path(&dir, number), "put aside", e))?;
            kept.push(path_text(&put));
        }
        let marked =
            mark::read_mark(&dir).map_err(|e| io_error(&mark::mark_path(&dir), "read", e))?;
        let newest = numbers.last().copied().max(marked.map(|marked| marked.log)).unwrap_or(0);
        let log = WriteAheadLog::create(&dir, newest + 1, 0, self.log_reservation());
        let log = log.map_err(|e| io_error(&log::log_path(&dir, newest + 1), "make a log", e))?;
        // The flag `lost` stays in the mark until the next clean close, so that a crash before the
        // counters are raised repeats that.
        self.begin_mark(MarkContent {
            log: newest + 1,
            end: log.end(),
            lost: true,
            ..MarkContent::default()
        })?;
        self.log = Some(log);
        self.lost = LOST_BOUND;
        self.cut = Some(format!(
            "{}: a log was damaged, and the loss was accepted: what could be read of it was taken \
             over; the damaged file is kept as {}",
            dir.display(),
            kept.join(", ")
        ));
        Ok(())
    }

    fn begin_mark(&mut self, marked: MarkContent) -> Result<(), StoreError> {
        let mark = LogMark::open_mark(
            &self.path,
            MarkContent { boot: self.boot, closed: false, ..marked },
        );
        self.mark = Some(mark.map_err(|e| io_error(&mark::mark_path(&self.path), "write", e))?);
        Ok(())
    }

    /// Updates the mark's synced offset.
    fn update_mark(&mut self) {
        if let (Some(mark), Some(log)) = (&mut self.mark, &self.log)
            && mark.record_sync(log.number(), log.synced()).is_err()
        {
            // The log is synced. The mark states less than the truth until it can be written again.
        }
    }

    fn open_tables(&self) -> Result<&OpenTables, StoreError> {
        let full = || StoreError::Full { path: path_text(&self.path) };
        let why_not = || if self.poisoned.is_some() { self.poison_error() } else { full() };
        self.open.as_ref().ok_or_else(why_not)
    }

    fn poison_error(&self) -> StoreError {
        StoreError::Poisoned { path: path_text(&self.path), op: self.poisoned.unwrap_or("open") }
    }

    fn wrap_error(&self, op: &'static str, e: fjall::Error) -> StoreError {
        store_error(&self.path, op, e)
    }

    fn poison_store<T>(&mut self, op: &'static str, e: StoreError) -> Result<T, StoreError> {
        self.poisoned = Some(op);
        Err(e)
    }

    /// Writes the first commit to the tables. So its records, the shard record among them, survive
    /// the loss of the first log.
    fn commit_first(&mut self, batch: &[Change]) -> Result<(), StoreError> {
        let mut changes = Memtable::default();
        batch.iter().for_each(|(key, value)| changes.apply_change(key, value.as_deref()));
        let OpenTables { db, keyspace } = self.open_tables()?;
        match write_table(db, keyspace, &changes) {
            Ok(()) => {}
            Err(e) if is_full(&e) => return Err(StoreError::Full { path: path_text(&self.path) }),
            Err(e) => {
                let e = self.wrap_error("commit", e);
                return self.poison_store("a commit", e);
            }
        }
        // Where a log cannot be made yet, the next commit is a first one, too. The mark comes
        // first: a log without a mark counts as damaged.
        let boot = self.boot;
        let mark = LogMark::open_mark(&self.path, MarkContent { boot, ..MarkContent::default() });
        match mark.and_then(|mark| {
            Ok((mark, WriteAheadLog::create(&self.path, 1, 0, self.log_reservation())?))
        }) {
            Ok((mark, log)) => {
                (self.mark, self.log) = (Some(mark), Some(log));
                self.update_mark();
            }
            Err(e) => accept_full_disk(e).or_else(|e| {
                let e = io_error(&self.path, "make a log", e);
                self.poison_store("making a log", e)
            })?,
        }
        Ok(())
    }

    /// Checks whether the chore has ended and whether the log is long enough.
    fn check_progress(&mut self) -> Result<(), StoreError> {
        self.since_check = 0;
        self.collect_task(false)?;
        if self.sealed_log.is_some() && self.task_result.is_none() {
            self.reopen_tables()?;
            self.prepare_task();
        }
        if self.log.as_ref().is_none_or(|log| log.end() < LOG_BYTES) {
            return Ok(());
        }
        if self.sealed_log.is_some() {
            // The disk does not keep up, or no thread runs the chores. Memory for a third log is
            // not allowed.
            if let Some(chore) = self.background_task.take() {
                chore();
            }
            self.collect_task(true)?;
        }
        // If there is still no room for the table, the log goes on.
        if self.sealed_log.is_none() { self.begin_next_log() } else { Ok(()) }
    }

    /// Begins a new log.
    fn begin_next_log(&mut self) -> Result<(), StoreError> {
        // Their changes are in one memtable: a second log would replace the first unseen.
        assert_eq!(self.sealed_log, None, "a log is sealed before the tables have the last");
        let reserve = self.log_reservation();
        let Some(old) = &mut self.log else { return Ok(()) };
        // The old log is synced first: batches of the new one must not survive a power cut that the
        // end of the old one does not.
        if let Err(e) = old.sync() {
            let e = io_error(old.path(), "fsync", e);
            return self.poison_store("an fsync", e);
        }
        assert_eq!(old.synced(), old.end(), "a log begins before the last one is synced");
        match WriteAheadLog::create(&self.path, old.number() + 1, old.end(), reserve) {
            Ok(new) => {
                self.sealed_log = Some(old.number());
                let next = Memtable::with_capacity_of(&self.recent);
                self.sealed = Arc::new(std::mem::replace(&mut self.recent, next));
                self.log = Some(new);
                self.update_mark();
                self.prepare_task();
                Ok(())
            }
            Err(e) => {
                // It would be taken for the newest log at the next open.
                let unfinished = log::log_path(&self.path, old.number() + 1);
                let gone = std::fs::remove_file(&unfinished).or_else(|e| {
                    if e.kind() == std::io::ErrorKind::NotFound { Ok(()) } else { Err(e) }
                });
                gone.and(accept_full_disk(e)).or_else(|e| {
                    let e = io_error(&unfinished, "make a log", e);
                    self.poison_store("making a log", e)
                })
            }
        }
    }

    /// Makes the chore that writes the sealed records to a table.
    fn prepare_task(&mut self) {
        let Some(sealed_log) = self.sealed_log.filter(|_| self.open.is_some()) else { return };
        // The table is no longer than the log.
        let log = std::fs::metadata(log::log_path(&self.path, sealed_log));
        self.make_room(log.map_or(LOG_BYTES, |log| log.len()).min(LOG_BYTES));
        let Some(OpenTables { db, keyspace }) = &self.open else { return };
        let (db, keyspace, sealed) = (db.clone(), keyspace.clone(), self.sealed.clone());
        let (sender, ended) = channel();
        self.background_task = Some(Box::new(move || {
            let result = write_table(&db, &keyspace, &sealed);
            // The receiver of the result may close the database at once, so this thread's handles
            // go first.
            drop((db, keyspace, sealed));
            let _ = sender.send(result);
        }));
        self.task_result = Some(ended);
    }

    /// Handles a chore that has ended; with `wait`, waits for one that is running.
    fn collect_task(&mut self, wait: bool) -> Result<(), StoreError> {
        let Some(ended) = &self.task_result else { return Ok(()) };
        let result = match ended.try_recv() {
            Err(TryRecvError::Empty) if wait => ended.recv().ok(),
            Err(TryRecvError::Empty) => return Ok(()),
            result => result.ok(),
        };
        self.task_result = None;
        match (result, self.sealed_log) {
            // Only now: the table is durable, so the logs are not needed any more.
            (Some(Ok(())), Some(newest)) => self.remove_logs(newest),
            // The disk is full, or a worker of fjall met a full disk, or the chore was dropped. The
            // log stays, and a later check retries.
            (None | Some(Err(fjall::Error::Poisoned)), _) => Ok(()),
            (Some(Err(e)), _) if is_full(&e) => Ok(()),
            (Some(Err(e)), _) => {
                let e = self.wrap_error("write a table", e);
                self.poison_store("writing a table", e)
            }
            (Some(Ok(())), None) => Ok(()),
        }
    }

    /// Removes the logs up to `newest`, whose changes the tables have. Older ones go first: a log's
    /// changes must not come back without the later ones.
    fn remove_logs(&mut self, newest: u64) -> Result<(), StoreError> {
        let numbers = log::list_logs(&self.path).map_err(|e| io_error(&self.path, "list", e));
        for number in numbers?.into_iter().filter(|n| *n <= newest) {
            let path = log::log_path(&self.path, number);
            if let Err(e) = std::fs::remove_file(&path) {
                let e = io_error(&path, "remove a log", e);
                return self.poison_store("removing a log", e);
            }
        }
        self.sealed_log = None;
        if let Some((free, _)) = self.disk_space() {
            self.reserve.refill_blocks(free);
        }
        // Freeing many small pieces of memory takes a while, so that is a chore, too.
        let sealed = std::mem::take(&mut self.sealed);
        self.background_task = Some(Box::new(move || drop(sealed)));
        Ok(())
    }

    /// Reopens the database if one of fjall's workers has failed and there is room now.
    fn reopen_tables(&mut self) -> Result<(), StoreError> {
        let fine = self.open.as_ref().is_some_and(|o| o.db.persist(PersistMode::Buffer).is_ok());
        self.checks_spared = 0;
        // The reserve does not count: merging tables would use it up.
        if fine || self.disk_space().is_some_and(|(free, total)| free < wanted_room(total)) {
            return Ok(());
        }
        self.background_task = None;
        self.open = None;
        match open_database(&self.path) {
            Ok(open) => self.open = Some(open),
            // Another user of the disk filled it again: the next check retries.
            Err(StoreError::Full { .. }) => {}
            Err(e) => return self.poison_store("opening again after the disk was full", e),
        }
        Ok(())
    }

    fn disk_space(&self) -> Option<(u64, u64)> {
        let stat = rustix::fs::statvfs(&self.path).ok()?;
        Some((
            stat.f_bavail.saturating_mul(stat.f_frsize),
            stat.f_blocks.saturating_mul(stat.f_frsize),
        ))
    }

    /// Returns the bytes to allocate for a log. Where the disk is small, the other defences remain.
    fn log_reservation(&self) -> Option<u64> {
        self.disk_space()
            .is_some_and(|(free, _)| free > 2 * (LOG_RESERVED + ROOM_BYTES))
            .then_some(LOG_RESERVED)
    }
}

impl Drop for FjallStore {
    fn drop(&mut self) {
        // A running chore holds the database open, and with it the lock.
        self.background_task = None;
        if let Some(ended) = &self.task_result {
            let _ = ended.recv();
        }
    }
}

impl Store for FjallStore {
    fn get(&self, key: &[u8]) -> Result<Option<Vec<u8>>, StoreError> {
        if let Some(value) = self.cached_value(key) {
            return Ok(value.map(<[u8]>::to_vec));
        }
        self.fetch(key)
    }

    fn fetch(&self, key: &[u8]) -> Result<Option<Vec<u8>>, StoreError> {
        let value =
            self.open_tables()?.keyspace.get(key).map_err(|e| self.wrap_error("read", e))?;
        Ok(value.map(|v| v.to_vec()))
    }

    fn cached_value(&self, key: &[u8]) -> Option<Option<&[u8]>> {
        let hash = memtable::hash_key(key);
        self.recent.get(hash, key).or_else(|| self.sealed.get(hash, key))
    }

    fn scan(
        &self,
        from: &[u8],
        prefix: &[u8],
        visit: &mut PairVisitor<'_>,
    ) -> Result<(), StoreError> {
        let start = from.max(prefix);
        let end = prefix_end(prefix);
        if end.as_deref().is_some_and(|end| start >= end) {
            return Ok(());
        }
        let (newer, older) = (self.recent.sort_changes(), self.sealed.sort_changes());
        let mut over = MergedChanges::new(&newer, &older, start)
            .take_while(|(key, _)| key.starts_with(prefix))
            .peekable();
        let upper = end.as_deref().map_or(Bound::Unbounded, Bound::Excluded);
        let range: (Bound<&[u8]>, Bound<&[u8]>) = (Bound::Included(start), upper);
        for pair in self.open_tables()?.keyspace.range::<&[u8], _>(range) {
            let (key, value) = pair.into_inner().map_err(|e| self.wrap_error("read", e))?;
            // The newest change wins: the changes of the logs lie over the tables, also their
            // removals.
            while let Some((k, v)) = over.next_if(|(k, _)| *k < &*key) {
                if v.is_some_and(|v| visit(k, v).is_break()) {
                    return Ok(());
                }
            }
            let value = match over.next_if(|(k, _)| *k == &*key) {
                Some((_, newer)) => newer,
                None => Some(&*value),
            };
            if value.is_some_and(|v| visit(&key, v).is_break()) {
                return Ok(());
            }
        }
        for (key, value) in over {
            if value.is_some_and(|v| visit(key, v).is_break()) {
                break;
            }
        }
        Ok(())
    }

    fn commit(&mut self, batch: &[Change]) -> Result<(), StoreError> {
        if self.poisoned.is_some() {
            return Err(self.poison_error());
        }
        // The checks cost system calls, so they run once for many batches.
        if self.since_check >= CHECK_EVERY {
            self.check_progress()?;
        }
        if batch.is_empty() {
            return Ok(());
        }
        // Log first, then memory: readers must not see a change that the log refused.
        let Some(before) = self.log.as_ref().map(WriteAheadLog::end) else {
            return self.commit_first(batch);
        };
        if let Err(e) = self.append_batch(batch) {
            self.checks_spared = 0;
            if no_space(&e) {
                return Err(StoreError::Full { path: path_text(&self.path) });
            }
            let e =
                io_error(self.log.as_ref().map_or(&self.path, WriteAheadLog::path), "commit", e);
            return self.poison_store("a commit", e);
        }
        let end = self.log.as_ref().map_or(before, WriteAheadLog::end);
        assert!(end > before, "a batch makes the log no longer");
        self.since_check += end - before;
        batch.iter().for_each(|(key, value)| self.recent.apply_change(key, value.as_deref()));
        Ok(())
    }

    fn sync(&mut self) -> Result<(), StoreError> {
        if self.poisoned.is_some() {
            return Err(self.poison_error());
        }
        // Older logs were synced before this one began, and tables are durable.
        let Some(log) = &mut self.log else { return Ok(()) };
        match log.sync() {
            Ok(()) => {
                self.update_mark();
                Ok(())
            }
            Err(e) => {
                let e = io_error(log.path(), "fsync", e);
                self.poison_store("an fsync", e)
            }
        }
    }

    fn begin_sync(&mut self) -> Result<Option<SyncWork>, StoreError> {
        if self.poisoned.is_some() {
            return Err(self.poison_error());
        }
        // As in `sync`.
        let Some(log) = &self.log else { return Ok(None) };
        match log.begin_sync() {
            Ok(work) => {
                // The work covers the log up to here; batches appended meanwhile may miss it.
                self.syncing = Some((log.number(), log.end()));
                Ok(Some(work))
            }
            // The system has no descriptors left: sync in this thread.
            Err(_) => self.sync().map(|()| None),
        }
    }

    fn end_sync(&mut self, result: std::io::Result<()>) -> Result<(), StoreError> {
        let begun = self.syncing.take();
        if let Err(e) = result {
            let e = io_error(&self.path, "fsync", e);
            return self.poison_store("an fsync", e);
        }
        // A log that has ended meanwhile was synced as a whole before the next one began.
        if let (Some((number, end)), Some(log)) = (begun, &mut self.log)
            && log.number() == number
        {
            log.end_sync(end);
            self.update_mark();
        }
        Ok(())
    }

    fn has_room(&mut self) -> bool {
        if self.checks_spared > 0 {
            self.checks_spared -= 1;
            return true;
        }
        // A file system that does not report its space is taken to have room.
        let Some((free, total)) = self.disk_space() else { return true };
        if free >= PLENTY_BYTES {
            self.checks_spared = CHECKS_SPARED;
        }
        self.reserve.refill_blocks(free);
        // The blocks that the reserve has just taken count once, as the reserve.
        let free = self.disk_space().map_or(free, |(free, _)| free);
        free.saturating_add(self.reserve.len()) >= wanted_room(total)
    }

    fn retry_after_full(&mut self) -> bool {
        self.checks_spared = 0;
        // A check retries the work that failed. The next commit reports any other error.
        self.has_room()
            && self.poisoned.is_none()
            && self.check_progress().is_ok()
            && self.open.is_some()
    }

    fn take_background_task(&mut self) -> Option<BackgroundTask> {
        self.background_task.take()
    }

    fn close(&mut self) -> Result<(), StoreError> {
        // The mark states that nothing follows, so nothing may.
        self.sync()?;
        self.poisoned = Some("closing");
        let Some(mark) = &mut self.mark else { return Ok(()) };
        mark.close().map_err(|e| io_error(&mark::mark_path(&self.path), "write", e))
    }

    fn lost_bound(&self) -> u64 {
        self.lost
    }
}

/// Writes changes to a table, atomically and durably.
fn write_table(db: &Database, keyspace: &Keyspace, changes: &Memtable) -> Result<(), fjall::Error> {
    // An ingestion bypasses fjall's own journal: our log has the records already.
    let mut table = keyspace.start_ingestion()?;
    for (key, value) in changes.sort_changes().cursor_from(&[]) {
        match value {
            Some(value) => table.write(key, value)?,
            // A removed record mostly came after the last table was written, and then there is
            // nothing to hide.
            None if keyspace.contains_key(key)? => table.write_tombstone(key)?,
            None => {}
        }
    }
    table.finish()?;
    // This reports whether one of fjall's workers has failed.
    db.persist(PersistMode::Buffer)
}

/// Returns a sentence about the bytes that were cut off.
fn describe_cut(path: &Path, cut: log::LogCut) -> String {
    let kept = match cut.kept {
        Some(kept) => format!("they are kept in {}", kept.display()),
        None => "there was no room to keep them".into(),
    };
    let (bytes, at) = (cut.bytes, cut.at);
    let path = path.display();
    format!("{path}: {bytes} bytes behind the last whole batch, at byte {at}, were cut off; {kept}")
}

/// Returns the bytes that must be free before the store grows, on a disk of `total` bytes.
fn wanted_room(total: u64) -> u64 {
    ROOM_BYTES.min(total / SMALL_SHARE)
}

/// Takes the lock of fjall, while fjall is not open yet. `None` where there is nothing to lock.
fn lock_for_check(path: &Path) -> Result<Option<std::fs::File>, StoreError> {
    let lock = path.join("lock");
    let lock = match std::fs::OpenOptions::new().read(true).write(true).open(&lock) {
        Ok(lock) => lock,
        Err(e) if e.kind() == std::io::ErrorKind::NotFound => return Ok(None),
        Err(e) => return Err(io_error(&lock, "open", e)),
    };
    lock.try_lock().map_err(|e| match e {
        std::fs::TryLockError::WouldBlock => StoreError::Locked { path: path_text(path) },
        std::fs::TryLockError::Error(e) => io_error(path, "lock", e),
    })?;
    Ok(Some(lock))
}

fn open_database(path: &Path) -> Result<OpenTables, StoreError> {
    let wrap = |e| store_error(path, "open", e);
    let db =
        Database::builder(path).cache_size(CACHE_BYTES).worker_threads(2).open().map_err(wrap)?;
    let merges = Leveled::default()
        .with_l0_threshold(TABLES_MERGED)
        .with_table_target_size(MERGED_TABLE_BYTES)
        .with_level_ratio_policy(vec![LEVEL_RATIO]);
    // An existing store keeps the options that it was made with.
    let options = || {
        KeyspaceCreateOptions::default()
            .compaction_strategy(Arc::new(merges))
            // A filter is read at each creation, so all filters stay in memory: some ten bits a
            // record.
            .filter_block_pinning_policy(PinningPolicy::all(true))
            .filter_block_partitioning_policy(PartitioningPolicy::all(false))
            // The index of merged tables is in blocks of some kilobytes. A single one for a whole
            // table has hundreds of them, and is read again for each lookup once all of them exceed
            // the cache.
            .index_block_partitioning_policy(PartitioningPolicy::new([false, true]))
    };
    let keyspace = db.keyspace(KEYSPACE, options).map_err(wrap)?;
    Ok(OpenTables { db, keyspace })
}

/// Removes the files of a process that died while it made the store: fjall would fail on them. Its
/// version marker is complete before the first keyspace is made.
fn clear_unfinished(path: &Path) -> Result<(), StoreError> {
    let marker = path.join("version");
    let keyspaces = path.join("keyspaces");
    let journal = path.join("0.jnl");
    let complete = std::fs::metadata(&marker).is_ok_and(|m| m.len() > 0);
    if complete || !(marker.exists() || journal.exists() || keyspaces.exists()) {
        return Ok(());
    }
    if keyspaces.join("1").exists() {
        let what = "its version marker is missing".into();
        return Err(StoreError::Damaged { path: path_text(path), what });
    }
    for file in [&marker, &journal] {
        match std::fs::remove_file(file) {
            Err(e) if e.kind() != std::io::ErrorKind::NotFound => {
                return Err(io_error(file, "remove unfinished file", e));
            }
            _ => {}
        }
    }
    match std::fs::remove_dir_all(&keyspaces) {
        Err(e) if e.kind() != std::io::ErrorKind::NotFound => {
            Err(io_error(&keyspaces, "remove unfinished directory", e))
        }
        _ => Ok(()),
    }
}
