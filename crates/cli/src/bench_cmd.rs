//! `tatami bench`: starts the program with the workloads, which is installed beside this one.

use crate::error::{CommandFailure, CommandResult, FailureContext};
use std::io;
use std::os::unix::process::CommandExt;
use std::process::Command;
use tatami_bench_args::{BenchArgs, PROGRAM};

/// Replaces this process by that program, with the same arguments. They have been checked here, so
/// that a mistake is reported as for every other command.
///
/// # Errors
/// The program is not there or cannot be run.
pub fn run(_checked: &BenchArgs) -> CommandResult {
    let this = std::env::current_exe().context(|| "cannot find this program".to_owned())?;
    let program = this.with_file_name(PROGRAM);
    // The first two words are this program and `bench`: there is no option between them.
    let error = Command::new(&program).args(std::env::args_os().skip(2)).exec();
    let missing = error.kind() == io::ErrorKind::NotFound;
    let failure = CommandFailure::new(format!("cannot run {}", program.display())).because(error);
    Err(match missing {
        true => failure.try_this(format!(
            "install {PROGRAM} beside `tatami`: make install, in Tatami's sources"
        )),
        false => failure,
    })
}
