//! `tatami fsck`: the check of [`tatami_client::fsck`], for people and scripts.

use crate::daemon_files;
use crate::error::{CommandFailure, CommandResult, ExitStatus, FailureContext};
use crate::json::{NameFields, optional_wide_number, wide_number};
use crate::offline::OfflineVolume;
use crate::status;
use crate::term::{self, BAD, GOOD, TermOutput};
use crate::volume_dir::{VolumeArgs, VolumeDir};
use std::io::Write;
use std::sync::Arc;
use tatami_client::Client;
use tatami_client::fsck::{self, FindingKind, FsckFinding, FsckReport};
use tatami_cluster::VolumeFile;

/// Exit code of fsck(8): faults were found and repaired.
const EXIT_REPAIRED: u8 = 1;
/// Exit code of fsck(8): faults are left.
const EXIT_UNREPAIRED: u8 = 4;
/// Exit code of fsck(8): the check itself failed.
const EXIT_NOT_CHECKED: u8 = 8;

/// `tatami fsck`
#[derive(Debug, clap::Args)]
pub struct FsckArgs {
    #[command(flatten)]
    at: VolumeArgs,
    /// Repair the faults
    #[arg(long, short = 'y')]
    repair: bool,
    /// Report only files with lost bytes
    #[arg(long, conflicts_with = "repair")]
    lost: bool,
    /// Check the volume while its daemons are stopped. The data of all nodes must be on this
    /// machine
    #[arg(long)]
    offline: bool,
    /// Print one JSON object
    #[arg(long)]
    json: bool,
}

/// Checks the volume.
///
/// # Errors
/// With the exit codes of fsck(8).
pub fn run(args: &FsckArgs) -> CommandResult {
    let not_done = |e: CommandFailure| match e.exit {
        ExitStatus::Usage => e,
        _ => CommandFailure { exit: ExitStatus::Code(EXIT_NOT_CHECKED), ..e },
    };
    let place = args.at.open()?;
    crate::log::start_logging(&place.config, false)?;
    let (volume, mut report) = check_volume(&place, args).map_err(not_done)?;
    if args.lost {
        report.findings.retain(FsckFinding::is_loss);
    }
    let left = report.findings.iter().filter(|f| !f.repaired).count() as u64 + report.more;
    let mut out = TermOutput::new();
    if args.json {
        print_json(&mut out, &place, &volume, &report)?;
    } else {
        print_report(&mut out, &place, &volume, &report, args.repair)?;
    }
    out.flush()?;
    drop(out);
    let quietly =
        |code| Err(CommandFailure { exit: ExitStatus::Code(code), ..CommandFailure::new("") });
    match (report.findings.is_empty(), left) {
        (true, _) => Ok(()),
        (false, 0) => quietly(EXIT_REPAIRED),
        _ => quietly(EXIT_UNREPAIRED),
    }
}

fn check_volume(place: &VolumeDir, args: &FsckArgs) -> CommandResult<(VolumeFile, FsckReport)> {
    let volume = place.load_volume()?;
    // The order matters: the client must be dropped before the nodes.
    let (_nodes, client) = match args.offline {
        true => {
            let (nodes, client) = OfflineVolume::start_nodes(place, &volume)?;
            (Some(nodes), client)
        }
        false => (None, connect_client(place, &volume)?),
    };
    let spinner = term::new_spinner("checking names");
    let report = fsck::check_volume(&client, args.repair, &mut |inodes, objects| {
        spinner.set_message(format!("{inodes} inodes, {objects} objects"));
    });
    spinner.finish_and_clear();
    let report = report.map_err(|e| {
        let errno = e.errno();
        let failure = CommandFailure::new("the check did not finish").because(e);
        match errno {
            tatami_wire::Errno::EHOSTDOWN => failure.try_this(format!(
                "all nodes must be up: tatami status{0}; tatami up{0}",
                place.dir_flag()
            )),
            tatami_wire::Errno::EPERM | tatami_wire::Errno::EACCES => {
                place.owner_failure("not permitted: the check reads the names of all users")
            }
            _ => failure,
        }
    })?;
    Ok((volume, report))
}

/// Connects to the running daemons.
fn connect_client(place: &VolumeDir, volume: &VolumeFile) -> CommandResult<Arc<Client>> {
    refuse_absent(place, volume)?;
    let all_down =
        || volume.nodes.iter().all(|entry| daemon_files::running_daemon(entry).is_none());
    place.connect_client(None).map_err(|e| match all_down() {
        true => e.try_this(format!(
            "start them: tatami up{0}; or check the volume while they are stopped: tatami fsck \
            --offline{0}",
            place.dir_flag()
        )),
        false => e,
    })
}

/// Refuses the check while nodes are unreachable. The check needs all nodes. Without this test it
/// would wait for each such node only at its first request to it.
///
/// # Errors
/// Some nodes are unreachable, and others are not.
fn refuse_absent(place: &VolumeDir, volume: &VolumeFile) -> CommandResult {
    let answers = status::ask_all_nodes(place, volume);
    let absent: Vec<_> = volume
        .nodes
        .iter()
        .zip(&answers)
        .filter_map(|(entry, answer)| Some((entry, answer.as_ref().err()?)))
        .collect();
    let Some((_, first)) = absent.first() else { return Ok(()) };
    if absent.len() == answers.len() {
        return Ok(());
    }
    let each = absent.iter().map(|(entry, absence)| format!("{}: {}", entry.name, absence.why));
    let some: Vec<_> = each.collect();
    Err(CommandFailure::degraded(
        "the volume can't be checked while nodes are unreachable; nothing was checked",
    )
    .because(some.join("\n"))
    .try_this(&first.remedy))
}

fn kind_name(wrong: FindingKind) -> &'static str {
    match wrong {
        FindingKind::Names => "names",
        FindingKind::NoInode => "object-without-inode",
        FindingKind::Misplaced => "misplaced-object",
        FindingKind::NoObject => "inode-without-object",
        FindingKind::Size => "size",
        FindingKind::Journal => "damaged-journal",
    }
}

fn node_name(volume: &VolumeFile, finding: &fsck::FsckFinding) -> Option<String> {
    let node = finding.node?;
    Some(volume.node(node).map_or_else(|| node.to_string(), |n| n.name.clone()))
}

/// What the owner of a file with a damaged journal can do: the check itself lets no byte go.
fn advice(place: &VolumeDir, finding: &FsckFinding) -> Option<String> {
    finding.journal?;
    let Some(path) = &finding.path else {
        return Some(
            "the file has no name any more, and goes when no program has it open".to_owned(),
        );
    };
    Some(format!(
        "restore the file from a copy; or keep what is whole of it, when no program has it open: tatami recover \
         --accept-loss{} :{}",
        place.dir_flag(),
        term::escape_name(path)
    ))
}

fn print_json(
    out: &mut TermOutput,
    place: &VolumeDir,
    volume: &VolumeFile,
    report: &FsckReport,
) -> CommandResult {
    let findings: Vec<_> = report
        .findings
        .iter()
        .map(|f| {
            let mut finding = serde_json::json!({
                "kind": kind_name(f.wrong), "ino": wide_number(f.ino.0),
                "path": null, "node": node_name(volume, f),
                "what": f.what, "repaired": f.repaired,
                "object": f.lost.map(|lost| lost.piece).or(f.journal).map(|object| object.0),
                "bytes": optional_wide_number(f.lost.map(|lost| lost.least)),
                "left": optional_wide_number(f.lost.map(|lost| lost.has)),
                "advice": advice(place, f),
            });
            let path = f.path.iter().map(|path| NameFields::new("path", &path[..]));
            path.for_each(|path| path.add_to(&mut finding));
            finding
        })
        .collect();
    out.write_json(&serde_json::json!({
        "volume": volume.name, "clean": report.findings.is_empty(), "inodes": report.inodes,
        "objects": report.objects, "findings": findings, "more": report.more,
        "dispelled": report.dispelled,
    }))
    .context(|| "cannot write the output".to_owned())
}

fn print_report(
    out: &mut TermOutput,
    place: &VolumeDir,
    volume: &VolumeFile,
    report: &FsckReport,
    repair: bool,
) -> CommandResult {
    for finding in &report.findings {
        let node = node_name(volume, finding).map(|n| format!(" on {n}")).unwrap_or_default();
        let (word, style) = if finding.repaired { ("repaired", GOOD) } else { ("wrong", BAD) };
        let word = out.paint_text(style, word);
        let path = finding
            .path
            .as_ref()
            .map(|path| format!(", {}", term::escape_name(path)))
            .unwrap_or_default();
        writeln!(out, "{word}: inode {}{path}{node}: {}", finding.ino, finding.what)?;
        if let Some(advice) = advice(place, finding) {
            writeln!(out, "  {advice}")?;
        }
    }
    if report.more > 0 {
        writeln!(out, "and {} more", report.more)?;
    }
    let mended = report.findings.iter().filter(|f| f.repaired).count();
    let left = report.findings.len() - mended + report.more as usize;
    let head = format!(
        "Volume {}: {} inodes, {} objects checked: ",
        volume.name, report.inodes, report.objects
    );
    match (mended, left) {
        (0, 0) => writeln!(out, "{head}{}", out.paint_text(GOOD, "clean"))?,
        (_, 0) => writeln!(out, "{head}{mended} repaired")?,
        _ => writeln!(out, "{head}{mended} repaired, {left} left")?,
    }
    let lost = report.findings.iter().filter(|f| f.lost.is_some()).count();
    if lost > 0 {
        writeln!(
            out,
            "lost bytes ({lost} objects) can't be repaired, and reading them fails: write these \
             files again, remove them, or truncate them to the bytes that are left; tatami fsck \
             --lost{} lists them",
            place.dir_flag()
        )?;
    }
    let losses = report.findings.iter().filter(|f| f.is_loss()).count();
    if left > losses && !repair {
        writeln!(out, "to mend: tatami fsck --repair{}", place.dir_flag())?;
    }
    Ok(())
}
