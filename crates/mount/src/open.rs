//! The inodes that are open in this mount.
//!
//! All handles of an inode share one [`OpenInode`]. The kernel accepts only one backing file for an
//! inode at a time, and the commits to the shard concern all writers together.

use crate::backing::Backing;
use parking_lot::{Condvar, Mutex, RwLock, RwLockReadGuard};
use std::collections::HashMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering::SeqCst};
use std::time::{Duration, Instant};
use tatami_client::DataFile;
use tatami_wire::{Ino, Timestamp, hash};

const SHARDS: usize = 16;

/// An inode that is open.
pub(crate) struct OpenInode {
    pub(crate) ino: Ino,
    /// Held during requests whose order matters: opens for writing, commits, truncations, closes of
    /// writers.
    pub(crate) order: Mutex<()>,
    pub(crate) state: Mutex<OpenState>,
    /// Increases with every commit to the shard, before the commit is recorded in any other place.
    pub(crate) generation: AtomicU64,
    /// Number of changes of the bytes through this process.
    writes: AtomicU64,
    /// The number of these changes that the shard has confirmed.
    writes_committed: AtomicU64,
    /// For a directory: a name was looked up since the last read of the directory.
    looked_up: AtomicBool,
}

impl OpenInode {
    fn new(ino: Ino) -> OpenInode {
        OpenInode {
            ino,
            order: Mutex::new(()),
            state: Mutex::default(),
            generation: AtomicU64::new(0),
            writes: AtomicU64::new(0),
            writes_committed: AtomicU64::new(0),
            looked_up: AtomicBool::new(false),
        }
    }

    /// Returns whether a name in the directory was looked up since the last call.
    pub(crate) fn was_looked_up(&self) -> bool {
        self.looked_up.swap(false, SeqCst)
    }

    /// Counts a change of the bytes through this process.
    pub(crate) fn count_write(&self) {
        self.writes.fetch_add(1, SeqCst);
    }

    /// Returns the number of changes of the bytes through this process.
    pub(crate) fn write_count(&self) -> u64 {
        self.writes.load(SeqCst)
    }

    /// Checks whether there are changes that the shard has not confirmed.
    pub(crate) fn is_ahead(&self) -> bool {
        self.writes_committed.load(SeqCst) < self.write_count()
    }

    /// Records that the shard has confirmed the first `writes` changes.
    pub(crate) fn record_commit(&self, writes: u64) {
        self.generation.fetch_add(1, SeqCst);
        self.writes_committed.fetch_max(writes, SeqCst);
    }
}

/// The mutable state of an open inode.
#[derive(Default)]
pub(crate) struct OpenState {
    /// Number of handles for writing.
    pub(crate) writers: u32,
    /// The shard has registered that this client may change the bytes.
    pub(crate) registered: bool,
    /// The local file that the kernel uses for passthrough.
    pub(crate) backing: Option<Backing>,
    /// The `backing` from before a re-layout of the file. The kernel uses it until the last close
    /// of the inode.
    pub(crate) stale_backing: Option<Backing>,
    /// The state of the backing file that was last committed.
    pub(crate) committed: Option<CommitMark>,
    /// The backing file had no byte at the last commit.
    pub(crate) is_empty: bool,
    /// The data connection of one of the writers.
    pub(crate) writer: Option<Arc<DataFile>>,
    /// Permission bits, as last read.
    pub(crate) mode: u16,
    /// The time of the last change must move, but no other attribute changes. The next request for
    /// the inode takes this along.
    pub(crate) touch: bool,
    /// The kernel may have cached pages of the inode or may read it through this process (tiled and
    /// remote files). Then the inode gets no backing file until its last close.
    pub(crate) no_backing: bool,
    /// This client created the file without file capabilities. So the kernel's query before a write
    /// needs no request to the shard.
    pub(crate) no_capability: bool,
}

/// The state by which a change of a backing file is detected.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct CommitMark {
    pub(crate) size: u64,
    pub(crate) mtime: Timestamp,
}

/// The kind of an open inode. Files and directories are counted separately, because different calls
/// remove them.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum OpenKind {
    File,
    Dir,
}

struct OpenEntry {
    inode: Arc<OpenInode>,
    users: u32,
    /// Number of users that only read.
    readers: u32,
    /// The last name is removed; the shard keeps the inode for this client.
    kept: bool,
}

/// A slice of the table.
#[derive(Default)]
struct OpenShard {
    entries: Mutex<HashMap<Ino, OpenEntry, hash::HashBuilder>>,
    /// The last handle of an inode was closed.
    ended: Condvar,
}

/// All open inodes of the mount.
pub(crate) struct OpenInodes {
    shards: Vec<OpenShard>,
    files: OpenGate,
    dirs: OpenGate,
}

/// The tasks after the last close of an inode.
pub(crate) struct LastClose {
    /// Release the inode at the shard.
    pub(crate) is_kept: bool,
    /// Unregister this backing file.
    pub(crate) backing: Option<Backing>,
    /// See [`OpenState::is_empty`].
    pub(crate) is_empty: bool,
}

impl OpenInodes {
    pub(crate) fn new() -> OpenInodes {
        OpenInodes {
            shards: (0..SHARDS).map(|_| OpenShard::default()).collect(),
            files: OpenGate::default(),
            dirs: OpenGate::default(),
        }
    }

    fn shard_of(&self, ino: Ino) -> &OpenShard {
        &self.shards[ino.0 as usize % SHARDS]
    }

    fn gate_of(&self, sort: OpenKind) -> &OpenGate {
        match sort {
            OpenKind::File => &self.files,
            OpenKind::Dir => &self.dirs,
        }
    }

    /// Announces an open before the request to the daemon. From now on removals keep the inode.
    pub(crate) fn announce_open(&self, sort: OpenKind) {
        self.gate_of(sort).count_open();
    }

    /// Undoes an announcement.
    pub(crate) fn withdraw_open(&self, sort: OpenKind) {
        self.gate_of(sort).count_close();
    }

    /// Adds a user of `ino`, after [`OpenInodes::announce_open`]. `reads`: the user only reads.
    pub(crate) fn add_user(&self, ino: Ino, reads: bool) -> Arc<OpenInode> {
        let mut shard = self.shard_of(ino).entries.lock();
        let entry = shard.entry(ino).or_insert_with(|| OpenEntry {
            inode: Arc::new(OpenInode::new(ino)),
            users: 0,
            readers: 0,
            kept: false,
        });
        entry.users += 1;
        entry.readers += u32::from(reads);
        entry.inode.clone()
    }

    /// Records the lookup of a name in `dir`.
    pub(crate) fn record_lookup(&self, dir: Ino) {
        if let Some(entry) = self.shard_of(dir).entries.lock().get(&dir) {
            entry.inode.looked_up.store(true, SeqCst);
        }
    }

    /// Returns the inode if it is open.
    pub(crate) fn get(&self, ino: Ino) -> Option<Arc<OpenInode>> {
        self.shard_of(ino).entries.lock().get(&ino).map(|e| e.inode.clone())
    }

    /// Removes a user. Returns `Some` after the last one. `reads` is set for a user that only
    /// reads. It is called after the last such user, under the lock, so before another one can
    /// enter.
    pub(crate) fn remove_user(
        &self,
        inode: &OpenInode,
        sort: OpenKind,
        reads: Option<&dyn Fn()>,
    ) -> Option<LastClose> {
        let last = {
            let OpenShard { entries, ended } = self.shard_of(inode.ino);
            let mut shard = entries.lock();
            let entry = shard.get_mut(&inode.ino).expect("every user has entered");
            entry.users -= 1;
            if let Some(nobody_reads) = reads {
                entry.readers -= 1;
                if entry.readers == 0 {
                    nobody_reads();
                }
            }
            if entry.users == 0 {
                let kept = entry.kept;
                shard.remove(&inode.ino);
                ended.notify_all();
                let mut state = inode.state.lock();
                let backing = state.backing.take().or_else(|| state.stale_backing.take());
                Some(LastClose { is_kept: kept, backing, is_empty: state.is_empty })
            } else {
                None
            }
        };
        self.gate_of(sort).count_close();
        last
    }

    /// Returns the files that are open only for reading by some handle.
    pub(crate) fn list_readers(&self) -> Vec<Ino> {
        let mut found = Vec::new();
        for shard in &self.shards {
            let entries = shard.entries.lock();
            found.extend(entries.iter().filter(|(_, e)| e.readers > 0).map(|(ino, _)| *ino));
        }
        found
    }

    /// Calls `nobody_reads` if no handle is only for reading. Holds the lock, so that none can be
    /// added meanwhile.
    pub(crate) fn run_unless_read(&self, ino: Ino, nobody_reads: impl FnOnce()) {
        let entries = self.shard_of(ino).entries.lock();
        if entries.get(&ino).is_none_or(|entry| entry.readers == 0) {
            nobody_reads();
        }
    }

    /// Waits at most `patience` until `ino` is closed. Returns whether it is.
    pub(crate) fn wait_until_closed(&self, ino: Ino, patience: Duration) -> bool {
        let deadline = Instant::now() + patience;
        let OpenShard { entries, ended } = self.shard_of(ino);
        let mut shard = entries.lock();
        while shard.contains_key(&ino) {
            if ended.wait_until(&mut shard, deadline).timed_out() {
                return !shard.contains_key(&ino);
            }
        }
        true
    }

    /// Records that the shard keeps `ino` for this client. Returns false if `ino` is not open any
    /// more. Then the caller must release it at the shard.
    pub(crate) fn mark_kept(&self, ino: Ino) -> bool {
        match self.shard_of(ino).entries.lock().get_mut(&ino) {
            Some(entry) => {
                entry.kept = true;
                true
            }
            None => false,
        }
    }

    /// Returns a guard for the removal of an entry that leads to any of `sorts`.
    pub(crate) fn begin_removal(&self, sorts: &[OpenKind]) -> RemovalGuard<'_> {
        let guards: Option<Vec<_>> =
            sorts.iter().map(|s| self.gate_of(*s).lock_if_none_open()).collect();
        RemovalGuard { none_open: guards }
    }
}

/// A guard for a removal in progress.
pub(crate) struct RemovalGuard<'a> {
    none_open: Option<Vec<RwLockReadGuard<'a, ()>>>,
}

impl RemovalGuard<'_> {
    /// Returns whether the shard must keep the inode until its release. This is so if any inode of
    /// these kinds is open here, because the removed inode may be among them.
    pub(crate) fn must_keep(&self) -> bool {
        self.none_open.is_none()
    }
}

/// Counts open inodes of a kind. While the count is 0, removals hold the lock shared, and the first
/// open waits for them by taking it exclusively. So no inode is opened between the check of the
/// count and the end of the removal.
#[derive(Default)]
struct OpenGate {
    open: AtomicU64,
    lock: RwLock<()>,
}

impl OpenGate {
    fn count_open(&self) {
        let more = |n| if n == 0 { None } else { Some(n + 1) };
        if self.open.fetch_update(SeqCst, SeqCst, more).is_err() {
            // The first open waits for removals that have found none. Later opens need no lock,
            // because removals see their count.
            let _no_removals = self.lock.write();
            self.open.fetch_add(1, SeqCst);
        }
    }

    fn count_close(&self) {
        self.open.fetch_sub(1, SeqCst);
    }

    fn lock_if_none_open(&self) -> Option<RwLockReadGuard<'_, ()>> {
        if self.open.load(SeqCst) > 0 {
            return None;
        }
        // With the shared lock, no first open can complete. One may have come between the check
        // above and the lock, so check again.
        let guard = self.lock.read();
        (self.open.load(SeqCst) == 0).then_some(guard)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_inode_is_kept_exactly_while_something_is_open() {
        let open = OpenInodes::new();
        assert!(!open.begin_removal(&[OpenKind::File, OpenKind::Dir]).must_keep());
        open.announce_open(OpenKind::File);
        let inode = open.add_user(Ino(5), false);
        assert!(open.begin_removal(&[OpenKind::File]).must_keep());
        assert!(open.begin_removal(&[OpenKind::File, OpenKind::Dir]).must_keep());
        assert!(!open.begin_removal(&[OpenKind::Dir]).must_keep());
        assert!(open.mark_kept(Ino(5)));
        assert!(!open.mark_kept(Ino(6)));
        open.announce_open(OpenKind::File);
        let again = open.add_user(Ino(5), false);
        assert!(Arc::ptr_eq(&inode, &again));
        assert!(open.remove_user(&inode, OpenKind::File, None).is_none());
        let last = open.remove_user(&inode, OpenKind::File, None).expect("the last handle");
        assert!(last.is_kept);
        assert!(open.get(Ino(5)).is_none());
        assert!(!open.begin_removal(&[OpenKind::File, OpenKind::Dir]).must_keep());
    }

    #[test]
    fn the_end_of_reading_is_told_once_and_not_while_others_read() {
        let open = OpenInodes::new();
        let reported = AtomicU64::new(0);
        let tell = || _ = reported.fetch_add(1, SeqCst);
        open.announce_open(OpenKind::File);
        let inode = open.add_user(Ino(5), true);
        for reads in [true, false] {
            open.announce_open(OpenKind::File);
            open.add_user(Ino(5), reads);
        }
        assert_eq!(open.list_readers(), [Ino(5)]);
        open.remove_user(&inode, OpenKind::File, Some(&tell));
        open.run_unless_read(Ino(5), tell);
        assert_eq!(reported.load(SeqCst), 0);
        open.remove_user(&inode, OpenKind::File, Some(&tell));
        assert_eq!((reported.load(SeqCst), open.list_readers().len()), (1, 0));
        open.run_unless_read(Ino(5), tell);
        assert!(
            open.remove_user(&inode, OpenKind::File, None).is_some(),
            "who writes was the last"
        );
        assert_eq!(reported.load(SeqCst), 2);
    }

    #[test]
    fn whoever_waits_hears_of_the_last_close() {
        let open = Arc::new(OpenInodes::new());
        assert!(open.wait_until_closed(Ino(5), Duration::ZERO));
        open.announce_open(OpenKind::File);
        let inode = open.add_user(Ino(5), false);
        assert!(!open.wait_until_closed(Ino(5), Duration::from_millis(1)));
        assert!(open.wait_until_closed(Ino(6), Duration::ZERO));
        let waiter = std::thread::spawn({
            let open = open.clone();
            move || open.wait_until_closed(Ino(5), Duration::from_secs(60))
        });
        assert!(open.remove_user(&inode, OpenKind::File, None).is_some());
        assert!(waiter.join().expect("it does not panic"));
    }

    #[test]
    fn the_shard_knows_of_a_write_once_it_has_answered() {
        let inode = OpenInode::new(Ino(5));
        assert!(!inode.is_ahead());
        inode.count_write();
        let telling = inode.write_count();
        assert!(inode.is_ahead(), "while it is being told");
        inode.count_write();
        inode.record_commit(telling);
        assert!(inode.is_ahead(), "of the second write it was not told");
        inode.record_commit(inode.write_count());
        assert!(!inode.is_ahead());
        assert_eq!(inode.generation.load(SeqCst), 2);
    }

    #[test]
    fn the_first_open_waits_for_removals_under_way() {
        let open = Arc::new(OpenInodes::new());
        let removal = open.begin_removal(&[OpenKind::File]);
        assert!(!removal.must_keep());
        let opener = std::thread::spawn({
            let open = open.clone();
            move || open.announce_open(OpenKind::File)
        });
        assert_eq!(open.files.open.load(SeqCst), 0);
        drop(removal);
        opener.join().expect("it does not panic");
        assert!(open.begin_removal(&[OpenKind::File]).must_keep());
    }
}
