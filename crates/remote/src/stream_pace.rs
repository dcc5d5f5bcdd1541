//! How many data connections a session has: one more as long as that makes large transfers faster.

use std::time::Duration;

/// Most data connections of a session that chooses their number by itself.
const STREAMS_MAX: u32 = 4;
/// Bytes and time of one measurement.
const MEASURE: (u64, Duration) = (48 << 20, Duration::from_millis(100));
/// A rate counts as higher from this factor on.
const GAIN: f64 = 1.1;

/// The measurements of a session.
#[derive(Debug, Default)]
pub(crate) struct StreamPace {
    bytes: u64,
    busy: Duration,
    /// The rate with one connection less, in bytes a second; zero before the first measurement.
    before: f64,
    is_settled: bool,
}

impl StreamPace {
    /// Adds a transfer, and returns whether another connection is to be tried. `streams`:
    /// connections there are.
    pub(crate) fn add_transfer(&mut self, bytes: u64, busy: Duration, streams: u32) -> bool {
        if self.is_settled {
            return false;
        }
        self.bytes += bytes;
        self.busy += busy;
        if self.bytes < MEASURE.0 || self.busy < MEASURE.1 {
            return false;
        }
        let rate = self.bytes as f64 / self.busy.as_secs_f64();
        (self.bytes, self.busy) = (0, Duration::ZERO);
        self.is_settled = rate < GAIN * self.before || streams >= STREAMS_MAX;
        self.before = rate;
        !self.is_settled
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Returns the number of connections after long transfers, where the rate of each number is
    /// this, in MiB a second.
    fn settle_at(rates: [u64; 5]) -> u32 {
        let (mut pace, mut streams) = (StreamPace::default(), 1);
        for _ in 0..1000 {
            let busy = Duration::from_secs_f64(16.0 / rates[streams as usize] as f64);
            streams += u32::from(pace.add_transfer(16 << 20, busy, streams));
        }
        streams
    }

    #[test]
    fn connections_are_added_while_the_rate_rises() {
        assert_eq!(settle_at([0, 100, 200, 300, 400]), 4);
        assert_eq!(settle_at([0, 100, 105, 300, 400]), 2);
        assert_eq!(settle_at([0, 100, 150, 150, 400]), 3);
        assert_eq!(settle_at([0, 4000, 4000, 4000, 4000]), 2);
    }
}
