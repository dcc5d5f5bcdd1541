//! `tatami bench`: runs the workloads of `tatami_bench`.

use crate::error::{CommandFailure, CommandResult};
use crate::term::TermOutput;
use crate::volume_dir::VolumeArgs;
use tatami_bench::{BenchArgs, BenchError};

/// `tatami bench`
#[derive(Debug, clap::Args)]
pub struct BenchCmdArgs {
    #[command(flatten)]
    at: VolumeArgs,
    #[command(flatten)]
    bench: BenchArgs,
}

/// Runs a workload.
///
/// # Errors
/// The workload did not finish.
pub fn run(args: &BenchCmdArgs) -> CommandResult {
    let options = || {
        let place = args.at.open().map_err(|e| BenchError::Usage(e.report()))?;
        let open = || {
            let volume = place.load_volume()?;
            let first = volume
                .nodes
                .first()
                .ok_or_else(|| CommandFailure::new("the volume has no nodes"))?;
            place.client_options(&volume, first)
        };
        open().map_err(|e| BenchError::Usage(e.report()))
    };
    tatami_bench::run(args.bench.clone(), options, &mut TermOutput::new()).map_err(|e| match e {
        BenchError::Usage(text) => CommandFailure::usage(text),
        BenchError::Output(e) => CommandFailure::from(e),
        other => CommandFailure::new("the workload did not finish").because(other),
    })
}
