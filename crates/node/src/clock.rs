//! The clock of transactions: the machine's clock, but it never goes back and never stops.

use crate::shared::now;
use std::time::{Duration, Instant};
use tatami_wire::Timestamp;

/// See the module.
pub(crate) struct Clock {
    told: Timestamp,
    at: Instant,
}

impl Clock {
    pub(crate) fn new() -> Clock {
        Clock { told: now(), at: Instant::now() }
    }

    /// Returns the time.
    pub(crate) fn now(&mut self) -> Timestamp {
        self.tell(now(), Instant::now())
    }

    /// Returns the time left until `then`.
    pub(crate) fn until(&mut self, then: Timestamp) -> Duration {
        time_between(self.now(), then)
    }

    /// Returns the time since `then`.
    pub(crate) fn since(&mut self, then: Timestamp) -> Duration {
        time_between(then, self.now())
    }

    fn tell(&mut self, machine: Timestamp, moment: Instant) -> Timestamp {
        let passed = moment.saturating_duration_since(self.at);
        let nanos = self.told.nsec + passed.subsec_nanos();
        let sec = passed.as_secs() as i64 + i64::from(nanos / 1_000_000_000);
        let gone_on =
            Timestamp { sec: self.told.sec.saturating_add(sec), nsec: nanos % 1_000_000_000 };
        // If the machine's clock was set back, the time that really passed counts: transactions are
        // ordered by these times.
        self.told = gone_on.max(machine);
        self.at = moment;
        self.told
    }
}

/// Returns the time between two timestamps; zero if `to` is not later.
fn time_between(from: Timestamp, to: Timestamp) -> Duration {
    if to <= from {
        return Duration::ZERO;
    }
    let nanos =
        i128::from(to.sec - from.sec) * 1_000_000_000 + i128::from(to.nsec) - i128::from(from.nsec);
    Duration::from_nanos(u64::try_from(nanos).unwrap_or(u64::MAX))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn it_goes_on_when_the_machine_is_set_back() {
        let mut clock = Clock::new();
        let (begin, moment) = (Timestamp { sec: 1000, nsec: 900_000_000 }, Instant::now());
        (clock.told, clock.at) = (begin, moment);
        let later = moment + Duration::from_millis(200);
        assert_eq!(
            clock.tell(Timestamp::from_sec(10), later),
            Timestamp { sec: 1001, nsec: 100_000_000 }
        );
        assert_eq!(clock.tell(Timestamp::from_sec(2000), later), Timestamp::from_sec(2000));
        assert_eq!(clock.until(Timestamp::from_sec(5)), Duration::ZERO);
        assert_eq!(clock.since(Timestamp::from_sec(i64::MAX)), Duration::ZERO);
        assert!(clock.since(begin) >= Duration::from_secs(999));
    }
}
