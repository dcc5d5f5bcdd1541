//! Files on the mount's own node against the disk below: the same program sends the same requests
//! to a file of the mount and to a file beside the data directory.
//!
//! There are two kinds of cases. In the first, the disk takes part: reads of uncached bytes, writes
//! with an fsync. In the second, only the page cache does, so that the disk's speed does not hide
//! the cost of the mount. The time includes opening and closing.
//!
//! In the page cache, the kernel's own part is measured, too: a file of the same disk behind a FUSE
//! file system that only hands it over.

use super::context::{SuiteContext, baseline_name};
use super::pairs::{SideRun, SideRuns, run_in_turn};
use crate::bare_fs::FILE_NAME;
use crate::error::{BenchError, path_error};
use crate::figure::{Figure, GoalDirection};
use crate::ior::file::{IoMethod, TestFilePlace, page_bytes};
use crate::ior::rank::{ExistingFile, IorPart};
use crate::ior::shape::IorShape;
use crate::null_mount::NullMountProcess;
use crate::progress::print_progress;
use crate::worker::WorkerTask;
use crate::worker_group::{PhaseOutcome, WorkerGroup};
use std::path::{Path, PathBuf};
use tatami_bench_args::size;

const GOAL: f64 = 0.95;
/// A run in the page cache writes at most this fraction of the dirty pages at which the kernel
/// starts to write back.
const DIRTY_SHARE: u64 = 4;
/// The smallest file, in bytes.
const FILE_MIN: u64 = 8 << 20;
const MIB: u64 = 1 << 20;

struct PassthroughCase {
    what: &'static str,
    phase: &'static str,
    method: IoMethod,
    before: ExistingFile,
    /// Bytes of one request.
    transfer: u64,
    /// Whether the disk takes part: caches are dropped before a read, a write is synced.
    disk: bool,
}

const WRITE: PassthroughCase = PassthroughCase {
    what: "write, cached",
    phase: "write",
    method: IoMethod::Buffered,
    before: ExistingFile::Cut,
    transfer: 4096,
    disk: false,
};
const READ: PassthroughCase =
    PassthroughCase { what: "read, cached", phase: "read", before: ExistingFile::Keep, ..WRITE };
/// Only verified: through the mapping, the kernel alone writes.
const MAPPED_WRITE: PassthroughCase = PassthroughCase {
    what: "mmap rewrite, cached",
    method: IoMethod::Mapped,
    before: ExistingFile::Keep,
    ..WRITE
};
const CASES: [PassthroughCase; 5] = [
    PassthroughCase { what: "read, from disk", transfer: MIB, disk: true, ..READ },
    PassthroughCase { what: "write, fsync", transfer: MIB, disk: true, ..WRITE },
    READ,
    WRITE,
    PassthroughCase { what: "mmap read, cached", method: IoMethod::Mapped, transfer: MIB, ..READ },
];

/// Writes all files below `dir` to the disk and drops their cached pages.
fn drop_caches(dir: &Path) -> Result<(), BenchError> {
    for entry in std::fs::read_dir(dir).map_err(path_error("listing", dir))?.flatten() {
        let path = entry.path();
        if path.is_dir() {
            drop_caches(&path)?;
        } else if let Ok(file) = std::fs::File::open(&path) {
            // The kernel drops clean pages only, so sync first.
            file.sync_data().map_err(path_error("syncing", &path))?;
            rustix::fs::fadvise(&file, 0, None, rustix::fs::Advice::DontNeed)
                .map_err(|e| path_error("dropping the cache of", &path)(e.into()))?;
        }
    }
    Ok(())
}

fn ior_task(
    file: &Path,
    case: &PassthroughCase,
    transfer: u64,
    bytes: u64,
    stamp: bool,
) -> WorkerTask {
    WorkerTask::Ior(IorPart {
        place: TestFilePlace::Path(file.into(), case.method),
        shape: IorShape {
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
fn write_file(bench: &SuiteContext, file: &Path, bytes: u64) -> Result<(), BenchError> {
    let mut gang =
        WorkerGroup::start(&bench.launcher, vec![ior_task(file, &WRITE, 1 << 20, bytes, false)])?;
    gang.run_phase("write").map(drop)
}

/// Returns the number of bytes that may be dirty before the kernel starts to write back, from the
/// counters of the virtual memory.
fn dirty_limit(vmstat: &str) -> Option<u64> {
    let line = vmstat.lines().find_map(|l| l.strip_prefix("nr_dirty_background_threshold "))?;
    Some(line.trim().parse::<u64>().ok()? * page_bytes())
}

/// Returns the size of a file that stays in the page cache: no write-back starts while it is
/// written.
fn cached_bytes(most: u64, vmstat: &str) -> u64 {
    match dirty_limit(vmstat) {
        Some(limit) => (limit / DIRTY_SHARE / MIB * MIB).clamp(FILE_MIN.min(most), most),
        None => most,
    }
}

/// The files that get the same requests: on the mount, on the disk, and by bare passthrough.
struct PassthroughFiles {
    ours: PathBuf,
    theirs: PathBuf,
    /// Absent where the system does not permit the mount.
    bare: Option<(NullMountProcess, PathBuf)>,
}

impl PassthroughFiles {
    fn new(bench: &SuiteContext) -> Result<PassthroughFiles, BenchError> {
        let (backing, dir) = (bench.plain.join("bare"), bench.work.join("bare"));
        std::fs::write(&backing, b"").map_err(path_error("creating", &backing))?;
        let bare = match NullMountProcess::start(&bench.launcher, &dir, Some(&backing)) {
            Ok(mount) => Some((mount, dir.join(FILE_NAME))),
            Err(error) => {
                print_progress(&format!("bare passthrough is not measured: {error}"));
                None
            }
        };
        let ours = bench.volume.mount_path(0).join("passthrough");
        Ok(PassthroughFiles { ours, theirs: bench.plain.join("passthrough"), bare })
    }

    fn bare_path(&self) -> Option<&Path> {
        self.bare.as_ref().map(|(_, path)| path.as_path())
    }
}

/// Writes all dirty pages to the disk. Otherwise the kernel would write back the bytes of one run
/// while the next one, of either side, is timed.
fn sync_disks(bench: &SuiteContext) -> Result<(), BenchError> {
    for dir in [bench.volume.mount_path(0), bench.plain.clone()] {
        let open = std::fs::File::open(&dir).map_err(path_error("opening", &dir))?;
        rustix::fs::syncfs(&open).map_err(|e| path_error("syncing", &dir)(e.into()))?;
    }
    Ok(())
}

/// Runs one case: on Tatami, on the disk, and by bare passthrough if the
/// page cache alone decides. Returns MiB per second.
fn run_case(
    bench: &SuiteContext,
    files: &PassthroughFiles,
    case: &PassthroughCase,
    bytes: u64,
) -> Result<SideRuns<f64>, BenchError> {
    let bare = files.bare_path().filter(|_| !case.disk);
    // The cached pages of a passthrough file belong to its object, so a read from disk drops them
    // there.
    let objects = bench.volume.objects_path(0);
    let sides = [(&*files.ours, &*objects), (&*files.theirs, &*bench.plain)];
    let sides = sides.into_iter().chain(bare.map(|file| (file, &*bench.plain)));
    let mut turns: Vec<SideRun<'_, f64>> = Vec::new();
    for (file, stored) in sides {
        write_file(bench, file, bytes)?;
        let part = ior_task(file, case, case.transfer, bytes, false);
        let mut gang = WorkerGroup::start(&bench.launcher, vec![part])?;
        turns.push(Box::new(move || {
            // Syncs before and after the preparation: the truncation frees blocks, which should not
            // wait for the disk while the run writes.
            sync_disks(bench)?;
            gang.prepare_phase(case.phase)?;
            sync_disks(bench)?;
            if case.disk && case.phase == "read" {
                drop_caches(stored)?;
            }
            gang.start_phase()?;
            Ok(PhaseOutcome::from_reports(&gang.collect_reports()?).mib_per_sec())
        }));
    }
    run_in_turn(bench.runs, turns)
}

/// Takes all figures of this module.
///
/// # Errors
/// A measurement that could not be run, and bytes that do not come back.
pub fn take_figures(bench: &SuiteContext) -> Result<Vec<Figure>, BenchError> {
    let status = bench.volume.node_status(0)?;
    let mount = status.mounts.first();
    let note = match mount {
        Some(m) if m.passthrough => String::new(),
        Some(m) => format!("passthrough is off: {}", m.why_not.as_deref().unwrap_or("unknown")),
        None => "the daemon knows of no mount".into(),
    };
    let files = PassthroughFiles::new(bench)?;
    // Correctness comes before speed: every byte is written and read back both ways.
    for case in [&WRITE, &MAPPED_WRITE] {
        let part = ior_task(&files.ours, case, 65536, bench.file_bytes(), true);
        let mut gang = WorkerGroup::start(&bench.launcher, vec![part])?;
        gang.run_phase("write")?;
        gang.run_phase("verify")?;
    }
    let vmstat = std::fs::read_to_string("/proc/vmstat").unwrap_or_default();
    let cached = cached_bytes(bench.file_bytes(), &vmstat);
    let mut figures = Vec::new();
    for case in &CASES {
        let name = format!("passthrough {}, {}", case.what, size::format_size(case.transfer));
        let floor = baseline_name(&name);
        if !bench.wants_with_baseline(&name) {
            continue;
        }
        let bytes = if case.disk { bench.file_bytes() } else { cached };
        let turns = run_case(bench, &files, case, bytes)?;
        let figure = |name, side, goal| {
            let runs = turns.figure_runs(side, 1, |x| *x);
            Figure::new(name, "MiB/s", "backing disk", (GoalDirection::Higher, goal), &runs)
        };
        bench.add_figure(&mut figures, figure(name, 0, Some(GOAL)).with_note(note.clone()));
        if !case.disk && files.bare_path().is_some() {
            let note = "bare passthrough against the disk: the kernel's own part";
            bench.add_figure(&mut figures, figure(floor, 2, None).with_note(note));
        }
    }
    let PassthroughFiles { ours, theirs, bare } = files;
    drop(bare);
    for file in [&ours, &theirs] {
        std::fs::remove_file(file).map_err(path_error("removing", file))?;
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
        assert_eq!(dirty_limit(&vmstat(1 << 30)), Some(1 << 30));
        assert_eq!(cached_bytes(512 << 20, &vmstat(1 << 30)), 256 << 20);
        assert_eq!(cached_bytes(512 << 20, &vmstat(64 << 30)), 512 << 20);
        assert_eq!(cached_bytes(512 << 20, &vmstat(1 << 20)), FILE_MIN);
        assert_eq!(cached_bytes(1 << 20, &vmstat(1 << 20)), 1 << 20);
        assert_eq!(cached_bytes(512 << 20, ""), 512 << 20);
    }
}
