//! Whether the parts of one direction of a data connection are compressed.
//!
//! `auto` decides by rates that were measured: bytes of files for each second while parts are under
//! way, with compression and without. A sample of one part says now and then whether a trial could
//! pay, and only then some parts are compressed and measured. So a path that compression cannot
//! make faster pays for a sample of 8 KiB now and then, and for a few trials whose distance doubles
//! each time.

use crate::compression_form::CompressionForm;
use crate::part_compressor::CompressionSample;
use crate::site_route::SiteCompression;
use std::time::Duration;

/// Bytes and time of a measurement: what comes first ends it.
const MEASURE: (u64, Duration) = (4 << 20, Duration::from_millis(50));
/// Bytes and time between two samples: what comes first.
const SAMPLE_AGAIN: (u64, Duration) = (32 << 20, Duration::from_millis(500));
/// Bytes until a trial after a failed one. It doubles with each.
const TRIAL_AGAIN: (u64, u64) = (256 << 20, 16 << 30);
/// A trial begins if the sample promises so much more speed, and compression stays if it then gives
/// so much more.
const GAIN: (f64, f64) = (1.4, 1.08);
/// Bytes of a long part.
const PART: f64 = 1048576.0;
/// While parts are compressed, this share of the time at most goes to those that are not, to
/// compare.
const COMPARE_SHARE: f64 = 1.0 / 64.0;

/// Bytes of files in a time.
#[derive(Clone, Copy, Debug, Default)]
struct Stretch {
    bytes: u64,
    time: Duration,
}

impl Stretch {
    fn add(&mut self, bytes: u64, time: Duration) {
        self.bytes += bytes;
        self.time += time;
    }

    /// Whether it has reached one of the limits.
    fn reaches(&self, (bytes, time): (u64, Duration)) -> bool {
        self.bytes > 0 && (self.bytes >= bytes || self.time >= time)
    }

    /// Nanoseconds for each byte.
    fn cost(&self) -> f64 {
        self.time.as_nanos() as f64 / self.bytes.max(1) as f64
    }
}

#[derive(Clone, Copy, Debug)]
enum CompressionMode {
    /// Parts go as they are, and their rate is measured.
    Plain,
    /// Parts are compressed, to measure it.
    Trial,
    /// Compression pays.
    Compressing,
    /// Compression paid, and some parts go as they are, to see whether it still does.
    Comparing,
}

/// See the module.
#[derive(Debug)]
pub(crate) struct CompressionPace {
    wish: SiteCompression,
    mode: CompressionMode,
    /// The parts since the last change of the mode.
    now: Stretch,
    /// Nanoseconds for each byte as it is, and compressed; zero before the first measurement.
    plain: f64,
    compressed: f64,
    /// Bytes as they are since the last failed trial, and how many of them there must be.
    waited: u64,
    wait: u64,
    /// Parts that still go as they are, to compare.
    compared: u32,
}

impl CompressionPace {
    pub(crate) fn new(wish: SiteCompression) -> CompressionPace {
        let (now, mode) = (Stretch::default(), CompressionMode::Plain);
        CompressionPace {
            wish,
            mode,
            now,
            plain: 0.0,
            compressed: 0.0,
            waited: 0,
            wait: 0,
            compared: 0,
        }
    }

    /// Returns whether the next part is compressed.
    pub(crate) fn compresses_next(&mut self) -> bool {
        match (self.wish, self.mode) {
            (SiteCompression::Off, _) => false,
            (SiteCompression::On, _) => true,
            (_, CompressionMode::Plain) => false,
            (_, CompressionMode::Trial | CompressionMode::Compressing) => true,
            (_, CompressionMode::Comparing) => {
                let is_compressed = self.compared == 0;
                self.compared = self.compared.saturating_sub(1);
                is_compressed
            }
        }
    }

    /// Returns whether a sample of a part is worth its time now.
    pub(crate) fn wants_sample(&self) -> bool {
        let limit = if self.plain == 0.0 { MEASURE } else { SAMPLE_AGAIN };
        let is_open =
            self.wish == SiteCompression::Auto && matches!(self.mode, CompressionMode::Plain);
        is_open && self.waited >= self.wait && self.now.reaches(limit)
    }

    fn turn_to(&mut self, mode: CompressionMode) {
        match self.mode {
            CompressionMode::Plain | CompressionMode::Comparing if self.now.bytes > 0 => {
                self.plain = self.now.cost();
            }
            CompressionMode::Trial | CompressionMode::Compressing if self.now.bytes > 0 => {
                self.compressed = self.now.cost();
            }
            _ => {}
        }
        (self.mode, self.now) = (mode, Stretch::default());
    }

    /// Adds the result of a sample.
    pub(crate) fn add_sample(&mut self, sample: CompressionSample) {
        if !matches!(self.mode, CompressionMode::Plain) {
            return;
        }
        self.plain = self.now.cost();
        // The way carries fewer bytes meanwhile, or the processor is the limit.
        let cost = f64::from(sample.nanos) / 1024.0;
        let way = self.plain * f64::from(sample.left) / 1024.0;
        let is_promising =
            sample.form != CompressionForm::Plain && self.plain > GAIN.0 * cost.max(way).max(0.001);
        self.turn_to(if is_promising { CompressionMode::Trial } else { CompressionMode::Plain });
    }

    /// Adds a part that has its reply: its bytes in the file, the time since the reply before it or
    /// since the first part was handed in, and what [`CompressionPace::compresses_next`] said.
    pub(crate) fn add_part(&mut self, len: u64, time: Duration, is_compressed: bool) {
        let fits = matches!(self.mode, CompressionMode::Trial | CompressionMode::Compressing)
            == is_compressed;
        if self.wish != SiteCompression::Auto || !fits {
            // It was under way when the mode changed.
            return;
        }
        self.now.add(len, time);
        match self.mode {
            CompressionMode::Plain => self.waited += len,
            CompressionMode::Trial if self.now.reaches((2 * MEASURE.0, 2 * MEASURE.1)) => {
                self.decide(self.plain, self.now.cost());
            }
            CompressionMode::Compressing => self.compare_now_and_then(),
            CompressionMode::Comparing if self.now.reaches(MEASURE) => {
                self.decide(self.now.cost(), self.compressed);
            }
            CompressionMode::Trial | CompressionMode::Comparing => {}
        }
    }

    /// Lets some parts go as they are if parts have been compressed for long.
    fn compare_now_and_then(&mut self) {
        let part = self.plain * PART;
        // A part that takes longer is a measurement by itself.
        let parts = (MEASURE.1.as_nanos() as f64 / part).ceil().clamp(1.0, MEASURE.0 as f64 / PART);
        if self.now.time.as_nanos() as f64 * COMPARE_SHARE > parts * part {
            self.turn_to(CompressionMode::Comparing);
            self.compared = parts as u32;
        }
    }

    fn decide(&mut self, plain: f64, compressed: f64) {
        if plain > GAIN.1 * compressed {
            self.turn_to(CompressionMode::Compressing);
            self.wait = 0;
            return;
        }
        self.turn_to(CompressionMode::Plain);
        self.wait = (2 * self.wait).clamp(TRIAL_AGAIN.0, TRIAL_AGAIN.1);
        self.waited = 0;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const PART: u64 = 1 << 20;

    /// A way and its bytes: nanoseconds for each byte on the way, those of compression one, and the
    /// bytes that are left of 1024.
    #[derive(Clone, Copy)]
    struct Way {
        plain: f64,
        cost: f64,
        left: u32,
        /// What the sample says of the bytes, where it misleads.
        seems: u32,
    }

    impl Way {
        fn new(plain: f64, cost: f64, left: u32) -> Way {
            Way { plain, cost, left, seems: left }
        }

        /// Nanoseconds of a part.
        fn cost_of(&self, is_compressed: bool) -> f64 {
            let way = self.plain * f64::from(self.left) / 1024.0;
            PART as f64 * if is_compressed { self.cost.max(way) } else { self.plain }
        }

        fn best(&self) -> f64 {
            self.cost_of(false).min(self.cost_of(true))
        }

        /// Moves parts by a pace; returns their nanoseconds, and how many were compressed.
        fn run(&self, pace: &mut CompressionPace, parts: u32) -> (f64, u32) {
            let (mut sum, mut compressed) = (0.0, 0);
            for _ in 0..parts {
                let mut cost = 0.0;
                if pace.wants_sample() {
                    // Both forms of 8 KiB.
                    cost = 2.0 * 8192.0 * self.cost;
                    let shrinks = self.seems < 896;
                    let form =
                        if shrinks { CompressionForm::Planes } else { CompressionForm::Plain };
                    let nanos = (self.cost * 1024.0) as u32;
                    pace.add_sample(CompressionSample { form, left: self.seems, nanos });
                }
                let is_compressed = pace.compresses_next();
                cost += self.cost_of(is_compressed);
                pace.add_part(PART, Duration::from_nanos(cost as u64), is_compressed);
                (sum, compressed) = (sum + cost, compressed + u32::from(is_compressed));
            }
            (sum, compressed)
        }
    }

    /// 1 Gbit/s, and a fast way of this machine.
    const SLOW: f64 = 8.5;
    const FAST: f64 = 0.5;

    #[test]
    fn a_slow_way_compresses_what_shrinks() {
        for (cost, left) in [(0.6, 500), (2.5, 300), (0.3, 5)] {
            let way = Way::new(SLOW, cost, left);
            let mut pace = CompressionPace::new(SiteCompression::Auto);
            let early = way.run(&mut pace, 64).1;
            assert!(early >= 54, "{early} of 64 parts");
            let (time, _) = way.run(&mut pace, 4000);
            assert!(time < 1.03 * 4000.0 * way.best(), "{}", time / 4000.0 / way.best());
        }
    }

    #[test]
    fn what_does_not_pay_costs_next_to_nothing() {
        for way in [
            Way::new(SLOW, 0.2, 1024),
            Way::new(SLOW, 12.0, 200),
            Way::new(FAST, 0.2, 1024),
            Way::new(FAST, 0.6, 500),
            Way::new(FAST, 2.5, 20),
            // The sample promises what the parts do not have.
            Way { seems: 100, ..Way::new(SLOW, 0.9, 1000) },
            Way { seems: 100, ..Way::new(FAST, 0.34, 1020) },
        ] {
            let mut pace = CompressionPace::new(SiteCompression::Auto);
            for parts in [100, 1000, 10_000] {
                let time = way.run(&mut pace, parts).0;
                let plain = f64::from(parts) * way.cost_of(false);
                assert!(time < 1.02 * plain, "{parts} parts of {}: {}", way.plain, time / plain);
            }
        }
    }

    #[test]
    fn the_decision_follows_the_way_and_the_bytes() {
        let mut pace = CompressionPace::new(SiteCompression::Auto);
        let good = Way::new(SLOW, 0.6, 100);
        for (way, compresses) in [
            (good, true),
            // Other bytes: the compressor leaves them as they are, and compression no longer pays.
            (Way::new(SLOW, 0.2, 1024), false),
            (good, true),
            // The network has become fast.
            (Way::new(FAST, 0.6, 100), false),
            (good, true),
        ] {
            way.run(&mut pace, 20_000);
            let compressed = way.run(&mut pace, 1000).1;
            assert_eq!(compressed > 900, compresses, "{compressed} of 1000");
            assert_eq!(compressed < 100, !compresses, "{compressed} of 1000");
        }
    }

    /// A part that takes long is compared with few others.
    #[test]
    fn a_very_slow_way_is_compared_rarely() {
        let way = Way::new(200.0, 0.6, 10);
        let mut pace = CompressionPace::new(SiteCompression::Auto);
        way.run(&mut pace, 20);
        let time = way.run(&mut pace, 10_000).0;
        assert!(time < 1.05 * 10_000.0 * way.best(), "{}", time / 10_000.0 / way.best());
    }

    #[test]
    fn a_wish_is_a_wish() {
        let way = Way::new(FAST, 2.5, 1000);
        assert_eq!(way.run(&mut CompressionPace::new(SiteCompression::On), 50).1, 50);
        let way = Way::new(SLOW, 0.1, 1);
        assert_eq!(way.run(&mut CompressionPace::new(SiteCompression::Off), 500).1, 0);
    }

    /// Parts under way at a change of the mode, and a sample that nobody asked for, change nothing.
    #[test]
    fn late_replies_are_left_out() {
        let mut pace = CompressionPace::new(SiteCompression::Auto);
        let second = Duration::from_secs(1);
        assert!(!pace.wants_sample());
        pace.add_part(PART, second, false);
        assert!(pace.wants_sample() && !pace.compresses_next());
        pace.add_sample(CompressionSample { form: CompressionForm::Zstd, left: 10, nanos: 100 });
        assert!(!pace.wants_sample() && pace.compresses_next());
        pace.add_part(PART, second, false);
        pace.add_part(PART, Duration::from_millis(500), true);
        assert!(matches!(pace.mode, CompressionMode::Compressing));
        let none = CompressionSample { form: CompressionForm::Plain, left: 1024, nanos: 100 };
        pace.add_sample(none);
        assert!(pace.compresses_next());
    }
}
