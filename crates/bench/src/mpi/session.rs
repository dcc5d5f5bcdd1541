//! The programs, the places and the extent of a run: the state that all parts need.

use super::comparison::{ComparedSide, Comparison, ComparisonLimits, run_comparison};
use super::launch::MpiRunner;
use super::place::MpiPlace;
use crate::error::BenchError;
use std::path::PathBuf;
use tatami_bench_args::MpiLibrary;

/// The places of the figures' sides.
#[derive(Clone, Debug)]
pub struct MpiPlaces {
    /// With the layer, in a container on the local disk.
    pub layer: MpiPlace,
    /// One plain file on the local disk.
    pub disk: MpiPlace,
    /// A plain file for each process there.
    pub each: MpiPlace,
    /// The places of the part that compares them: on a volume, and on the command line.
    pub others: Vec<MpiPlace>,
}

/// The state of a run with one MPI library.
pub struct MpiSession {
    /// Starts the programs.
    pub runner: MpiRunner,
    /// The MPI library.
    pub mpi: MpiLibrary,
    /// The places.
    pub places: MpiPlaces,
    /// For files that are not measured.
    pub scratch: PathBuf,
    /// Most runs, and the time for them.
    pub limits: ComparisonLimits,
    /// Number of processes.
    pub ranks: u32,
    /// Whether little of everything is measured.
    pub quick: bool,
}

impl MpiSession {
    /// Runs all sides in turn.
    ///
    /// # Errors
    /// As [`run_comparison`].
    pub fn compare_sides(&self, sides: &[ComparedSide]) -> Result<Comparison, BenchError> {
        run_comparison(&self.runner, self.mpi, sides, self.limits)
    }
}
