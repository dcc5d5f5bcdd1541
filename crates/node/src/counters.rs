//! What a node counts, for `status`.

use std::sync::Arc;
use std::sync::atomic::{AtomicU32, AtomicU64, Ordering};

/// Counts since the start. None of them guards anything, so order does not matter.
#[derive(Debug, Default)]
pub(crate) struct Counters {
    pub(crate) meta_requests: Count,
    /// Messages of other executors.
    pub(crate) peer_messages: Count,
    pub(crate) object_requests: Count,
    pub(crate) bytes_read: Count,
    pub(crate) bytes_written: Count,
}

/// One number.
#[derive(Debug, Default)]
pub(crate) struct Count(AtomicU64);

impl Count {
    pub(crate) fn add(&self, n: u64) {
        self.0.fetch_add(n, Ordering::Relaxed);
    }

    pub(crate) fn get(&self) -> u64 {
        self.0.load(Ordering::Relaxed)
    }
}

/// A bounded number of places.
#[derive(Debug)]
pub(crate) struct Places {
    taken: AtomicU32,
    most: u32,
}

/// One place, given back when dropped.
#[derive(Debug)]
pub(crate) struct Place(Arc<Places>);

impl Places {
    pub(crate) fn new(most: u32) -> Arc<Places> {
        Arc::new(Places { taken: AtomicU32::new(0), most })
    }

    /// A place, if one is free.
    pub(crate) fn take(self: &Arc<Self>) -> Option<Place> {
        let taken = self.taken.fetch_add(1, Ordering::AcqRel);
        // From here on the place is given back, whichever way this ends.
        let place = Place(self.clone());
        (taken < self.most).then_some(place)
    }

    pub(crate) fn taken(&self) -> u32 {
        self.taken.load(Ordering::Acquire)
    }
}

impl Drop for Place {
    fn drop(&mut self) {
        self.0.taken.fetch_sub(1, Ordering::AcqRel);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn places_are_bounded_and_given_back() {
        let places = Places::new(2);
        let a = places.take().expect("first");
        let _b = places.take().expect("second");
        assert!(places.take().is_none());
        assert_eq!(places.taken(), 2);
        drop(a);
        assert!(places.take().is_some());
    }
}
