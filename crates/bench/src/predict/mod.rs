//! `tatami bench predict`: predicts the speed of many servers.
//!
//! The costs of operations are measured here, or read from an earlier run; the delays of messages
//! are assumed. The rest happens in [`tatami_sim::scale`]: the real namespace code in virtual time.

mod measure;
mod report;
mod rows;
mod times;

pub use report::PredictReport;
pub use rows::{PredictCheck, PredictGrowth, PredictRow};
pub use times::{MeasuredPoint, MeasuredTimes, OperationTimes};

use crate::error::{BenchError, io_error, path_error};
use crate::print_progress;
use crate::suite::{Machine, pin_to_one_cpu};
use crate::worker_group::Launcher;
use measure::{MeasureSetup, Measurements, measure_all};
use rows::PredictRows;
use std::io::Write;
use std::path::{Path, PathBuf};
use tatami_sim::scale::{self, CountWindow, OperationKind, SERVERS_MAX};

/// Options of `tatami bench predict`.
#[derive(Clone, Debug, clap::Args)]
pub struct PredictArgs {
    /// Numbers of servers; efficiency is relative to the first
    #[arg(long, value_name = "N", value_delimiter = ',', default_value = "1,2,4,5,8,16,32,64,128,256,512,1024",
        value_parser = clap::value_parser!(u16).range(1..=i64::from(SERVERS_MAX)))]
    pub servers: Vec<u16>,
    /// Networks (default: all)
    #[arg(long, value_delimiter = ',')]
    pub network: Vec<PredictNetwork>,
    /// Client processes for each server
    #[arg(long, default_value_t = 32, value_parser = clap::value_parser!(u32).range(1..=1024))]
    pub clients: u32,
    /// Operations of each server that are counted
    #[arg(long, default_value_t = 150, value_parser = clap::value_parser!(u64).range(1..=1_000_000))]
    pub each: u64,
    /// What things take, from the results of an earlier run; nothing is measured then
    #[arg(long, value_name = "FILE")]
    pub times: Option<PathBuf>,
    /// Directory for the volumes that are measured
    #[arg(long, default_value = "bench-results/work-predict")]
    pub dir: PathBuf,
    /// Where the results go, as JSON
    #[arg(long, default_value = "bench-results/predicted.json")]
    pub out: PathBuf,
    /// Where plots go, as SVG (default: beside the results)
    #[arg(long, value_name = "DIR")]
    pub plots: Option<PathBuf>,
    /// How often each time is measured
    #[arg(long, default_value_t = 3, value_parser = clap::value_parser!(u16).range(1..=1000))]
    pub runs: u16,
    /// Servers take messages of other servers before requests: what that would change
    #[arg(long)]
    pub peers_first: bool,
    /// From which everything random follows
    #[arg(long, default_value_t = 1)]
    pub seed: u64,
    /// Little of everything: to see that it works
    #[arg(long)]
    pub quick: bool,
    /// Print the tables as Markdown
    #[arg(long, conflicts_with = "json")]
    pub markdown: bool,
    /// Print the results as JSON
    #[arg(long)]
    pub json: bool,
    /// The tatami command that is measured, if it is not this one
    #[arg(long, hide = true)]
    pub program: Option<PathBuf>,
}

/// A network between servers and clients.
#[derive(Clone, Copy, Debug, PartialEq, Eq, clap::ValueEnum)]
pub enum PredictNetwork {
    /// 25 to 50 µs one way
    Ethernet,
    /// 1.5 to 2.5 µs one way
    Infiniband,
    /// 4.5 to 5.5 ms one way
    WideArea,
}

impl PredictNetwork {
    const ALL: [PredictNetwork; 3] =
        [PredictNetwork::Ethernet, PredictNetwork::Infiniband, PredictNetwork::WideArea];

    /// Returns the name in reports.
    pub(crate) fn name(self) -> &'static str {
        match self {
            PredictNetwork::Ethernet => "Ethernet",
            PredictNetwork::Infiniband => "InfiniBand",
            PredictNetwork::WideArea => "wide-area",
        }
    }

    fn sim_network(self) -> scale::NetworkDelay {
        match self {
            PredictNetwork::Ethernet => scale::NetworkDelay::ETHERNET,
            PredictNetwork::Infiniband => scale::NetworkDelay::INFINIBAND,
            PredictNetwork::WideArea => scale::NetworkDelay::WIDE,
        }
    }

    /// Returns the predicted kinds of operations. A wide-area network needs many requests under
    /// way, and so each kind takes long to simulate; it gets fewer kinds.
    fn predicted_kinds(self) -> &'static [OperationKind] {
        match self {
            PredictNetwork::Ethernet | PredictNetwork::Infiniband => &OperationKind::ALL,
            PredictNetwork::WideArea => &OperationKind::ALL[..3],
        }
    }

    /// Returns the number of requests that a process has under way at the same time: enough to keep
    /// its share of a server busy while they travel.
    fn depth(self) -> u32 {
        match self {
            PredictNetwork::Ethernet | PredictNetwork::Infiniband => 1,
            PredictNetwork::WideArea => 32,
        }
    }
}

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
    let this = Launcher::this_program()?;
    let program = args.program.clone().unwrap_or(this.program);
    let launcher = Launcher { program, ..this };
    std::fs::create_dir_all(&args.dir).map_err(path_error("creating", &args.dir))?;
    let dir = args.dir.canonicalize().map_err(path_error("finding", &args.dir))?;
    print_progress(&Machine::from_dir(&dir).summary_line());
    pin_to_one_cpu().map_err(io_error("choosing a CPU"))?;
    let runs = if args.quick { 1 } else { args.runs.into() };
    let items = if args.quick { 800 } else { 16_000 };
    let measured = measure_all(&MeasureSetup { launcher: &launcher, dir: &dir, runs, items });
    let removed = std::fs::remove_dir_all(&dir).map_err(path_error("removing", &dir));
    let measured = measured?;
    removed?;
    Ok(measured)
}

fn count_window(args: &PredictArgs) -> CountWindow {
    match args.quick {
        true => CountWindow { each: 40, least: 400 },
        false => CountWindow { each: args.each, least: 10_000 },
    }
}
