//! The time of names and capabilities, and the clock of transactions: the machine's clock, but it
//! never goes back and never stops.

use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};
use tatami_wire::Timestamp;

/// Returns the time for names and capabilities. The kernel stamps backing files from the same
/// clock, so times of names and of bytes compare.
pub(crate) fn current_time() -> Timestamp {
    let t = rustix::time::clock_gettime(rustix::time::ClockId::RealtimeCoarse);
    Timestamp { sec: t.tv_sec, nsec: t.tv_nsec as u32 }
}

/// Returns the machine's clock in milliseconds since 1970, for a comparison with others.
pub(crate) fn read_milliseconds() -> u64 {
    // A clock before 1970 shows zero.
    let since = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
    u64::try_from(since.as_millis()).unwrap_or(u64::MAX)
}

/// The clock of transactions.
pub(crate) struct TransactionClock {
    last_time: Timestamp,
    last_moment: Instant,
}

impl TransactionClock {
    pub(crate) fn new() -> TransactionClock {
        TransactionClock { last_time: current_time(), last_moment: Instant::now() }
    }

    /// Returns the time.
    pub(crate) fn now(&mut self) -> Timestamp {
        self.advance_to(current_time(), Instant::now())
    }

    /// Returns the time left until `then`.
    pub(crate) fn time_until(&mut self, then: Timestamp) -> Duration {
        time_between(self.now(), then)
    }

    /// Returns the time since `then`.
    pub(crate) fn time_since(&mut self, then: Timestamp) -> Duration {
        time_between(then, self.now())
    }

    fn advance_to(&mut self, machine: Timestamp, moment: Instant) -> Timestamp {
        let passed = moment.saturating_duration_since(self.last_moment);
        let nanos = self.last_time.nsec + passed.subsec_nanos();
        let sec = passed.as_secs() as i64 + i64::from(nanos / 1_000_000_000);
        let gone_on =
            Timestamp { sec: self.last_time.sec.saturating_add(sec), nsec: nanos % 1_000_000_000 };
        // If the machine's clock was set back, the time that really passed counts: transactions are
        // ordered by these times.
        self.last_time = gone_on.max(machine);
        self.last_moment = moment;
        self.last_time
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
        let mut clock = TransactionClock::new();
        let (begin, moment) = (Timestamp { sec: 1000, nsec: 900_000_000 }, Instant::now());
        (clock.last_time, clock.last_moment) = (begin, moment);
        let later = moment + Duration::from_millis(200);
        assert_eq!(
            clock.advance_to(Timestamp::from_sec(10), later),
            Timestamp { sec: 1001, nsec: 100_000_000 }
        );
        assert_eq!(clock.advance_to(Timestamp::from_sec(2000), later), Timestamp::from_sec(2000));
        assert_eq!(clock.time_until(Timestamp::from_sec(5)), Duration::ZERO);
        assert_eq!(clock.time_since(Timestamp::from_sec(i64::MAX)), Duration::ZERO);
        assert!(clock.time_since(begin) >= Duration::from_secs(999));
    }
}
