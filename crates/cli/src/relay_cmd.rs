//! `tatami relay`: passes connections of a program on to another site. The ssh of that program
//! starts it on a login host.

use crate::error::{CommandFailure, CommandResult, FailureContext};
use std::fs::File;

/// Serves the requests of the program until it ends.
///
/// # Errors
/// The input is none of such a program.
pub fn run() -> CommandResult {
    let named = || "standard input and output".to_owned();
    let input = File::from(rustix::io::dup(std::io::stdin()).context(named)?);
    let output = File::from(rustix::io::dup(std::io::stdout()).context(named)?);
    tatami_gateway::serve_relay(input, output).map_err(|e| {
        CommandFailure::new(e.to_string()).try_this(
            "this command serves a program on a host without a route to another site: open a file \
             with the MPI_Info keys host and router",
        )
    })
}
