//! `tatami gateway`: the I/O process for a program of another site. The ssh of that program starts
//! it.

use crate::error::{CommandFailure, CommandResult, FailureContext};
use std::fs::File;

/// Serves the calls of the program until it ends.
///
/// # Errors
/// The input is none of such a program.
pub fn run() -> CommandResult {
    // Without the buffers of the standard library: the loop has its own.
    let named = || "standard input and output".to_owned();
    let input = File::from(rustix::io::dup(std::io::stdin()).context(named)?);
    let output = File::from(rustix::io::dup(std::io::stdout()).context(named)?);
    let served = tatami_gateway::serve_gateway(input, output);
    served.map_err(|e| {
        CommandFailure::new(e.to_string()).try_this(
            "this command serves a program of another site: open a file with the MPI_Info key host",
        )
    })
}
