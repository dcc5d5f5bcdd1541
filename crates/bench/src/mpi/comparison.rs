//! Compares several sides that take turns (A/B comparison). Each side has the same number of runs.

use super::launch::{MpiRunner, MpiSample};
use super::place::{MpiPlace, MpiWorkload};
use crate::clock::{Steal, StealSum};
use crate::error::{BenchError, path_error};
use crate::progress::print_progress;
use crate::stats::median;
use std::time::{Duration, Instant};
use tatami_bench_args::MpiLibrary;

/// One side: a workload in a place.
#[derive(Clone, Debug)]
pub struct ComparedSide {
    /// The place.
    pub place: MpiPlace,
    /// The workload.
    pub workload: MpiWorkload,
    /// Number of processes.
    pub ranks: u32,
}

/// The runs of all sides.
#[derive(Clone, Debug)]
pub struct Comparison {
    /// For each side its runs.
    pub samples: Vec<Vec<MpiSample>>,
    /// Share of stolen time.
    pub stolen: f64,
}

impl Comparison {
    /// Returns the values of a side's runs.
    pub fn side_values(&self, side: usize, value: impl Fn(&MpiSample) -> f64) -> Vec<f64> {
        self.samples[side].iter().map(value).collect()
    }

    /// Returns their median.
    pub fn side_median(&self, side: usize, value: impl Fn(&MpiSample) -> f64) -> f64 {
        median(&self.side_values(side, value))
    }

    /// Returns the one of some sides with the largest median.
    pub fn best_side(&self, sides: &[usize], value: impl Fn(&MpiSample) -> f64 + Copy) -> usize {
        let largest = |a: &&usize, b: &&usize| {
            self.side_median(**a, value).total_cmp(&self.side_median(**b, value))
        };
        sides.iter().max_by(largest).copied().unwrap_or(0)
    }
}

/// The limits of a comparison.
#[derive(Clone, Copy, Debug)]
pub struct ComparisonLimits {
    /// Most runs of a side.
    pub runs: usize,
    /// No more rounds begin after this time: one side may take minutes.
    pub budget: Duration,
}

/// Runs all sides in turn, in every second round from the last to the first.
///
/// # Errors
/// A program that fails or reads wrong bytes.
pub fn run_comparison(
    runner: &MpiRunner,
    mpi: MpiLibrary,
    sides: &[ComparedSide],
    patience: ComparisonLimits,
) -> Result<Comparison, BenchError> {
    let begin = Instant::now();
    let mut samples = vec![Vec::new(); sides.len()];
    let mut stolen = StealSum::default();
    for round in 0..patience.runs.max(1) {
        let mut order: Vec<usize> = (0..sides.len()).collect();
        if round % 2 == 1 {
            order.reverse();
        }
        for side in order {
            samples[side].push(run_once(runner, mpi, &sides[side], &mut stolen)?);
        }
        if begin.elapsed() > patience.budget {
            break;
        }
    }
    Ok(Comparison { samples, stolen: stolen.stolen_share() })
}

fn run_once(
    runner: &MpiRunner,
    mpi: MpiLibrary,
    side: &ComparedSide,
    stolen: &mut StealSum,
) -> Result<MpiSample, BenchError> {
    let mut command = runner.mpirun_command(mpi, &side.place, side.ranks, side.workload.program);
    command.args(side.workload.place_arguments(&side.place));
    let reads_only = side.workload.program == "reread";
    if !reads_only {
        side.place.clear()?;
        // The removal dirties blocks of the disk, too, so the sync follows it.
        sync_disk(side)?;
    }
    let steal = Steal::now();
    let sample = runner.run_program(command)?;
    steal.add_to(stolen);
    print_progress(&format!(
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
fn sync_disk(side: &ComparedSide) -> Result<(), BenchError> {
    let dir = side.place.local_dir();
    let open = std::fs::File::open(&dir).map_err(path_error("opening", &dir))?;
    rustix::fs::syncfs(&open).map_err(|e| path_error("writing back", &dir)(e.into()))
}

#[cfg(test)]
mod tests {
    use super::super::launch::MpiPhases;
    use super::*;

    #[test]
    fn the_best_of_the_sides_has_the_largest_median() {
        let sample = |write| MpiSample {
            bytes: 1 << 20,
            seconds: MpiPhases { write, ..MpiPhases::default() },
            cpu: MpiPhases::default(),
            bad: 0,
        };
        let runs = |all: [f64; 3]| all.map(sample).to_vec();
        let samples = vec![runs([1.0, 1.0, 1.0]), runs([0.1, 4.0, 4.0]), runs([2.0, 2.0, 0.1])];
        let outcome = Comparison { samples, stolen: 0.0 };
        assert_eq!(outcome.best_side(&[1, 2], MpiSample::write_rate), 2);
        assert_eq!(outcome.best_side(&[0, 1, 2], MpiSample::write_rate), 0);
        assert_eq!(outcome.side_median(1, MpiSample::write_rate), 0.25);
    }
}
