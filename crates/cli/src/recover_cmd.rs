//! `tatami recover`: recovers a file after the death of a job that wrote it.

use crate::container_cmd;
use crate::error::{CommandFailure, CommandResult};
use crate::json::{NameFields, serialize_optional_wide, serialize_wide};
use crate::session::{FoundPath, VolumeSessions, is_on_mount};
use crate::term::{self, GOOD, HEAD, TermOutput, TextTable, WARN};
use crate::volume_dir::VolumeArgs;
use crate::volume_path::{AnyPath, current_cred};
use anstyle::Style;
use serde::Serialize;
use std::io::Write;
use std::time::{Duration, Instant};
use tatami_client::{PieceJournalReport, RecoveredPiece, accept_loss, report_pieces};
use tatami_wire::tiles::PieceGrowth;
use tatami_wire::{Access, Errno, InodeKind};

/// Pause between two queries of pieces that are not recovered yet.
const POLL_PAUSE: Duration = Duration::from_millis(200);
/// Most pieces that the table lists.
const LISTED: usize = 64;

/// `tatami recover`
#[derive(Debug, clap::Args)]
pub struct RecoverArgs {
    #[command(flatten)]
    at: VolumeArgs,
    /// Longest wait, in seconds, for the recovery of files of dead jobs. Their leases must end, and
    /// their nodes be up
    #[arg(long, value_name = "SECONDS", default_value = "60")]
    wait: u64,
    /// Keep what is whole of what dead jobs wrote, where the disk does not give all of it back any
    /// more: of a damaged journal the records that read, of a container with a damaged marker all
    /// else. Without it such a file is left as it is
    #[arg(long)]
    accept_loss: bool,
    /// Print one JSON object
    #[arg(long)]
    json: bool,
    /// Files on a mount, or in the volume with a colon in front; containers anywhere
    #[arg(required = true)]
    paths: Vec<AnyPath>,
}

#[derive(Serialize)]
struct RecoverReport {
    #[serde(flatten)]
    path: NameFields,
    #[serde(serialize_with = "serialize_wide")]
    size: u64,
    /// No piece is open or waits for recovery.
    settled: bool,
    /// Pieces that were open at first.
    found: Vec<UnclosedPiece>,
    /// Pieces with all bytes known in the end.
    closed: usize,
    /// Pieces that a writer may still extend.
    open: usize,
    /// Pieces with a damaged journal that `--accept-loss` kept in part.
    saved: Vec<SavedPiece>,
}

/// A piece that is left only in part.
#[derive(Serialize)]
struct SavedPiece {
    piece: u32,
    #[serde(serialize_with = "serialize_wide")]
    bytes: u64,
    /// The damage of its journal.
    lost: Vec<String>,
}

/// A piece that its writer had not closed.
#[derive(Serialize)]
struct UnclosedPiece {
    piece: u32,
    node: u16,
    name: String,
    state: &'static str,
    /// Bytes that its writer had published.
    #[serde(serialize_with = "serialize_wide")]
    published: u64,
    /// Bytes recorded in the journal; `None` if it cannot be read.
    #[serde(serialize_with = "serialize_optional_wide")]
    journal: Option<u64>,
    /// The damage of the journal of a dead writer.
    damage: Option<String>,
}

/// Reports the state of files with dead writers, and waits until they are recovered.
///
/// # Errors
/// A path that does not exist, or is neither a file of a volume nor a container. A damaged journal,
/// after the other paths are done.
pub fn run(args: &RecoverArgs) -> CommandResult {
    let mut out = TermOutput::new();
    let mut report = Vec::new();
    let mut damaged = None;
    let mut sessions = VolumeSessions::new(&args.at);
    for any in &args.paths {
        if let AnyPath::Local(path) = any
            // A directory of a volume may be a container that has lost its marker.
            && (!is_on_mount(path) || path.is_dir())
        {
            report.extend(container_cmd::recover_container(
                &mut out,
                path,
                args.json,
                args.accept_loss,
            )?);
            continue;
        }
        let wait = Duration::from_secs(args.wait);
        let one = recover_file(&sessions.find_path(any)?, any, wait, args.accept_loss)?;
        damaged = damaged.or(damage_failure(any, &one));
        match args.json {
            true => report.extend(serde_json::to_value(&one).ok()),
            false => print_report(&mut out, &one)?,
        }
    }
    if args.json {
        out.write_json(&serde_json::json!({ "files": report }))?;
    }
    out.flush()?;
    damaged.map_or(Ok(()), Err)
}

/// Returns the failure for damaged journals that were left as they are.
fn damage_failure(any: &AnyPath, report: &RecoverReport) -> Option<CommandFailure> {
    let is_damaged = |left: &&UnclosedPiece| left.damage.is_some();
    let damaged: Vec<&UnclosedPiece> = report.found.iter().filter(is_damaged).collect();
    let first = damaged.first().filter(|_| report.saved.is_empty() && !report.settled)?;
    let why = format!(
        "the journal of piece {} on {} is {}; {} pieces are damaged in all",
        first.piece,
        first.name,
        first.damage.as_deref().unwrap_or_default(),
        damaged.len()
    );
    let advice = format!(
        "restore the file from a copy; or keep the intact part: tatami recover --accept-loss {any}"
    );
    let what = format!("{any}: a part of the written bytes cannot be read");
    Some(CommandFailure::degraded(what).because(why).try_this(advice))
}

fn recover_file(
    found: &FoundPath,
    any: &AnyPath,
    wait: Duration,
    accepted: bool,
) -> CommandResult<RecoverReport> {
    let failed = |e| any.operation_failure("cannot recover", e);
    let FoundPath { tree, volume, path } = found;
    let attr = tree.stat(path, true).map_err(failed)?;
    if attr.kind != InodeKind::File {
        return Err(failed(if attr.kind == InodeKind::Dir {
            Errno::EISDIR
        } else {
            Errno::EINVAL
        }));
    }
    let client = tree.client();
    let (_, cap) = client.open(&current_cred(), attr.ino, Access::READ).map_err(failed)?;
    let look = || report_pieces(client, &attr, cap).map_err(failed);
    let first = look()?;
    let mut now = first.clone();
    let began = Instant::now();
    let waiting = term::new_spinner(&format!("waiting for the recovery of {any}"));
    while now.iter().any(|piece| is_unclosed(piece) && !is_damaged(piece)) && began.elapsed() < wait
    {
        #[allow(clippy::disallowed_methods)] // the shard sends no notification
        std::thread::sleep(POLL_PAUSE.min(wait.saturating_sub(began.elapsed())));
        now = look()?;
    }
    waiting.finish_and_clear();
    let damaged: Vec<PieceJournalReport> =
        now.iter().filter(|piece| is_damaged(piece)).copied().collect();
    let mut saved = Vec::new();
    if accepted && !damaged.is_empty() {
        saved = accept_loss(client, &current_cred(), &attr, cap).map_err(failed)?;
        now = look()?;
    }
    let name = |node| volume.node(node).map_or_else(|| node.to_string(), |n| n.name.clone());
    let left = first.iter().filter(|piece| is_unclosed(piece)).map(|piece| UnclosedPiece {
        piece: piece.number,
        node: piece.node.0,
        name: name(piece.node),
        state: if piece.growth == PieceGrowth::Open { "open" } else { "left" },
        published: piece.published,
        journal: piece.journal,
        damage: damaged
            .iter()
            .find(|other| other.number == piece.number)
            .and_then(|piece| piece.damage.map(|damage| damage.to_string())),
    });
    let saved = saved.into_iter().map(|RecoveredPiece { number, bytes, lost }| SavedPiece {
        piece: number,
        bytes,
        lost: lost.iter().map(ToString::to_string).collect(),
    });
    let open = now.iter().filter(|piece| is_unclosed(piece)).count();
    Ok(RecoverReport {
        path: NameFields::new("path", any.to_bytes()),
        size: tree.stat(path, true).map_err(failed)?.size,
        settled: open == 0,
        found: left.collect(),
        closed: now.len() - open,
        open,
        saved: saved.collect(),
    })
}

/// Its writer is dead, and the record of its writes is damaged.
fn is_damaged(piece: &PieceJournalReport) -> bool {
    piece.growth == PieceGrowth::Abandoned && piece.damage.is_some()
}

/// Its writer has not closed it.
fn is_unclosed(piece: &PieceJournalReport) -> bool {
    piece.growth != PieceGrowth::Closed
}

fn print_report(out: &mut TermOutput, report: &RecoverReport) -> CommandResult {
    let plain = Style::new();
    let title = out.paint_text(HEAD, &term::escape_name(report.path.bytes()));
    if report.found.is_empty() {
        writeln!(out, "{title}: nothing to recover, {} bytes", report.size)?;
        return Ok(());
    }
    let count = report.found.len();
    match report.settled {
        true => writeln!(
            out,
            "{title}: {count} pieces were not closed; they are recovered, {} bytes are there",
            report.size
        )?,
        false => writeln!(
            out,
            "{title}: {} pieces are not closed: a job writes to them, or its lease has not ended, \
             or their node is down; {} bytes so far",
            report.open, report.size
        )?,
    }
    let mut table = TextTable::new(&[">PIECE", "NODE", "STATE", ">PUBLISHED", ">BY JOURNAL"]);
    for piece in report.found.iter().take(LISTED) {
        let journal = piece.journal.map_or_else(|| "-".to_owned(), |bytes| bytes.to_string());
        let style = if report.settled { GOOD } else { WARN };
        table.add_row([
            (piece.piece.to_string(), plain),
            (piece.name.clone(), plain),
            (piece.state.to_owned(), style),
            (piece.published.to_string(), plain),
            (journal, plain),
        ]);
    }
    out.write_table(&table)?;
    for saved in &report.saved {
        writeln!(
            out,
            "  of piece {} {} bytes are left; its journal was {}",
            saved.piece,
            saved.bytes,
            saved.lost.join(", ")
        )?;
    }
    if count > LISTED {
        writeln!(out, "there are more: --json lists all {count}")?;
    }
    Ok(())
}
