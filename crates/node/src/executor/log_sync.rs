//! Decides when an executor syncs its log without a request, so that no client has to sync the
//! older changes of others.

use std::time::{Duration, Instant};

/// Shortest time from one sync to the next: a commit survives a power cut after little more than
/// this.
const SYNC_INTERVAL: Duration = Duration::from_secs(1);
/// The first commit waits for this time, so that others share its sync.
const GROUP_DELAY: Duration = Duration::from_millis(100);

/// The commits of an executor that a power cut could undo.
#[derive(Default)]
pub(crate) struct LogSync {
    /// The time of the first commit that no sync covers.
    first_unsynced: Option<Instant>,
    /// The time of the first commit that the sync under way covers.
    first_syncing: Option<Instant>,
    /// The time when the last sync began.
    last_begun: Option<Instant>,
}

impl LogSync {
    /// Records a commit.
    pub(crate) fn record_commit(&mut self, now: Instant) {
        self.first_unsynced.get_or_insert(now);
    }

    /// Records that everything committed is on disk.
    pub(crate) fn record_full_sync(&mut self) {
        self.first_unsynced = None;
    }

    /// Returns when the next sync must begin.
    pub(crate) fn next_due(&self) -> Option<Instant> {
        let since = self.first_unsynced.filter(|_| self.first_syncing.is_none())?;
        let next = self.last_begun.map(|last| last + SYNC_INTERVAL);
        Some(next.unwrap_or(since).max(since + GROUP_DELAY))
    }

    /// Records that a sync begins.
    pub(crate) fn begin_sync(&mut self, now: Instant) {
        assert_eq!(self.first_syncing, None, "two syncs of the log are under way");
        // Commits from now on start a new interval: the sync may not cover them.
        self.first_syncing = self.first_unsynced.take();
        self.last_begun = Some(now);
    }

    /// Records that the sync under way has succeeded.
    pub(crate) fn end_sync(&mut self) {
        assert!(self.first_syncing.is_some(), "a sync ends that has not begun");
        self.first_syncing = None;
    }

    /// Returns the age of the oldest commit that a power cut could undo; zero if there is none.
    pub(crate) fn lag(&self, now: Instant) -> Duration {
        // The older of the two: a sync under way may still fail.
        let oldest = self.first_syncing.or(self.first_unsynced);
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
        assert_eq!((log.next_due(), log.lag(start)), (None, ms(0)));
        log.record_commit(start);
        log.record_commit(start + ms(50));
        assert_eq!(log.next_due(), Some(start + GROUP_DELAY));
        log.begin_sync(start + ms(100));
        log.record_commit(start + ms(200));
        assert_eq!(log.next_due(), None, "one is under way");
        assert_eq!(log.lag(start + ms(300)), ms(300), "and may come to nothing");
        log.end_sync();
        assert_eq!(log.lag(start + ms(300)), ms(100));
        assert_eq!(log.next_due(), Some(start + ms(100) + SYNC_INTERVAL));
        // A client has asked for a sync.
        log.record_full_sync();
        assert_eq!((log.next_due(), log.lag(start + ms(300))), (None, ms(0)));
        log.record_commit(start + ms(5000));
        assert_eq!(log.next_due(), Some(start + ms(5000) + GROUP_DELAY));
    }
}
