//! `tatami gateway`: the I/O process for a program of another site. The ssh of that program starts
//! it.

use crate::error::{CommandFailure, CommandResult, FailureContext};
use crate::gateway_launch;
use std::fs::File;
use std::os::fd::{AsFd, OwnedFd};
use tatami_gateway::LAUNCHED;

/// The command by which a site wants MPI processes to be started, with its options: `srun -n1`.
const LAUNCHER: &str = "TATAMI_GATEWAY_LAUNCHER";

/// `tatami gateway`.
#[derive(Debug, clap::Args)]
pub struct GatewayArgs {
    /// Only start and end an MPI library, in this process
    #[arg(long, hide = true, value_name = "MPI")]
    try_mpi: Option<String>,
    /// Serve the session of the process that has started the launcher
    #[arg(long, hide = true, value_name = "NUMBER")]
    join: Option<String>,
}

/// Serves the calls of the program until it ends.
///
/// # Errors
/// The input is none of such a program.
pub fn run(args: &GatewayArgs) -> CommandResult {
    if let Some(word) = &args.try_mpi {
        return tatami_gateway::try_mpi(word).map_err(CommandFailure::new);
    }
    let launcher = std::env::var(LAUNCHER).unwrap_or_default();
    if let Some((name, options)) = split_words(&launcher)
        && std::env::var_os(LAUNCHED).is_none()
    {
        return gateway_launch::serve_by_launcher(name, &options);
    }
    // Without the buffers of the standard library: the loop has its own.
    let named = || "standard input and output".to_owned();
    let [input, output] = match &args.join {
        Some(number) => gateway_launch::join_session(number)?,
        None => [
            take_stream(std::io::stdin()).context(named)?,
            take_stream(std::io::stdout()).context(named)?,
        ],
    };
    close_standard_streams().context(named)?;
    let served = tatami_gateway::serve_gateway(input, output);
    tatami_gateway::finish_backends();
    served.map_err(|e| {
        CommandFailure::new(e.to_string()).try_this(
            "this command serves a program of another site: open a file with the MPI_Info key host",
        )
    })
}

fn split_words(line: &str) -> Option<(&str, Vec<&str>)> {
    let mut words = line.split_whitespace();
    words.next().map(|name| (name, words.collect()))
}

/// Returns a stream under a number that no process inherits which an MPI library starts.
fn take_stream(stream: impl AsFd) -> rustix::io::Result<OwnedFd> {
    rustix::io::fcntl_dupfd_cloexec(stream, 3)
}

/// Lets standard input be empty and standard output be standard error: an MPI library that reads or
/// prints must not touch the bytes of the session.
fn close_standard_streams() -> std::io::Result<()> {
    let null = File::open("/dev/null")?;
    let errors = std::io::stderr();
    for (from, to) in [(null.as_fd(), libc::STDIN_FILENO), (errors.as_fd(), libc::STDOUT_FILENO)] {
        use std::os::fd::AsRawFd;
        // SAFETY: two numbers. Nothing else in this process uses the streams that are replaced.
        if unsafe { libc::dup2(from.as_raw_fd(), to) } < 0 {
            return Err(std::io::Error::last_os_error());
        }
    }
    Ok(())
}
