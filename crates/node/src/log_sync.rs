//! When an executor writes its log out although nobody asks for it, so that no client has to ask for what others have
//! made some time ago.

use std::time::{Duration, Instant};

/// From one sync to the next, at least: what was committed survives a power cut after little more than this.
const EVERY: Duration = Duration::from_secs(1);
/// What was committed first waits so long for company.
const COMPANY: Duration = Duration::from_millis(100);

/// What of the commits of an executor a power cut could take.
#[derive(Default)]
pub(crate) struct LogSync {
    /// When the first of the commits came that no sync concerns.
    since: Option<Instant>,
    /// Of the sync under way, the same when it began.
    syncing: Option<Instant>,
    /// When the last sync began.
    last: Option<Instant>,
}

impl LogSync {
    /// Something was committed.
    pub(crate) fn committed(&mut self, now: Instant) {
        self.since.get_or_insert(now);
    }

    /// Everything that was committed was synced.
    pub(crate) fn synced(&mut self) {
        self.since = None;
    }

    /// When the next sync is to begin.
    pub(crate) fn due(&self) -> Option<Instant> {
        let since = self.since.filter(|_| self.syncing.is_none())?;
        let next = self.last.map(|last| last + EVERY);
        Some(next.unwrap_or(since).max(since + COMPANY))
    }

    /// A sync begins.
    pub(crate) fn begin(&mut self, now: Instant) {
        self.syncing = self.since.take();
        self.last = Some(now);
    }

    /// The sync under way has ended well.
    pub(crate) fn ended(&mut self) {
        self.syncing = None;
    }

    /// How long ago the oldest commit came that a power cut could take; zero where there is none.
    pub(crate) fn lag(&self, now: Instant) -> Duration {
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
        // A client has asked for it.
        log.synced();
        assert_eq!((log.due(), log.lag(start + ms(300))), (None, ms(0)));
        log.committed(start + ms(5000));
        assert_eq!(log.due(), Some(start + ms(5000) + COMPANY));
    }
}
