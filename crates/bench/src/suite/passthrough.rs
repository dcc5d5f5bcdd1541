//! Files on the mount's own node against the disk below: the same program, the
//! same requests, on a file of the mount and on a file beside the data
//! directory.
//!
//! Twice: with the disk in play (reads of what no cache holds, writes with an
//! fsync), and in the page cache alone, where the disk's own speed does not hide
//! what the mount costs. Opening and closing is part of the time.

use super::Bench;
use super::figure::{Better, Figure};
use super::pairs::alternate;
use crate::error::{BenchError, at};
use crate::gang::Gang;
use crate::ior::{Before, FilePlace, IorPart, Method, Shape};
use crate::size;
use crate::worker::Task;
use std::path::Path;

const GOAL: f64 = 0.95;

struct Case {
    what: &'static str,
    phase: &'static str,
    method: Method,
    before: Before,
    /// The disk takes part: caches are dropped before a read, a write is synced.
    disk: bool,
}

const fn case(what: &'static str, phase: &'static str, method: Method, before: Before) -> Case {
    Case { what, phase, method, before, disk: false }
}

const fn disk(what: &'static str, phase: &'static str, method: Method, before: Before) -> Case {
    Case { what, phase, method, before, disk: true }
}

const WRITE: Case = case("write, cached", "write", Method::Buffered, Before::Cut);
const MAPPED_WRITE: Case = case("mmap rewrite, cached", "write", Method::Mapped, Before::Keep);
const CASES: [Case; 8] = [
    disk("read, from disk", "read", Method::Buffered, Before::Keep),
    disk("write, fsync", "write", Method::Buffered, Before::Cut),
    disk("mmap read, from disk", "read", Method::Mapped, Before::Keep),
    case("read, cached", "read", Method::Buffered, Before::Keep),
    WRITE,
    case("rewrite, cached", "write", Method::Buffered, Before::Keep),
    case("mmap read, cached", "read", Method::Mapped, Before::Keep),
    MAPPED_WRITE,
];

/// Writes all files below `dir` to the disk and drops what is cached of them.
fn drop_caches(dir: &Path) -> Result<(), BenchError> {
    for entry in std::fs::read_dir(dir).map_err(at("listing", dir))?.flatten() {
        let path = entry.path();
        if path.is_dir() {
            drop_caches(&path)?;
        } else if let Ok(file) = std::fs::File::open(&path) {
            // Only clean pages are dropped.
            file.sync_data().map_err(at("syncing", &path))?;
            rustix::fs::fadvise(&file, 0, None, rustix::fs::Advice::DontNeed)
                .map_err(|e| at("dropping the cache of", &path)(e.into()))?;
        }
    }
    Ok(())
}

fn part(file: &Path, case: &Case, transfer: u64, bytes: u64, stamp: bool) -> Task {
    Task::Ior(IorPart {
        place: FilePlace::Path(file.into(), case.method),
        shape: Shape {
            transfer,
            block: bytes,
            segments: 1,
            procs: 1,
            file_per_process: false,
            random: false,
        },
        rank: 0,
        reorder: false,
        fsync: case.disk,
        before: case.before,
        stamp,
        seed: 7,
    })
}

/// Writes a file anew. How it was written decides how its pages lie in memory, and so
/// how fast it can be read: both sides must start from the same.
fn lay(bench: &Bench, file: &Path, bytes: u64) -> Result<(), BenchError> {
    let mut gang = Gang::start(&bench.launcher, vec![part(file, &WRITE, 1 << 20, bytes, false)])?;
    gang.phase("write").map(drop)
}

/// All figures of this module.
///
/// # Errors
/// What could not be run, and bytes that do not come back.
pub fn figures(bench: &Bench) -> Result<Vec<Figure>, BenchError> {
    let status = bench.volume.status(0)?;
    let mount = status.mounts.first();
    let note = match mount {
        Some(m) if m.passthrough => String::new(),
        Some(m) => format!("passthrough is off: {}", m.why_not.as_deref().unwrap_or("unknown")),
        None => "the daemon knows of no mount".into(),
    };
    let bytes = bench.file_bytes();
    let ours = bench.volume.mount(0).join("passthrough");
    let theirs = bench.plain.join("passthrough");
    // Right before fast: every byte, written and read back both ways.
    for case in [&WRITE, &MAPPED_WRITE] {
        let mut gang = Gang::start(&bench.launcher, vec![part(&ours, case, 65536, bytes, true)])?;
        gang.phase("write")?;
        gang.phase("verify")?;
    }
    let mut figures = Vec::new();
    for case in &CASES {
        for transfer in [1 << 20, 4096] {
            let name = format!("passthrough {}, {}", case.what, size::print(transfer));
            if !bench.wants(&name) {
                continue;
            }
            let start =
                |file| Gang::start(&bench.launcher, vec![part(file, case, transfer, bytes, false)]);
            for file in [&ours, &theirs] {
                lay(bench, file, bytes)?;
            }
            let (mut a, mut b) = (start(&ours)?, start(&theirs)?);
            let run = |gang: &mut Gang, stored: &Path| {
                if case.disk && case.phase == "read" {
                    drop_caches(stored)?;
                }
                Ok(gang.phase(case.phase)?.mib_per_sec())
            };
            let objects = bench.volume.objects(0);
            let pairs =
                alternate(bench.runs, || run(&mut a, &objects), || run(&mut b, &bench.plain))?;
            let goal = (Better::Higher, Some(GOAL));
            let figure = Figure::new(name, "MiB/s", "backing disk", goal, &pairs.runs(|x| *x));
            bench.keep(&mut figures, figure.note(note.clone()));
        }
    }
    for file in [&ours, &theirs] {
        std::fs::remove_file(file).map_err(at("removing", file))?;
    }
    Ok(figures)
}
