//! One large directory on one server, through the client library. Does the number of entries affect
//! the rate? How much memory and disk does an entry take? How long is the server unavailable after
//! its death?

use super::SuiteContext;
use super::figure::{Figure, FigureRuns, GoalDirection};
use super::volume::BenchVolume;
use crate::clock::{Steal, now_ns};
use crate::error::{BenchError, path_error, volume_error};
use crate::mdtest::{MdtestOp, MdtestPart, MdtestSite, WorkDirectory, WorkloadPlace};
use crate::volume_access::VolumeAccess;
use crate::worker::WorkerTask;
use crate::worker_group::WorkerGroup;
use std::os::unix::fs::MetadataExt;
use std::path::Path;
use tatami_wire::READDIR_MAX;

/// Entries are made and removed in this many parts, each timed.
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
    let reach = VolumeAccess::from(&volume.client_options()?);
    let site = MdtestSite::create(&WorkloadPlace::Library { reach, dir: "/".into() }, 1, true)?;
    let steal = Steal::now();
    let before = ServerSize::from_volume(&volume)?;
    let made = measure_parts(bench, &site, MdtestOp::FileCreate)?;
    let size = ServerSize::from_volume(&volume)?;
    let (listed, seconds) = list_names(&site)?;
    let asked = bench.large_dir_entries() / PARTS * PARTS;
    if listed != asked {
        let problem = format!("lists {listed} entries of a directory that has {asked}");
        return Err(BenchError::Program { program: "tatami node".into(), problem });
    }
    let restart = volume.restart_daemon()?;
    let removed = measure_parts(bench, &site, MdtestOp::FileRemove)?;
    site.remove()?;
    let stolen = steal.stolen_share();
    let one =
        |ours: f64, floor: f64| FigureRuns { ours: vec![ours], baseline: vec![floor], stolen };
    let rates = |rates: &[f64]| one(rates[rates.len() - 1], rates[0]);
    let each = |now: u64, before: u64| now.saturating_sub(before) as f64 / listed as f64;
    let entries = format!("{listed} entries");
    let tenths = |rates: &[f64]| {
        let rates: Vec<String> = rates.iter().map(|rate| format!("{rate:.0}")).collect();
        format!("{entries}; operations a second of each tenth: {}", rates.join(", "))
    };
    let (higher, lower, none) = (GoalDirection::Higher, GoalDirection::Lower, None);
    let first = "the first tenth";
    let all = [
        Figure::new(
            "large directory, create, last tenth",
            "op/s",
            first,
            (higher, Some(RATE_GOAL)),
            &rates(&made),
        )
        .with_note(tenths(&made)),
        Figure::new(
            "large directory, unlink, last tenth",
            "op/s",
            first,
            (higher, none),
            &rates(&removed),
        )
        .with_note(tenths(&removed)),
        Figure::new(
            "large directory, names listed",
            "entries/s",
            "creates",
            (higher, none),
            &one(listed as f64 / seconds, made[0]),
        )
        .with_note(&entries),
        Figure::new(
            "large directory, memory",
            "bytes/entry",
            "an inode of ext4",
            (lower, none),
            &one(each(size.memory, before.memory), EXT4_INODE),
        )
        .with_note(&entries),
        Figure::new(
            "large directory, disk",
            "bytes/entry",
            "an inode of ext4",
            (lower, none),
            &one(each(size.disk, before.disk), EXT4_INODE),
        )
        .with_note(&entries),
        Figure::new(
            "large directory, restart of the server",
            "s",
            "what it may take",
            (lower, Some(1.0)),
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

/// Returns the rates of all parts.
fn measure_parts(
    bench: &SuiteContext,
    site: &MdtestSite,
    op: MdtestOp,
) -> Result<Vec<f64>, BenchError> {
    let parts = site.process_parts(PARTS as usize, bench.large_dir_entries() / PARTS, true, 0);
    let rate = |part: MdtestPart| {
        let mut gang = WorkerGroup::start(&bench.launcher, vec![WorkerTask::Mdtest(part)])?;
        Ok(gang.run_phase(op.name())?.ops_per_sec())
    };
    parts.into_iter().map(rate).collect()
}

/// Lists all names in one stream. Returns their number, and the seconds that the listing took.
fn list_names(site: &MdtestSite) -> Result<(u64, f64), BenchError> {
    let part = site.process_parts(1, 0, true, 0).remove(0);
    let sub = part.subdirectory(0);
    let WorkDirectory::Library { client, cred, dir } = WorkDirectory::open_dir(&part.place, &sub)?
    else {
        return Err(BenchError::Usage("a large directory is made through the library".into()));
    };
    let start = now_ns();
    let (mut after, mut listed) = (0, 0);
    loop {
        let page = client.read_dir(&cred, dir, after, READDIR_MAX, false);
        let page = page.map_err(volume_error("listing", sub.as_bytes()))?;
        listed += page.entries.len() as u64;
        match page.entries.last() {
            Some(last) if !page.end => after = last.cookie,
            _ => return Ok((listed, (now_ns() - start) as f64 / 1e9)),
        }
    }
}

/// Memory and disk space of the server.
struct ServerSize {
    /// Bytes of anonymous memory of the process.
    memory: u64,
    /// Bytes of files.
    disk: u64,
}

impl ServerSize {
    fn from_volume(volume: &BenchVolume) -> Result<ServerSize, BenchError> {
        let pid = volume.node_status(0)?.pid;
        let path = format!("/proc/{pid}/status");
        let text =
            std::fs::read_to_string(&path).map_err(path_error("reading", Path::new(&path)))?;
        let line = text.lines().find_map(|line| line.strip_prefix("RssAnon:"));
        let kib =
            line.and_then(|line| line.trim().trim_end_matches(" kB").trim().parse::<u64>().ok());
        let disk = sum_bytes_below(&volume.store_path(0))?;
        Ok(ServerSize { memory: kib.unwrap_or(0) << 10, disk })
    }
}

/// Storage of all files below a directory.
fn sum_bytes_below(dir: &Path) -> Result<u64, BenchError> {
    let mut bytes = 0;
    for entry in std::fs::read_dir(dir).map_err(path_error("listing", dir))? {
        let entry = entry.map_err(path_error("listing", dir))?;
        match entry.metadata() {
            Ok(of) if of.is_dir() => bytes += sum_bytes_below(&entry.path())?,
            Ok(of) => bytes += of.blocks() * 512,
            // The server removes files that it has merged into others, so a listed file may be
            // gone.
            Err(e) if e.kind() == std::io::ErrorKind::NotFound => {}
            Err(e) => return Err(path_error("reading", &entry.path())(e)),
        }
    }
    Ok(bytes)
}
