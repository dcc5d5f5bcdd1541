//! A data set of small files: made, read in random order, and removed, by several processes on
//! several mounts, of any file system.
//!
//! Without directories, the benchmark starts a volume of its own for each kind of file: on disks,
//! in regions, beside inodes. All sides take turns, phase by phase.

pub mod rank;
mod report;
pub mod side;
mod space;

use crate::caches::drop_machine_caches;
use crate::error::BenchError;
use crate::progress::print_progress;
use crate::volume::BenchVolume;
use crate::work_dir::WorkDir;
use crate::worker_group::Launcher;
use rank::{PHASES, SmallFileSet};
use report::{SidePhase, SideReport, SmallFilesReport};
use side::{ServingProcesses, SideReach, SmallFilesSide};
use space::{SpaceSource, region_bytes};
use std::path::{Path, PathBuf};
use tatami_bench_args::{SmallFileKind, SmallfilesArgs};
use tatami_wire::policy::INLINE_MAX;

/// Number of nodes, and of mounts, of a volume that the benchmark starts.
pub const MOUNTS: u16 = 4;
/// The directory of the data set in such a volume.
const DATA_DIR: &str = "/data";

/// Returns the options of `tatami set` for files of a kind.
pub fn policy_options(kind: SmallFileKind) -> Option<[&'static str; 2]> {
    match kind {
        SmallFileKind::File => None,
        SmallFileKind::Region => Some(["--engine", "region"]),
        SmallFileKind::Inline => Some(["--inline", "64k"]),
    }
}

/// Returns the bytes of a region device that holds the share of one node, with room to spare.
pub fn region_device_len(set: SmallFileSet, procs: usize) -> u64 {
    let nodes = procs.clamp(1, MOUNTS.into()) as u64;
    let each = set.size.next_power_of_two().max(4096) + 256;
    // Directories do not divide evenly among few processes.
    let files = set.files.div_ceil(nodes) + set.files.div_ceil(set.directories);
    (files * each * 5 / 4 + (96 << 20)).next_multiple_of(1 << 20)
}

/// A file system with a data set.
struct MeasuredSide {
    report: SideReport,
    side: SmallFilesSide,
    space: SpaceSource,
    is_region: bool,
    /// Stopped last.
    _volume: Option<BenchVolume>,
}

/// Runs the benchmark and removes its files.
///
/// # Errors
/// The first operation that fails, and bytes with a wrong value.
pub fn run(args: &SmallfilesArgs, launcher: &Launcher) -> Result<SmallFilesReport, BenchError> {
    check_kinds(args)?;
    let work = args
        .volume_kinds()
        .first()
        .map(|_| WorkDir::make(&args.work, "tatami-smallfiles"))
        .transpose()?;
    let dir = work.as_ref().map(|work| work.path.as_path());
    let mut sides = start_sides(args, launcher, dir)?;
    let cold = measure_sides(args, &mut sides)?;
    // The volumes stop here, before their directory goes.
    let reports = sides.into_iter().map(|side| side.report).collect();
    work.map_or(Ok(()), WorkDir::remove)?;
    Ok(SmallFilesReport::new(args, reports, cold))
}

/// Refuses files that would not be of the kind that was asked for.
fn check_kinds(args: &SmallfilesArgs) -> Result<(), BenchError> {
    let limit = |kind| match kind {
        SmallFileKind::File => u64::MAX,
        SmallFileKind::Region => tatami_wire::object::REGION_MAX,
        SmallFileKind::Inline => INLINE_MAX as u64,
    };
    match args.volume_kinds().into_iter().find(|kind| args.size > limit(*kind)) {
        None => Ok(()),
        Some(kind) => Err(BenchError::Usage(format!(
            "files of kind {} have up to {} bytes, not {}",
            kind.name(),
            limit(kind),
            args.size
        ))),
    }
}

fn start_sides(
    args: &SmallfilesArgs,
    launcher: &Launcher,
    work: Option<&Path>,
) -> Result<Vec<MeasuredSide>, BenchError> {
    let mut sides = Vec::new();
    // The baseline comes first.
    for peer in &args.peer {
        sides.push(start_given(args, launcher, &peer.0)?);
    }
    if !args.dirs.is_empty() {
        sides.push(start_given(args, launcher, &args.dirs)?);
    }
    for (kind, work) in args.volume_kinds().into_iter().zip(std::iter::repeat(work)) {
        let Some(work) = work else { continue };
        print_progress(&format!("starting a volume for files of kind {}", kind.name()));
        sides.push(start_volume_side(args, launcher, work, kind)?);
    }
    Ok(sides)
}

fn data_set(args: &SmallfilesArgs) -> SmallFileSet {
    let SmallfilesArgs { files, directories, size, seed, .. } = *args;
    SmallFileSet { files, directories, size, seed }
}

/// Starts a side in directories that the user has named.
fn start_given(
    args: &SmallfilesArgs,
    launcher: &Launcher,
    paths: &[PathBuf],
) -> Result<MeasuredSide, BenchError> {
    let reach = SideReach::Paths(paths.to_vec());
    let (servers, work) = (ServingProcesses::default(), (data_set(args), args.procs));
    // Two sides may have the same directory.
    let name = paths[0].display().to_string();
    let own = name.replace('/', "-");
    let side = SmallFilesSide::start(launcher, &reach, own.trim_matches('-'), servers, work)?;
    let report = SideReport::new(name, paths.len(), false);
    let space = SpaceSource::FileSystem(paths[0].clone());
    Ok(MeasuredSide { report, side, space, is_region: false, _volume: None })
}

fn start_volume_side(
    args: &SmallfilesArgs,
    launcher: &Launcher,
    work: &Path,
    kind: SmallFileKind,
) -> Result<MeasuredSide, BenchError> {
    let program = launcher.tatami_command(args.program.as_deref());
    let dir = work.join(kind.name());
    let set = data_set(args);
    let volume = match kind {
        SmallFileKind::Region => {
            let len = region_device_len(set, args.procs);
            BenchVolume::start_with_regions(&program, &dir, MOUNTS, len)?
        }
        _ => BenchVolume::start(&program, &dir, MOUNTS, "all")?,
    };
    volume.set_policy(DATA_DIR, policy_options(kind).as_ref().map_or(&[], |options| options))?;
    let data = DATA_DIR.trim_start_matches('/');
    let paths = (0..MOUNTS).map(|node| volume.mount_path(node).join(data)).collect();
    let (reach, servers) = (SideReach::Paths(paths), ServingProcesses::of_volume(&volume)?);
    let side = SmallFilesSide::start(launcher, &reach, kind.name(), servers, (set, args.procs))?;
    Ok(MeasuredSide {
        report: SideReport::new(kind.name().into(), MOUNTS.into(), true),
        side,
        space: SpaceSource::Volume(dir),
        is_region: kind == SmallFileKind::Region,

        _volume: Some(volume),
    })
}

/// Runs all phases. Returns whether the first read was without caches of the kernel.
fn measure_sides(args: &SmallfilesArgs, sides: &mut [MeasuredSide]) -> Result<bool, BenchError> {
    let mut is_cold = true;
    for phase in PHASES {
        for measured in sides.iter_mut() {
            // Each side by itself: another one may lie on the same disk.
            let before = if phase == "make" { measured.space.used_bytes()? } else { 0 };
            if phase == "read" {
                is_cold &= drop_machine_caches();
            }
            let cost = measured.side.run_phase(phase)?;
            let row = SidePhase::new(phase, &cost, measured.report.has_servers);
            print_progress(&format!("{phase}, {}: {}", measured.report.name, row.describe()));
            measured.report.phases.push(row);
            if phase == "make" {
                let used = measured.space.used_bytes()?.saturating_sub(before);
                let mut each = used as f64 / args.files as f64;
                if let Some(path) = measured.side.path().filter(|_| measured.is_region) {
                    each += region_bytes(&path.join(SmallFileSet::first_path()))? as f64;
                }
                measured.report.bytes_per_file = each;
            }
        }
    }
    Ok(is_cold)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_device_has_room_for_the_share_of_its_node() {
        let set = SmallFileSet { files: 1_000_000, directories: 1000, size: 4096, seed: 1 };
        let quarter = region_device_len(set, 8);
        assert!(quarter > 251_000 * 4224 && quarter < 2 << 30, "{quarter}");
        assert!(region_device_len(set, 1) > 1_000_000 * 4224);
        assert!(region_device_len(SmallFileSet { files: 1, ..set }, 8) >= 64 << 20);
    }
}
