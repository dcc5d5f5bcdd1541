//! Small files through the mounts of four nodes: created and written, read, and read again, each
//! with a close. They lie in files of the disks, in regions, or beside their inodes. They stand
//! against ext4 and XFS on loop devices of the same disk, and against MooseFS with as many mounts.
//!
//! Tatami's own disks and region devices, and those of MooseFS, are on that ext4. Four processes
//! have a directory each. All sides take turns, phase by phase, once: each phase has thousands of
//! files. A peer that is missing has one figure that says why.
//!
//! The FUSE file system that does nothing stands beside all of them where files are made: no file
//! system with a mount can be faster.
//!
//! Other figures are rates of creates: several clients of the library make files in a directory
//! with the policy `engine=region`, and in one without a policy. And they make files with all their
//! bytes beside the inode, against empty files.

use super::context::SuiteContext;
use super::mounts::MOUNTS;
use super::pairs::run_alternating;
use crate::caches::drop_machine_caches;
use crate::error::BenchError;
use crate::figure::{Figure, FigureRuns, GoalDirection};
use crate::loop_disk::{DiskKind, LoopDisk};
use crate::mdtest::MdtestSite;
use crate::mdtest::names::{MdtestOp, WorkloadPlace};
use crate::moosefs::MooseVolume;
use crate::null_mount::NullMountProcess;
use crate::smallfiles::rank::{PHASES, SmallFileSet};
use crate::smallfiles::side::{ServingProcesses, SideReach, SmallFilesCost, SmallFilesSide};
use crate::smallfiles::{policy_options, region_device_len};
use crate::volume::BenchVolume;
use crate::worker::WorkerTask;
use crate::worker_group::WorkerGroup;
use std::path::PathBuf;
use tatami_bench_args::{SmallFileKind, size};
use tatami_plot::format_number;

const PROCS: usize = MOUNTS as usize;
/// Sizes of files.
const SIZES: [u64; 5] = [100, 1 << 10, 4 << 10, 16 << 10, 64 << 10];
/// Files of each process, and the most bytes of them.
const FILES: u64 = 5000;
const BYTES_MAX: u64 = FILES * (16 << 10);
/// The size of the files that are also measured through one mount, and through the library.
const PATHS_SIZE: u64 = 4 << 10;
/// What the phases are in the names of figures. The last one, the removal, has none.
const OPERATIONS: [(&str, &str); 3] =
    [("make", "write"), ("read", "read cold"), ("read again", "read warm")];
/// GiB of the disks of both local file systems, and of small ones for a quick run.
const EXT4_GIB: [u64; 2] = [16, 4];
const XFS_GIB: [u64; 2] = [2, 1];

/// Numbers of clients that create, and the files of all together.
const CLIENTS: [usize; 5] = [1, 4, 16, 64, 128];
const CREATES: u64 = 8000;
const CREATE_GOAL: f64 = 0.98;
/// Clients that make files with all their bytes, and the goal: at most 1.2 times the time of an
/// empty file.
const FILLING_CLIENTS: usize = 4;
const FILLED_GOAL: f64 = 1.0 / 1.2;
const CREATE_RUNS_MAX: usize = 7;

/// How the processes reach a volume.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum SmallFilesPath {
    Mounts,
    OneMount,
    Library,
    /// By the library, each file with all its bytes by one call.
    WholeFiles,
}

/// A side of Tatami.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct OwnSide {
    kind: SmallFileKind,
    through: SmallFilesPath,
}

impl OwnSide {
    /// Returns the sides with files of this size.
    fn all_with_size(size: u64) -> Vec<OwnSide> {
        let own = |through| move |kind| OwnSide { kind, through };
        let mut all = SmallFileKind::ALL.map(own(SmallFilesPath::Mounts)).to_vec();
        if size == PATHS_SIZE {
            all.extend(SmallFileKind::ALL.map(own(SmallFilesPath::OneMount)));
            all.extend(SmallFileKind::ALL.map(own(SmallFilesPath::Library)));
            all.push(own(SmallFilesPath::WholeFiles)(SmallFileKind::Inline));
        }
        all
    }

    fn name(self) -> String {
        let kind = self.kind.name();
        match self.through {
            SmallFilesPath::Mounts => kind.into(),
            SmallFilesPath::OneMount => format!("{kind} by one mount"),
            SmallFilesPath::Library => format!("{kind} by the library"),
            SmallFilesPath::WholeFiles => format!("{kind} by the library at once"),
        }
    }

    /// Returns the name of a figure: ext4 is the baseline of those that name none.
    fn figure_name(self, operation: &str, bytes: u64, peer: &str) -> String {
        let against = if peer == EXT4 { String::new() } else { format!(", {peer}") };
        format!("smallfiles {operation} {}, {}{against}", size::format_size(bytes), self.name())
    }
}

const EXT4: &str = "ext4";
const MOOSE: &str = "MooseFS";
const NULL: &str = "FUSE alone";
const PEERS: [&str; 4] = [EXT4, "XFS", MOOSE, NULL];

fn create_name(clients: usize) -> String {
    let clients = if clients == 1 { "1 client".into() } else { format!("{clients} clients") };
    format!("smallfiles create, {clients}")
}

fn filled_name() -> String {
    format!("smallfiles create with {}, inline", size::format_size(PATHS_SIZE))
}

/// Returns the name of the figure that says that a peer is missing.
fn missing_name(peer: &str) -> String {
    format!("smallfiles against {peer}")
}

fn wants_size(bench: &SuiteContext, bytes: u64) -> bool {
    OwnSide::all_with_size(bytes).into_iter().any(|side| {
        let mut names = OPERATIONS
            .iter()
            .flat_map(|(_, operation)| PEERS.map(|peer| side.figure_name(operation, bytes, peer)));
        names.any(|name| bench.wants_figure(&name))
    })
}

fn data_set(bench: &SuiteContext, size: u64) -> SmallFileSet {
    let each = if bench.quick { 25 } else { FILES.min(BYTES_MAX / size) };
    SmallFileSet { files: each * PROCS as u64, directories: PROCS as u64, size, seed: 1 }
}

fn disk_len(bench: &SuiteContext, [full, quick]: [u64; 2]) -> u64 {
    if bench.quick { quick << 30 } else { full << 30 }
}

/// A file system that Tatami is compared with.
struct SmallFilesPeer {
    name: &'static str,
    paths: Vec<PathBuf>,
}

impl SmallFilesPeer {
    /// Whether it keeps the bytes of files, so that they can be read.
    fn keeps_bytes(&self) -> bool {
        self.name != NULL
    }
}

/// Takes all figures of this module.
///
/// # Errors
/// A measurement that could not be run.
pub fn take_figures(bench: &SuiteContext) -> Result<Vec<Figure>, BenchError> {
    let mut figures = Vec::new();
    let disks = bench.work.join("small");
    // Without a loop device, the baseline is the disk itself.
    let ext4 = LoopDisk::make(&disks, DiskKind::Ext4, disk_len(bench, EXT4_GIB));
    let base = match &ext4 {
        Ok(disk) => disk.path().to_owned(),
        Err(_) => bench.work.join("small"),
    };
    let largest = SIZES.into_iter().map(|size| region_device_len(data_set(bench, size), PROCS));
    let device_len = largest.max().unwrap_or(0);
    let dir = base.join("volume");
    let volume = BenchVolume::start_with_regions(&bench.program, &dir, MOUNTS, device_len)?;
    for kind in SmallFileKind::ALL {
        let options = policy_options(kind);
        let options: &[&str] = options.as_ref().map_or(&[], |options| options);
        volume.set_policy(&format!("/{}", kind.name()), options)?;
    }
    measure_creates(bench, &volume, &mut figures)?;
    measure_filled_creates(bench, &volume, &mut figures)?;
    let sizes: Vec<u64> = SIZES.into_iter().filter(|size| wants_size(bench, *size)).collect();
    if sizes.is_empty() {
        return Ok(figures);
    }
    let mut peers = vec![SmallFilesPeer { name: EXT4, paths: vec![base.join("plain")] }];
    let xfs = LoopDisk::make(&disks, DiskKind::Xfs, disk_len(bench, XFS_GIB));
    let moose = MooseVolume::start(&base.join("moosefs"), MOUNTS.into());
    let found = [
        (DiskKind::Xfs.name(), xfs.as_ref().map(|disk| vec![disk.path().to_owned()])),
        (MOOSE, moose.as_ref().map(|volume| volume.mount_paths().to_vec())),
    ];
    for (name, paths) in found {
        match paths {
            Ok(paths) => peers.push(SmallFilesPeer { name, paths }),
            Err(reason) => {
                let better = (GoalDirection::Higher, None);
                let figure =
                    Figure::not_measured(missing_name(name), "files/s", name, better, reason);
                bench.add_figure_with_note(&mut figures, figure);
            }
        }
    }
    let null_paths: Vec<PathBuf> =
        (0..MOUNTS).map(|node| disks.join(format!("null{node}"))).collect();
    // It lives as long as the measurements.
    let _null = NullMountProcess::start_several(&bench.launcher, null_paths.clone())?;
    peers.push(SmallFilesPeer { name: NULL, paths: null_paths });
    for size in sizes {
        measure_size(bench, &volume, &peers, size, ext4.as_ref().err(), &mut figures)?;
    }
    Ok(figures)
}

/// Measures all sides with files of one size.
fn measure_size(
    bench: &SuiteContext,
    volume: &BenchVolume,
    peers: &[SmallFilesPeer],
    bytes: u64,
    without_loop: Option<&String>,
    figures: &mut Vec<Figure>,
) -> Result<(), BenchError> {
    let set = data_set(bench, bytes);
    let start = |reach: &SideReach, name: &str, servers| {
        SmallFilesSide::start(&bench.launcher, reach, name, servers, (set, PROCS))
    };
    let own = OwnSide::all_with_size(bytes);
    let mut sides = Vec::new();
    for peer in peers {
        let reach = SideReach::Paths(peer.paths.clone());
        sides.push(start(&reach, peer.name, ServingProcesses::default())?);
    }
    for side in &own {
        let dir = side.kind.name();
        let mount = |node| volume.mount_path(node).join(dir);
        let reach = match side.through {
            SmallFilesPath::Mounts => SideReach::Paths((0..MOUNTS).map(mount).collect()),
            SmallFilesPath::OneMount => SideReach::Paths(vec![mount(0)]),
            SmallFilesPath::Library => SideReach::Library(volume.access(), format!("/{dir}")),
            SmallFilesPath::WholeFiles => SideReach::WholeFiles(volume.access(), format!("/{dir}")),
        };
        sides.push(start(&reach, &side.name(), ServingProcesses::of_volume(volume)?)?);
    }
    for phase in PHASES {
        let mut costs = Vec::with_capacity(sides.len());
        let mut is_cold = true;
        for (number, side) in sides.iter_mut().enumerate() {
            let has_bytes = peers.get(number).is_none_or(SmallFilesPeer::keeps_bytes);
            if phase.starts_with("read") && !has_bytes {
                costs.push(None);
                continue;
            }
            if phase == "read" {
                is_cold &= drop_machine_caches();
            }
            costs.push(Some(side.run_phase(phase)?));
        }
        let Some((_, operation)) = OPERATIONS.iter().find(|(of, _)| *of == phase) else { continue };
        let (peer_costs, own_costs) = costs.split_at(peers.len());
        for (side, cost) in own.iter().zip(own_costs.iter().flatten()) {
            for (peer, floor) in peers.iter().zip(peer_costs) {
                let Some(floor) = floor else { continue };
                // The other paths are for a look at what a path costs: one baseline is enough.
                if side.through != SmallFilesPath::Mounts && peer.name != EXT4 {
                    continue;
                }
                let name = side.figure_name(operation, bytes, peer.name);
                let mut figure = build_figure(name, peer.name, cost, floor);
                if let Some(reason) = without_loop.filter(|_| peer.name == EXT4) {
                    figure.note += &format!("; the disk itself, since there is {reason}");
                }
                if !is_cold {
                    figure.note += "; caches as they were, since dropping them needs root";
                }
                bench.add_figure(figures, figure);
            }
        }
    }
    Ok(())
}

fn build_figure(
    name: String,
    against: &str,
    cost: &SmallFilesCost,
    floor: &SmallFilesCost,
) -> Figure {
    let times = |cost: &SmallFilesCost| {
        let ms = |ns: u64| format_number(ns as f64 / 1e6);
        let (of, us) = (&cost.outcome, |ns: u64| format_number(ns as f64 / 1e3));
        format!("{} / {} µs / {} ms", us(of.median_ns), us(of.p99_ns), ms(of.slowest_ns))
    };
    let note = format!(
        "{} files; median / 99 % / slowest of the slowest process: {} against {}; CPU time of \
         daemons and mounts for a file: {} µs",
        cost.outcome.ops,
        times(cost),
        times(floor),
        format_number(cost.servers_us())
    );
    let runs = FigureRuns {
        ours: vec![cost.outcome.ops_per_sec()],
        baseline: vec![floor.outcome.ops_per_sec()],
        stolen: cost.stolen.max(floor.stolen),
    };
    let better = (GoalDirection::Higher, None);
    Figure::new(name, "files/s", against, better, &runs).with_note(note)
}

/// Measures creates by several clients, with regions as the policy and without.
fn measure_creates(
    bench: &SuiteContext,
    volume: &BenchVolume,
    figures: &mut Vec<Figure>,
) -> Result<(), BenchError> {
    for clients in CLIENTS {
        let create = |kind: SmallFileKind| create_files(bench, volume, kind, clients);
        let (with, without) = (|| create(SmallFileKind::Region), || create(SmallFileKind::File));
        let goal = ("without a policy", CREATE_GOAL);
        measure_rates(bench, create_name(clients), goal, (with, without), figures)?;
    }
    Ok(())
}

/// Measures creates of files with all their bytes, against empty files.
fn measure_filled_creates(
    bench: &SuiteContext,
    volume: &BenchVolume,
    figures: &mut Vec<Figure>,
) -> Result<(), BenchError> {
    let fill = || fill_files(bench, volume);
    let create = || create_files(bench, volume, SmallFileKind::File, FILLING_CLIENTS);
    measure_rates(bench, filled_name(), ("an empty file", FILLED_GOAL), (fill, create), figures)
}

/// Measures two rates of files a second in turn, if the figure is wanted. The goal is one of their
/// ratio.
fn measure_rates(
    bench: &SuiteContext,
    name: String,
    (against, goal): (&str, f64),
    (ours, baseline): (
        impl FnMut() -> Result<f64, BenchError>,
        impl FnMut() -> Result<f64, BenchError>,
    ),
    figures: &mut Vec<Figure>,
) -> Result<(), BenchError> {
    if !bench.wants_figure(&name) {
        return Ok(());
    }
    let pairs = run_alternating(bench.runs.min(CREATE_RUNS_MAX), ours, baseline)?;
    let better = (GoalDirection::Higher, Some(goal));
    let runs = pairs.figure_runs(|rate| *rate);
    bench.add_figure(figures, Figure::new(name, "files/s", against, better, &runs));
    Ok(())
}

/// Makes files with all their bytes beside their inodes, each by one call, and returns how many a
/// second.
fn fill_files(bench: &SuiteContext, volume: &BenchVolume) -> Result<f64, BenchError> {
    let files = if bench.quick { 256 } else { CREATES };
    let set =
        SmallFileSet { files, directories: FILLING_CLIENTS as u64, size: PATHS_SIZE, seed: 1 };
    let kind = SmallFileKind::Inline.name();
    let reach = SideReach::WholeFiles(volume.access(), format!("/{kind}"));
    let servers = ServingProcesses::default();
    let (launcher, part) = (&bench.launcher, (set, FILLING_CLIENTS));
    let mut side = SmallFilesSide::start(launcher, &reach, "filled", servers, part)?;
    let made = side.run_phase("make")?;
    side.run_phase("remove")?;
    Ok(made.outcome.ops_per_sec())
}

/// Creates files in new directories, one for each client, and returns how many a second.
fn create_files(
    bench: &SuiteContext,
    volume: &BenchVolume,
    kind: SmallFileKind,
    clients: usize,
) -> Result<f64, BenchError> {
    let dir = format!("/{}", kind.name());
    let place = WorkloadPlace::Library { reach: volume.access(), dir };
    let site = MdtestSite::create(&place, clients, false)?;
    let creates = if bench.quick { 256 } else { CREATES };
    let parts = site.process_parts(clients, creates / clients as u64, false, 0);
    let tasks = parts.into_iter().map(WorkerTask::Mdtest).collect();
    let mut group = WorkerGroup::start(&bench.launcher, tasks)?;
    let rate = group.run_phase(MdtestOp::FileCreate.name())?.ops_per_sec();
    drop(group);
    site.remove()?;
    Ok(rate)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::process_use::MemoryUse;
    use crate::worker_group::PhaseOutcome;

    #[test]
    fn every_figure_has_a_name_of_its_own() {
        let mut names: Vec<String> = CLIENTS.iter().map(|clients| create_name(*clients)).collect();
        names.extend(PEERS.map(missing_name));
        names.push(filled_name());
        for bytes in SIZES {
            for side in OwnSide::all_with_size(bytes) {
                for (_, operation) in OPERATIONS {
                    names.extend(PEERS.map(|peer| side.figure_name(operation, bytes, peer)));
                }
            }
        }
        assert!(names.contains(&"smallfiles write 4k, region".to_owned()));
        assert!(names.contains(&"smallfiles read cold 100, inline, MooseFS".to_owned()));
        assert!(names.contains(&"smallfiles read warm 4k, file by one mount".to_owned()));
        let count = names.len();
        names.sort();
        names.dedup();
        assert_eq!(names.len(), count);
    }

    #[test]
    fn a_figure_has_both_rates_and_the_times_of_both() {
        let cost = |seconds, median_ns| SmallFilesCost {
            outcome: PhaseOutcome {
                seconds,
                ops: 1000,
                bytes: 0,
                cpu_ns: 0,
                slow_ops: 0,
                slowest_ns: 5_000_000,
                median_ns,
                p99_ns: 90_000,
            },
            servers_ns: 7_000_000,
            daemons: MemoryUse::default(),
            mounts: MemoryUse::default(),
            stolen: 0.0,
        };
        let figure = build_figure("x".into(), "XFS", &cost(2.0, 40_000), &cost(1.0, 20_000));
        assert_eq!((figure.value, figure.baseline, figure.ratio), (500.0, 1000.0, 0.5));
        assert!(figure.note.contains("40.0 / 90.0 µs / 5.00 ms against 20.0"), "{figure:?}");
        assert!(figure.note.contains("for a file: 7.00 µs"), "{figure:?}");
    }
}
