//! Small statistics of repeated runs. They use medians, so that one run that the host disturbed
//! does not decide a figure.

use serde::{Deserialize, Serialize};

/// The smallest, middle and largest value of some runs.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
pub struct RunSpread {
    /// The smallest.
    pub min: f64,
    /// The middle one; of an even number of runs, the mean of the two in the middle.
    pub median: f64,
    /// The largest.
    pub max: f64,
}

impl RunSpread {
    /// Computes the spread of at least one value.
    ///
    /// # Panics
    /// Without values: the caller knows the number of runs.
    pub fn from_values(values: &[f64]) -> RunSpread {
        assert!(!values.is_empty(), "a spread needs at least one run");
        let mut sorted = values.to_vec();
        sorted.sort_by(f64::total_cmp);
        let n = sorted.len();
        let median =
            if n % 2 == 1 { sorted[n / 2] } else { (sorted[n / 2 - 1] + sorted[n / 2]) / 2.0 };
        RunSpread { min: sorted[0], median, max: sorted[n - 1] }
    }
}

/// Returns the middle value, as in [`RunSpread::from_values`].
///
/// # Panics
/// Without values.
pub fn median(values: &[f64]) -> f64 {
    RunSpread::from_values(values).median
}

/// Returns the smallest value that at least `share` (0 to 1) of all values do not exceed.
///
/// # Panics
/// Without values.
pub fn percentile(values: &[f64], share: f64) -> f64 {
    let mut sorted = values.to_vec();
    sorted.sort_by(f64::total_cmp);
    let rank = (share * sorted.len() as f64).ceil() as usize;
    sorted[rank.clamp(1, sorted.len()) - 1]
}

/// Returns `part / whole`, and 0 where `whole` is 0, so that a report never holds a number that
/// JSON cannot represent.
pub fn ratio_or_zero(part: f64, whole: f64) -> f64 {
    if whole > 0.0 { part / whole } else { 0.0 }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_median_stands_in_the_middle() {
        assert_eq!(RunSpread::from_values(&[3.0]), RunSpread { min: 3.0, median: 3.0, max: 3.0 });
        assert_eq!(
            RunSpread::from_values(&[9.0, 1.0, 2.0]),
            RunSpread { min: 1.0, median: 2.0, max: 9.0 }
        );
        assert_eq!(median(&[4.0, 1.0, 2.0, 100.0]), 3.0);
    }

    #[test]
    fn a_percentile_is_one_of_the_values() {
        let values: Vec<f64> = (1..=100).rev().map(f64::from).collect();
        assert_eq!(percentile(&values, 0.99), 99.0);
        assert_eq!(percentile(&values, 1.0), 100.0);
        assert_eq!(percentile(&values, 0.0), 1.0);
        assert_eq!(percentile(&values[..10], 0.99), 100.0);
        assert_eq!(percentile(&[7.0], 0.5), 7.0);
    }

    #[test]
    fn a_ratio_is_always_a_number() {
        assert_eq!(ratio_or_zero(1.0, 4.0), 0.25);
        assert_eq!(ratio_or_zero(1.0, 0.0), 0.0);
    }
}
