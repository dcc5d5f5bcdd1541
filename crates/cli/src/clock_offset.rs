//! How far the clock of another machine is off, by the moments between which it was read.

use std::time::{SystemTime, UNIX_EPOCH};

/// A clock that is off by more than this is worth a word: files get times of it.
const OFF_MS: u64 = 1000;

/// Returns by how many milliseconds a clock that showed `clock_ms` between two moments is at least
/// ahead of this machine's. What the delay between the moments may explain does not count.
pub fn measure_offset(clock_ms: u64, before: SystemTime, after: SystemTime) -> i64 {
    let since = |time: SystemTime| time.duration_since(UNIX_EPOCH).unwrap_or_default().as_millis();
    let signed = |ms: u128| i64::try_from(ms).unwrap_or(i64::MAX);
    let clock = signed(clock_ms.into());
    let (before, after) = (signed(since(before)), signed(since(after)));
    if clock > after {
        clock - after
    } else if clock < before {
        clock - before
    } else {
        0
    }
}

/// Returns a warning for a clock that is off by more than a second.
pub fn describe_offset(name: &str, ahead_ms: i64) -> Option<String> {
    if ahead_ms.unsigned_abs() <= OFF_MS {
        return None;
    }
    let seconds = ahead_ms.unsigned_abs() as f64 / 1000.0;
    let side = if ahead_ms > 0 { "ahead" } else { "behind" };
    Some(format!(
        "the clock of {name} is {seconds:.1} s {side}: times of files will be, too; set the clocks \
         by NTP"
    ))
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::time::Duration;

    #[test]
    fn a_clock_is_ahead_by_what_no_delay_explains() {
        let at = |ms| UNIX_EPOCH + Duration::from_millis(ms);
        assert_eq!(measure_offset(1500, at(1000), at(2000)), 0);
        assert_eq!(measure_offset(5000, at(1000), at(2000)), 3000);
        assert_eq!(measure_offset(400, at(1000), at(2000)), -600);
        assert_eq!(measure_offset(u64::MAX, at(1000), at(2000)), i64::MAX - 2000);
    }

    #[test]
    fn a_second_is_worth_a_warning() {
        assert_eq!(describe_offset("n1", 1000), None);
        assert_eq!(describe_offset("n1", -1000), None);
        let warned = |ms| describe_offset("n1", ms).unwrap_or_default();
        assert!(warned(2500).starts_with("the clock of n1 is 2.5 s ahead"), "{}", warned(2500));
        assert!(warned(i64::MIN).contains("behind"));
    }
}
