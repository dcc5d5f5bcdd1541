//! A cache of the directory that a thread asked for within its current system call.
//!
//! To create or remove a name, the kernel checks whether the caller may enter the directory. Then,
//! often after a lookup of the name, the kernel checks whether the caller may change the directory.
//! For each check it gets the attributes. The second request gets the cached reply in two cases:
//! the same thread sends it right after the first one, or right after a lookup in that directory
//! which directly followed the first one. A new system call begins with a request of its own, so it
//! cannot fall in between.

use crate::attr_cache::SAME_CALL_LIFETIME;
use parking_lot::Mutex;
use std::time::Instant;
use tatami_wire::{Attr, Ino};

const SLOTS: usize = 64;

/// A thread and its current directory.
pub(crate) struct PathWalk {
    pid: u32,
    dir: Attr,
    /// Time of the last reply to the thread.
    answered: Instant,
    /// Number of changes through this mount at that time.
    changes: u64,
}

/// The last directory of each thread. Threads with the same slot displace each other.
pub(crate) struct WalkCache(Vec<Mutex<Option<PathWalk>>>);

impl WalkCache {
    pub(crate) fn new() -> WalkCache {
        WalkCache((0..SLOTS).map(|_| Mutex::new(None)).collect())
    }

    fn slot_of(&self, pid: u32) -> &Mutex<Option<PathWalk>> {
        &self.0[pid as usize % SLOTS]
    }

    /// Records that the thread gets the attributes of a directory.
    pub(crate) fn start_walk(&self, pid: u32, dir: &Attr, changes: u64) {
        if pid != 0 {
            let walk = PathWalk { pid, dir: dir.clone(), answered: Instant::now(), changes };
            *self.slot_of(pid).lock() = Some(walk);
        }
    }

    /// Returns the walk if a lookup in `dir` continues it, and removes it from the table.
    pub(crate) fn take_walk(&self, pid: u32, dir: Ino) -> Option<PathWalk> {
        let fits = |w: &mut PathWalk| {
            w.pid == pid && w.dir.ino == dir && w.answered.elapsed() < SAME_CALL_LIFETIME
        };
        self.slot_of(pid).lock().take_if(fits)
    }

    /// Puts the walk back after the reply to that lookup.
    pub(crate) fn resume_walk(&self, walk: PathWalk) {
        *self.slot_of(walk.pid).lock() = Some(PathWalk { answered: Instant::now(), ..walk });
    }

    /// Returns the attributes of `ino` if the thread has just got them. Returns them only once.
    pub(crate) fn take_attr(&self, pid: u32, ino: Ino, changes: u64) -> Option<Attr> {
        self.take_walk(pid, ino).filter(|w| w.changes == changes).map(|w| w.dir)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::attr_cache::tests::attr;
    use tatami_wire::InodeKind;

    #[test]
    fn the_second_question_of_a_call_is_answered_once() {
        let walks = WalkCache::new();
        let dir = attr(7, InodeKind::Dir);
        // On a slow machine, the time may be over. Then the result is `None`.
        let mut answered = (false, false);
        for _ in 0..1000 {
            walks.start_walk(9, &dir, 1);
            assert!(walks.take_attr(10, Ino(7), 1).is_none());
            assert!(walks.take_attr(9, Ino(8), 1).is_none());
            answered.0 |= walks.take_attr(9, Ino(7), 1).is_some();
            assert!(walks.take_attr(9, Ino(7), 1).is_none());
            walks.start_walk(9, &dir, 1);
            assert!(walks.take_attr(9, Ino(7), 2).is_none());
            walks.start_walk(9, &dir, 1);
            if let Some(walk) = walks.take_walk(9, Ino(7)) {
                assert!(walks.take_attr(9, Ino(7), 1).is_none());
                walks.resume_walk(walk);
                answered.1 |= walks.take_attr(9, Ino(7), 1).is_some();
            }
        }
        assert_eq!(answered, (true, true));
        walks.start_walk(0, &dir, 1);
        assert!(walks.take_attr(0, Ino(7), 1).is_none());
    }
}
