//! What is open in this mount, by inode.
//!
//! All handles of an inode share one [`OpenInode`]: the kernel accepts one
//! backing file an inode at a time, and what the shard has been told of the
//! bytes concerns all writers together.

use crate::spares::{Lent, Unwritten};
use parking_lot::{Condvar, Mutex, RwLock, RwLockReadGuard};
use std::collections::HashMap;
use std::os::fd::OwnedFd;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering::SeqCst};
use std::time::{Duration, Instant};
use tatami_client::{DataFile, stat_file};
use tatami_fuse::BackingId;
use tatami_wire::object::ObjectState;
use tatami_wire::{Errno, Ino, Piece, Timestamp, hash};

const SHARDS: usize = 16;

/// An inode that is open.
pub(crate) struct OpenInode {
    pub(crate) ino: Ino,
    /// Held while daemons are told things whose order matters: opens for
    /// writing, the state of the bytes, cuts, the end of writing.
    pub(crate) order: Mutex<()>,
    pub(crate) state: Mutex<State>,
    /// Goes up whenever the shard has been told something of the bytes, before
    /// that is noted anywhere else.
    pub(crate) generation: AtomicU64,
    /// Changes of the bytes made through us.
    writes: AtomicU64,
    /// Of these, the shard has been told.
    writes_told: AtomicU64,
    /// Of a directory: a name in it was looked up since it was read from.
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
            writes_told: AtomicU64::new(0),
            looked_up: AtomicBool::new(false),
        }
    }

    /// Whether a name in the directory was looked up since the last call.
    pub(crate) fn was_looked_up(&self) -> bool {
        self.looked_up.swap(false, SeqCst)
    }

    /// Bytes were changed through us.
    pub(crate) fn wrote(&self) {
        self.writes.fetch_add(1, SeqCst);
    }

    /// How often bytes were changed through us.
    pub(crate) fn writes(&self) -> u64 {
        self.writes.load(SeqCst)
    }

    /// Whether bytes were changed through us of which the shard has not been
    /// told. It counts as told when it has answered.
    pub(crate) fn is_ahead(&self) -> bool {
        self.writes_told.load(SeqCst) < self.writes()
    }

    /// The shard has answered that it knows of the first `writes`.
    pub(crate) fn told_of(&self, writes: u64) {
        self.generation.fetch_add(1, SeqCst);
        self.writes_told.fetch_max(writes, SeqCst);
    }
}

/// What is known of an open inode.
#[derive(Default)]
pub(crate) struct State {
    /// Handles that may write.
    pub(crate) writers: u32,
    /// The shard has a note that we may change the bytes.
    pub(crate) noted: bool,
    /// The local file, when the kernel uses it.
    pub(crate) backing: Option<Backing>,
    /// A local file that was `backing` before the file was laid out anew. The kernel holds on to it
    /// as long as anybody has the inode open.
    pub(crate) stale: Option<Backing>,
    /// Of the backing file: what the shard knows already.
    pub(crate) told: Option<Told>,
    /// The last writer has left it as it was lent, without a byte.
    pub(crate) is_empty: bool,
    /// Access to the bytes of one of the writers.
    pub(crate) writer: Option<Arc<DataFile>>,
    /// Permission bits when it was last looked at.
    pub(crate) mode: u16,
    /// The kernel may have bytes of it in its own cache, as of a tiled file or of one on another
    /// node, or read it through us: as long as anybody has it open, it gets no backing file.
    pub(crate) through_us: bool,
    /// We made it and gave it no file capabilities: before a write, the kernel
    /// need not hear from the shard that there are none.
    pub(crate) no_capability: bool,
}

/// A local file that the kernel reads and writes itself.
#[derive(Clone)]
pub(crate) struct Backing {
    pub(crate) id: BackingId,
    /// Open as long as somebody here may write to it. The kernel has its own for those who read.
    pub(crate) file: Option<Arc<OwnedFd>>,
    /// Which object of the inode it is, or will be.
    pub(crate) base: Piece,
    /// It is no object yet.
    pub(crate) lent: Option<Lent>,
    pub(crate) unwritten: Option<Unwritten>,
}

impl Backing {
    /// Size, storage and times; `None` where nobody here can have changed it.
    ///
    /// # Errors
    /// Those of fstat(2).
    pub(crate) fn state(&self) -> Result<Option<ObjectState>, Errno> {
        let Some(file) = &self.file else { return Ok(None) };
        Ok(Some(Unwritten::amend(self.unwritten, stat_file(file)?)))
    }
}

/// By which it is recognised that a backing file has changed.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct Told {
    pub(crate) size: u64,
    pub(crate) mtime: Timestamp,
}

/// What kind of inode is opened. Directories and files are removed by
/// different calls, so that they are counted separately.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Sort {
    File,
    Dir,
}

struct Entry {
    inode: Arc<OpenInode>,
    users: u32,
    /// Users that only read it.
    readers: u32,
    /// Its last name is gone; the shard keeps it for us.
    kept: bool,
}

/// Some of what is open.
#[derive(Default)]
struct Shard {
    entries: Mutex<HashMap<Ino, Entry, hash::Build>>,
    /// The last handle of one of them has gone.
    ended: Condvar,
}

/// All that is open.
pub(crate) struct OpenInodes {
    shards: Vec<Shard>,
    files: Gate,
    dirs: Gate,
}

/// What must be done after the last handle of an inode.
pub(crate) struct Last {
    /// Tell the shard that it need not be kept.
    pub(crate) kept: bool,
    /// Take the registration back.
    pub(crate) backing: Option<Backing>,
    /// See [`State::is_empty`].
    pub(crate) is_empty: bool,
}

impl OpenInodes {
    pub(crate) fn new() -> OpenInodes {
        OpenInodes {
            shards: (0..SHARDS).map(|_| Shard::default()).collect(),
            files: Gate::default(),
            dirs: Gate::default(),
        }
    }

    fn shard(&self, ino: Ino) -> &Shard {
        &self.shards[ino.0 as usize % SHARDS]
    }

    fn gate(&self, sort: Sort) -> &Gate {
        match sort {
            Sort::File => &self.files,
            Sort::Dir => &self.dirs,
        }
    }

    /// Announces that something is about to be opened, before the daemon is
    /// asked: from now on removals keep the inode.
    pub(crate) fn announce(&self, sort: Sort) {
        self.gate(sort).enter();
    }

    /// Takes an announcement back.
    pub(crate) fn withdraw(&self, sort: Sort) {
        self.gate(sort).leave();
    }

    /// One more user of `ino`, after [`OpenInodes::announce`]; with `reads`, one that only reads a file.
    pub(crate) fn enter(&self, ino: Ino, reads: bool) -> Arc<OpenInode> {
        let mut shard = self.shard(ino).entries.lock();
        let entry = shard.entry(ino).or_insert_with(|| Entry {
            inode: Arc::new(OpenInode::new(ino)),
            users: 0,
            readers: 0,
            kept: false,
        });
        entry.users += 1;
        entry.readers += u32::from(reads);
        entry.inode.clone()
    }

    /// A name in `dir` is looked up.
    pub(crate) fn note_lookup(&self, dir: Ino) {
        if let Some(entry) = self.shard(dir).entries.lock().get(&dir) {
            entry.inode.looked_up.store(true, SeqCst);
        }
    }

    /// The inode, if it is open.
    pub(crate) fn find(&self, ino: Ino) -> Option<Arc<OpenInode>> {
        self.shard(ino).entries.lock().get(&ino).map(|e| e.inode.clone())
    }

    /// One user less. `Some` after the last one. With `reads`, it was one that only reads; if it was the last of
    /// these, that is called, before another one can enter.
    pub(crate) fn leave(
        &self,
        inode: &OpenInode,
        sort: Sort,
        reads: Option<&dyn Fn()>,
    ) -> Option<Last> {
        let last = {
            let Shard { entries, ended } = self.shard(inode.ino);
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
                let backing = state.backing.take().or_else(|| state.stale.take());
                Some(Last { kept, backing, is_empty: state.is_empty })
            } else {
                None
            }
        };
        self.gate(sort).leave();
        last
    }

    /// The files that are open for reading only.
    pub(crate) fn only_read(&self) -> Vec<Ino> {
        let mut found = Vec::new();
        for shard in &self.shards {
            let entries = shard.entries.lock();
            found.extend(entries.iter().filter(|(_, e)| e.readers > 0).map(|(ino, _)| *ino));
        }
        found
    }

    /// Calls `nobody_reads` if nobody has `ino` open for reading only, before somebody can.
    pub(crate) fn unless_read(&self, ino: Ino, nobody_reads: impl FnOnce()) {
        let entries = self.shard(ino).entries.lock();
        if entries.get(&ino).is_none_or(|entry| entry.readers == 0) {
            nobody_reads();
        }
    }

    /// Waits until nobody has `ino` open, no longer than `patience`. Whether that is so.
    pub(crate) fn wait_until_closed(&self, ino: Ino, patience: Duration) -> bool {
        let deadline = Instant::now() + patience;
        let Shard { entries, ended } = self.shard(ino);
        let mut shard = entries.lock();
        while shard.contains_key(&ino) {
            if ended.wait_until(&mut shard, deadline).timed_out() {
                return !shard.contains_key(&ino);
            }
        }
        true
    }

    /// Notes that the shard keeps `ino` for us. False if it is not open (any
    /// more), and the shard must be told so.
    pub(crate) fn keep(&self, ino: Ino) -> bool {
        match self.shard(ino).entries.lock().get_mut(&ino) {
            Some(entry) => {
                entry.kept = true;
                true
            }
            None => false,
        }
    }

    /// To be held during the removal of an entry that leads to any of `sorts`.
    pub(crate) fn removal(&self, sorts: &[Sort]) -> Removal<'_> {
        let guards: Option<Vec<_>> = sorts.iter().map(|s| self.gate(*s).none_open()).collect();
        Removal { none_open: guards }
    }
}

/// A removal under way.
pub(crate) struct Removal<'a> {
    none_open: Option<Vec<RwLockReadGuard<'a, ()>>>,
}

impl Removal<'_> {
    /// Whether the shard must keep the inode until we say otherwise: when
    /// something is open here, it may be this very inode.
    pub(crate) fn keep(&self) -> bool {
        self.none_open.is_none()
    }
}

/// Counts what is open. While nothing is, removals hold the lock shared, and
/// the first open waits for those under way; so no inode is opened between the
/// question whether any is and the removal.
#[derive(Default)]
struct Gate {
    open: AtomicU64,
    lock: RwLock<()>,
}

impl Gate {
    fn enter(&self) {
        let more = |n| if n == 0 { None } else { Some(n + 1) };
        if self.open.fetch_update(SeqCst, SeqCst, more).is_err() {
            let _no_removals = self.lock.write();
            self.open.fetch_add(1, SeqCst);
        }
    }

    fn leave(&self) {
        self.open.fetch_sub(1, SeqCst);
    }

    fn none_open(&self) -> Option<RwLockReadGuard<'_, ()>> {
        if self.open.load(SeqCst) > 0 {
            return None;
        }
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
        assert!(!open.removal(&[Sort::File, Sort::Dir]).keep());
        open.announce(Sort::File);
        let inode = open.enter(Ino(5), false);
        assert!(open.removal(&[Sort::File]).keep());
        assert!(open.removal(&[Sort::File, Sort::Dir]).keep());
        assert!(!open.removal(&[Sort::Dir]).keep());
        assert!(open.keep(Ino(5)));
        assert!(!open.keep(Ino(6)));
        open.announce(Sort::File);
        let again = open.enter(Ino(5), false);
        assert!(Arc::ptr_eq(&inode, &again));
        assert!(open.leave(&inode, Sort::File, None).is_none());
        let last = open.leave(&inode, Sort::File, None).expect("the last handle");
        assert!(last.kept);
        assert!(open.find(Ino(5)).is_none());
        assert!(!open.removal(&[Sort::File, Sort::Dir]).keep());
    }

    #[test]
    fn the_end_of_reading_is_told_once_and_not_while_others_read() {
        let open = OpenInodes::new();
        let told = AtomicU64::new(0);
        let tell = || _ = told.fetch_add(1, SeqCst);
        open.announce(Sort::File);
        let inode = open.enter(Ino(5), true);
        for reads in [true, false] {
            open.announce(Sort::File);
            open.enter(Ino(5), reads);
        }
        assert_eq!(open.only_read(), [Ino(5)]);
        open.leave(&inode, Sort::File, Some(&tell));
        open.unless_read(Ino(5), tell);
        assert_eq!(told.load(SeqCst), 0);
        open.leave(&inode, Sort::File, Some(&tell));
        assert_eq!((told.load(SeqCst), open.only_read().len()), (1, 0));
        open.unless_read(Ino(5), tell);
        assert!(open.leave(&inode, Sort::File, None).is_some(), "who writes was the last");
        assert_eq!(told.load(SeqCst), 2);
    }

    #[test]
    fn whoever_waits_hears_of_the_last_close() {
        let open = Arc::new(OpenInodes::new());
        assert!(open.wait_until_closed(Ino(5), Duration::ZERO));
        open.announce(Sort::File);
        let inode = open.enter(Ino(5), false);
        assert!(!open.wait_until_closed(Ino(5), Duration::from_millis(1)));
        assert!(open.wait_until_closed(Ino(6), Duration::ZERO));
        let waiter = std::thread::spawn({
            let open = open.clone();
            move || open.wait_until_closed(Ino(5), Duration::from_secs(60))
        });
        assert!(open.leave(&inode, Sort::File, None).is_some());
        assert!(waiter.join().expect("it does not panic"));
    }

    #[test]
    fn the_shard_knows_of_a_write_once_it_has_answered() {
        let inode = OpenInode::new(Ino(5));
        assert!(!inode.is_ahead());
        inode.wrote();
        let telling = inode.writes();
        assert!(inode.is_ahead(), "while it is being told");
        inode.wrote();
        inode.told_of(telling);
        assert!(inode.is_ahead(), "of the second write it was not told");
        inode.told_of(inode.writes());
        assert!(!inode.is_ahead());
        assert_eq!(inode.generation.load(SeqCst), 2);
    }

    #[test]
    fn the_first_open_waits_for_removals_under_way() {
        let open = Arc::new(OpenInodes::new());
        let removal = open.removal(&[Sort::File]);
        assert!(!removal.keep());
        let opener = std::thread::spawn({
            let open = open.clone();
            move || open.announce(Sort::File)
        });
        assert_eq!(open.files.open.load(SeqCst), 0);
        drop(removal);
        opener.join().expect("it does not panic");
        assert!(open.removal(&[Sort::File]).keep());
    }
}
