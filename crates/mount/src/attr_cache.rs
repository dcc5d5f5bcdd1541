//! A short-lived attribute cache for the kernel's next request.
//!
//! Within one system call the kernel often sends two requests. It looks a name up and then gets the
//! attributes of the inode. Or it gets attributes to check a permission and then gets the ACL,
//! though the attributes show whether there is one. The second request needs no daemon if it
//! directly follows the first one, from the same thread.

use parking_lot::Mutex;
use std::sync::atomic::{AtomicU64, Ordering::SeqCst};
use std::time::{Duration, Instant};
use tatami_wire::{Attr, Ino, XattrClass};

/// Lifetime of attributes from a lookup for the next request of the thread. It bounds the staleness
/// of an `fstat` of an open file when the same thread has just looked the name up for another
/// reason.
pub(crate) const SAME_CALL_LIFETIME: Duration = Duration::from_micros(100);
/// Lifetime of the knowledge that an inode has no ACL.
const ACL_LIFETIME: Duration = Duration::from_millis(20);
const SHARDS: usize = 16;
const SLOTS: usize = 64;

struct AttrSlot {
    attr: Attr,
    cached_at: Instant,
    /// The thread that got the attributes by a lookup and has not asked for them since.
    looked_up_by: Option<u32>,
    /// The value of [`AttrCache::change_count`] at that time.
    changes: u64,
}

/// A small direct-mapped table: a newer inode displaces an older one in its slot.
pub(crate) struct AttrCache {
    shards: Vec<Mutex<Vec<Option<AttrSlot>>>>,
    /// Number of changes through this mount.
    changes: AtomicU64,
}

impl AttrCache {
    pub(crate) fn new() -> AttrCache {
        let shard = || Mutex::new((0..SLOTS).map(|_| None).collect());
        AttrCache { shards: (0..SHARDS).map(|_| shard()).collect(), changes: AtomicU64::new(0) }
    }

    fn with_slot<R>(&self, ino: Ino, f: impl FnOnce(&mut Option<AttrSlot>) -> R) -> R {
        let n = ino.0 as usize;
        f(&mut self.shards[n % SHARDS].lock()[n / SHARDS % SLOTS])
    }

    /// Caches attributes from a shard.
    pub(crate) fn cache_attr(&self, attr: &Attr) {
        self.store_attr(attr, None);
    }

    /// Caches attributes that thread `pid` gets by a lookup.
    pub(crate) fn cache_looked_up_attr(&self, attr: &Attr, pid: u32) {
        self.store_attr(attr, Some(pid).filter(|pid| *pid != 0));
    }

    fn store_attr(&self, attr: &Attr, reported: Option<u32>) {
        let changes = self.changes.load(SeqCst);
        let slot = AttrSlot {
            attr: attr.clone(),
            cached_at: Instant::now(),
            looked_up_by: reported,
            changes,
        };
        self.with_slot(attr.ino, |place| *place = Some(slot));
    }

    /// Returns the number of changes through this mount.
    pub(crate) fn change_count(&self) -> u64 {
        self.changes.load(SeqCst)
    }

    /// Counts a change through this mount, because its thread must see the change at once.
    pub(crate) fn count_change(&self) {
        self.changes.fetch_add(1, SeqCst);
    }

    /// Removes an inode before a change of it. Returns the cached attributes.
    pub(crate) fn forget_inode(&self, ino: Ino) -> Option<Attr> {
        self.with_slot(ino, |place| {
            place.take_if(|slot| slot.attr.ino == ino).map(|slot| slot.attr)
        })
    }

    /// Returns the attributes, if `pid` has just got them by a lookup. Returns them only once.
    pub(crate) fn take_looked_up_attr(&self, ino: Ino, pid: u32) -> Option<Attr> {
        self.with_slot(ino, |place| {
            let slot = place.as_mut()?;
            let good = slot.attr.ino == ino
                && slot.looked_up_by == Some(pid)
                && slot.changes == self.changes.load(SeqCst)
                && slot.cached_at.elapsed() < SAME_CALL_LIFETIME;
            if !good {
                return None;
            }
            slot.looked_up_by = None;
            Some(slot.attr.clone())
        })
    }

    /// Checks whether the inode is known to have no ACL.
    pub(crate) fn has_no_acl(&self, ino: Ino) -> bool {
        self.with_slot(ino, |place| {
            place.as_ref().is_some_and(|slot| {
                slot.attr.ino == ino
                    && slot.attr.xattr_class != XattrClass::Acl
                    && slot.cached_at.elapsed() < ACL_LIFETIME
            })
        })
    }
}

#[cfg(test)]
pub(crate) mod tests {
    use super::*;
    use tatami_wire::InodeKind;

    /// Returns default attributes.
    pub(crate) fn attr(ino: u64, kind: InodeKind) -> Attr {
        Attr::with_defaults(Ino(ino), kind)
    }

    #[test]
    fn what_was_told_is_good_for_one_question_of_the_same_thread() {
        let known = AttrCache::new();
        // On a slow machine, the time may be over before the request. Then the result is `None`,
        // which is always correct.
        let mut answered = false;
        for _ in 0..1000 {
            known.cache_looked_up_attr(&attr(5, InodeKind::File), 77);
            assert!(known.take_looked_up_attr(Ino(5), 78).is_none());
            answered |= known.take_looked_up_attr(Ino(5), 77).is_some();
            assert!(known.take_looked_up_attr(Ino(5), 77).is_none());
        }
        assert!(answered);
        known.cache_looked_up_attr(&attr(5, InodeKind::File), 77);
        known.count_change();
        assert!(known.take_looked_up_attr(Ino(5), 77).is_none());
        known.cache_looked_up_attr(&attr(5, InodeKind::File), 77);
        known.forget_inode(Ino(5));
        assert!(known.take_looked_up_attr(Ino(5), 77).is_none());
        known.cache_attr(&attr(5, InodeKind::File));
        assert!(known.take_looked_up_attr(Ino(5), 77).is_none());
    }

    #[test]
    fn nothing_is_said_of_an_inode_that_shares_the_slot() {
        let known = AttrCache::new();
        let other = 5 + (SHARDS * SLOTS) as u64;
        known.cache_attr(&attr(5, InodeKind::Dir));
        assert!(!known.has_no_acl(Ino(other)));
        known.forget_inode(Ino(other));
        known.cache_looked_up_attr(&attr(other, InodeKind::Dir), 1);
        assert!(!known.has_no_acl(Ino(5)));
    }
}
