//! Runs of both sides in turn, A B A B: what disturbs the machine for longer than a
//! run disturbs both.

use super::figure::Runs;
use crate::clock::{Steal, StealSum};
use crate::error::BenchError;

/// What both sides gave, run by run.
#[derive(Clone, Debug)]
pub struct Pairs<T> {
    ours: Vec<T>,
    floor: Vec<T>,
    steal: StealSum,
}

impl<T> Default for Pairs<T> {
    fn default() -> Self {
        Pairs { ours: Vec::new(), floor: Vec::new(), steal: StealSum::default() }
    }
}

impl<T> Pairs<T> {
    /// One run of each side.
    ///
    /// # Errors
    /// Those of the runs.
    pub fn take(
        &mut self,
        ours: impl FnOnce() -> Result<T, BenchError>,
        floor: impl FnOnce() -> Result<T, BenchError>,
    ) -> Result<(), BenchError> {
        let steal = Steal::now();
        let (ours, floor) = (ours()?, floor()?);
        steal.add_to(&mut self.steal);
        self.ours.push(ours);
        self.floor.push(floor);
        Ok(())
    }

    /// Forgets all runs: they only warmed up.
    pub fn forget(&mut self) {
        *self = Pairs::default();
    }

    /// One number of each run.
    pub fn runs(&self, number: impl Fn(&T) -> f64) -> Runs {
        Runs {
            ours: self.ours.iter().map(&number).collect(),
            floor: self.floor.iter().map(&number).collect(),
            stolen: self.steal.share(),
        }
    }

    /// The runs of our side.
    pub fn ours(&self) -> &[T] {
        &self.ours
    }

    /// The runs of the baseline.
    pub fn floor(&self) -> &[T] {
        &self.floor
    }
}

/// `runs` runs of each side in turn, after one of each that does not count.
///
/// # Errors
/// Those of the runs.
pub fn alternate<T>(
    runs: usize,
    mut ours: impl FnMut() -> Result<T, BenchError>,
    mut floor: impl FnMut() -> Result<T, BenchError>,
) -> Result<Pairs<T>, BenchError> {
    let mut pairs = Pairs::default();
    pairs.take(&mut ours, &mut floor)?;
    pairs.forget();
    for _ in 0..runs {
        pairs.take(&mut ours, &mut floor)?;
    }
    Ok(pairs)
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::cell::RefCell;

    #[test]
    fn sides_take_turns_and_the_first_turn_does_not_count() {
        let order = RefCell::new(String::new());
        let turn = |c: char| {
            order.borrow_mut().push(c);
            Ok(order.borrow().len() as f64)
        };
        let pairs = alternate(2, || turn('A'), || turn('B')).expect("no error");
        assert_eq!(*order.borrow(), "ABABAB");
        let runs = pairs.runs(|x| *x);
        assert_eq!((runs.ours, runs.floor), (vec![3.0, 5.0], vec![4.0, 6.0]));
    }
}
