//! The work of one process: phases that are prepared, then run.

use crate::error::BenchError;

/// The totals of one phase.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct PhaseTotals {
    /// Operations.
    pub ops: u64,
    /// Bytes.
    pub bytes: u64,
}

/// A task of a process.
pub trait Workload {
    /// Does the work that must not count to the time of `phase`.
    ///
    /// # Errors
    /// Any operation that fails.
    fn prepare_phase(&mut self, phase: &str) -> Result<String, BenchError>;
    /// Runs the phase that was prepared last.
    ///
    /// # Errors
    /// The first operation that fails.
    fn run_phase(&mut self, phase: &str) -> Result<PhaseTotals, BenchError>;
}
