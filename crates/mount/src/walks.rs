//! Directories whose attributes a thread has asked for within the system call
//! that it is in.
//!
//! To make or remove a name the kernel checks twice: whether the directory may
//! be entered, and, often after the name was looked up, whether it may be
//! changed. For each it asks for the attributes. The second question is
//! answered like the first if the same thread asks it right after, or right
//! after a lookup in that directory which came right after the first question:
//! a call begins with a question of its own, so nothing else fits in between.

use crate::known::SAME_CALL;
use parking_lot::Mutex;
use std::time::Instant;
use tatami_wire::{Attr, Ino};

const SLOTS: usize = 64;

/// A thread and the directory that it works in.
pub(crate) struct Walk {
    pid: u32,
    dir: Attr,
    /// When the thread was answered last.
    answered: Instant,
    /// How many changes had been made through this mount.
    changes: u64,
}

/// The last directory of each thread; a thread may displace another.
pub(crate) struct Walks(Vec<Mutex<Option<Walk>>>);

impl Walks {
    pub(crate) fn new() -> Walks {
        Walks((0..SLOTS).map(|_| Mutex::new(None)).collect())
    }

    fn slot(&self, pid: u32) -> &Mutex<Option<Walk>> {
        &self.0[pid as usize % SLOTS]
    }

    /// The thread is told the attributes of a directory.
    pub(crate) fn start(&self, pid: u32, dir: &Attr, changes: u64) {
        if pid != 0 {
            let walk = Walk { pid, dir: dir.clone(), answered: Instant::now(), changes };
            *self.slot(pid).lock() = Some(walk);
        }
    }

    /// The thread looks up a name in `dir`: the walk, if this goes on with it.
    pub(crate) fn follow(&self, pid: u32, dir: Ino) -> Option<Walk> {
        let fits =
            |w: &mut Walk| w.pid == pid && w.dir.ino == dir && w.answered.elapsed() < SAME_CALL;
        self.slot(pid).lock().take_if(fits)
    }

    /// That lookup is answered.
    pub(crate) fn resume(&self, walk: Walk) {
        *self.slot(walk.pid).lock() = Some(Walk { answered: Instant::now(), ..walk });
    }

    /// The thread asks for the attributes of `ino`: the answer, if it has just
    /// got it. It gets it once.
    pub(crate) fn again(&self, pid: u32, ino: Ino, changes: u64) -> Option<Attr> {
        self.follow(pid, ino).filter(|w| w.changes == changes).map(|w| w.dir)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::known::tests::attr;
    use tatami_wire::Kind;

    #[test]
    fn the_second_question_of_a_call_is_answered_once() {
        let walks = Walks::new();
        let dir = attr(7, Kind::Dir);
        // On a slow machine the time may be over: then there is no answer.
        let mut answered = (false, false);
        for _ in 0..1000 {
            walks.start(9, &dir, 1);
            assert!(walks.again(10, Ino(7), 1).is_none());
            assert!(walks.again(9, Ino(8), 1).is_none());
            answered.0 |= walks.again(9, Ino(7), 1).is_some();
            assert!(walks.again(9, Ino(7), 1).is_none());
            walks.start(9, &dir, 1);
            assert!(walks.again(9, Ino(7), 2).is_none());
            walks.start(9, &dir, 1);
            if let Some(walk) = walks.follow(9, Ino(7)) {
                assert!(walks.again(9, Ino(7), 1).is_none());
                walks.resume(walk);
                answered.1 |= walks.again(9, Ino(7), 1).is_some();
            }
        }
        assert_eq!(answered, (true, true));
        walks.start(0, &dir, 1);
        assert!(walks.again(0, Ino(7), 1).is_none());
    }
}
