//! `tatami status`: reports whether everything works, and the faults if not.

use crate::absence::Absence;
use crate::certificates;
use crate::clock_offset::{describe_offset, measure_offset};
use crate::daemon_files;
use crate::error::{CommandFailure, CommandResult, ExitStatus};
use crate::json::{serialize_optional_wide, serialize_wide};
use crate::mounts::MountRecord;
use crate::term::{self, BAD, DIM, GOOD, HEAD, TermOutput, TextTable, WARN};
use crate::volume_dir::{ADMIN_TIMEOUT, AdminCallError, HEALTH_TIMEOUT, VolumeArgs, VolumeDir};
use anstyle::Style;
use serde::Serialize;
use std::collections::BTreeSet;
use std::io::Write;
use std::path::Path;
use std::time::{Duration, SystemTime};
use tatami_cluster::{KeyFile, NodeEntry, VolumeFile};
use tatami_wire::ProtocolRange;
use tatami_wire::admin::{AdminCall, AdminReply, NodeStatus, RefusedConnections};

/// Position of the optional column for executors: behind the shards.
const EXECUTORS_COLUMN: usize = 6;
/// The column of region devices, before that of executors is inserted.
const REGIONS_COLUMN: usize = 7;

/// `tatami status`
#[derive(Debug, clap::Args)]
pub struct StatusArgs {
    #[command(flatten)]
    at: VolumeArgs,
    /// Print one JSON object
    #[arg(long)]
    json: bool,
}

/// The condition of a volume. `--json` prints it.
#[derive(Serialize)]
struct StatusReport {
    volume: String,
    id: String,
    dir: String,
    version: &'static str,
    protocol: u32,
    healthy: bool,
    /// `log` or `sync`.
    durability: &'static str,
    /// `none` or `tls`.
    encryption: &'static str,
    /// The end of the certificates of this machine, in seconds since 1970; `null` without
    /// encryption, and for a user without the key.
    certificates_end: Option<u64>,
    /// The guarantee of that mode.
    promise: &'static str,
    /// The faults, one sentence each.
    trouble: Vec<String>,
    /// What is worth a look and no fault, one sentence each.
    warnings: Vec<String>,
    inodes: u64,
    /// Bytes, each disk counted once.
    space: SpaceReport,
    /// The region devices of all nodes; null without one.
    regions: Option<RegionReport>,
    nodes: Vec<NodeReport>,
    mounts: Vec<MountReport>,
}

#[derive(Clone, Copy, Default, Serialize)]
struct SpaceReport {
    #[serde(serialize_with = "serialize_wide")]
    total: u64,
    #[serde(serialize_with = "serialize_wide")]
    free: u64,
    #[serde(serialize_with = "serialize_wide")]
    available: u64,
}

/// The room of region devices, in bytes.
#[derive(Clone, Copy, Default, Serialize)]
pub(crate) struct RegionReport {
    /// Of all regions.
    #[serde(serialize_with = "serialize_wide")]
    pub total: u64,
    /// Of regions that are free.
    #[serde(serialize_with = "serialize_wide")]
    pub free: u64,
}

impl RegionReport {
    /// Returns the sum of the devices; `None` if there is none.
    pub fn add_devices(devices: impl Iterator<Item = RegionReport>) -> Option<RegionReport> {
        devices.reduce(|sum, one| RegionReport {
            total: sum.total.saturating_add(one.total),
            free: sum.free.saturating_add(one.free),
        })
    }
}

#[derive(Serialize)]
struct NodeReport {
    node: u16,
    name: String,
    address: String,
    socket: String,
    dir: String,
    up: bool,
    /// It gets no new files: `tatami node remove` has begun.
    leaving: bool,
    /// The reason why it is down.
    error: Option<String>,
    /// The remedy.
    remedy: Option<String>,
    version: Option<String>,
    protocol: Option<u32>,
    pid: Option<u32>,
    uptime_sec: Option<u64>,
    /// By how many milliseconds its clock is ahead of this machine's, at least.
    clock_ahead_ms: Option<i64>,
    space: Option<SpaceReport>,
    /// Its region device; null without one.
    regions: Option<RegionReport>,
    shards: Option<u32>,
    /// Threads that serve the namespace.
    executors: Option<u32>,
    inodes: Option<u64>,
    connections: Option<u32>,
    clients: Option<usize>,
    /// Connections that it has refused, by reason.
    turned_away: Option<RefusedConnections>,
    meta_requests: Option<u64>,
    peer_messages: Option<u64>,
    object_requests: Option<u64>,
    #[serde(serialize_with = "serialize_optional_wide")]
    bytes_read: Option<u64>,
    #[serde(serialize_with = "serialize_optional_wide")]
    bytes_written: Option<u64>,
    trouble: Vec<String>,
    /// The time at which its data directory was lost, in seconds since 1970.
    lost_since: Option<u64>,
}

#[derive(Serialize)]
struct MountReport {
    path: String,
    node: u16,
    pid: u32,
    alive: bool,
    /// `null` while its node does not report it.
    passthrough: Option<bool>,
    /// Why passthrough is off.
    why_not: Option<String>,
    /// Whether the kernel's requests come over io_uring; `null` while its node does not report it.
    io_uring: Option<bool>,
    /// Why they do not.
    why_no_io_uring: Option<String>,
}

/// Asks every node and prints the result.
///
/// # Errors
/// [`ExitStatus::Degraded`] if there is any fault.
pub fn run(args: &StatusArgs) -> CommandResult {
    let place = args.at.open()?;
    crate::log::start_logging(&place.config, false)?;
    let volume = place.load_volume()?;
    let report = collect_report(&place, &volume);
    let mut out = TermOutput::new();
    if args.json {
        out.write_json(&report)?;
    } else {
        print_report(&mut out, &report)?;
    }
    out.flush()?;
    drop(out);
    if report.healthy {
        Ok(())
    } else {
        Err(CommandFailure { exit: ExitStatus::Degraded, ..CommandFailure::new("") })
    }
}

fn collect_report(place: &VolumeDir, volume: &VolumeFile) -> StatusReport {
    let mut report = StatusReport {
        volume: volume.name.clone(),
        id: volume.volume.to_string(),
        dir: place.dir.display().to_string(),
        version: env!("CARGO_PKG_VERSION"),
        protocol: ProtocolRange::of_process().newest(),
        healthy: true,
        durability: volume.durability.name(),
        encryption: volume.encryption.name(),
        certificates_end: None,
        promise: volume.durability.describe_guarantee(),
        trouble: Vec::new(),
        warnings: Vec::new(),
        inodes: 0,
        space: SpaceReport::default(),
        regions: None,
        nodes: Vec::new(),
        mounts: Vec::new(),
    };
    // On this machine the nodes also answer without the key; from other machines they would not. A
    // damaged key is a fault.
    let key = KeyFile::load(&place.key_file()).err().filter(|e| !e.is_foreign());
    report.trouble.extend(key.map(|e| e.to_string()));
    match place.load_certificates(volume, place.load_key().is_ok_and(|key| key.is_some())) {
        Ok(tls) => report.certificates_end = tls.map(|tls| tls.expiry_time()),
        Err(e) => report.trouble.push(e.what),
    }
    let mut disks = BTreeSet::new();
    for (entry, answer) in volume.nodes.iter().zip(ask_all_nodes(place, volume)) {
        if let Ok(AnsweredStatus { status, clock_ahead_ms, .. }) = &answer {
            report.warnings.extend(describe_offset(&entry.name, *clock_ahead_ms));
            report.inodes += status.inodes;
            if status.durability != volume.durability {
                report.trouble.push(format!(
                    "{}: it still runs with durability {}: restart it: tatami node stop {0}, \
                    then tatami up{}",
                    entry.name,
                    status.durability.name(),
                    place.dir_flag()
                ));
            }
            if disks.insert(status.space.disk) {
                report.space.total += status.space.total;
                report.space.free += status.space.free;
                report.space.available += status.space.available;
            }
            report.mounts.extend(status.mounts.iter().map(|m| MountReport {
                path: m.path.clone(),
                node: entry.id,
                pid: m.pid,
                alive: true,
                passthrough: Some(m.passthrough),
                why_not: m.why_not.clone(),
                io_uring: Some(m.io_uring),
                why_no_io_uring: m.why_no_io_uring.clone(),
            }));
        }
        let node = build_node_report(entry, answer);
        let prefixed = |t: &String| format!("{}: {t}", node.name);
        report.trouble.extend(node.trouble.iter().chain(&node.error).map(prefixed));
        report.nodes.push(node);
    }
    report.regions = RegionReport::add_devices(report.nodes.iter().filter_map(|node| node.regions));
    report.warnings.extend(describe_upgrade(&report.nodes));
    // A node that is down does not report its mounts, nor does any node report a dead mount.
    for record in MountRecord::list_volume(&place.dir) {
        let path = record.path.display().to_string();
        // Mounts on other machines have the same path.
        if report.mounts.iter().any(|m| m.path == path && m.node == record.node) {
            continue;
        }
        let alive = record.running_process().is_some();
        if !alive {
            report.trouble.push(format!("the mount on {path} has died: tatami umount {path}"));
        }
        report.mounts.push(MountReport {
            path,
            node: record.node,
            pid: u32::try_from(record.process.pid).unwrap_or_default(),
            alive,
            passthrough: None,
            why_not: None,
            io_uring: None,
            why_no_io_uring: None,
        });
    }
    report.healthy = report.trouble.is_empty();
    report
}

/// Names the nodes with an older protocol than the newest one in the volume. An administrator has
/// not upgraded them yet.
fn describe_upgrade(nodes: &[NodeReport]) -> Option<String> {
    let newest = nodes.iter().filter_map(|node| node.protocol).max()?;
    let older = nodes.iter().filter(|node| node.protocol.is_some_and(|spoken| spoken < newest));
    let older: Vec<&str> = older.map(|node| node.name.as_str()).collect();
    (!older.is_empty()).then(|| {
        format!(
            "{} speak an older protocol than the other nodes, which speak {newest}: upgrade them, \
             and restart their daemons",
            older.join(", ")
        )
    })
}

/// Says whether requests of a mount come over io_uring. Most systems switch it off, so this is no
/// fault.
fn describe_ring(mount: &MountReport) -> (String, Style) {
    match (mount.io_uring, &mount.why_no_io_uring) {
        (Some(true), _) => ("on".to_owned(), GOOD),
        (Some(false), Some(why)) => (format!("off: {why}"), DIM),
        (Some(false), None) => ("off".to_owned(), DIM),
        (None, _) => ("unknown".to_owned(), DIM),
    }
}

/// The answer of a node.
pub(crate) struct AnsweredStatus {
    /// Its status.
    pub status: Box<NodeStatus>,
    /// By how many milliseconds its clock is ahead of this machine's, at least.
    clock_ahead_ms: i64,
    /// Its region device, if it has one that it can use.
    pub regions: Option<RegionReport>,
}

/// Asks all nodes in parallel, so that hanging nodes cost one timeout together. A daemon of this
/// machine that runs and is not stopped is busy, so it gets a longer timeout than a node with an
/// unknown state.
pub(crate) fn ask_all_nodes(
    place: &VolumeDir,
    volume: &VolumeFile,
) -> Vec<Result<AnsweredStatus, Absence>> {
    let odd = |why: String| Absence::new(why, "use the same version of tatami on all nodes".into());
    let ask_within = |timeout, entry| {
        let before = SystemTime::now();
        match place.send_admin_within(timeout, volume, entry, &AdminCall::Status) {
            Ok(AdminReply::Status(status)) => {
                let clock_ahead_ms = measure_offset(status.clock_ms, before, SystemTime::now());
                let regions = match status.protocol {
                    4.. => ask_for_regions(place, volume, entry, timeout),
                    _ => None,
                };
                Ok(AnsweredStatus { status, clock_ahead_ms, regions })
            }
            Ok(_) => Err(odd("it sent an unexpected reply".to_owned())),
            Err(e) if e.is_timeout() => Err(Absence::from_timeout(place, entry, timeout)),
            Err(AdminCallError::Connect(e)) => Err(Absence::from_connect_error(place, entry, &e)),
            Err(e) => Err(odd(e.to_string())),
        }
    };
    let is_busy =
        |entry| daemon_files::running_daemon(entry).is_some_and(|process| !process.is_stopped());
    let ask = |entry| match ask_within(HEALTH_TIMEOUT, entry) {
        Err(absence) if absence.is_silence && is_busy(entry) => ask_within(ADMIN_TIMEOUT, entry),
        answer => answer,
    };
    std::thread::scope(|scope| {
        let asked: Vec<_> =
            volume.nodes.iter().map(|entry| scope.spawn(move || ask(entry))).collect();
        let lost = |_| Err(odd("the request to it failed".to_owned()));
        asked.into_iter().map(|thread| thread.join().unwrap_or_else(lost)).collect()
    })
}

fn ask_for_regions(
    place: &VolumeDir,
    volume: &VolumeFile,
    entry: &NodeEntry,
    timeout: Duration,
) -> Option<RegionReport> {
    match place.send_admin_within(timeout, volume, entry, &AdminCall::RegionRoom) {
        Ok(AdminReply::RegionRoom(room)) if room.total > 0 => {
            Some(RegionReport { total: room.total, free: room.free })
        }
        _ => None,
    }
}

fn build_node_report(entry: &NodeEntry, answer: Result<AnsweredStatus, Absence>) -> NodeReport {
    let (answer, error, remedy) = match answer {
        Ok(answer) => (Some(answer), None, None),
        Err(Absence { why, remedy, .. }) => (None, Some(why), Some(remedy)),
    };
    let s = answer.as_ref().map(|answer| &answer.status);
    NodeReport {
        node: entry.id,
        name: entry.name.clone(),
        address: entry.address.clone(),
        socket: entry.socket.display().to_string(),
        dir: entry.dir.display().to_string(),
        up: s.is_some(),
        leaving: entry.leaving,
        error,
        remedy,
        version: s.map(|s| s.version.clone()),
        protocol: s.map(|s| s.protocol),
        pid: s.map(|s| s.pid),
        uptime_sec: s.map(|s| s.uptime_sec),
        clock_ahead_ms: answer.as_ref().map(|answer| answer.clock_ahead_ms),
        space: s.map(|s| SpaceReport {
            total: s.space.total,
            free: s.space.free,
            available: s.space.available,
        }),
        regions: answer.as_ref().and_then(|answer| answer.regions),
        shards: s.map(|s| s.shards),
        executors: s.map(|s| s.executors),
        inodes: s.map(|s| s.inodes),
        connections: s.map(|s| s.connections),
        clients: s.map(|s| s.clients.len()),
        turned_away: s.map(|s| s.turned_away),
        meta_requests: s.map(|s| s.meta_requests),
        peer_messages: s.map(|s| s.peer_messages),
        object_requests: s.map(|s| s.object_requests),
        bytes_read: s.map(|s| s.bytes_read),
        bytes_written: s.map(|s| s.bytes_written),
        trouble: s.map(|s| s.trouble.clone()).unwrap_or_default(),
        lost_since: s.and_then(|s| s.lost_since),
    }
}

fn print_report(out: &mut TermOutput, report: &StatusReport) -> CommandResult {
    let up = report.nodes.iter().filter(|n| n.up).count();
    let (word, style) = match (report.healthy, up) {
        (true, _) => ("healthy", GOOD),
        (false, 0) => ("down", BAD),
        (false, _) => ("degraded", WARN),
    };
    writeln!(
        out,
        "Volume {} is {}: {up} of {} nodes up, {} inodes, {} of {} free",
        out.paint_text(HEAD, &report.volume),
        out.paint_text(style, word),
        report.nodes.len(),
        report.inodes,
        term::format_size(report.space.available),
        term::format_size(report.space.total),
    )?;
    if let Some(RegionReport { total, free }) = report.regions {
        let (free, total) = (term::format_size(free), term::format_size(total));
        writeln!(out, "Region devices: {free} of {total} free, for small files with the policy")?;
    }
    writeln!(out, "Durability {}: {}", report.durability, report.promise)?;
    if let Some(ends) = report.certificates_end {
        let days = certificates::days_until(ends);
        writeln!(
            out,
            "Encryption {}: connections between machines; the certificates here are valid for \
             {days} days",
            report.encryption
        )?;
    }
    writeln!(out)?;
    let plain = Style::new();
    let several = report.nodes.iter().any(|node| node.executors > Some(1));
    let mut heads = vec![
        "NODE",
        "STATE",
        "ADDRESS",
        "VERSION",
        "UP",
        ">SHARDS",
        ">FREE",
        ">REQUESTS",
        ">REMOTE BYTES",
    ];
    if report.regions.is_some() {
        heads.insert(REGIONS_COLUMN, ">REGIONS FREE");
    }
    if several {
        heads.insert(EXECUTORS_COLUMN, ">EXECUTORS");
    }
    let mut table = TextTable::new(&heads);
    for node in &report.nodes {
        let show = |v: Option<String>| v.unwrap_or_else(|| "-".into());
        let (state, style) = match (node.up, node.trouble.is_empty()) {
            (true, true) if node.leaving => ("leaving", WARN),
            (true, true) => ("up", GOOD),
            (true, false) => ("trouble", WARN),
            (false, _) => ("down", BAD),
        };
        let requests =
            node.meta_requests.zip(node.object_requests).map(|(a, b)| (a + b).to_string());
        let bytes = node.bytes_read.zip(node.bytes_written).map(|(a, b)| term::format_size(a + b));
        let mut cells = vec![
            (node.name.clone(), plain),
            (state.into(), style),
            (node.address.clone(), plain),
            (show(node.version.clone()), plain),
            (show(node.uptime_sec.map(term::format_duration)), plain),
            (show(node.shards.map(|n| n.to_string())), plain),
            (show(node.space.map(|s| term::format_size(s.available))), plain),
            (show(requests), plain),
            (show(bytes), plain),
        ];
        if report.regions.is_some() {
            let free = show(node.regions.map(|regions| term::format_size(regions.free)));
            cells.insert(REGIONS_COLUMN, (free, plain));
        }
        if several {
            let executors = show(node.executors.map(|n| n.to_string()));
            cells.insert(EXECUTORS_COLUMN, (executors, plain));
        }
        table.add_cells(cells);
    }
    out.write_table(&table)?;
    if !report.mounts.is_empty() {
        writeln!(out)?;
        let mut table = TextTable::new(&["MOUNT", "NODE", "PROCESS", "PASSTHROUGH", "IO_URING"]);
        for mount in &report.mounts {
            let (passthrough, style) = match (&mount.why_not, mount.passthrough) {
                (_, Some(true)) => ("on".to_owned(), GOOD),
                (Some(why), _) => (format!("off: {why}"), WARN),
                (None, Some(false)) => ("off".to_owned(), WARN),
                (None, None) => ("unknown: its node does not report it".to_owned(), DIM),
            };
            let process =
                if mount.alive { (mount.pid.to_string(), plain) } else { ("died".to_owned(), BAD) };
            let node = report.nodes.iter().find(|n| n.node == mount.node);
            let node = node.map_or_else(|| mount.node.to_string(), |n| n.name.clone());
            table.add_row([
                (mount.path.clone(), plain),
                (node, DIM),
                process,
                (passthrough, style),
                describe_ring(mount),
            ]);
        }
        out.write_table(&table)?;
    }
    for node in &report.nodes {
        // This is no fault of the volume: any program can try to connect.
        if let Some(RefusedConnections { wrong_key: n @ 1.., .. }) = node.turned_away {
            let (tries, log) = (
                if n == 1 { "try" } else { "tries" },
                daemon_files::log_file(Path::new(&node.dir)),
            );
            writeln!(
                out,
                "\n{}: {n} {tries} to connect with a wrong key or certificate; see its log, {}",
                node.name,
                log.display()
            )?;
        }
    }
    if !report.warnings.is_empty() {
        writeln!(out)?;
        for line in &report.warnings {
            writeln!(out, "{} {line}", out.paint_text(WARN, "!"))?;
        }
    }
    if !report.trouble.is_empty() {
        writeln!(out)?;
        for line in &report.trouble {
            writeln!(out, "{} {line}", out.paint_text(BAD, "!"))?;
        }
        let mut remedies: Vec<_> = report.nodes.iter().filter_map(|n| n.remedy.as_ref()).collect();
        remedies.dedup();
        for remedy in remedies {
            writeln!(out, "  {remedy}")?;
        }
    }
    Ok(())
}
