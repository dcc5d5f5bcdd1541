//! Names and small files through the mounts of four nodes, against MooseFS with as many mounts, as
//! rates. Both have their servers, mounts and programs on this machine, and one copy of each byte.
//! Each process looks at the files that the next one has made. Without MooseFS the figures say that
//! it is not installed.

use super::context::SuiteContext;
use super::mounts::{MOUNTS, MountsLoad, MountsSide, describe_slow, many_items};
use super::pairs::run_in_turn;
use crate::error::BenchError;
use crate::figure::{Figure, GoalDirection};
use crate::mdtest::names::MdtestOp;
use crate::moosefs::MooseVolume;
use crate::stats::median;
use std::path::PathBuf;
use tatami_plot::format_number;

const PEER: &str = "MooseFS";
/// Goal of the rate against the peer's.
const GOAL: f64 = 1.5;

/// Operations on the same files, in the order in which they can run.
struct PeerOperations {
    /// The directories that have the files.
    dirs: &'static str,
    shared: bool,
    operations: &'static [(MdtestOp, &'static str)],
}

const NAMES: &[(MdtestOp, &str)] = &[
    (MdtestOp::FileCreate, "create"),
    (MdtestOp::FileStat, "stat"),
    (MdtestOp::FileRemove, "remove"),
];
const BYTES: &[(MdtestOp, &str)] =
    &[(MdtestOp::FileWrite, "create and write 4k"), (MdtestOp::FileRead, "open and read 4k")];

const OPERATIONS: [PeerOperations; 3] = [
    PeerOperations { dirs: "private", shared: false, operations: NAMES },
    PeerOperations { dirs: "shared", shared: true, operations: NAMES },
    PeerOperations { dirs: "private", shared: false, operations: BYTES },
];

impl PeerOperations {
    fn figure_names(&self) -> Vec<String> {
        let name = |(_, name): &(MdtestOp, &str)| format!("peers {} {name}, rate", self.dirs);
        self.operations.iter().map(name).collect()
    }
}

/// Takes all figures of this module. Without the peer, they say so.
///
/// # Errors
/// A measurement that could not be run.
pub fn take_figures(bench: &SuiteContext) -> Result<Vec<Figure>, BenchError> {
    let mut figures = Vec::new();
    let better = (GoalDirection::Higher, Some(GOAL));
    let peer = MooseVolume::start(&bench.work.join("moosefs"), MOUNTS.into());
    for part in OPERATIONS {
        let names = part.figure_names();
        if !names.iter().any(|name| bench.wants_figure(name)) {
            continue;
        }
        let peer = match &peer {
            Ok(peer) => peer,
            Err(reason) => {
                for name in names {
                    let figure = Figure::not_measured(name, "op/s", PEER, better, reason);
                    bench.add_figure_with_note(&mut figures, figure);
                }
                continue;
            }
        };
        let ours: Vec<PathBuf> = (0..MOUNTS).map(|node| bench.volume.mount_path(node)).collect();
        // A name for the directories of these operations alone.
        let sub = format!("peers {}", part.operations[0].1);
        let servers = bench.volume.server_pids()?;
        let load = MountsLoad { sub: &sub, shared: part.shared, items: many_items(bench) };
        let mut ours = MountsSide::start(bench, &ours, load, &servers)?;
        let (paths, servers) = (peer.mount_paths(), peer.process_ids());
        let mut theirs = MountsSide::start(bench, paths, load, &servers)?;
        for ((op, _), name) in part.operations.iter().zip(names) {
            let sides = vec![ours.rounds_of(*op), theirs.rounds_of(*op)];
            let turns = run_in_turn(bench.runs, sides)?;
            let cpu = turns.figure_runs(0, 1, |cost| cost.machine_us);
            let note = format!(
                "CPU time of the machine for an operation: {} µs against {}; {}; {PEER}: {}",
                format_number(median(&cpu.ours)),
                format_number(median(&cpu.baseline)),
                describe_slow(&turns, 0),
                describe_slow(&turns, 1),
            );
            let runs = turns.figure_runs(0, 1, |cost| cost.rate);
            let figure = Figure::new(name, "op/s", PEER, better, &runs).with_note(note);
            bench.add_figure_with_note(&mut figures, figure);
        }
    }
    Ok(figures)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_figure_has_a_name_of_its_own() {
        let mut names: Vec<String> = OPERATIONS.iter().flat_map(|p| p.figure_names()).collect();
        let count = names.len();
        names.sort();
        names.dedup();
        assert_eq!((names.len(), count), (8, 8));
    }
}
