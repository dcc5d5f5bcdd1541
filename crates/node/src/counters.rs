//! The counters of a node, for `status`.

use parking_lot::Mutex;
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, AtomicU64, Ordering};
use std::time::{Duration, Instant};
use tatami_wire::admin::RefusedConnections;

/// Counts since the start. No other memory depends on them, so `Relaxed` is enough.
#[derive(Debug, Default)]
pub(crate) struct NodeCounters {
    pub(crate) meta_requests: Counter,
    /// Messages of other executors.
    pub(crate) peer_messages: Counter,
    pub(crate) object_requests: Counter,
    pub(crate) bytes_read: Counter,
    pub(crate) bytes_written: Counter,
}

/// One counter.
#[derive(Debug, Default)]
pub(crate) struct Counter(AtomicU64);

impl Counter {
    pub(crate) fn add(&self, n: u64) {
        self.0.fetch_add(n, Ordering::Relaxed);
    }

    pub(crate) fn get(&self) -> u64 {
        self.0.load(Ordering::Relaxed)
    }
}

/// A bounded number of slots.
#[derive(Debug)]
pub(crate) struct BoundedSlots {
    taken: AtomicU32,
    limit: u32,
}

/// One slot, returned when dropped.
#[derive(Debug)]
pub(crate) struct BoundedSlot(Arc<BoundedSlots>);

impl BoundedSlots {
    pub(crate) fn new(most: u32) -> Arc<BoundedSlots> {
        Arc::new(BoundedSlots { taken: AtomicU32::new(0), limit: most })
    }

    /// Takes a slot, if one is free.
    pub(crate) fn try_acquire(self: &Arc<Self>) -> Option<BoundedSlot> {
        // Taken first and checked afterwards: of two threads that race for the last slot, one sees
        // the full count.
        let taken = self.taken.fetch_add(1, Ordering::AcqRel);
        // From here on the slot is returned by `drop`, also if the check below fails.
        let place = BoundedSlot(self.clone());
        (taken < self.limit).then_some(place)
    }
}

impl Drop for BoundedSlot {
    fn drop(&mut self) {
        self.0.taken.fetch_sub(1, Ordering::AcqRel);
    }
}

/// The connections that were not admitted, by reason.
#[derive(Debug, Default)]
pub(crate) struct RefusalCounters {
    pub(crate) silent: LoggedCounter,
    pub(crate) crowded_out: LoggedCounter,
    pub(crate) broken: LoggedCounter,
    pub(crate) other_version: LoggedCounter,
    pub(crate) wrong_key: LoggedCounter,
    pub(crate) refused: LoggedCounter,
    /// The system refused the connection: no descriptors, or no memory.
    pub(crate) not_accepted: LoggedCounter,
}

impl RefusalCounters {
    pub(crate) fn report(&self) -> RefusedConnections {
        RefusedConnections {
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
pub(crate) struct LoggedCounter {
    count: Counter,
    log: Mutex<LogLimiter>,
}

#[derive(Debug)]
struct LogLimiter {
    /// Lines that may be written at once.
    lines: u32,
    /// When the last line was added.
    last_added: Instant,
}

impl Default for LogLimiter {
    fn default() -> LogLimiter {
        LogLimiter { lines: LINES_MAX, last_added: Instant::now() }
    }
}

/// Most lines that may be written at once.
const LINES_MAX: u32 = 20;
/// The time after which one more line is allowed.
const LINE_EVERY: Duration = Duration::from_secs(1);

impl LoggedCounter {
    /// Counts the event, and calls `log` with the number so far if a line is allowed now.
    pub(crate) fn record_event(&self, log: impl FnOnce(u64)) {
        self.count.add(1);
        if self.log.lock().allow_line(Instant::now()) {
            log(self.count.get());
        }
    }
}

impl LogLimiter {
    fn allow_line(&mut self, now: Instant) -> bool {
        let since = now.saturating_duration_since(self.last_added);
        let more = u32::try_from(since.as_secs() / LINE_EVERY.as_secs()).unwrap_or(LINES_MAX);
        if more > 0 {
            self.lines = self.lines.saturating_add(more).min(LINES_MAX);
            self.last_added = now;
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
        let mut log = LogLimiter { lines: LINES_MAX, last_added: start };
        let at_once = (0..100).filter(|_| log.allow_line(start)).count();
        assert_eq!(at_once, LINES_MAX as usize);
        assert!(log.allow_line(start + LINE_EVERY));
        assert!(!log.allow_line(start + LINE_EVERY));
        let later = start + LINE_EVERY * 1000;
        assert_eq!((0..100).filter(|_| log.allow_line(later)).count(), LINES_MAX as usize);
    }

    #[test]
    fn places_are_bounded_and_given_back() {
        let places = BoundedSlots::new(2);
        let a = places.try_acquire().expect("first");
        let _b = places.try_acquire().expect("second");
        assert!(places.try_acquire().is_none());
        drop(a);
        assert!(places.try_acquire().is_some());
    }

    #[test]
    fn all_are_counted() {
        let often = LoggedCounter::default();
        let mut said = Vec::new();
        (0..50).for_each(|_| often.record_event(|n| said.push(n)));
        assert_eq!(often.count.get(), 50);
        assert!(said.len() < 50 && said.starts_with(&[1, 2, 3]), "{said:?}");
    }
}
