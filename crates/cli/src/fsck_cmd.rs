//! `tatami fsck`: the check of [`tatami_client::fsck`], for people and scripts.

use crate::error::{Context, Exit, Failure, Outcome};
use crate::place::{At, Place};
use crate::term::{self, BAD, GOOD, Out};
use std::io::Write;
use tatami_client::fsck::{self, Report, Wrong};
use tatami_cluster::VolumeFile;

/// Something was wrong and has been mended (fsck(8)).
const MENDED: u8 = 1;
/// Something is wrong and was left so (fsck(8)).
const LEFT: u8 = 4;
/// The check itself did not work (fsck(8)).
const NOT_DONE: u8 = 8;

/// `tatami fsck`
#[derive(Debug, clap::Args)]
pub struct FsckArgs {
    #[command(flatten)]
    at: At,
    /// Mend what is found
    #[arg(long, short = 'y')]
    repair: bool,
    /// As one JSON object
    #[arg(long)]
    json: bool,
}

/// Checks the volume.
///
/// # Errors
/// With the exit codes of fsck(8).
pub fn run(args: &FsckArgs) -> Outcome {
    let not_done = |e: Failure| match e.exit {
        Exit::Usage => e,
        _ => Failure { exit: Exit::Code(NOT_DONE), ..e },
    };
    let place = args.at.open()?;
    crate::log::start(&place.config, false)?;
    let (volume, report) = check(&place, args.repair).map_err(not_done)?;
    let left = report.findings.iter().filter(|f| !f.repaired).count() as u64 + report.more;
    let mut out = Out::new();
    if args.json {
        json(&mut out, &volume, &report)?;
    } else {
        print(&mut out, &place, &volume, &report, args.repair)?;
    }
    out.flush()?;
    drop(out);
    let quietly = |code| Err(Failure { exit: Exit::Code(code), ..Failure::new("") });
    match (report.findings.is_empty(), left) {
        (true, _) => Ok(()),
        (false, 0) => quietly(MENDED),
        _ => quietly(LEFT),
    }
}

fn check(place: &Place, repair: bool) -> Outcome<(VolumeFile, Report)> {
    let volume = place.volume()?;
    let client = place.client(None)?;
    let spinner = term::spinner("checking names");
    let report = fsck::check(&client, repair, &mut |inodes, objects| {
        spinner.set_message(format!("{inodes} inodes, {objects} objects"));
    });
    spinner.finish_and_clear();
    let report = report.map_err(|e| {
        let errno = e.errno();
        let failure = Failure::new("the check did not come to its end").because(e);
        match errno {
            tatami_wire::Errno::EHOSTDOWN => failure.try_this(format!(
                "all nodes must be up: tatami status{0}; tatami up{0}",
                place.dir_flag()
            )),
            tatami_wire::Errno::EPERM | tatami_wire::Errno::EACCES => {
                failure.try_this("run it as the superuser, or as whoever runs the daemons")
            }
            _ => failure,
        }
    })?;
    Ok((volume, report))
}

fn kind(wrong: Wrong) -> &'static str {
    match wrong {
        Wrong::Names => "names",
        Wrong::NoInode => "object-without-inode",
        Wrong::Misplaced => "misplaced-object",
        Wrong::NoObject => "inode-without-object",
        Wrong::Size => "size",
    }
}

fn node_name(volume: &VolumeFile, finding: &fsck::Finding) -> Option<String> {
    let node = finding.node?;
    Some(volume.node(node).map_or_else(|| node.to_string(), |n| n.name.clone()))
}

fn json(out: &mut Out, volume: &VolumeFile, report: &Report) -> Outcome {
    let findings: Vec<_> = report
        .findings
        .iter()
        .map(|f| {
            serde_json::json!({
                "kind": kind(f.wrong), "ino": f.ino.0, "node": node_name(volume, f),
                "what": f.what, "repaired": f.repaired,
            })
        })
        .collect();
    out.json(&serde_json::json!({
        "volume": volume.name, "clean": report.findings.is_empty(), "inodes": report.inodes,
        "objects": report.objects, "findings": findings, "more": report.more,
        "dispelled": report.dispelled,
    }))
    .context(|| "cannot write the output".to_owned())
}

fn print(
    out: &mut Out,
    place: &Place,
    volume: &VolumeFile,
    report: &Report,
    repair: bool,
) -> Outcome {
    for finding in &report.findings {
        let node = node_name(volume, finding).map(|n| format!(" on {n}")).unwrap_or_default();
        let (word, style) = if finding.repaired { ("mended", GOOD) } else { ("wrong", BAD) };
        let word = out.paint(style, word);
        writeln!(out, "{word}: inode {}{node}: {}", finding.ino, finding.what)?;
    }
    if report.more > 0 {
        writeln!(out, "and {} more", report.more)?;
    }
    let mended = report.findings.iter().filter(|f| f.repaired).count();
    let left = report.findings.len() - mended + report.more as usize;
    let head = format!(
        "Volume {}: {} inodes, {} objects looked at: ",
        volume.name, report.inodes, report.objects
    );
    match (mended, left) {
        (0, 0) => writeln!(out, "{head}{}", out.paint(GOOD, "clean"))?,
        (_, 0) => writeln!(out, "{head}{mended} mended")?,
        _ => writeln!(out, "{head}{mended} mended, {left} left")?,
    }
    if left > 0 && !repair {
        writeln!(out, "to mend: tatami fsck --repair{}", place.dir_flag())?;
    }
    Ok(())
}
