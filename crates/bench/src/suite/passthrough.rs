//! Files on the mount's own node against the disk below: the same program sends the same requests
//! to a file of the mount and to a file beside the data directory.
//!
//! There are two kinds of cases. In the first, the disk takes part: reads of uncached bytes, writes
//! with an fsync. In the second, only the page cache does, so that the disk's speed does not hide
//! the cost of the mount. The time includes opening and closing.
//!
//! In the page cache, the kernel's own part is measured, too: a file of the same disk behind a FUSE
//! file system that only hands it over.

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
/// A run in the page cache writes at most this fraction of the dirty pages at which the kernel
/// starts to write back.
const DIRTY_SHARE: u64 = 4;
/// The smallest file, in bytes.
const FILE_MIN: u64 = 8 << 20;
const MIB: u64 = 1 << 20;

struct Case {
    what: &'static str,
    phase: &'static str,
    method: Method,
    before: Before,
    /// Whether the disk takes part: caches are dropped before a read, a write is synced.
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

/// Writes all files below `dir` to the disk and drops their cached pages.
fn drop_caches(dir: &Path) -> Result<(), BenchError> {
    for entry in std::fs::read_dir(dir).map_err(at("listing", dir))?.flatten() {
        let path = entry.path();
        if path.is_dir() {
            drop_caches(&path)?;
        } else if let Ok(file) = std::fs::File::open(&path) {
            // The kernel drops clean pages only, so sync first.
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

/// Writes a file from the beginning. The way of writing decides how the pages lie in memory, and so
/// how fast they can be read. Both sides must start from the same state.
fn lay(bench: &Bench, file: &Path, bytes: u64) -> Result<(), BenchError> {
    let mut gang = Gang::start(&bench.launcher, vec![part(file, &WRITE, 1 << 20, bytes, false)])?;
    gang.phase("write").map(drop)
}

/// Returns the number of bytes that may be dirty before the kernel starts to write back, from the
/// counters of the virtual memory.
fn dirty_background(vmstat: &str) -> Option<u64> {
    let line = vmstat.lines().find_map(|l| l.strip_prefix("nr_dirty_background_threshold "))?;
    Some(line.trim().parse::<u64>().ok()? * page_bytes())
}

/// Returns the size of a file that stays in the page cache: no write-back starts while it is
/// written.
fn cached_bytes(most: u64, vmstat: &str) -> u64 {
    match dirty_background(vmstat) {
        Some(limit) => (limit / DIRTY_SHARE / MIB * MIB).clamp(FILE_MIN.min(most), most),
        None => most,
    }
}

/// The files that get the same requests: on the mount, on the disk, and by bare passthrough.
struct Files {
    ours: PathBuf,
    theirs: PathBuf,
    /// Absent where the system does not permit the mount.
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

/// Writes all dirty pages to the disk. Otherwise the kernel would write back the bytes of one run
/// while the next one, of either side, is timed.
fn settle(bench: &Bench) -> Result<(), BenchError> {
    for dir in [bench.volume.mount(0), bench.plain.clone()] {
        let open = std::fs::File::open(&dir).map_err(at("opening", &dir))?;
        rustix::fs::syncfs(&open).map_err(|e| at("syncing", &dir)(e.into()))?;
    }
    Ok(())
}

/// Runs one case with requests of one size: on Tatami, on the disk, and by bare passthrough if the
/// page cache alone decides. Returns MiB per second.
fn take(
    bench: &Bench,
    files: &Files,
    case: &Case,
    transfer: u64,
    bytes: u64,
) -> Result<Turns<f64>, BenchError> {
    let bare = files.bare().filter(|_| !case.disk);
    // The cached pages of a passthrough file belong to its object, so a read from disk drops them
    // there.
    let objects = bench.volume.objects(0);
    let sides = [(&*files.ours, &*objects), (&*files.theirs, &*bench.plain)];
    let sides = sides.into_iter().chain(bare.map(|file| (file, &*bench.plain)));
    let mut turns: Vec<Side<'_, f64>> = Vec::new();
    for (file, stored) in sides {
        lay(bench, file, bytes)?;
        let part = part(file, case, transfer, bytes, false);
        let mut gang = Gang::start(&bench.launcher, vec![part])?;
        turns.push(Box::new(move || {
            // Syncs before and after the preparation: the truncation frees blocks, which should not
            // wait for the disk while the run writes.
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

/// Takes all figures of this module.
///
/// # Errors
/// A measurement that could not be run, and bytes that do not come back.
pub fn figures(bench: &Bench) -> Result<Vec<Figure>, BenchError> {
    let status = bench.volume.status(0)?;
    let mount = status.mounts.first();
    let note = match mount {
        Some(m) if m.passthrough => String::new(),
        Some(m) => format!("passthrough is off: {}", m.why_not.as_deref().unwrap_or("unknown")),
        None => "the daemon knows of no mount".into(),
    };
    let files = Files::new(bench)?;
    // Correctness comes before speed: every byte is written and read back both ways.
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
