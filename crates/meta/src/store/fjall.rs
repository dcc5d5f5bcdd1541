//! The store on disk: fjall, a log-structured merge tree with a journal.
//!
//! A commit is one batch in the journal, handed to the kernel before it
//! returns, so it survives the death of the process; a sync is an fsync of the
//! journal. fjall poisons itself when a write fails. A full disk is no
//! reason to stop for ever, so there are three lines of defence against it:
//!
//! 1. [`FjallStore::has_room`] looks at the free space, so that the namespace
//!    refuses to grow before the disk is really full.
//! 2. The journal's blocks are reserved on disk ahead of time, so that what
//!    frees space (removals) can still be written when users have filled the disk.
//! 3. If a commit fails with `ENOSPC` nevertheless, the database is closed and
//!    opened again, which cuts a torn batch off the journal. Batches are atomic, so looking
//!    whether the batch's changes are visible then decides whether it was written.

use super::{Change, Store, StoreError, Visit, journal, prefix_end};
use fjall::{Database, Keyspace, KeyspaceCreateOptions, PersistMode};
use std::ops::{Bound, ControlFlow};
use std::path::{Path, PathBuf};

const KEYSPACE: &str = "meta";
/// Block cache, in bytes.
const CACHE: u64 = 64 << 20;
/// Records kept in memory before they are written to a table, in bytes.
const MEMTABLE: u64 = 32 << 20;
/// Journals kept before tables are forced out, in bytes.
const JOURNALS: u64 = 192 << 20;
/// Bytes reserved for a journal: fjall starts a new one past 64 MB.
const JOURNAL: u64 = 68 << 20;
/// Free space that the store wants to see before it grows, in bytes: a
/// table, and a compaction's beginning. On small disks a sixteenth of them.
const ROOM: u64 = 64 << 20;
/// Free space with which it is not looked again at once, in bytes.
const PLENTY: u64 = 8 * ROOM;
/// Questions for room that are answered without a look, after one that found
/// plenty: a look is a system call, and users do not write [`PLENTY`] so fast.
/// If they do, the other two defences hold.
const LOOKS_SPARED: u32 = 256;
/// Bytes committed between two looks for a new journal.
const LOOK_EVERY: u64 = 2 << 20;

/// A store in a directory of its own.
pub struct FjallStore {
    path: PathBuf,
    open: Option<Open>,
    poisoned: Option<&'static str>,
    /// Bytes committed since the last look for a new journal.
    since_look: u64,
    /// The journal whose blocks are reserved.
    journal: Option<PathBuf>,
    /// Questions for room still to be answered without a look.
    looks_spared: u32,
    /// What was cut off the journal when the store was opened.
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
    /// [`StoreError::Format`] when a newer fjall wrote it, and those of the disk.
    pub fn open(path: &Path) -> Result<FjallStore, StoreError> {
        std::fs::create_dir_all(path).map_err(|e| io(path, "create directory", e))?;
        clear_unfinished(path)?;
        let cut = mend_journal(path)?;
        let open = Some(open_database(path)?);
        let mut store = FjallStore {
            path: path.to_owned(),
            open,
            poisoned: None,
            since_look: 0,
            journal: None,
            looks_spared: 0,
            cut,
        };
        store.reserve_journal();
        Ok(store)
    }

    /// What was cut off the end of the journal when the store was opened, in a sentence. After a
    /// power cut that is what was written and not synced; after the death of the process, at
    /// most one batch that nobody was told of.
    pub fn cut(&self) -> Option<&str> {
        self.cut.as_deref()
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

    fn write(&self, batch: &[Change]) -> Result<(), fjall::Error> {
        let Some(Open { db, keyspace }) = &self.open else {
            return Err(fjall::Error::Poisoned);
        };
        let mut items = db.batch().durability(Some(PersistMode::Buffer));
        for (key, value) in batch {
            match value {
                Some(value) => items.insert(keyspace, key.as_slice(), value.as_slice()),
                None => items.remove(keyspace, key.as_slice()),
            }
        }
        items.commit()
    }

    /// After a write that failed for lack of space: opens the database anew and
    /// looks whether the batch is in it.
    fn settle(&mut self, batch: &[Change]) -> Result<(), StoreError> {
        self.open = None;
        match mend_journal(&self.path).and_then(|_| open_database(&self.path)) {
            Ok(open) => self.open = Some(open),
            Err(e) => return self.poison("opening again after the disk was full", e),
        }
        for (key, value) in batch {
            if self.get(key)? != *value {
                return Err(StoreError::Full { path: show(&self.path) });
            }
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

    /// Reserves the blocks of the newest journal. Where that cannot be done the
    /// other two defences remain, so failure is not an error.
    fn reserve_journal(&mut self) {
        self.since_look = 0;
        let Some(newest) = newest_journal(&self.path) else { return };
        if self.journal.as_ref() == Some(&newest) {
            return;
        }
        let large_enough = self.free().is_some_and(|(free, _)| free > 2 * (JOURNAL + ROOM));
        if let (true, Ok(file)) =
            (large_enough, std::fs::OpenOptions::new().write(true).open(&newest))
        {
            let _ = rustix::fs::fallocate(&file, rustix::fs::FallocateFlags::KEEP_SIZE, 0, JOURNAL);
        }
        self.journal = Some(newest);
    }
}

impl Store for FjallStore {
    fn get(&self, key: &[u8]) -> Result<Option<Vec<u8>>, StoreError> {
        let value = self.opened()?.keyspace.get(key).map_err(|e| self.error("read", e))?;
        Ok(value.map(|v| v.to_vec()))
    }

    fn scan(&self, from: &[u8], prefix: &[u8], visit: &mut Visit<'_>) -> Result<(), StoreError> {
        let start = from.max(prefix);
        let end = prefix_end(prefix);
        if end.as_deref().is_some_and(|end| start >= end) {
            return Ok(());
        }
        let upper = end.as_deref().map_or(Bound::Unbounded, Bound::Excluded);
        let range: (Bound<&[u8]>, Bound<&[u8]>) = (Bound::Included(start), upper);
        for pair in self.opened()?.keyspace.range::<&[u8], _>(range) {
            let (key, value) = pair.into_inner().map_err(|e| self.error("read", e))?;
            if let ControlFlow::Break(()) = visit(&key, &value) {
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
            self.reserve_journal();
        }
        let bytes = |(k, v): &Change| (k.len() + v.as_ref().map_or(0, Vec::len)) as u64;
        self.since_look += batch.iter().map(bytes).sum::<u64>();
        let written = self.write(batch);
        if written.is_err() {
            self.looks_spared = 0;
        }
        match written {
            Ok(()) => Ok(()),
            Err(e) if is_full(&e) => self.settle(batch),
            // Nothing of this batch was written: a flush or compaction in the
            // background failed before. What it worked on is still in the journals.
            Err(fjall::Error::Poisoned) if self.has_room() => {
                self.settle(&[])?;
                match self.write(batch) {
                    Ok(()) => Ok(()),
                    Err(e) => {
                        let e = self.error("commit", e);
                        self.poison("a commit", e)
                    }
                }
            }
            Err(fjall::Error::Poisoned) => Err(StoreError::Full { path: show(&self.path) }),
            Err(e) => {
                let e = self.error("commit", e);
                self.poison("a commit", e)
            }
        }
    }

    fn sync(&mut self) -> Result<(), StoreError> {
        if self.poisoned.is_some() {
            return Err(self.poison_error());
        }
        match self.opened()?.db.persist(PersistMode::SyncAll) {
            Ok(()) => Ok(()),
            Err(e) => {
                let e = self.error("fsync", e);
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
    Ok(cut.map(|cut| {
        let kept = match cut.kept {
            Some(kept) => format!("they are kept in {}", kept.display()),
            None => "there was no room to keep them".into(),
        };
        format!(
            "{}: {} bytes behind the last whole batch, at byte {}, were cut off; {kept}",
            newest.display(),
            cut.bytes,
            cut.at
        )
    }))
}

fn open_database(path: &Path) -> Result<Open, StoreError> {
    let wrap = |e| store_error(path, "open", e);
    let db = Database::builder(path)
        .cache_size(CACHE)
        .max_journaling_size(JOURNALS)
        .worker_threads(2)
        .open()
        .map_err(wrap)?;
    let options = || KeyspaceCreateOptions::default().max_memtable_size(MEMTABLE);
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

fn is_full(e: &fjall::Error) -> bool {
    let no_space = |e: &std::io::Error| {
        matches!(e.kind(), std::io::ErrorKind::StorageFull | std::io::ErrorKind::QuotaExceeded)
    };
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
