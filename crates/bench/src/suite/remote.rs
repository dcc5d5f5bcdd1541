//! A file of node 1, read and written through the mount of node 0, against a plain TCP copy between
//! the same end points. A read goes from the page cache of the file's side to memory. A write goes
//! from memory to the page cache of the file's side. The clock stops when the other side has
//! received everything.

use super::context::SuiteContext;
use super::pairs::run_alternating;
use crate::error::{BenchError, path_error};
use crate::figure::{Figure, GoalDirection};
use crate::ior::file::{IoMethod, TestFilePlace};
use crate::ior::rank::{ExistingFile, IorPart};
use crate::ior::shape::IorShape;
use crate::tcp_copy::TcpCopyPart;
use crate::volume::BenchVolume;
use crate::volume_access::own_cred;
use crate::worker::WorkerTask;
use crate::worker_group::{PhaseOutcome, WorkerGroup};
use std::path::Path;
use tatami_wire::{Ino, Layout, NodeId};

const GOAL: f64 = 0.7;
/// Bytes of one request, and of the buffers of the copy.
const BUFFER: u64 = 1 << 20;
const FILE: &str = "remote";

/// Takes all figures of this module.
///
/// # Errors
/// A measurement that could not be run, bytes that do not come back, and a file that is not remote
/// after all.
pub fn take_figures(bench: &SuiteContext) -> Result<Vec<Figure>, BenchError> {
    let bytes = bench.file_bytes();
    let ours = bench.volume.mount_path(0).join(FILE);
    let mut near = start_file(bench, &bench.volume, FILE)?;
    let mut copy = TcpCopyPair::start(bench, bytes)?;
    // The first read of the copy needs a file.
    copy.run_copy("write")?;
    let mut figures = Vec::new();
    for (phase, name, against) in [
        ("write", "remote write 1m", "TCP copy, memory to file"),
        ("read", "remote read 1m", "TCP copy, file to memory"),
    ] {
        if !bench.wants_figure(name) {
            continue;
        }
        let pairs = run_alternating(
            bench.runs,
            || {
                if phase == "read" {
                    drop_pages(&ours)?;
                }
                run_through_daemon(&bench.volume, phase, || near.run_phase(phase))
            },
            || copy.run_copy(phase),
        )?;
        let goal = (GoalDirection::Higher, Some(GOAL));
        let speed = pairs.figure_runs(PhaseOutcome::mib_per_sec);
        bench.add_figure(&mut figures, Figure::new(name, "MiB/s", against, goal, &speed));
    }
    std::fs::remove_file(&ours).map_err(path_error("removing", &ours))?;
    Ok(figures)
}

/// Makes a file on node 1, and starts a process that writes and reads it through the mount of node
/// 0. All its bytes are verified once.
///
/// # Errors
/// Bytes that do not come back, and a file that is not remote after all.
pub(super) fn start_file(
    bench: &SuiteContext,
    volume: &BenchVolume,
    name: &str,
) -> Result<WorkerGroup, BenchError> {
    let far = volume.mount_path(1).join(name);
    std::fs::write(&far, b"").map_err(path_error("creating", &far))?;
    check_place(volume, name)?;
    let part = |stamp| {
        let shape = IorShape {
            transfer: BUFFER,
            block: bench.file_bytes(),
            segments: 1,
            procs: 1,
            file_per_process: false,
            random: false,
        };
        let ours = volume.mount_path(0).join(name);
        let place = TestFilePlace::Path(ours, IoMethod::Buffered);
        let (before, seed) = (ExistingFile::Cut, 11);
        vec![WorkerTask::Ior(IorPart {
            place,
            shape,
            rank: 0,
            reorder: false,
            fsync: false,
            before,
            stamp,
            seed,
        })]
    };
    let mut stamped = WorkerGroup::start(&bench.launcher, part(true))?;
    stamped.run_phase("write")?;
    stamped.run_phase("verify")?;
    drop(stamped);
    WorkerGroup::start(&bench.launcher, part(false))
}

/// Checks that the file lies on node 1; otherwise the figure would not be a remote one.
fn check_place(volume: &BenchVolume, name: &str) -> Result<(), BenchError> {
    let found = volume.client().lookup(&own_cred(), Ino::ROOT, name.as_bytes());
    let attr = found.map_err(crate::error::volume_error("looking up", name.as_bytes()))?;
    if attr.layout != (Layout::whole(NodeId(1))) {
        let text = format!("the file made on node 1 lies elsewhere: {:?}", attr.layout);
        return Err(BenchError::Usage(text));
    }
    Ok(())
}

/// Drops the pages that the kernel has cached of the file for the reading mount, which it may keep
/// from open to open. The node's own page cache stays.
pub(super) fn drop_pages(file: &Path) -> Result<(), BenchError> {
    let open = std::fs::File::open(file).map_err(path_error("opening", file))?;
    rustix::fs::fadvise(&open, 0, None, rustix::fs::Advice::DontNeed)
        .map_err(|e| path_error("dropping the cache of", file)(e.into()))
}

/// Runs a phase and checks that all its bytes went through the daemon of node 1: a cache must not
/// answer for it.
pub(super) fn run_through_daemon(
    volume: &BenchVolume,
    phase: &str,
    run: impl FnOnce() -> Result<PhaseOutcome, BenchError>,
) -> Result<PhaseOutcome, BenchError> {
    let before = volume.node_status(1)?;
    let outcome = run()?;
    let after = volume.node_status(1)?;
    let moved = match phase {
        "read" => after.bytes_read - before.bytes_read,
        _ => after.bytes_written - before.bytes_written,
    };
    if moved < outcome.bytes {
        return Err(BenchError::Usage(format!(
            "of {} bytes only {moved} went through the daemon of node 1: a cache answered the {phase}",
            outcome.bytes
        )));
    }
    Ok(outcome)
}

/// The plain TCP copy: two processes.
struct TcpCopyPair {
    file: WorkerGroup,
    memory: WorkerGroup,
}

impl TcpCopyPair {
    fn start(bench: &SuiteContext, bytes: u64) -> Result<TcpCopyPair, BenchError> {
        let buffer = BUFFER as usize;
        let file = TcpCopyPart::File { file: bench.plain.join("stream"), bytes, buffer };
        let memory = TcpCopyPart::Memory { bytes, buffer };
        Ok(TcpCopyPair {
            file: WorkerGroup::start(&bench.launcher, vec![WorkerTask::Stream(file)])?,
            memory: WorkerGroup::start(&bench.launcher, vec![WorkerTask::Stream(memory)])?,
        })
    }

    /// Makes one copy; a read needs the file of an earlier write.
    fn run_copy(&mut self, phase: &str) -> Result<PhaseOutcome, BenchError> {
        let (far, near) = match phase {
            "read" => ("send", "receive"),
            _ => ("receive", "send"),
        };
        let address = self.file.prepare_phase(far)?.swap_remove(0);
        self.file.start_phase()?;
        let mut outcome = self.memory.run_phase(&format!("{near} {address}"))?;
        outcome.cpu_ns += PhaseOutcome::from_reports(&self.file.collect_reports()?).cpu_ns;
        Ok(outcome)
    }
}
