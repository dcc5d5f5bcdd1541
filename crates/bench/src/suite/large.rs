//! One large directory on one server, through the client library. Does the number of entries affect
//! the rate? How much memory does an entry take? How long is the server unavailable after its
//! death?

use super::context::SuiteContext;
use crate::clock::Steal;
use crate::error::{BenchError, path_error};
use crate::figure::{Figure, FigureRuns, GoalDirection};
use crate::mdtest::MdtestSite;
use crate::mdtest::names::{MdtestOp, WorkloadPlace};
use crate::mdtest::rank::MdtestPart;
use crate::volume::BenchVolume;
use crate::worker::WorkerTask;
use crate::worker_group::WorkerGroup;
use std::path::Path;

/// Entries are made in this many parts, each timed.
const PARTS: u64 = 10;
/// Goal of the last part's rate against the first one's.
const RATE_GOAL: f64 = 0.8;
/// Most seconds that a server with such a directory may take to restart.
const RESTART_GOAL: f64 = 10.0;
/// Bytes of an inode on ext4, without its entry.
const EXT4_INODE: f64 = 256.0;

/// Takes all figures of this module.
///
/// # Errors
/// A measurement that could not be run.
pub fn take_figures(bench: &SuiteContext) -> Result<Vec<Figure>, BenchError> {
    let volume = BenchVolume::start(&bench.program, &bench.work.join("large"), 1, "all")?;
    let reach = volume.access();
    let site = MdtestSite::create(&WorkloadPlace::Library { reach, dir: "/".into() }, 1, true)?;
    let steal = Steal::now();
    let before = server_memory(&volume)?;
    let made = measure_parts(bench, &site)?;
    let memory = server_memory(&volume)?.saturating_sub(before);
    let restart = volume.restart_daemon()?;
    site.remove()?;
    let stolen = steal.stolen_share();
    let one =
        |ours: f64, floor: f64| FigureRuns { ours: vec![ours], baseline: vec![floor], stolen };
    let asked = bench.large_dir_entries() / PARTS * PARTS;
    let entries = format!("{asked} entries");
    let tenths: Vec<String> = made.iter().map(|rate| format!("{rate:.0}")).collect();
    let all = [
        Figure::new(
            "large directory, create, last tenth",
            "op/s",
            "the first tenth",
            (GoalDirection::Higher, Some(RATE_GOAL)),
            &one(made[made.len() - 1], made[0]),
        )
        .with_note(format!("{entries}; operations a second of each tenth: {}", tenths.join(", "))),
        Figure::new(
            "large directory, memory",
            "bytes/entry",
            "an inode of ext4",
            (GoalDirection::Lower, None),
            &one(memory as f64 / asked as f64, EXT4_INODE),
        )
        .with_note(&entries),
        Figure::new(
            "large directory, restart of the server",
            "s",
            "what it may take",
            (GoalDirection::Lower, Some(1.0)),
            &one(restart, RESTART_GOAL),
        )
        .with_note(&entries),
    ];
    let mut figures = Vec::new();
    for figure in all {
        bench.add_figure(&mut figures, figure);
    }
    Ok(figures)
}

/// Creates all parts and returns the rate of each.
fn measure_parts(bench: &SuiteContext, site: &MdtestSite) -> Result<Vec<f64>, BenchError> {
    let parts = site.process_parts(PARTS as usize, bench.large_dir_entries() / PARTS, true, 0);
    let rate = |part: MdtestPart| {
        let mut gang = WorkerGroup::start(&bench.launcher, vec![WorkerTask::Mdtest(part)])?;
        Ok(gang.run_phase(MdtestOp::FileCreate.name())?.ops_per_sec())
    };
    parts.into_iter().map(rate).collect()
}

/// Returns bytes of anonymous memory of the server.
fn server_memory(volume: &BenchVolume) -> Result<u64, BenchError> {
    let path = format!("/proc/{}/status", volume.node_status(0)?.pid);
    let text = std::fs::read_to_string(&path).map_err(path_error("reading", Path::new(&path)))?;
    let line = text.lines().find_map(|line| line.strip_prefix("RssAnon:"));
    let kib = line.and_then(|line| line.trim().trim_end_matches(" kB").trim().parse::<u64>().ok());
    Ok(kib.unwrap_or(0) << 10)
}
