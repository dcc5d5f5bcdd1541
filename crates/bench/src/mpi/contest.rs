//! Compares several sides that take turns (A/B comparison). Each side has the same number of runs.

use super::launch::{Mpi, Runner, Sample};
use super::place::{Place, Workload};
use crate::clock::{Steal, StealSum};
use crate::error::{BenchError, at};
use crate::stats::median;
use crate::tell;
use std::time::{Duration, Instant};

/// One side: a workload in a place.
#[derive(Clone, Debug)]
pub struct Side {
    /// The place.
    pub place: Place,
    /// The workload.
    pub workload: Workload,
    /// Number of processes.
    pub ranks: u32,
}

/// The runs of all sides.
#[derive(Clone, Debug)]
pub struct Outcome {
    /// For each side its runs.
    pub samples: Vec<Vec<Sample>>,
    /// Share of stolen time.
    pub stolen: f64,
}

impl Outcome {
    /// Returns the values of a side's runs.
    pub fn values(&self, side: usize, value: impl Fn(&Sample) -> f64) -> Vec<f64> {
        self.samples[side].iter().map(value).collect()
    }

    /// Returns their median.
    pub fn median(&self, side: usize, value: impl Fn(&Sample) -> f64) -> f64 {
        median(&self.values(side, value))
    }

    /// Returns the one of some sides with the largest median.
    pub fn best(&self, sides: &[usize], value: impl Fn(&Sample) -> f64 + Copy) -> usize {
        let largest =
            |a: &&usize, b: &&usize| self.median(**a, value).total_cmp(&self.median(**b, value));
        sides.iter().max_by(largest).copied().unwrap_or(0)
    }
}

/// The limits of a comparison.
#[derive(Clone, Copy, Debug)]
pub struct Patience {
    /// Most runs of a side.
    pub runs: usize,
    /// No more rounds begin after this time: one side may take minutes.
    pub budget: Duration,
}

/// Runs all sides in turn, in every second round from the last to the first.
///
/// # Errors
/// A program that fails or reads wrong bytes.
pub fn hold(
    runner: &Runner,
    mpi: Mpi,
    sides: &[Side],
    patience: Patience,
) -> Result<Outcome, BenchError> {
    let begin = Instant::now();
    let mut samples = vec![Vec::new(); sides.len()];
    let mut stolen = StealSum::default();
    for round in 0..patience.runs.max(1) {
        let mut order: Vec<usize> = (0..sides.len()).collect();
        if round % 2 == 1 {
            order.reverse();
        }
        for side in order {
            samples[side].push(once(runner, mpi, &sides[side], &mut stolen)?);
        }
        if begin.elapsed() > patience.budget {
            break;
        }
    }
    Ok(Outcome { samples, stolen: stolen.share() })
}

fn once(
    runner: &Runner,
    mpi: Mpi,
    side: &Side,
    stolen: &mut StealSum,
) -> Result<Sample, BenchError> {
    let mut command = runner.command(mpi, &side.place, side.ranks, side.workload.program);
    command.args(side.workload.arguments(&side.place));
    let reads_only = side.workload.program == "reread";
    if !reads_only {
        side.place.clear()?;
        // The removal dirties blocks of the disk, too, so the sync follows it.
        settle(side)?;
    }
    let steal = Steal::now();
    let sample = runner.run(command)?;
    steal.add_to(stolen);
    tell(&format!(
        "    {} {}: {:.0} MiB written in {:.3} s, read in {:.3} s",
        side.workload.program,
        side.place.name,
        sample.bytes as f64 / f64::from(1 << 20),
        sample.write_seconds(),
        sample.seconds.read
    ));
    if !reads_only {
        side.place.clear()?;
    }
    Ok(sample)
}

/// Writes back the dirty pages of earlier runs, so that this run's time does not include it.
fn settle(side: &Side) -> Result<(), BenchError> {
    let dir = side.place.seen_from_here();
    let open = std::fs::File::open(&dir).map_err(at("opening", &dir))?;
    rustix::fs::syncfs(&open).map_err(|e| at("writing back", &dir)(e.into()))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::mpi::launch::Phases;

    #[test]
    fn the_best_of_the_sides_has_the_largest_median() {
        let sample = |write| Sample {
            bytes: 1 << 20,
            seconds: Phases { write, ..Phases::default() },
            cpu: Phases::default(),
            bad: 0,
        };
        let runs = |all: [f64; 3]| all.map(sample).to_vec();
        let samples = vec![runs([1.0, 1.0, 1.0]), runs([0.1, 4.0, 4.0]), runs([2.0, 2.0, 0.1])];
        let outcome = Outcome { samples, stolen: 0.0 };
        assert_eq!(outcome.best(&[1, 2], Sample::write_rate), 2);
        assert_eq!(outcome.best(&[0, 1, 2], Sample::write_rate), 0);
        assert_eq!(outcome.median(1, Sample::write_rate), 0.25);
    }
}
