//! A file of node 1, read and written through the mount of node 0, against a plain TCP copy between
//! the same end points. A read goes from the page cache of the file's side to memory. A write goes
//! from memory to the page cache of the file's side. The clock stops when the other side has
//! received everything.

use super::Bench;
use super::figure::{Better, Figure};
use super::pairs::alternate;
use crate::error::{BenchError, at};
use crate::gang::{Gang, Outcome};
use crate::ior::{Before, FilePlace, IorPart, Method, Shape};
use crate::mdtest::own_cred;
use crate::stream::StreamPart;
use crate::worker::Task;
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
pub fn figures(bench: &Bench) -> Result<Vec<Figure>, BenchError> {
    let bytes = bench.file_bytes();
    let far = bench.volume.mount(1).join(FILE);
    std::fs::write(&far, b"").map_err(at("creating", &far))?;
    check_place(bench)?;
    let ours = bench.volume.mount(0).join(FILE);
    let part = |stamp| {
        let shape = Shape {
            transfer: BUFFER,
            block: bytes,
            segments: 1,
            procs: 1,
            file_per_process: false,
            random: false,
        };
        let place = FilePlace::Path(ours.clone(), Method::Buffered);
        let (before, seed) = (Before::Cut, 11);
        vec![Task::Ior(IorPart {
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
    let mut stamped = Gang::start(&bench.launcher, part(true))?;
    stamped.phase("write")?;
    stamped.phase("verify")?;
    drop(stamped);

    let mut near = Gang::start(&bench.launcher, part(false))?;
    let mut copy = Copy::start(bench, bytes)?;
    // The first read of the copy needs a file.
    copy.run("write")?;
    let mut figures = Vec::new();
    for (phase, name, against) in [
        ("write", "remote write 1m", "TCP copy, memory to file"),
        ("read", "remote read 1m", "TCP copy, file to memory"),
    ] {
        if !bench.wants(name) {
            continue;
        }
        let pairs = alternate(
            bench.runs,
            || {
                if phase == "read" {
                    forget_pages(&ours)?;
                }
                through_daemon(bench, phase, || near.phase(phase))
            },
            || copy.run(phase),
        )?;
        let goal = (Better::Higher, Some(GOAL));
        let speed = pairs.runs(Outcome::mib_per_sec);
        bench.keep(&mut figures, Figure::new(name, "MiB/s", against, goal, &speed));
    }
    std::fs::remove_file(&ours).map_err(at("removing", &ours))?;
    Ok(figures)
}

/// Checks that the file lies on node 1; otherwise the figure would not be a remote one.
fn check_place(bench: &Bench) -> Result<(), BenchError> {
    let found = bench.volume.client().lookup(&own_cred(), Ino::ROOT, FILE.as_bytes());
    let attr = found.map_err(crate::error::on("looking up", FILE.as_bytes()))?;
    if attr.layout != (Layout::Whole { node: NodeId(1) }) {
        let text = format!("the file made on node 1 lies elsewhere: {:?}", attr.layout);
        return Err(BenchError::Usage(text));
    }
    Ok(())
}

/// Drops the pages that the kernel has cached of the file for the reading mount, which it may keep
/// from open to open. The node's own page cache stays.
fn forget_pages(file: &Path) -> Result<(), BenchError> {
    let open = std::fs::File::open(file).map_err(at("opening", file))?;
    rustix::fs::fadvise(&open, 0, None, rustix::fs::Advice::DontNeed)
        .map_err(|e| at("dropping the cache of", file)(e.into()))
}

/// Runs a phase and checks that all its bytes went through the daemon of node 1: a cache must not
/// answer for it.
fn through_daemon(
    bench: &Bench,
    phase: &str,
    run: impl FnOnce() -> Result<Outcome, BenchError>,
) -> Result<Outcome, BenchError> {
    let before = bench.volume.status(1)?;
    let outcome = run()?;
    let after = bench.volume.status(1)?;
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
struct Copy {
    file: Gang,
    memory: Gang,
}

impl Copy {
    fn start(bench: &Bench, bytes: u64) -> Result<Copy, BenchError> {
        let buffer = BUFFER as usize;
        let file = StreamPart::File { file: bench.plain.join("stream"), bytes, buffer };
        let memory = StreamPart::Memory { bytes, buffer };
        Ok(Copy {
            file: Gang::start(&bench.launcher, vec![Task::Stream(file)])?,
            memory: Gang::start(&bench.launcher, vec![Task::Stream(memory)])?,
        })
    }

    /// Makes one copy; a read needs the file of an earlier write.
    fn run(&mut self, phase: &str) -> Result<Outcome, BenchError> {
        let (far, near) = match phase {
            "read" => ("send", "receive"),
            _ => ("receive", "send"),
        };
        let address = self.file.prepare(far)?.swap_remove(0);
        self.file.go()?;
        let mut outcome = self.memory.phase(&format!("{near} {address}"))?;
        outcome.cpu_ns += Outcome::of(&self.file.collect()?).cpu_ns;
        Ok(outcome)
    }
}
