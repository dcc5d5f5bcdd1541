//! Files on the mount's own node against the disk below: the same program, the
//! same requests, on a file of the mount and on a file beside the data
//! directory.
//!
//! Twice: with the disk in play (reads of what no cache holds, writes with an
//! fsync), and in the page cache alone, where the disk's own speed does not hide
//! what the mount costs. Opening and closing is part of the time.
//!
//! In the page cache, the kernel's own part is measured too: a file of the same disk
//! behind a FUSE file system that only hands it over.

use super::figure::{Better, Figure};
use super::null::{FILE, NullMount};
use super::pairs::{Side, Turns, in_turn};
use super::{Bench, floor_of};
use crate::error::{BenchError, at};
use crate::gang::{Gang, Outcome};
use crate::ior::{Before, FilePlace, IorPart, Method, Shape, page_bytes};
use crate::size;
use crate::tell;
use crate::worker::Task;
use std::path::{Path, PathBuf};

const GOAL: f64 = 0.95;
/// One part in so many of what the kernel lets be dirty before it starts to write
/// back: the most that a run in the page cache writes.
const DIRTY_SHARE: u64 = 4;
/// The smallest file, in bytes.
const FILE_MIN: u64 = 8 << 20;
const MIB: u64 = 1 << 20;

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

/// How much may be dirty before the kernel starts to write back by itself, in bytes, as the
/// counters of the virtual memory tell.
fn dirty_background(vmstat: &str) -> Option<u64> {
    let line = vmstat.lines().find_map(|l| l.strip_prefix("nr_dirty_background_threshold "))?;
    Some(line.trim().parse::<u64>().ok()? * page_bytes())
}

/// Bytes of a file that stays in the page cache: no write-back starts while it is written.
fn cached_bytes(most: u64, vmstat: &str) -> u64 {
    match dirty_background(vmstat) {
        Some(limit) => (limit / DIRTY_SHARE / MIB * MIB).clamp(FILE_MIN.min(most), most),
        None => most,
    }
}

/// The same requests on the mount, on the disk, and by bare passthrough.
struct Files {
    ours: PathBuf,
    theirs: PathBuf,
    /// Where the system permits.
    bare: Option<(NullMount, PathBuf)>,
}

impl Files {
    fn new(bench: &Bench) -> Result<Files, BenchError> {
        let (backing, dir) = (bench.plain.join("bare"), bench.work.join("bare"));
        std::fs::write(&backing, b"").map_err(at("creating", &backing))?;
        let bare = match NullMount::start(&bench.launcher, &dir, Some(&backing)) {
            Ok(mount) => Some((mount, dir.join(FILE))),
            Err(error) => {
                tell(&format!("bare passthrough is not measured: {error}"));
                None
            }
        };
        let ours = bench.volume.mount(0).join("passthrough");
        Ok(Files { ours, theirs: bench.plain.join("passthrough"), bare })
    }

    fn bare(&self) -> Option<&Path> {
        self.bare.as_ref().map(|(_, path)| path.as_path())
    }
}

/// Leaves nothing that waits for the disk: what one run has written would be
/// written back while the next one is timed, its own or the other side's.
fn settle(bench: &Bench) -> Result<(), BenchError> {
    for dir in [bench.volume.mount(0), bench.plain.clone()] {
        let open = std::fs::File::open(&dir).map_err(at("opening", &dir))?;
        rustix::fs::syncfs(&open).map_err(|e| at("syncing", &dir)(e.into()))?;
    }
    Ok(())
}

/// One case with requests of one size: Tatami, the disk, and bare passthrough for a
/// case that the page cache alone decides. MiB per second.
fn take(
    bench: &Bench,
    files: &Files,
    case: &Case,
    transfer: u64,
    bytes: u64,
) -> Result<Turns<f64>, BenchError> {
    let bare = files.bare().filter(|_| !case.disk);
    let objects = bench.volume.objects(0);
    let sides = [(&*files.ours, &*objects), (&*files.theirs, &*bench.plain)];
    let sides = sides.into_iter().chain(bare.map(|file| (file, &*bench.plain)));
    let mut turns: Vec<Side<'_, f64>> = Vec::new();
    for (file, stored) in sides {
        lay(bench, file, bytes)?;
        let part = part(file, case, transfer, bytes, false);
        let mut gang = Gang::start(&bench.launcher, vec![part])?;
        turns.push(Box::new(move || {
            // Twice: what the cut has freed should not lie about while much is written.
            settle(bench)?;
            gang.prepare(case.phase)?;
            settle(bench)?;
            if case.disk && case.phase == "read" {
                drop_caches(stored)?;
            }
            gang.go()?;
            Ok(Outcome::of(&gang.collect()?).mib_per_sec())
        }));
    }
    in_turn(bench.runs, turns)
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
    let files = Files::new(bench)?;
    // Right before fast: every byte, written and read back both ways.
    for case in [&WRITE, &MAPPED_WRITE] {
        let part = part(&files.ours, case, 65536, bench.file_bytes(), true);
        let mut gang = Gang::start(&bench.launcher, vec![part])?;
        gang.phase("write")?;
        gang.phase("verify")?;
    }
    let vmstat = std::fs::read_to_string("/proc/vmstat").unwrap_or_default();
    let cached = cached_bytes(bench.file_bytes(), &vmstat);
    let mut figures = Vec::new();
    for case in &CASES {
        for transfer in [1 << 20, 4096] {
            let name = format!("passthrough {}, {}", case.what, size::print(transfer));
            let floor = floor_of(&name);
            if !bench.wants_like(&name) {
                continue;
            }
            let bytes = if case.disk { bench.file_bytes() } else { cached };
            let turns = take(bench, &files, case, transfer, bytes)?;
            let figure = |name, side, goal| {
                let runs = turns.runs(side, 1, |x| *x);
                Figure::new(name, "MiB/s", "backing disk", (Better::Higher, goal), &runs)
            };
            bench.keep(&mut figures, figure(name, 0, Some(GOAL)).note(note.clone()));
            if !case.disk && files.bare().is_some() {
                let note = "bare passthrough against the disk: the kernel's own part";
                bench.keep(&mut figures, figure(floor, 2, None).note(note));
            }
        }
    }
    let Files { ours, theirs, bare } = files;
    drop(bare);
    for file in [&ours, &theirs] {
        std::fs::remove_file(file).map_err(at("removing", file))?;
    }
    Ok(figures)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_file_in_the_page_cache_is_smaller_than_what_makes_the_kernel_write_back() {
        let page = page_bytes();
        let vmstat = |bytes: u64| {
            format!(
                "nr_dirty 7\nnr_dirty_threshold 9\nnr_dirty_background_threshold {}\n",
                bytes / page
            )
        };
        assert_eq!(dirty_background(&vmstat(1 << 30)), Some(1 << 30));
        assert_eq!(cached_bytes(512 << 20, &vmstat(1 << 30)), 256 << 20);
        assert_eq!(cached_bytes(512 << 20, &vmstat(64 << 30)), 512 << 20);
        assert_eq!(cached_bytes(512 << 20, &vmstat(1 << 20)), FILE_MIN);
        assert_eq!(cached_bytes(1 << 20, &vmstat(1 << 20)), 1 << 20);
        assert_eq!(cached_bytes(512 << 20, ""), 512 << 20);
    }
}
