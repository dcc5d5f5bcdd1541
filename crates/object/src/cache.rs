//! A bounded set of open objects, shared by all threads.
//!
//! When it is full, the hand of a clock searches for an object that was not used since the hand
//! last passed (second chance, Corbató 1968): nearly as good as LRU, and a hit costs one hash
//! look-up and one flag.

use crate::name::ObjectKey;
use crate::object::Object;
use parking_lot::Mutex;
use std::collections::{HashMap, VecDeque};
use std::sync::Arc;
use tatami_wire::Ino;

/// Most removed inodes that are remembered; the oldest are forgotten first.
const REMOVED_MAX: usize = 64 * 1024;

struct CacheSlot {
    object: Arc<Object>,
    used: bool,
}

#[derive(Default)]
struct ObjectCacheState {
    index: HashMap<ObjectKey, usize>,
    slots: Vec<CacheSlot>,
    hand: usize,
    removed: HashMap<Ino, ()>,
    removed_order: VecDeque<Ino>,
    /// Goes up with every removal.
    removals: u64,
}

/// See the module.
pub(crate) struct ObjectCache {
    capacity: usize,
    inner: Mutex<ObjectCacheState>,
}

/// The result of a look-up.
pub(crate) enum CacheLookup {
    /// The object is open.
    Open(Arc<Object>),
    /// It is not open. The caller must pass the number to [`ObjectCache::insert`].
    Absent(u64),
    /// Its inode was removed. Inode numbers are not used twice, so this request came too late.
    Removed,
}

impl ObjectCacheState {
    fn remove_matching(&mut self, gone: impl Fn(ObjectKey) -> bool) {
        let mut at = 0;
        while at < self.slots.len() {
            if !gone(self.slots[at].object.key) {
                at += 1;
                continue;
            }
            self.index.remove(&self.slots[at].object.key);
            self.slots.swap_remove(at);
            if let Some(moved) = self.slots.get(at) {
                self.index.insert(moved.object.key, at);
            }
        }
        self.hand = if self.hand < self.slots.len() { self.hand } else { 0 };
        assert_eq!(self.index.len(), self.slots.len(), "an open object has no slot, or two");
    }
}

impl ObjectCache {
    pub(crate) fn new(capacity: usize) -> ObjectCache {
        ObjectCache { capacity: capacity.max(1), inner: Mutex::default() }
    }

    pub(crate) fn get(&self, key: ObjectKey) -> CacheLookup {
        let inner = &mut *self.inner.lock();
        if let Some(&at) = inner.index.get(&key) {
            inner.slots[at].used = true;
            return CacheLookup::Open(inner.slots[at].object.clone());
        }
        match inner.removed.contains_key(&key.0) {
            true => CacheLookup::Removed,
            false => CacheLookup::Absent(inner.removals),
        }
    }

    /// Keeps `object`, which was opened after [`ObjectCache::get`] returned `Absent`. Returns the
    /// object to use: another thread may have been faster. An object that was opened during a
    /// removal is not kept, because it may be removed.
    pub(crate) fn insert(&self, object: Arc<Object>, removals: u64) -> Arc<Object> {
        let inner = &mut *self.inner.lock();
        if let Some(&at) = inner.index.get(&object.key) {
            return inner.slots[at].object.clone();
        }
        if inner.removals != removals {
            return object;
        }
        let slot = CacheSlot { object: object.clone(), used: true };
        if inner.slots.len() < self.capacity {
            inner.index.insert(object.key, inner.slots.len());
            inner.slots.push(slot);
            return object;
        }
        // Ends after two rounds at the latest: the first clears every flag.
        loop {
            let at = inner.hand;
            inner.hand = (at + 1) % inner.slots.len();
            if std::mem::take(&mut inner.slots[at].used) {
                continue;
            }
            inner.index.remove(&inner.slots[at].object.key);
            inner.index.insert(object.key, at);
            inner.slots[at] = slot;
            assert_eq!(inner.index.len(), inner.slots.len(), "an open object has no slot, or two");
            return object;
        }
    }

    /// Forgets all objects of an inode and remembers its removal. Must be called before the backing
    /// files are removed.
    pub(crate) fn remove_inode(&self, ino: Ino) {
        let inner = &mut *self.inner.lock();
        inner.removals += 1;
        if inner.removed.insert(ino, ()).is_none() {
            inner.removed_order.push_back(ino);
            if inner.removed_order.len() > REMOVED_MAX
                && let Some(oldest) = inner.removed_order.pop_front()
            {
                inner.removed.remove(&oldest);
            }
        }
        inner.remove_matching(|key| key.0 == ino);
    }

    /// Forgets one object of an inode that lives on. Must be called before the backing file is
    /// removed.
    pub(crate) fn forget_object(&self, key: ObjectKey) {
        let inner = &mut *self.inner.lock();
        inner.removals += 1;
        if inner.index.contains_key(&key) {
            inner.remove_matching(|other| other == key);
        }
    }

    #[cfg(test)]
    pub(crate) fn len(&self) -> usize {
        self.inner.lock().slots.len()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use tatami_wire::Piece;

    fn object(ino: u64) -> Arc<Object> {
        let fd = rustix::fs::open("/dev/null", rustix::fs::OFlags::RDWR, rustix::fs::Mode::empty())
            .expect("/dev/null opens");
        Arc::new(Object::new((Ino(ino), Piece(0)), fd))
    }

    fn has(cache: &ObjectCache, ino: u64) -> bool {
        matches!(cache.get((Ino(ino), Piece(0))), CacheLookup::Open(_))
    }

    #[test]
    fn a_full_cache_drops_what_was_not_used() {
        let cache = ObjectCache::new(3);
        for ino in 1..=3 {
            cache.insert(object(ino), 0);
        }
        cache.insert(object(4), 0); // clears all flags, drops 1
        assert!(!has(&cache, 1));
        assert!(has(&cache, 2)); // used: has a second chance
        cache.insert(object(5), 0);
        assert!(has(&cache, 2) && has(&cache, 4) && has(&cache, 5) && !has(&cache, 3));
        assert_eq!(cache.len(), 3);
    }

    #[test]
    fn removal_forgets_and_late_opens_are_not_kept() {
        let cache = ObjectCache::new(8);
        for ino in 1..=8 {
            cache.insert(object(ino), 0);
        }
        let CacheLookup::Absent(before) = cache.get((Ino(9), Piece(0))) else {
            panic!("9 is absent")
        };
        cache.remove_inode(Ino(1));
        cache.remove_inode(Ino(8));
        assert!(matches!(cache.get((Ino(1), Piece(0))), CacheLookup::Removed));
        assert!((2..8).all(|ino| has(&cache, ino)));
        cache.insert(object(9), before);
        assert!(!has(&cache, 9));
    }
}
