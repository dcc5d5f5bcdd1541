//! The store on disk: a write-ahead log of our own before the tables of fjall, a log-structured
//! merge tree.
//!
//! A commit is one batch in the log ([`log`]), handed to the kernel before it returns, so it
//! survives the death of the process; a sync is an fsync of the log. The log's changes are kept in
//! memory, too ([`recent`]), over the tables. When a log is long enough, a new one begins, and the
//! old one's records are written to a table at once, in order: a [`Chore`] that any thread may run.
//! So a record that changes often, or is removed soon, is written to the log alone.
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

use super::log::{self, Log, ReadError};
use super::mark::{self, Mark, Marked};
use super::recent::{self, Both, Recent};
use super::reserve::Reserve;
use super::{Change, Chore, Store, StoreError, SyncWork, Visit, manifest, prefix_end};
use fjall::compaction::Leveled;
use fjall::config::{PartitioningPolicy, PinningPolicy};
use fjall::{Database, Keyspace, KeyspaceCreateOptions, PersistMode};
use std::ops::Bound;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::mpsc::{Receiver, TryRecvError, channel};

const KEYSPACE: &str = "meta";
/// Block cache, in bytes.
const CACHE: u64 = 64 << 20;
/// Length at which a log is followed by the next, in bytes. The changes of two logs are in memory.
const LOG: u64 = 64 << 20;
/// Bytes allocated for a log.
const RESERVED: u64 = 68 << 20;
/// This many tables, as logs make them, are merged with the first level at once. A lookup checks
/// the filter of each table, so fewer is better; but the fewer are merged at once, the more often
/// the first level is rewritten.
const TABLES_MERGED: u8 = 8;
/// Length of the tables that merging makes, in bytes: about that of one made from a log. The first
/// level may be as long as [`TABLES_MERGED`] of them.
const MERGED: u64 = 32 << 20;
/// The largest ratio between a level and the one before it. A merge into a level rewrites up to
/// this many times the merged bytes.
const LEVEL_RATIO: f32 = 4.0;
/// Free space, or reserve, that the store requires before it grows, in bytes: a table, and a
/// compaction's beginning. On small disks a part of them.
const ROOM: u64 = 64 << 20;
/// That part of a small disk: one part in 32. With half of the reserve gone, names are still
/// removed.
const SMALL_SHARE: u64 = 32;
/// Free space above which the next checks are skipped, in bytes.
const PLENTY: u64 = 8 * ROOM;
/// Requests for room that are answered without a check, after one that found plenty. A check is a
/// system call, and users do not write [`PLENTY`] so fast. If they do, the other two defences hold.
const LOOKS_SPARED: u32 = 256;
/// More inode numbers, and more of anything else that is counted, than the changes of two logs can
/// record: they have no more bytes, and a small disk on which they grow beyond that is full.
const LOST: u64 = 4 * LOG;
/// Bytes committed between two checks of the log's length and of the chore.
const LOOK_EVERY: u64 = 1 << 20;

/// Options of opening a store.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Opening {
    /// A number that distinguishes two boots of the machine, 0 where it is unknown: only a power
    /// cut leaves holes in a log.
    pub boot: u64,
    /// Go on with the readable rest of a damaged log, though acknowledged changes are lost.
    pub accept_loss: bool,
}

/// A store in a directory of its own.
pub struct FjallStore {
    path: PathBuf,
    open: Option<Open>,
    poisoned: Option<&'static str>,
    /// The boot of the machine.
    boot: u64,
    /// Records beside the log up to where it was synced. It exists before the first log.
    mark: Option<Mark>,
    /// `None` until the first commit, see [`FjallStore::commit_first`].
    log: Option<Log>,
    /// The changes of the log.
    recent: Recent,
    /// The changes of older logs that the tables may not have.
    sealed: Arc<Recent>,
    /// The newest of those logs.
    sealed_log: Option<u64>,
    /// Writes the sealed records to a table; not taken yet.
    chore: Option<Chore>,
    /// Receives the result of that chore.
    ended: Option<Receiver<Result<(), fjall::Error>>>,
    /// Bytes committed since the last check.
    since_look: u64,
    /// Requests for room still to be answered without a check.
    looks_spared: u32,
    /// Blocks that are given back when the disk is full.
    reserve: Reserve,
    /// Describes the bytes that were cut off the log when the store was opened.
    cut: Option<String>,
    /// See [`Store::lost`].
    lost: u64,
    /// Number and end of the log when another thread began to sync it.
    syncing: Option<(u64, u64)>,
}

struct Open {
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
    pub fn open(path: &Path, opening: Opening) -> Result<FjallStore, StoreError> {
        std::fs::create_dir_all(path).map_err(|e| io(path, "create directory", e))?;
        clear_unfinished(path)?;
        // The lock keeps another daemon from changing the lists during the check. fjall takes the
        // same lock, so it is released before.
        let lock = lock_for_check(path)?;
        manifest::check(path)?;
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
            recent: Recent::default(),
            sealed: Arc::default(),
            sealed_log: None,
            chore: None,
            ended: None,
            since_look: 0,
            looks_spared: 0,
            reserve: Reserve::default(),
            cut: None,
            lost: 0,
            syncing: None,
        };
        match store.read_logs() {
            Err(StoreError::Lost { .. }) if opening.accept_loss => store.salvage()?,
            result => result?,
        }
        // Logs that were sealed in the last run still wait for their table.
        store.prepare_chore();
        Ok(store)
    }

    /// Reserves up to `bytes` of the disk for this store from now on, at most a sixteenth of the
    /// disk. Blocks that are not free now are taken when there is room.
    ///
    /// # Errors
    /// [`StoreError::Io`]: the reserve's file can be neither opened nor made.
    pub fn with_reserve(mut self, bytes: u64) -> Result<FjallStore, StoreError> {
        let (free, total) = self.free().unwrap_or_default();
        match Reserve::open(&self.path, bytes, total, free) {
            Ok(reserve) => self.reserve = reserve,
            Err(e) => tolerable(e).map_err(|e| io(&self.path, "make a reserve", e))?,
        }
        Ok(self)
    }

    /// Gives back as much of the reserve as `bytes` on the disk need.
    fn make_room(&mut self, bytes: u64) {
        let Some((free, _)) = self.free() else { return };
        self.reserve.release(bytes.saturating_sub(free));
    }

    /// Appends to the log; where the disk is full, with room from the reserve.
    fn append(&mut self, batch: &[Change]) -> std::io::Result<()> {
        let Some(log) = &mut self.log else { return Ok(()) };
        loop {
            match log.append(batch) {
                // Each round leaves less of the reserve, so the loop ends.
                Err(e) if no_space(&e) && self.reserve.release(self.reserve.step()) => {
                    // Allocate the freed blocks at once, before another writer of the disk takes
                    // them.
                    log.claim(self.reserve.step());
                }
                appended => return appended,
            }
        }
    }

    /// Returns a sentence about the bytes that were cut off the log when the store was opened.
    /// After a power cut they are unsynced batches; after the death of the process, at most one
    /// batch that was never acknowledged; where a loss was accepted, the lost records.
    pub fn cut(&self) -> Option<&str> {
        self.cut.as_deref()
    }

    /// Reads the changes of the logs into memory.
    fn read_logs(&mut self) -> Result<(), StoreError> {
        let dir = self.path.clone();
        let numbers = log::list(&dir).map_err(|e| io(&dir, "list", e))?;
        let marked = mark::read(&dir).map_err(|e| io(&mark::path(&dir), "read", e))?;
        let marked = match (marked, numbers.last()) {
            (Some(marked), _) => marked,
            (None, None) => Marked::default(),
            // Logs without a mark: synced batches could be missing without a trace.
            (None, Some(_)) => {
                let (path, what) = (show(&mark::path(&dir)), "it is missing or does not read");
                return Err(StoreError::Lost { path, at: 0, what });
            }
        };
        let mut sealed = Recent::default();
        let mut former: Option<(u64, log::Found)> = None;
        for number in numbers {
            let path = log::path(&dir, number);
            let mut changes = Recent::default();
            let found = log::read(&dir, number, &mut |(key, value)| {
                changes.change(&key, value.as_deref());
            });
            let found = match found.map_err(|e| read_error(&path, e))? {
                Some(found) => found,
                // The mark is written after the log's header, so this log had one.
                None if number <= marked.log => {
                    let what = "the log has no header";
                    return Err(StoreError::Lost { path: show(&path), at: 0, what });
                }
                // The process died while it made the log.
                None => {
                    std::fs::remove_file(&path)
                        .map_err(|e| io(&path, "remove unfinished file", e))?;
                    continue;
                }
            };
            if let Some((before, whole)) = former.take() {
                // Each log records the end of its predecessor: a shorter one has lost its tail.
                if number != before + 1 || whole.end != found.before {
                    let what = "the log does not go on to where the next one begins";
                    let path = show(&log::path(&dir, before));
                    return Err(StoreError::Lost { path, at: whole.end, what });
                }
                let older = std::mem::take(&mut self.recent);
                older.each(|key, value| sealed.change(key, value));
                self.sealed_log = Some(before);
            }
            self.recent = changes;
            former = Some((number, found));
        }
        let newest = former.as_ref().map_or(0, |(number, _)| *number);
        if newest < marked.log {
            let (path, what) = (show(&log::path(&dir, marked.log)), "the log is not there");
            return Err(StoreError::Lost { path, at: 0, what });
        }
        if let Some((number, found)) = former {
            let path = log::path(&dir, number);
            if let Some(what) = marked.damage(number, &found, self.boot) {
                return Err(StoreError::Lost { path: show(&path), at: found.end, what });
            }
            let resumed = Log::resume(&dir, number, &found, self.reserve());
            let (log, cut) = resumed.map_err(|e| io(&path, "open", e))?;
            // The mark must lose its flag `closed` durably before a new batch follows.
            self.begin_mark(Marked { log: number, end: log.end(), ..marked })?;
            self.lost = if marked.lost { LOST } else { 0 };
            self.log = Some(log);
            self.cut = cut.map(|cut| told(&path, cut));
        }
        self.sealed = Arc::new(sealed);
        Ok(())
    }

    /// Recovers the readable records of damaged logs into a table, and moves the logs aside.
    fn salvage(&mut self) -> Result<(), StoreError> {
        let dir = self.path.clone();
        (self.recent, self.sealed, self.sealed_log) = Default::default();
        let numbers = log::list(&dir).map_err(|e| io(&dir, "list", e))?;
        let mut all = Recent::default();
        for &number in &numbers {
            log::salvage(&dir, number, &mut |(key, value)| all.change(&key, value.as_deref()))
                .map_err(|e| io(&log::path(&dir, number), "read", e))?;
        }
        // The table is durable before a log is moved: a crash in between repeats the recovery.
        let Open { db, keyspace } = self.opened()?;
        write_table(db, keyspace, &all).map_err(|e| self.error("write a table", e))?;
        // The oldest first: if this is interrupted, the remaining logs are the newer ones, and lie
        // over the table.
        let mut kept = Vec::new();
        for &number in &numbers {
            let put = log::put_aside(&dir, number);
            let put = put.map_err(|e| io(&log::path(&dir, number), "put aside", e))?;
            kept.push(show(&put));
        }
        let marked = mark::read(&dir).map_err(|e| io(&mark::path(&dir), "read", e))?;
        let newest = numbers.last().copied().max(marked.map(|marked| marked.log)).unwrap_or(0);
        let log = Log::create(&dir, newest + 1, 0, self.reserve());
        let log = log.map_err(|e| io(&log::path(&dir, newest + 1), "make a log", e))?;
        // The flag `lost` stays in the mark until the next clean close, so that a crash before the
        // counters are raised repeats that.
        self.begin_mark(Marked {
            log: newest + 1,
            end: log.end(),
            lost: true,
            ..Marked::default()
        })?;
        self.log = Some(log);
        self.lost = LOST;
        self.cut = Some(format!(
            "{}: a log was damaged, and the loss was accepted: what could be read of it was taken over; the damaged              file is kept as {}",
            dir.display(),
            kept.join(", ")
        ));
        Ok(())
    }

    fn begin_mark(&mut self, marked: Marked) -> Result<(), StoreError> {
        let mark = Mark::begin(&self.path, Marked { boot: self.boot, closed: false, ..marked });
        self.mark = Some(mark.map_err(|e| io(&mark::path(&self.path), "write", e))?);
        Ok(())
    }

    /// Updates the mark's synced offset.
    fn note_synced(&mut self) {
        if let (Some(mark), Some(log)) = (&mut self.mark, &self.log)
            && mark.note(log.number(), log.synced()).is_err()
        {
            // The log is synced. The mark states less than the truth until it can be written again.
        }
    }

    fn opened(&self) -> Result<&Open, StoreError> {
        let full = || StoreError::Full { path: show(&self.path) };
        let why_not = || if self.poisoned.is_some() { self.poison_error() } else { full() };
        self.open.as_ref().ok_or_else(why_not)
    }

    fn poison_error(&self) -> StoreError {
        StoreError::Poisoned { path: show(&self.path), op: self.poisoned.unwrap_or("open") }
    }

    fn error(&self, op: &'static str, e: fjall::Error) -> StoreError {
        store_error(&self.path, op, e)
    }

    fn poison<T>(&mut self, op: &'static str, e: StoreError) -> Result<T, StoreError> {
        self.poisoned = Some(op);
        Err(e)
    }

    /// Writes the first commit to the tables: versions before the log read them, and the version in
    /// the shard's record then keeps them from the store.
    fn commit_first(&mut self, batch: &[Change]) -> Result<(), StoreError> {
        let mut changes = Recent::default();
        batch.iter().for_each(|(key, value)| changes.change(key, value.as_deref()));
        let Open { db, keyspace } = self.opened()?;
        match write_table(db, keyspace, &changes) {
            Ok(()) => {}
            Err(e) if is_full(&e) => return Err(StoreError::Full { path: show(&self.path) }),
            Err(e) => {
                let e = self.error("commit", e);
                return self.poison("a commit", e);
            }
        }
        // Where a log cannot be made yet, the next commit is a first one, too. The mark comes
        // first: a log without a mark counts as damaged.
        let boot = self.boot;
        let mark = Mark::begin(&self.path, Marked { boot, ..Marked::default() });
        match mark.and_then(|mark| Ok((mark, Log::create(&self.path, 1, 0, self.reserve())?))) {
            Ok((mark, log)) => {
                (self.mark, self.log) = (Some(mark), Some(log));
                self.note_synced();
            }
            Err(e) => tolerable(e).or_else(|e| {
                let e = io(&self.path, "make a log", e);
                self.poison("making a log", e)
            })?,
        }
        Ok(())
    }

    /// Checks whether the chore has ended and whether the log is long enough.
    fn look(&mut self) -> Result<(), StoreError> {
        self.since_look = 0;
        self.collect(false)?;
        if self.sealed_log.is_some() && self.ended.is_none() {
            self.mend_tables()?;
            self.prepare_chore();
        }
        if self.log.as_ref().is_none_or(|log| log.end() < LOG) {
            return Ok(());
        }
        if self.sealed_log.is_some() {
            // The disk does not keep up, or no thread runs the chores. Memory for a third log is
            // not allowed.
            if let Some(chore) = self.chore.take() {
                chore();
            }
            self.collect(true)?;
        }
        // If there is still no room for the table, the log goes on.
        if self.sealed_log.is_none() { self.begin_log() } else { Ok(()) }
    }

    /// Begins a new log.
    fn begin_log(&mut self) -> Result<(), StoreError> {
        let reserve = self.reserve();
        let Some(old) = &mut self.log else { return Ok(()) };
        // The old log is synced first: batches of the new one must not survive a power cut that the
        // end of the old one does not.
        if let Err(e) = old.sync() {
            let e = io(old.path(), "fsync", e);
            return self.poison("an fsync", e);
        }
        match Log::create(&self.path, old.number() + 1, old.end(), reserve) {
            Ok(new) => {
                self.sealed_log = Some(old.number());
                let next = Recent::as_large_as(&self.recent);
                self.sealed = Arc::new(std::mem::replace(&mut self.recent, next));
                self.log = Some(new);
                self.note_synced();
                self.prepare_chore();
                Ok(())
            }
            Err(e) => {
                // It would be taken for the newest log at the next open.
                let unfinished = log::path(&self.path, old.number() + 1);
                let gone = std::fs::remove_file(&unfinished).or_else(|e| {
                    if e.kind() == std::io::ErrorKind::NotFound { Ok(()) } else { Err(e) }
                });
                gone.and(tolerable(e)).or_else(|e| {
                    let e = io(&unfinished, "make a log", e);
                    self.poison("making a log", e)
                })
            }
        }
    }

    /// Makes the chore that writes the sealed records to a table.
    fn prepare_chore(&mut self) {
        let Some(sealed_log) = self.sealed_log.filter(|_| self.open.is_some()) else { return };
        // The table is no longer than the log.
        let log = std::fs::metadata(log::path(&self.path, sealed_log));
        self.make_room(log.map_or(LOG, |log| log.len()).min(LOG));
        let Some(Open { db, keyspace }) = &self.open else { return };
        let (db, keyspace, sealed) = (db.clone(), keyspace.clone(), self.sealed.clone());
        let (sender, ended) = channel();
        self.chore = Some(Box::new(move || {
            let result = write_table(&db, &keyspace, &sealed);
            // The receiver of the result may close the database at once, so this thread's handles
            // go first.
            drop((db, keyspace, sealed));
            let _ = sender.send(result);
        }));
        self.ended = Some(ended);
    }

    /// Handles a chore that has ended; with `wait`, waits for one that is running.
    fn collect(&mut self, wait: bool) -> Result<(), StoreError> {
        let Some(ended) = &self.ended else { return Ok(()) };
        let result = match ended.try_recv() {
            Err(TryRecvError::Empty) if wait => ended.recv().ok(),
            Err(TryRecvError::Empty) => return Ok(()),
            result => result.ok(),
        };
        self.ended = None;
        match (result, self.sealed_log) {
            // Only now: the table is durable, so the logs are not needed any more.
            (Some(Ok(())), Some(newest)) => self.remove_logs(newest),
            // The disk is full, or a worker of fjall met a full disk, or the chore was dropped. The
            // log stays, and a later check retries.
            (None | Some(Err(fjall::Error::Poisoned)), _) => Ok(()),
            (Some(Err(e)), _) if is_full(&e) => Ok(()),
            (Some(Err(e)), _) => {
                let e = self.error("write a table", e);
                self.poison("writing a table", e)
            }
            (Some(Ok(())), None) => Ok(()),
        }
    }

    /// Removes the logs up to `newest`, whose changes the tables have. Older ones go first: a log's
    /// changes must not come back without the later ones.
    fn remove_logs(&mut self, newest: u64) -> Result<(), StoreError> {
        let numbers = log::list(&self.path).map_err(|e| io(&self.path, "list", e));
        for number in numbers?.into_iter().filter(|n| *n <= newest) {
            let path = log::path(&self.path, number);
            if let Err(e) = std::fs::remove_file(&path) {
                let e = io(&path, "remove a log", e);
                return self.poison("removing a log", e);
            }
        }
        self.sealed_log = None;
        if let Some((free, _)) = self.free() {
            self.reserve.refill(free);
        }
        // Freeing many small pieces of memory takes a while, so that is a chore, too.
        let sealed = std::mem::take(&mut self.sealed);
        self.chore = Some(Box::new(move || drop(sealed)));
        Ok(())
    }

    /// Reopens the database if one of fjall's workers has failed and there is room now.
    fn mend_tables(&mut self) -> Result<(), StoreError> {
        let fine = self.open.as_ref().is_some_and(|o| o.db.persist(PersistMode::Buffer).is_ok());
        self.looks_spared = 0;
        // The reserve does not count: merging tables would use it up.
        if fine || self.free().is_some_and(|(free, total)| free < wanted_room(total)) {
            return Ok(());
        }
        self.chore = None;
        self.open = None;
        match open_database(&self.path) {
            Ok(open) => self.open = Some(open),
            // Another user of the disk filled it again: the next check retries.
            Err(StoreError::Full { .. }) => {}
            Err(e) => return self.poison("opening again after the disk was full", e),
        }
        Ok(())
    }

    fn free(&self) -> Option<(u64, u64)> {
        let stat = rustix::fs::statvfs(&self.path).ok()?;
        Some((
            stat.f_bavail.saturating_mul(stat.f_frsize),
            stat.f_blocks.saturating_mul(stat.f_frsize),
        ))
    }

    /// Returns the bytes to allocate for a log. Where the disk is small, the other defences remain.
    fn reserve(&self) -> Option<u64> {
        self.free().is_some_and(|(free, _)| free > 2 * (RESERVED + ROOM)).then_some(RESERVED)
    }
}

impl Drop for FjallStore {
    fn drop(&mut self) {
        // A running chore holds the database open, and with it the lock.
        self.chore = None;
        if let Some(ended) = &self.ended {
            let _ = ended.recv();
        }
    }
}

impl Store for FjallStore {
    fn get(&self, key: &[u8]) -> Result<Option<Vec<u8>>, StoreError> {
        if let Some(value) = self.known(key) {
            return Ok(value.map(<[u8]>::to_vec));
        }
        self.fetch(key)
    }

    fn fetch(&self, key: &[u8]) -> Result<Option<Vec<u8>>, StoreError> {
        let value = self.opened()?.keyspace.get(key).map_err(|e| self.error("read", e))?;
        Ok(value.map(|v| v.to_vec()))
    }

    fn known(&self, key: &[u8]) -> Option<Option<&[u8]>> {
        let hash = recent::hash_of(key);
        self.recent.get(hash, key).or_else(|| self.sealed.get(hash, key))
    }

    fn scan(&self, from: &[u8], prefix: &[u8], visit: &mut Visit<'_>) -> Result<(), StoreError> {
        let start = from.max(prefix);
        let end = prefix_end(prefix);
        if end.as_deref().is_some_and(|end| start >= end) {
            return Ok(());
        }
        let (newer, older) = (self.recent.ordered(), self.sealed.ordered());
        let mut over = Both::new(&newer, &older, start)
            .take_while(|(key, _)| key.starts_with(prefix))
            .peekable();
        let upper = end.as_deref().map_or(Bound::Unbounded, Bound::Excluded);
        let range: (Bound<&[u8]>, Bound<&[u8]>) = (Bound::Included(start), upper);
        for pair in self.opened()?.keyspace.range::<&[u8], _>(range) {
            let (key, value) = pair.into_inner().map_err(|e| self.error("read", e))?;
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
        if self.since_look >= LOOK_EVERY {
            self.look()?;
        }
        if batch.is_empty() {
            return Ok(());
        }
        // Log first, then memory: readers must not see a change that the log refused.
        let Some(before) = self.log.as_ref().map(Log::end) else { return self.commit_first(batch) };
        if let Err(e) = self.append(batch) {
            self.looks_spared = 0;
            if no_space(&e) {
                return Err(StoreError::Full { path: show(&self.path) });
            }
            let e = io(self.log.as_ref().map_or(&self.path, Log::path), "commit", e);
            return self.poison("a commit", e);
        }
        self.since_look += self.log.as_ref().map_or(before, Log::end) - before;
        batch.iter().for_each(|(key, value)| self.recent.change(key, value.as_deref()));
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
                self.note_synced();
                Ok(())
            }
            Err(e) => {
                let e = io(log.path(), "fsync", e);
                self.poison("an fsync", e)
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
            let e = io(&self.path, "fsync", e);
            return self.poison("an fsync", e);
        }
        // A log that has ended meanwhile was synced as a whole before the next one began.
        if let (Some((number, end)), Some(log)) = (begun, &mut self.log)
            && log.number() == number
        {
            log.end_sync(end);
            self.note_synced();
        }
        Ok(())
    }

    fn has_room(&mut self) -> bool {
        if self.looks_spared > 0 {
            self.looks_spared -= 1;
            return true;
        }
        // A file system that does not report its space is taken to have room.
        let Some((free, total)) = self.free() else { return true };
        if free >= PLENTY {
            self.looks_spared = LOOKS_SPARED;
        }
        self.reserve.refill(free);
        // The blocks that the reserve has just taken count once, as the reserve.
        let free = self.free().map_or(free, |(free, _)| free);
        free.saturating_add(self.reserve.len()) >= wanted_room(total)
    }

    fn recover(&mut self) -> bool {
        self.looks_spared = 0;
        // A check retries the work that failed. The next commit reports any other error.
        self.has_room() && self.poisoned.is_none() && self.look().is_ok() && self.open.is_some()
    }

    fn take_chore(&mut self) -> Option<Chore> {
        self.chore.take()
    }

    fn close(&mut self) -> Result<(), StoreError> {
        // The mark states that nothing follows, so nothing may.
        self.sync()?;
        self.poisoned = Some("closing");
        let Some(mark) = &mut self.mark else { return Ok(()) };
        mark.close().map_err(|e| io(&mark::path(&self.path), "write", e))
    }

    fn lost(&self) -> u64 {
        self.lost
    }
}

/// Writes changes to a table, atomically and durably.
fn write_table(db: &Database, keyspace: &Keyspace, changes: &Recent) -> Result<(), fjall::Error> {
    // An ingestion bypasses fjall's own journal: our log has the records already.
    let mut table = keyspace.start_ingestion()?;
    for (key, value) in changes.ordered().from(&[]) {
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
fn told(path: &Path, cut: log::Cut) -> String {
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
    ROOM.min(total / SMALL_SHARE)
}

/// Accepts a full disk, where the store can go on without the file.
fn tolerable(e: std::io::Error) -> std::io::Result<()> {
    if no_space(&e) { Ok(()) } else { Err(e) }
}

fn read_error(path: &Path, e: ReadError) -> StoreError {
    match e {
        ReadError::Io(e) => io(path, "read", e),
        ReadError::Format(format) => {
            StoreError::Format { path: show(path), what: format!("a log of format {format}") }
        }
        ReadError::Damaged(what) => StoreError::Lost { path: show(path), at: 0, what },
    }
}

/// Takes the lock of fjall, while fjall is not open yet. `None` where there is nothing to lock.
fn lock_for_check(path: &Path) -> Result<Option<std::fs::File>, StoreError> {
    let lock = path.join("lock");
    let lock = match std::fs::OpenOptions::new().read(true).write(true).open(&lock) {
        Ok(lock) => lock,
        Err(e) if e.kind() == std::io::ErrorKind::NotFound => return Ok(None),
        Err(e) => return Err(io(&lock, "open", e)),
    };
    lock.try_lock().map_err(|e| match e {
        std::fs::TryLockError::WouldBlock => StoreError::Locked { path: show(path) },
        std::fs::TryLockError::Error(e) => io(path, "lock", e),
    })?;
    Ok(Some(lock))
}

fn open_database(path: &Path) -> Result<Open, StoreError> {
    let wrap = |e| store_error(path, "open", e);
    let db = Database::builder(path).cache_size(CACHE).worker_threads(2).open().map_err(wrap)?;
    let merges = Leveled::default()
        .with_l0_threshold(TABLES_MERGED)
        .with_table_target_size(MERGED)
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
    Ok(Open { db, keyspace })
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
        return Err(StoreError::Damaged { path: show(path), what });
    }
    for file in [&marker, &journal] {
        match std::fs::remove_file(file) {
            Err(e) if e.kind() != std::io::ErrorKind::NotFound => {
                return Err(io(file, "remove unfinished file", e));
            }
            _ => {}
        }
    }
    match std::fs::remove_dir_all(&keyspaces) {
        Err(e) if e.kind() != std::io::ErrorKind::NotFound => {
            Err(io(&keyspaces, "remove unfinished directory", e))
        }
        _ => Ok(()),
    }
}

fn no_space(e: &std::io::Error) -> bool {
    matches!(e.kind(), std::io::ErrorKind::StorageFull | std::io::ErrorKind::QuotaExceeded)
}

fn is_full(e: &fjall::Error) -> bool {
    match e {
        fjall::Error::Io(e) => no_space(e),
        fjall::Error::Storage(e) => {
            let mut cause: Option<&dyn std::error::Error> = Some(e);
            while let Some(e) = cause {
                if e.downcast_ref::<std::io::Error>().is_some_and(no_space) {
                    return true;
                }
                cause = e.source();
            }
            false
        }
        _ => false,
    }
}

fn store_error(path: &Path, op: &'static str, e: fjall::Error) -> StoreError {
    if is_full(&e) {
        return StoreError::Full { path: show(path) };
    }
    match e {
        fjall::Error::Io(source) => io(path, op, source),
        fjall::Error::Locked => StoreError::Locked { path: show(path) },
        fjall::Error::InvalidVersion(v) => {
            let what = match v {
                Some(v) => format!("fjall format {v}"),
                None => "no fjall format known to it".into(),
            };
            StoreError::Format { path: show(path), what }
        }
        fjall::Error::Poisoned => StoreError::Poisoned { path: show(path), op },
        e => StoreError::Damaged { path: show(path), what: format!("{op}: {e}") },
    }
}

pub(super) fn io(path: &Path, op: &'static str, source: std::io::Error) -> StoreError {
    StoreError::Io { path: show(path), op, source }
}

fn show(path: &Path) -> String {
    path.display().to_string()
}
