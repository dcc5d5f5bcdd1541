//! The work of one process: phases that are prepared, then run.

use crate::error::BenchError;
use std::time::Duration;

/// The totals of one phase.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct PhaseTotals {
    /// Operations.
    pub ops: u64,
    /// Bytes.
    pub bytes: u64,
    /// Operations that took longer than [`SLOW`]. Only mdtest and smallfiles count them.
    pub slow_ops: u64,
    /// Nanoseconds of the slowest operation. Only mdtest and smallfiles measure it.
    pub slowest_ns: u64,
    /// Nanoseconds that half of the operations took at most. Only smallfiles measures it.
    pub median_ns: u64,
    /// Nanoseconds that 99 % of the operations took at most. Only smallfiles measures it.
    pub p99_ns: u64,
}

/// An operation on names that takes longer than this is slow: a program notices it.
pub const SLOW: Duration = Duration::from_millis(20);

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
