//! Small statistics of repeated runs. They use medians, so that one run that the host disturbed
//! does not decide a figure.

use serde::{Deserialize, Serialize};

/// The smallest, middle and largest value of some runs.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
pub struct Spread {
    /// The smallest.
    pub min: f64,
    /// The middle one; of an even number of runs, the mean of the two in the middle.
    pub median: f64,
    /// The largest.
    pub max: f64,
}

impl Spread {
    /// Computes the spread of at least one value.
    ///
    /// # Panics
    /// Without values: the caller knows the number of runs.
    pub fn of(values: &[f64]) -> Spread {
        assert!(!values.is_empty(), "a spread needs at least one run");
        let mut sorted = values.to_vec();
        sorted.sort_by(f64::total_cmp);
        let n = sorted.len();
        let median =
            if n % 2 == 1 { sorted[n / 2] } else { (sorted[n / 2 - 1] + sorted[n / 2]) / 2.0 };
        Spread { min: sorted[0], median, max: sorted[n - 1] }
    }
}

/// Returns the middle value, as in [`Spread::of`].
///
/// # Panics
/// Without values.
pub fn median(values: &[f64]) -> f64 {
    Spread::of(values).median
}

/// Returns `part / whole`, and 0 where `whole` is 0, so that a report never holds a number that
/// JSON cannot represent.
pub fn ratio(part: f64, whole: f64) -> f64 {
    if whole > 0.0 { part / whole } else { 0.0 }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_median_stands_in_the_middle() {
        assert_eq!(Spread::of(&[3.0]), Spread { min: 3.0, median: 3.0, max: 3.0 });
        assert_eq!(Spread::of(&[9.0, 1.0, 2.0]), Spread { min: 1.0, median: 2.0, max: 9.0 });
        assert_eq!(median(&[4.0, 1.0, 2.0, 100.0]), 3.0);
    }

    #[test]
    fn a_ratio_is_always_a_number() {
        assert_eq!(ratio(1.0, 4.0), 0.25);
        assert_eq!(ratio(1.0, 0.0), 0.0);
    }
}
