//! The counters of a node, for `status`.

use parking_lot::Mutex;
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, AtomicU64, Ordering};
use std::time::{Duration, Instant};
use tatami_wire::admin::TurnedAway;

/// Counts since the start. No other memory depends on them, so `Relaxed` is enough.
#[derive(Debug, Default)]
pub(crate) struct Counters {
    pub(crate) meta_requests: Count,
    /// Messages of other executors.
    pub(crate) peer_messages: Count,
    pub(crate) object_requests: Count,
    pub(crate) bytes_read: Count,
    pub(crate) bytes_written: Count,
}

/// One counter.
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

/// A bounded number of slots.
#[derive(Debug)]
pub(crate) struct Places {
    taken: AtomicU32,
    most: u32,
}

/// One slot, returned when dropped.
#[derive(Debug)]
pub(crate) struct Place(Arc<Places>);

impl Places {
    pub(crate) fn new(most: u32) -> Arc<Places> {
        Arc::new(Places { taken: AtomicU32::new(0), most })
    }

    /// Takes a slot, if one is free.
    pub(crate) fn take(self: &Arc<Self>) -> Option<Place> {
        // Taken first and checked afterwards: of two threads that race for the last slot, one sees
        // the full count.
        let taken = self.taken.fetch_add(1, Ordering::AcqRel);
        // From here on the slot is returned by `drop`, also if the check below fails.
        let place = Place(self.clone());
        (taken < self.most).then_some(place)
    }
}

impl Drop for Place {
    fn drop(&mut self) {
        self.0.taken.fetch_sub(1, Ordering::AcqRel);
    }
}

/// The connections that were not admitted, by reason.
#[derive(Debug, Default)]
pub(crate) struct Doorway {
    pub(crate) silent: Often,
    pub(crate) crowded_out: Often,
    pub(crate) broken: Often,
    pub(crate) other_version: Often,
    pub(crate) wrong_key: Often,
    pub(crate) refused: Often,
    /// The system refused the connection: no descriptors, or no memory.
    pub(crate) not_accepted: Often,
}

impl Doorway {
    pub(crate) fn told(&self) -> TurnedAway {
        TurnedAway {
            silent: self.silent.count.get(),
            crowded_out: self.crowded_out.count.get(),
            broken: self.broken.count.get(),
            other_version: self.other_version.count.get(),
            wrong_key: self.wrong_key.count.get(),
            refused: self.refused.count.get(),
        }
    }
}

/// An event that strangers can cause at any rate. All are counted. The log gets the first ones, and
/// then one a second.
#[derive(Debug, Default)]
pub(crate) struct Often {
    count: Count,
    log: Mutex<Log>,
}

#[derive(Debug)]
struct Log {
    /// Lines that may be written at once.
    lines: u32,
    /// When the last line was added.
    filled: Instant,
}

impl Default for Log {
    fn default() -> Log {
        Log { lines: LINES_MAX, filled: Instant::now() }
    }
}

/// Most lines that may be written at once.
const LINES_MAX: u32 = 20;
/// The time after which one more line is allowed.
const LINE_EVERY: Duration = Duration::from_secs(1);

impl Often {
    /// Counts the event, and calls `log` with the number so far if a line is allowed now.
    pub(crate) fn note(&self, log: impl FnOnce(u64)) {
        self.count.add(1);
        if self.log.lock().take(Instant::now()) {
            log(self.count.get());
        }
    }
}

impl Log {
    fn take(&mut self, now: Instant) -> bool {
        let since = now.saturating_duration_since(self.filled);
        let more = u32::try_from(since.as_secs() / LINE_EVERY.as_secs()).unwrap_or(LINES_MAX);
        if more > 0 {
            self.lines = self.lines.saturating_add(more).min(LINES_MAX);
            self.filled = now;
        }
        let may = self.lines > 0;
        self.lines = self.lines.saturating_sub(1);
        may
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_log_tells_of_a_few_at_once_and_then_of_one_a_second() {
        let start = Instant::now();
        let mut log = Log { lines: LINES_MAX, filled: start };
        let at_once = (0..100).filter(|_| log.take(start)).count();
        assert_eq!(at_once, LINES_MAX as usize);
        assert!(log.take(start + LINE_EVERY));
        assert!(!log.take(start + LINE_EVERY));
        let later = start + LINE_EVERY * 1000;
        assert_eq!((0..100).filter(|_| log.take(later)).count(), LINES_MAX as usize);
    }

    #[test]
    fn places_are_bounded_and_given_back() {
        let places = Places::new(2);
        let a = places.take().expect("first");
        let _b = places.take().expect("second");
        assert!(places.take().is_none());
        drop(a);
        assert!(places.take().is_some());
    }

    #[test]
    fn all_are_counted() {
        let often = Often::default();
        let mut said = Vec::new();
        (0..50).for_each(|_| often.note(|n| said.push(n)));
        assert_eq!(often.count.get(), 50);
        assert!(said.len() < 50 && said.starts_with(&[1, 2, 3]), "{said:?}");
    }
}
