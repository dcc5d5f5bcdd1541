//! The ordered key-value store under the namespace.
//!
//! The trait is small on purpose: a map in memory serves the simulator and the tests, and one store
//! can be replaced by another when a measurement justifies that. Keys and values are bytes; keys
//! are ordered bytewise.

use std::ops::ControlFlow;

mod disk_error;
pub mod faulty;
pub mod fjall;
mod log;
mod manifest;
mod mapped;
mod mark;
pub mod memory;
mod memtable;
mod reserve;

pub use self::faulty::FaultyStore;
pub use self::fjall::{FjallStore, StoreOptions};
pub use self::memory::MemoryStore;

/// One change: a key, and its new value, or `None` to delete it.
pub type Change = (Vec<u8>, Option<Vec<u8>>);

/// A background task of a store. Any thread may run it; the store goes on meanwhile.
pub type BackgroundTask = Box<dyn FnOnce() + Send>;

/// The slow part of a sync. Any thread may run it; the store goes on meanwhile. Its result goes to
/// [`Store::end_sync`].
pub type SyncWork = Box<dyn FnOnce() -> std::io::Result<()> + Send>;

/// A function that visits a pair during a scan, and returns whether to go on.
pub type PairVisitor<'a> = dyn FnMut(&[u8], &[u8]) -> ControlFlow<()> + 'a;

/// An ordered map from bytes to bytes with atomic batches.
pub trait Store {
    /// Returns the value at `key`, as of the last commit.
    ///
    /// # Errors
    /// Those of the disk.
    fn get(&self, key: &[u8]) -> Result<Option<Vec<u8>>, StoreError>;

    /// Returns the result of [`Store::get`] if it is known without a disk access; else `None`.
    fn cached_value(&self, _key: &[u8]) -> Option<Option<&[u8]>> {
        None
    }

    /// Returns the result of [`Store::get`] for a key that is not [`Store::cached_value`].
    ///
    /// # Errors
    /// Those of the disk.
    fn fetch(&self, key: &[u8]) -> Result<Option<Vec<u8>>, StoreError> {
        self.get(key)
    }

    /// Shows `visit` the pairs with key ≥ `from` that start with `prefix`, in key order, until it
    /// breaks.
    ///
    /// # Errors
    /// Those of the disk.
    fn scan(
        &self,
        from: &[u8],
        prefix: &[u8],
        visit: &mut PairVisitor<'_>,
    ) -> Result<(), StoreError>;

    /// Makes all changes or none. When it returns, they survive the death of the process;
    /// [`Store::sync`] defines which survive a power cut. The keys of a batch are distinct.
    ///
    /// # Errors
    /// After [`StoreError::Full`] nothing has been written, and the store goes on working. After
    /// any other error it is unknown which changes were written: the store refuses all further
    /// commits with [`StoreError::Poisoned`] until it is opened again.
    fn commit(&mut self, batch: &[Change]) -> Result<(), StoreError>;

    /// Makes all commits survive a power cut. When a power cut comes first, a prefix of the commits
    /// survives, none in part.
    ///
    /// # Errors
    /// Any error poisons the store: after a failed fsync the content of the disk is unknown.
    /// (Rebello et al., USENIX ATC 2020.)
    fn sync(&mut self) -> Result<(), StoreError>;

    /// Begins a sync of all commits so far; another thread does the slow part. `None`: it is done
    /// already.
    ///
    /// # Errors
    /// As [`Store::sync`].
    fn begin_sync(&mut self) -> Result<Option<SyncWork>, StoreError> {
        self.sync().map(|()| None)
    }

    /// Takes the result of the slow part of a sync.
    ///
    /// # Errors
    /// Its failure, which poisons the store as that of [`Store::sync`] does.
    fn end_sync(&mut self, result: std::io::Result<()>) -> Result<(), StoreError> {
        result.map_err(|source| StoreError::Io { path: String::new(), op: "fsync", source })
    }

    /// Returns whether the disk has room for more records with some to spare. When it has not, the
    /// namespace refuses operations that add records, and still accepts removals.
    fn has_room(&mut self) -> bool {
        true
    }

    /// Retries after a full disk the work that had failed for want of room. Returns whether there
    /// is room again.
    fn retry_after_full(&mut self) -> bool {
        self.has_room()
    }

    /// Takes a waiting background task, if there is one. Callers ask after commits. A task that is
    /// never taken is run by the store during a later commit.
    fn take_background_task(&mut self) -> Option<BackgroundTask> {
        None
    }

    /// Makes all commits survive a power cut, and records that nothing follows: records missing at
    /// the next open were lost. It refuses all commits from then on.
    ///
    /// # Errors
    /// As [`Store::sync`].
    fn close(&mut self) -> Result<(), StoreError> {
        self.sync()
    }

    /// Returns 0; or, where acknowledged changes were lost and the operator accepted that, a bound
    /// above all that they may have counted: allocated inode numbers, and the like.
    fn lost_bound(&self) -> u64 {
        0
    }
}

/// The reason why the store failed.
#[derive(Debug, thiserror::Error)]
#[allow(missing_docs)] // the texts state it
pub enum StoreError {
    #[error("{path}: {op}: {source}")]
    Io { path: String, op: &'static str, source: std::io::Error },
    #[error("{path}: the disk is full: remove files or add space, then try again")]
    Full { path: String },
    #[error(
        "{path}: {op} failed before, so it is not known what the disk holds: \
         stop the daemon, check the disk, and start it again"
    )]
    Poisoned { path: String, op: &'static str },
    #[error("{path}: another process has the store open: stop the other daemon first")]
    Locked { path: String },
    #[error(
        "{path}: this is not a store that this version of tatami can read ({what}): \
         use the version that wrote it"
    )]
    Format { path: String, what: String },
    #[error(
        "{path}: the store is damaged ({what}): put an intact copy of its directory in its place; \
         tatami fsck tells what the rest of the volume lacks"
    )]
    Damaged { path: String, what: String },
    #[error(
        "{path}: damaged at byte {at} ({what}): acknowledged changes are lost. Put an intact copy in its place, or \
         go on with what can be read: tatami up --accept-loss, then tatami fsck --repair"
    )]
    Lost { path: String, at: u64, what: &'static str },
}

impl StoreError {
    /// Returns the error number for the caller of an operation.
    pub fn errno(&self) -> tatami_wire::Errno {
        match self {
            StoreError::Full { .. } => tatami_wire::Errno::ENOSPC,
            _ => tatami_wire::Errno::EIO,
        }
    }
}

/// Returns the smallest key above all keys that start with `prefix`, or `None` when there is none
/// (the prefix is empty or all ones).
pub(crate) fn prefix_end(prefix: &[u8]) -> Option<Vec<u8>> {
    let last = prefix.iter().rposition(|b| *b != 0xff)?;
    let mut end = prefix[..=last].to_vec();
    end[last] += 1;
    Some(end)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_end_of_a_prefix_is_the_next_key_outside_of_it() {
        assert_eq!(prefix_end(b"ab"), Some(b"ac".to_vec()));
        assert_eq!(prefix_end(&[7, 0xff]), Some(vec![8]));
        assert_eq!(prefix_end(&[0xff, 0xff]), None);
        assert_eq!(prefix_end(&[]), None);
    }

    #[test]
    fn a_full_disk_is_told_apart() {
        let full = StoreError::Full { path: "x".into() };
        assert_eq!(full.errno(), tatami_wire::Errno::ENOSPC);
        let poisoned = StoreError::Poisoned { path: "x".into(), op: "sync" };
        assert_eq!(poisoned.errno(), tatami_wire::Errno::EIO);
    }
}
