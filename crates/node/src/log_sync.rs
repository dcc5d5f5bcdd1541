//! Decides when an executor syncs its log without a request, so that no client has to sync the
//! older changes of others.

use std::time::{Duration, Instant};

/// Shortest time from one sync to the next: a commit survives a power cut after little more than
/// this.
const EVERY: Duration = Duration::from_secs(1);
/// The first commit waits for this time, so that others share its sync.
const COMPANY: Duration = Duration::from_millis(100);

/// The commits of an executor that a power cut could undo.
#[derive(Default)]
pub(crate) struct LogSync {
    /// The time of the first commit that no sync covers.
    since: Option<Instant>,
    /// The time of the first commit that the sync under way covers.
    syncing: Option<Instant>,
    /// The time when the last sync began.
    last: Option<Instant>,
}

impl LogSync {
    /// Records a commit.
    pub(crate) fn committed(&mut self, now: Instant) {
        self.since.get_or_insert(now);
    }

    /// Records that everything committed is on disk.
    pub(crate) fn synced(&mut self) {
        self.since = None;
    }

    /// Returns when the next sync must begin.
    pub(crate) fn due(&self) -> Option<Instant> {
        let since = self.since.filter(|_| self.syncing.is_none())?;
        let next = self.last.map(|last| last + EVERY);
        Some(next.unwrap_or(since).max(since + COMPANY))
    }

    /// Records that a sync begins.
    pub(crate) fn begin(&mut self, now: Instant) {
        // Commits from now on start a new interval: the sync may not cover them.
        self.syncing = self.since.take();
        self.last = Some(now);
    }

    /// Records that the sync under way has succeeded.
    pub(crate) fn ended(&mut self) {
        self.syncing = None;
    }

    /// Returns the age of the oldest commit that a power cut could undo; zero if there is none.
    pub(crate) fn lag(&self, now: Instant) -> Duration {
        // The older of the two: a sync under way may still fail.
        let oldest = self.syncing.or(self.since);
        oldest.map_or(Duration::ZERO, |oldest| now.saturating_duration_since(oldest))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_was_committed_is_synced_within_a_second() {
        let ms = Duration::from_millis;
        let start = Instant::now();
        let mut log = LogSync::default();
        assert_eq!((log.due(), log.lag(start)), (None, ms(0)));
        log.committed(start);
        log.committed(start + ms(50));
        assert_eq!(log.due(), Some(start + COMPANY));
        log.begin(start + ms(100));
        log.committed(start + ms(200));
        assert_eq!(log.due(), None, "one is under way");
        assert_eq!(log.lag(start + ms(300)), ms(300), "and may come to nothing");
        log.ended();
        assert_eq!(log.lag(start + ms(300)), ms(100));
        assert_eq!(log.due(), Some(start + ms(100) + EVERY));
        // A client has asked for a sync.
        log.synced();
        assert_eq!((log.due(), log.lag(start + ms(300))), (None, ms(0)));
        log.committed(start + ms(5000));
        assert_eq!(log.due(), Some(start + ms(5000) + COMPANY));
    }
}
