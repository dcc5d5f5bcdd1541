//! `tatami bench predict`: predicts the speed of many servers.
//!
//! The costs of operations are measured here, or read from an earlier run; the delays of messages
//! are assumed. The rest happens in [`tatami_sim::scale`]: the real namespace code in virtual time.

mod measure;
mod network;
mod report;
mod rows;
mod times;

use crate::error::{BenchError, io_error, path_error};
use crate::machine::{Machine, pin_to_one_cpu};
use crate::progress::print_progress;
use crate::worker_group::Launcher;
use measure::{MeasureSetup, Measurements, measure_all};
use report::PredictReport;
use rows::PredictRows;
use std::io::Write;
use std::path::Path;
use tatami_bench_args::PredictArgs;

/// Measures, predicts, draws, and writes the report to `out`.
///
/// # Errors
/// A measurement that could not be run, and [`BenchError::Output`].
pub fn run(args: &PredictArgs, out: &mut impl Write) -> Result<(), BenchError> {
    let measured = match &args.times {
        Some(file) => {
            let report = PredictReport::read(file)?;
            let PredictReport { times, points, items, stolen, .. } = report;
            Measurements { times, points, items, stolen }
        }
        None => {
            // The measurement pins its thread to one CPU, but predictions may use all CPUs. So it
            // has a thread of its own, which ends afterwards.
            let measured = std::thread::scope(|s| s.spawn(|| run_measurement(args)).join());
            let died = |_| BenchError::Usage("measuring ended early".into());
            measured.map_err(died)??
        }
    };
    let rows = PredictRows::predict_all(args, &measured)?;
    let command = std::env::args().collect::<Vec<_>>().join(" ");
    let machine = Machine::from_dir(Path::new("."));
    let report = PredictReport::new((command, machine), measured, args, rows);
    report.write(&args.out)?;
    let plots = args.plots.as_deref().or_else(|| args.out.parent()).unwrap_or(Path::new("."));
    report.draw_plots(plots)?;
    let text = match (args.json, args.markdown) {
        (true, _) => report.to_json(),
        (_, markdown) => report.render(markdown),
    };
    out.write_all(text.as_bytes()).and_then(|()| out.flush()).map_err(BenchError::Output)
}

fn run_measurement(args: &PredictArgs) -> Result<Measurements, BenchError> {
    let launcher = Launcher::this_program()?;
    let tatami = launcher.tatami_command(args.program.as_deref());
    std::fs::create_dir_all(&args.work).map_err(path_error("creating", &args.work))?;
    let dir = args.work.canonicalize().map_err(path_error("finding", &args.work))?;
    print_progress(&Machine::from_dir(&dir).summary_line());
    pin_to_one_cpu().map_err(io_error("choosing a CPU"))?;
    let runs = if args.quick { 1 } else { args.runs.into() };
    let items = if args.quick { 800 } else { 16_000 };
    let measured =
        measure_all(&MeasureSetup { launcher: &launcher, tatami, dir: &dir, runs, items });
    let removed = std::fs::remove_dir_all(&dir).map_err(path_error("removing", &dir));
    let measured = measured?;
    removed?;
    Ok(measured)
}
