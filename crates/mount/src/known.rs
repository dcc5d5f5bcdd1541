//! What was learnt about inodes a moment ago, for the kernel's next question.
//!
//! Within one system call the kernel often asks twice: it looks a name up and
//! then wants the attributes of what it has just been told, or it fetches
//! attributes to check a permission and then the ACL, though the attributes
//! say whether there is one. The second question needs no daemon if it comes
//! right after the first, from the same thread.

use parking_lot::Mutex;
use std::sync::atomic::{AtomicU64, Ordering::SeqCst};
use std::time::{Duration, Instant};
use tatami_wire::{Attached, Attr, Ino};

/// How long attributes told with a name are good for the question that
/// follows. It bounds by how much `fstat` of an open file can be behind other
/// mounts, when the same thread has just looked the name up for another reason.
pub(crate) const SAME_CALL: Duration = Duration::from_micros(100);
/// How long it is good to know that there is no ACL, once attributes were fetched.
const ACL: Duration = Duration::from_millis(20);
const SHARDS: usize = 16;
const SLOTS: usize = 64;

struct Slot {
    attr: Attr,
    learnt: Instant,
    /// The thread that was told it with a name and has not asked for it since.
    told: Option<u32>,
    /// [`Known::changes`] at that time.
    changes: u64,
}

/// A small table: a newer inode displaces an older one in its slot.
pub(crate) struct Known {
    shards: Vec<Mutex<Vec<Option<Slot>>>>,
    /// Changes made through this mount.
    changes: AtomicU64,
}

impl Known {
    pub(crate) fn new() -> Known {
        let shard = || Mutex::new((0..SLOTS).map(|_| None).collect());
        Known { shards: (0..SHARDS).map(|_| shard()).collect(), changes: AtomicU64::new(0) }
    }

    fn with<R>(&self, ino: Ino, f: impl FnOnce(&mut Option<Slot>) -> R) -> R {
        let n = ino.0 as usize;
        f(&mut self.shards[n % SHARDS].lock()[n / SHARDS % SLOTS])
    }

    /// Notes attributes fetched just now.
    pub(crate) fn learn(&self, attr: &Attr) {
        self.put(attr, None);
    }

    /// Notes attributes that thread `pid` is told with a name.
    pub(crate) fn tell(&self, attr: &Attr, pid: u32) {
        self.put(attr, Some(pid).filter(|pid| *pid != 0));
    }

    fn put(&self, attr: &Attr, told: Option<u32>) {
        let changes = self.changes.load(SeqCst);
        let slot = Slot { attr: attr.clone(), learnt: Instant::now(), told, changes };
        self.with(attr.ino, |place| *place = Some(slot));
    }

    /// How many changes were made through this mount.
    pub(crate) fn changes(&self) -> u64 {
        self.changes.load(SeqCst)
    }

    /// Something was changed through this mount: whoever did it must see it at once.
    pub(crate) fn changed(&self) {
        self.changes.fetch_add(1, SeqCst);
    }

    /// Nothing is known any more, because we change it. Returns what was known.
    pub(crate) fn forget(&self, ino: Ino) -> Option<Attr> {
        self.with(ino, |place| place.take_if(|slot| slot.attr.ino == ino).map(|slot| slot.attr))
    }

    /// The attributes, if `pid` was told them with the name just before. It
    /// gets them once.
    pub(crate) fn just_told(&self, ino: Ino, pid: u32) -> Option<Attr> {
        self.with(ino, |place| {
            let slot = place.as_mut()?;
            let good = slot.attr.ino == ino
                && slot.told == Some(pid)
                && slot.changes == self.changes.load(SeqCst)
                && slot.learnt.elapsed() < SAME_CALL;
            if !good {
                return None;
            }
            slot.told = None;
            Some(slot.attr.clone())
        })
    }

    /// Whether it is known that the inode has no ACL.
    pub(crate) fn has_no_acl(&self, ino: Ino) -> bool {
        self.with(ino, |place| {
            place.as_ref().is_some_and(|slot| {
                slot.attr.ino == ino
                    && slot.attr.attached != Attached::Acl
                    && slot.learnt.elapsed() < ACL
            })
        })
    }
}

#[cfg(test)]
pub(crate) mod tests {
    use super::*;
    use tatami_wire::Kind;

    /// Attributes that say nothing.
    pub(crate) fn attr(ino: u64, kind: Kind) -> Attr {
        Attr::plain(Ino(ino), kind)
    }

    #[test]
    fn what_was_told_is_good_for_one_question_of_the_same_thread() {
        let known = Known::new();
        // On a slow machine the time may be over before the question: then
        // there is no answer, which is never wrong.
        let mut answered = false;
        for _ in 0..1000 {
            known.tell(&attr(5, Kind::File), 77);
            assert!(known.just_told(Ino(5), 78).is_none());
            answered |= known.just_told(Ino(5), 77).is_some();
            assert!(known.just_told(Ino(5), 77).is_none());
        }
        assert!(answered);
        known.tell(&attr(5, Kind::File), 77);
        known.changed();
        assert!(known.just_told(Ino(5), 77).is_none());
        known.tell(&attr(5, Kind::File), 77);
        known.forget(Ino(5));
        assert!(known.just_told(Ino(5), 77).is_none());
        known.learn(&attr(5, Kind::File));
        assert!(known.just_told(Ino(5), 77).is_none());
    }

    #[test]
    fn nothing_is_said_of_an_inode_that_shares_the_slot() {
        let known = Known::new();
        let other = 5 + (SHARDS * SLOTS) as u64;
        known.learn(&attr(5, Kind::Dir));
        assert!(!known.has_no_acl(Ino(other)));
        known.forget(Ino(other));
        known.tell(&attr(other, Kind::Dir), 1);
        assert!(!known.has_no_acl(Ino(5)));
    }
}
