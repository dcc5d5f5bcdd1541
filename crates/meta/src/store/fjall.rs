//! The store on disk: a log of our own before the tables of fjall, a log-structured merge tree.
//!
//! A commit is one batch in the log ([`log`]), handed to the kernel before it returns, so it
//! survives the death of the process; a sync is an fsync of the log. What the log holds is
//! kept in memory too ([`recent`]), over the tables. When a log is long enough, a new one begins, and
//! the old one's records are written to a table in one go, in order: a [`Chore`] that any thread may do.
//! So a record that changes often, or goes soon after it came, is written to the log alone.
//!
//! ```text
//! commit ─▶ log ─▶ recent ──(log full)──▶ sealed ──(chore)──▶ table of fjall, then the old log goes
//! get, scan ◀── recent over sealed over tables
//! ```
//!
//! A full disk is no reason to stop for ever, so there are three lines of defence against it:
//!
//! 1. [`FjallStore::has_room`] looks at the free space, so that the namespace
//!    refuses to grow before the disk is really full.
//! 2. The log's blocks are reserved on disk ahead of time, so that what
//!    frees space (removals) can still be written when users have filled the disk.
//! 3. If a commit fails with `ENOSPC` nevertheless, the log ends where it ended before. If a table
//!    cannot be written, its log stays and it is tried again.

use super::log::{self, Log, ReadError};
use super::recent::{self, Both, Recent};
use super::{Change, Chore, Store, StoreError, Visit, journal, prefix_end};
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
/// Length at which a log is followed by the next, in bytes. What two of them hold is in memory.
const LOG: u64 = 64 << 20;
/// Bytes reserved for a log.
const RESERVED: u64 = 68 << 20;
/// So many tables, as logs make them, are merged with the first level at once. A question for a key looks at the
/// filter of each that there is, and the fewer are merged at once, the more often the first level is written anew.
const TABLES_MERGED: u8 = 8;
/// Length of the tables that merging makes, in bytes: about that of one made from a log. The first level may be
/// as long as [`TABLES_MERGED`] of them.
const MERGED: u64 = 32 << 20;
/// How much longer a level may be than the one before it. What is merged into a level is written with up to
/// so much of what was there.
const LEVEL_RATIO: f32 = 4.0;
/// Free space that the store wants to see before it grows, in bytes: a
/// table, and a compaction's beginning. On small disks a sixteenth of them.
const ROOM: u64 = 64 << 20;
/// Free space with which it is not looked again at once, in bytes.
const PLENTY: u64 = 8 * ROOM;
/// Questions for room that are answered without a look, after one that found
/// plenty: a look is a system call, and users do not write [`PLENTY`] so fast.
/// If they do, the other two defences hold.
const LOOKS_SPARED: u32 = 256;
/// Bytes committed between two looks at the log's length and the chore's end.
const LOOK_EVERY: u64 = 1 << 20;

/// A store in a directory of its own.
pub struct FjallStore {
    path: PathBuf,
    open: Option<Open>,
    poisoned: Option<&'static str>,
    /// `None` until the first commit, see [`FjallStore::commit_first`].
    log: Option<Log>,
    /// What the log holds.
    recent: Recent,
    /// What older logs hold and the tables may not.
    sealed: Arc<Recent>,
    /// The newest of those logs.
    sealed_log: Option<u64>,
    /// Writes the sealed records to a table; nobody has taken it yet.
    chore: Option<Chore>,
    /// How that chore ended.
    ended: Option<Receiver<Result<(), fjall::Error>>>,
    /// Bytes committed since the last look.
    since_look: u64,
    /// Questions for room still to be answered without a look.
    looks_spared: u32,
    /// What was cut off the log when the store was opened.
    cut: Option<String>,
}

struct Open {
    db: Database,
    keyspace: Keyspace,
}

impl FjallStore {
    /// Opens the store in directory `path`, making it if it is not there.
    ///
    /// # Errors
    /// [`StoreError::Locked`] when another process has it open,
    /// [`StoreError::Format`] when a newer version wrote it, and those of the disk.
    pub fn open(path: &Path) -> Result<FjallStore, StoreError> {
        std::fs::create_dir_all(path).map_err(|e| io(path, "create directory", e))?;
        clear_unfinished(path)?;
        let cut = mend_journal(path)?;
        // From here on we have the lock.
        let open = Some(open_database(path)?);
        let mut store = FjallStore {
            path: path.to_owned(),
            open,
            poisoned: None,
            log: None,
            recent: Recent::default(),
            sealed: Arc::default(),
            sealed_log: None,
            chore: None,
            ended: None,
            since_look: 0,
            looks_spared: 0,
            cut,
        };
        store.read_logs()?;
        store.prepare_chore();
        Ok(store)
    }

    /// What was cut off the end of the log when the store was opened, in a sentence. After a
    /// power cut that is what was written and not synced; after the death of the process, at
    /// most one batch that nobody was told of.
    pub fn cut(&self) -> Option<&str> {
        self.cut.as_deref()
    }

    /// Reads what the logs hold into memory.
    fn read_logs(&mut self) -> Result<(), StoreError> {
        let dir = self.path.clone();
        let numbers = log::list(&dir).map_err(|e| io(&dir, "list", e))?;
        let mut sealed = Recent::default();
        let mut former: Option<(u64, log::Found)> = None;
        for number in numbers {
            let path = log::path(&dir, number);
            let mut changes = Recent::default();
            let found = log::read(&dir, number, &mut |(key, value)| {
                changes.change(&key, value.as_deref());
            });
            let Some(found) = found.map_err(|e| read_error(&path, e))? else {
                // It was being made when the process died.
                std::fs::remove_file(&path).map_err(|e| io(&path, "remove unfinished file", e))?;
                continue;
            };
            if let Some((before, whole)) = former.take() {
                if number != before + 1 || whole.end != found.before {
                    let what = "a log does not go on where the one before it ended".to_owned();
                    return Err(StoreError::Damaged { path: show(&path), what });
                }
                let older = std::mem::take(&mut self.recent);
                older.each(|key, value| sealed.change(key, value));
                self.sealed_log = Some(before);
            }
            self.recent = changes;
            former = Some((number, found));
        }
        if let Some((number, found)) = former {
            let path = log::path(&dir, number);
            let resumed = Log::resume(&dir, number, &found, self.reserve());
            let (log, cut) = resumed.map_err(|e| io(&path, "open", e))?;
            self.log = Some(log);
            self.cut = cut.map(|cut| told(&path, cut)).or(self.cut.take());
        }
        self.sealed = Arc::new(sealed);
        Ok(())
    }

    fn opened(&self) -> Result<&Open, StoreError> {
        self.open.as_ref().ok_or_else(|| self.poison_error())
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

    /// The first commit goes to the tables: versions before the log look there, and the
    /// version in the shard's record then tells them to keep away.
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
        // Where a log cannot be made yet, the next commit is a first one too.
        match Log::create(&self.path, 1, 0, self.reserve()) {
            Ok(log) => self.log = Some(log),
            Err(e) => tolerable(e).or_else(|e| {
                let e = io(&self.path, "make a log", e);
                self.poison("making a log", e)
            })?,
        }
        Ok(())
    }

    /// Looks whether the chore has ended and whether the log is long enough.
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
            // The disk does not keep up, or nobody does chores here.
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
        let Some(old) = &self.log else { return Ok(()) };
        // What the new log holds must not survive a power cut that the end of the old one does not.
        if let Err(e) = old.sync() {
            let e = io(old.path(), "fsync", e);
            return self.poison("an fsync", e);
        }
        match Log::create(&self.path, old.number() + 1, old.end(), self.reserve()) {
            Ok(new) => {
                self.sealed_log = Some(old.number());
                let next = Recent::as_large_as(&self.recent);
                self.sealed = Arc::new(std::mem::replace(&mut self.recent, next));
                self.log = Some(new);
                self.prepare_chore();
                Ok(())
            }
            Err(e) => {
                // It would be taken for the newest when the store is opened.
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
        let (Some(Open { db, keyspace }), Some(_)) = (&self.open, self.sealed_log) else { return };
        let (db, keyspace, sealed) = (db.clone(), keyspace.clone(), self.sealed.clone());
        let (sender, ended) = channel();
        self.chore = Some(Box::new(move || {
            let result = write_table(&db, &keyspace, &sealed);
            // Whoever reads the result may close the database at once.
            drop((db, keyspace, sealed));
            let _ = sender.send(result);
        }));
        self.ended = Some(ended);
    }

    /// Takes note of a chore that has ended; `wait`s for that if it is under way.
    fn collect(&mut self, wait: bool) -> Result<(), StoreError> {
        let Some(ended) = &self.ended else { return Ok(()) };
        let result = match ended.try_recv() {
            Err(TryRecvError::Empty) if wait => ended.recv().ok(),
            Err(TryRecvError::Empty) => return Ok(()),
            result => result.ok(),
        };
        self.ended = None;
        match (result, self.sealed_log) {
            (Some(Ok(())), Some(newest)) => self.remove_logs(newest),
            // Full, or a worker of fjall met a full disk, or whoever had the chore did not do it.
            (None | Some(Err(fjall::Error::Poisoned)), _) => Ok(()),
            (Some(Err(e)), _) if is_full(&e) => Ok(()),
            (Some(Err(e)), _) => {
                let e = self.error("write a table", e);
                self.poison("writing a table", e)
            }
            (Some(Ok(())), None) => Ok(()),
        }
    }

    /// The tables have what the logs up to `newest` hold. Older ones go first: what a log holds
    /// must not come back without what followed it.
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
        // To give back so many small pieces of memory takes a while.
        let sealed = std::mem::take(&mut self.sealed);
        self.chore = Some(Box::new(move || drop(sealed)));
        Ok(())
    }

    /// Opens the database anew if one of fjall's workers has failed and there is room now.
    fn mend_tables(&mut self) -> Result<(), StoreError> {
        let fine = self.opened()?.db.persist(PersistMode::Buffer).is_ok();
        self.looks_spared = 0;
        if fine || !self.has_room() {
            return Ok(());
        }
        self.chore = None;
        self.open = None;
        match open_database(&self.path) {
            Ok(open) => self.open = Some(open),
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

    /// Bytes to reserve for a log. Where the disk is small, the other two defences remain.
    fn reserve(&self) -> Option<u64> {
        self.free().is_some_and(|(free, _)| free > 2 * (RESERVED + ROOM)).then_some(RESERVED)
    }
}

impl Drop for FjallStore {
    fn drop(&mut self) {
        // A chore under way holds the database open, and with it the lock.
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
        if self.since_look >= LOOK_EVERY {
            self.look()?;
        }
        if batch.is_empty() {
            return Ok(());
        }
        let Some(log) = &mut self.log else { return self.commit_first(batch) };
        let before = log.end();
        if let Err(e) = log.append(batch) {
            self.looks_spared = 0;
            if no_space(&e) {
                return Err(StoreError::Full { path: show(&self.path) });
            }
            let e = io(log.path(), "commit", e);
            return self.poison("a commit", e);
        }
        self.since_look += log.end() - before;
        batch.iter().for_each(|(key, value)| self.recent.change(key, value.as_deref()));
        Ok(())
    }

    fn sync(&mut self) -> Result<(), StoreError> {
        if self.poisoned.is_some() {
            return Err(self.poison_error());
        }
        // Older logs were synced before this one began, and so is what is in tables.
        let Some(log) = &self.log else { return Ok(()) };
        match log.sync() {
            Ok(()) => Ok(()),
            Err(e) => {
                let e = io(log.path(), "fsync", e);
                self.poison("an fsync", e)
            }
        }
    }

    fn has_room(&mut self) -> bool {
        if self.looks_spared > 0 {
            self.looks_spared -= 1;
            return true;
        }
        // A file system that does not tell is taken to have room.
        let Some((free, total)) = self.free() else { return true };
        if free >= PLENTY {
            self.looks_spared = LOOKS_SPARED;
        }
        free >= ROOM.min(total / 16)
    }

    fn take_chore(&mut self) -> Option<Chore> {
        self.chore.take()
    }
}

/// Writes changes to a table, all or none, and to the disk.
fn write_table(db: &Database, keyspace: &Keyspace, changes: &Recent) -> Result<(), fjall::Error> {
    let mut table = keyspace.start_ingestion()?;
    for (key, value) in changes.ordered().from(&[]) {
        match value {
            Some(value) => table.write(key, value)?,
            // Mostly it came after the last table was written, and nothing has to be hidden.
            None if keyspace.contains_key(key)? => table.write_tombstone(key)?,
            None => {}
        }
    }
    table.finish()?;
    // This tells whether one of fjall's workers has failed.
    db.persist(PersistMode::Buffer)
}

/// What was cut off, in a sentence.
fn told(path: &Path, cut: journal::Cut) -> String {
    let kept = match cut.kept {
        Some(kept) => format!("they are kept in {}", kept.display()),
        None => "there was no room to keep them".into(),
    };
    let (bytes, at) = (cut.bytes, cut.at);
    let path = path.display();
    format!("{path}: {bytes} bytes behind the last whole batch, at byte {at}, were cut off; {kept}")
}

/// A full disk is no failure where one can go on without.
fn tolerable(e: std::io::Error) -> std::io::Result<()> {
    if no_space(&e) { Ok(()) } else { Err(e) }
}

fn read_error(path: &Path, e: ReadError) -> StoreError {
    match e {
        ReadError::Io(e) => io(path, "read", e),
        ReadError::Newer(format) => {
            StoreError::Format { path: show(path), what: format!("a log of format {format}") }
        }
        ReadError::Damaged(what) => StoreError::Damaged { path: show(path), what: what.into() },
    }
}

/// See [`journal::mend`]. Under the lock that fjall takes too, lest it happen to
/// the journal of a daemon that runs.
fn mend_journal(path: &Path) -> Result<Option<String>, StoreError> {
    let (lock, Some(newest)) = (path.join("lock"), newest_journal(path)) else { return Ok(None) };
    let lock = match std::fs::OpenOptions::new().read(true).write(true).open(&lock) {
        Ok(lock) => lock,
        Err(e) if e.kind() == std::io::ErrorKind::NotFound => return Ok(None),
        Err(e) => return Err(io(&lock, "open", e)),
    };
    lock.try_lock().map_err(|e| match e {
        std::fs::TryLockError::WouldBlock => StoreError::Locked { path: show(path) },
        std::fs::TryLockError::Error(e) => io(path, "lock", e),
    })?;
    let cut = journal::mend(&newest).map_err(|e| io(&newest, "read", e))?;
    Ok(cut.map(|cut| told(&newest, cut)))
}

fn open_database(path: &Path) -> Result<Open, StoreError> {
    let wrap = |e| store_error(path, "open", e);
    let db = Database::builder(path).cache_size(CACHE).worker_threads(2).open().map_err(wrap)?;
    let merges = Leveled::default()
        .with_l0_threshold(TABLES_MERGED)
        .with_table_target_size(MERGED)
        .with_level_ratio_policy(vec![LEVEL_RATIO]);
    // A store that is there keeps the options that it was made with.
    let options = || {
        KeyspaceCreateOptions::default()
            .compaction_strategy(Arc::new(merges))
            // A filter is asked whenever something is made, so all stay in memory: some ten bits a record.
            .filter_block_pinning_policy(PinningPolicy::all(true))
            .filter_block_partitioning_policy(PartitioningPolicy::all(false))
            // The index of what was merged is in blocks of some kilobytes. One for a whole table has hundreds of them,
            // and is read again for each question once all of them are larger than the cache.
            .index_block_partitioning_policy(PartitioningPolicy::new([false, true]))
    };
    let keyspace = db.keyspace(KEYSPACE, options).map_err(wrap)?;
    Ok(Open { db, keyspace })
}

/// Removes what a process left that died while it made the store: fjall would
/// stumble over it. Its version marker is complete before the first keyspace is made.
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

fn newest_journal(path: &Path) -> Option<PathBuf> {
    let number = |p: &PathBuf| p.file_name()?.to_str()?.strip_suffix(".jnl")?.parse::<u64>().ok();
    std::fs::read_dir(path)
        .ok()?
        .filter_map(|entry| entry.ok().map(|e| e.path()))
        .filter_map(|p| number(&p).map(|n| (n, p)))
        .max()
        .map(|(_, p)| p)
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

fn io(path: &Path, op: &'static str, source: std::io::Error) -> StoreError {
    StoreError::Io { path: show(path), op, source }
}

fn show(path: &Path) -> String {
    path.display().to_string()
}
