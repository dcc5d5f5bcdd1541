//! Runs of both sides in turn, A B A B: a disturbance that is longer than a run affects both.

use crate::clock::{Steal, StealSum};
use crate::error::BenchError;
use crate::figure::FigureRuns;

/// The results of both sides, run by run.
#[derive(Clone, Debug)]
pub struct PairedRuns<T> {
    ours: Vec<T>,
    baseline: Vec<T>,
    steal: StealSum,
}

impl<T> Default for PairedRuns<T> {
    fn default() -> Self {
        PairedRuns { ours: Vec::new(), baseline: Vec::new(), steal: StealSum::default() }
    }
}

impl<T> PairedRuns<T> {
    /// Makes one run of each side.
    ///
    /// # Errors
    /// Those of the runs.
    pub fn run_pair(
        &mut self,
        ours: impl FnOnce() -> Result<T, BenchError>,
        floor: impl FnOnce() -> Result<T, BenchError>,
    ) -> Result<(), BenchError> {
        let steal = Steal::now();
        let (ours, floor) = (ours()?, floor()?);
        steal.add_to(&mut self.steal);
        self.ours.push(ours);
        self.baseline.push(floor);
        Ok(())
    }

    /// Discards all runs: they only warmed up.
    pub fn discard_runs(&mut self) {
        *self = PairedRuns::default();
    }

    /// Returns one number of each run.
    pub fn figure_runs(&self, number: impl Fn(&T) -> f64) -> FigureRuns {
        FigureRuns {
            ours: self.ours.iter().map(&number).collect(),
            baseline: self.baseline.iter().map(&number).collect(),
            stolen: self.steal.stolen_share(),
        }
    }

    /// Returns the runs of Tatami's side.
    pub fn our_runs(&self) -> &[T] {
        &self.ours
    }

    /// Returns the runs of the baseline.
    pub fn baseline_runs(&self) -> &[T] {
        &self.baseline
    }
}

/// Makes `runs` runs of each side in turn, after one warm-up of each.
///
/// # Errors
/// Those of the runs.
pub fn run_alternating<T>(
    runs: usize,
    mut ours: impl FnMut() -> Result<T, BenchError>,
    mut floor: impl FnMut() -> Result<T, BenchError>,
) -> Result<PairedRuns<T>, BenchError> {
    let mut pairs = PairedRuns::default();
    pairs.run_pair(&mut ours, &mut floor)?;
    pairs.discard_runs();
    for _ in 0..runs {
        pairs.run_pair(&mut ours, &mut floor)?;
    }
    Ok(pairs)
}

/// The results of several sides, run by run.
#[derive(Clone, Debug)]
pub struct SideRuns<T> {
    sides: Vec<Vec<T>>,
    steal: StealSum,
}

impl<T> SideRuns<T> {
    /// Returns one number of each run of two sides, given by their positions in the order.
    ///
    /// # Panics
    /// For a position that does not exist.
    pub fn figure_runs(&self, side: usize, floor: usize, number: impl Fn(&T) -> f64) -> FigureRuns {
        FigureRuns {
            ours: self.sides[side].iter().map(&number).collect(),
            baseline: self.sides[floor].iter().map(&number).collect(),
            stolen: self.steal.stolen_share(),
        }
    }
}

/// One side: a closure that makes one run of it.
pub type SideRun<'a, T> = Box<dyn FnMut() -> Result<T, BenchError> + 'a>;

/// Does the same as [`run_alternating`] with any number of sides, A B C A B C.
///
/// # Errors
/// Those of the runs.
pub fn run_in_turn<T>(
    runs: usize,
    mut sides: Vec<SideRun<'_, T>>,
) -> Result<SideRuns<T>, BenchError> {
    let mut turns =
        SideRuns { sides: sides.iter().map(|_| Vec::new()).collect(), steal: StealSum::default() };
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
        let pairs = run_alternating(2, || turn('A'), || turn('B')).expect("no error");
        assert_eq!(*order.borrow(), "ABABAB");
        let runs = pairs.figure_runs(|x| *x);
        assert_eq!((runs.ours, runs.baseline), (vec![3.0, 5.0], vec![4.0, 6.0]));
    }

    #[test]
    fn any_number_of_sides_take_turns() {
        let order = RefCell::new(String::new());
        let turn = |c: char| {
            let order = &order;
            let side: SideRun<'_, f64> = Box::new(move || {
                order.borrow_mut().push(c);
                Ok(order.borrow().len() as f64)
            });
            side
        };
        let turns = run_in_turn(2, vec![turn('A'), turn('B'), turn('C')]).expect("no error");
        assert_eq!(*order.borrow(), "ABCABCABC");
        let runs = turns.figure_runs(2, 1, |x| *x);
        assert_eq!((runs.ours, runs.baseline), (vec![6.0, 9.0], vec![5.0, 8.0]));
    }
}
