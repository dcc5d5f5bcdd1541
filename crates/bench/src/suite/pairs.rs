//! Runs of both sides in turn, A B A B: a disturbance that is longer than a run affects both.

use super::figure::Runs;
use crate::clock::{Steal, StealSum};
use crate::error::BenchError;

/// The results of both sides, run by run.
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
    /// Makes one run of each side.
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

    /// Discards all runs: they only warmed up.
    pub fn forget(&mut self) {
        *self = Pairs::default();
    }

    /// Returns one number of each run.
    pub fn runs(&self, number: impl Fn(&T) -> f64) -> Runs {
        Runs {
            ours: self.ours.iter().map(&number).collect(),
            floor: self.floor.iter().map(&number).collect(),
            stolen: self.steal.share(),
        }
    }

    /// Returns the runs of Tatami's side.
    pub fn ours(&self) -> &[T] {
        &self.ours
    }

    /// Returns the runs of the baseline.
    pub fn floor(&self) -> &[T] {
        &self.floor
    }
}

/// Makes `runs` runs of each side in turn, after one warm-up of each.
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

/// The results of several sides, run by run.
#[derive(Clone, Debug)]
pub struct Turns<T> {
    sides: Vec<Vec<T>>,
    steal: StealSum,
}

impl<T> Turns<T> {
    /// Returns one number of each run of two sides, given by their positions in the order.
    ///
    /// # Panics
    /// For a position that does not exist.
    pub fn runs(&self, side: usize, floor: usize, number: impl Fn(&T) -> f64) -> Runs {
        Runs {
            ours: self.sides[side].iter().map(&number).collect(),
            floor: self.sides[floor].iter().map(&number).collect(),
            stolen: self.steal.share(),
        }
    }
}

/// One side: a closure that makes one run of it.
pub type Side<'a, T> = Box<dyn FnMut() -> Result<T, BenchError> + 'a>;

/// Does the same as [`alternate`] with any number of sides, A B C A B C.
///
/// # Errors
/// Those of the runs.
pub fn in_turn<T>(runs: usize, mut sides: Vec<Side<'_, T>>) -> Result<Turns<T>, BenchError> {
    let mut turns =
        Turns { sides: sides.iter().map(|_| Vec::new()).collect(), steal: StealSum::default() };
    for side in &mut sides {
        side()?;
    }
    for _ in 0..runs {
        let steal = Steal::now();
        for (side, gave) in sides.iter_mut().zip(&mut turns.sides) {
            gave.push(side()?);
        }
        steal.add_to(&mut turns.steal);
    }
    Ok(turns)
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

    #[test]
    fn any_number_of_sides_take_turns() {
        let order = RefCell::new(String::new());
        let turn = |c: char| {
            let order = &order;
            let side: Side<'_, f64> = Box::new(move || {
                order.borrow_mut().push(c);
                Ok(order.borrow().len() as f64)
            });
            side
        };
        let turns = in_turn(2, vec![turn('A'), turn('B'), turn('C')]).expect("no error");
        assert_eq!(*order.borrow(), "ABCABCABC");
        let runs = turns.runs(2, 1, |x| *x);
        assert_eq!((runs.ours, runs.floor), (vec![6.0, 9.0], vec![5.0, 8.0]));
    }
}
