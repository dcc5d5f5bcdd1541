//! `tatami bench`: runs the workloads of `tatami_bench`.

use crate::error::{Failure, Outcome};
use crate::place::At;
use crate::term::Out;
use tatami_bench::{BenchArgs, BenchError};

/// `tatami bench`
#[derive(Debug, clap::Args)]
pub struct Args {
    #[command(flatten)]
    at: At,
    #[command(flatten)]
    bench: BenchArgs,
}

/// Runs a workload.
///
/// # Errors
/// The workload did not finish.
pub fn run(args: &Args) -> Outcome {
    let options = || {
        let place = args.at.open().map_err(|e| BenchError::Usage(e.report()))?;
        let open = || {
            let volume = place.volume()?;
            let first =
                volume.nodes.first().ok_or_else(|| Failure::new("the volume has no nodes"))?;
            place.options(&volume, first)
        };
        open().map_err(|e| BenchError::Usage(e.report()))
    };
    tatami_bench::run(args.bench.clone(), options, &mut Out::new()).map_err(|e| match e {
        BenchError::Usage(text) => Failure::usage(text),
        BenchError::Output(e) => Failure::from(e),
        other => Failure::new("the workload did not finish").because(other),
    })
}
