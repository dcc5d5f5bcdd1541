//! Containers in `tatami recover`, `tatami relayout` and `tatami where`.

use crate::error::{CommandFailure, CommandResult};
use crate::json::{NameFields, wide_number};
use crate::term::{self, DIM, HEAD, TermOutput, TextTable};
use anstyle::Style;
use std::io::Write;
use std::os::unix::ffi::OsStrExt;
use std::path::Path;
use tatami_tiled::describe::{ContainerSummary, describe_container};
use tatami_tiled::recovery::DamagePolicy;
use tatami_tiled::{marker, relayout};

/// Most stretches of a file that `tatami where` lists.
const LISTED: usize = 64;
/// Most stretches in its JSON output.
const LISTED_JSON: usize = 65_536;

fn container_failure(what: &str, path: &Path, error: tatami_tiled::TiledError) -> CommandFailure {
    CommandFailure::new(format!("cannot {what} {}", path.display())).because(error)
}

/// Recovers a container that dead jobs left open. With `accept_loss` it keeps the whole records of
/// damaged journals, and writes a damaged marker anew. Prints the report to `out`, or returns it if
/// `json`.
///
/// # Errors
/// A path that is no container, or cannot be written; damage that is not accepted.
pub fn recover_container(
    out: &mut TermOutput,
    path: &Path,
    json: bool,
    accept_loss: bool,
) -> CommandResult<Option<serde_json::Value>> {
    let damaged = if accept_loss { DamagePolicy::Accept } else { DamagePolicy::Refuse };
    let marked = accept_loss
        && tatami_tiled::restore_marker(path).map_err(|e| container_failure("recover", path, e))?;
    let went_back = accept_loss
        && tatami_tiled::restore_synced_index(path)
            .map_err(|e| container_failure("recover", path, e))?;
    let settled = tatami_tiled::recover_container(path, damaged)
        .map_err(|e| container_failure("recover", path, e))?;
    let seen = describe_container(path, 0).map_err(|e| container_failure("look at", path, e))?;
    let live = seen.opens.iter().filter(|open| !open.dead).count();
    if json {
        let jobs: Vec<_> = settled
            .iter()
            .map(|s| {
                serde_json::json!({
                    "open": format!("{:016x}", s.open), "ranks": s.ranks,
                    "writers": s.writers, "bytes": wide_number(s.bytes),
                    "lost": wide_number(s.lost),
                    "damaged": s.damaged.iter().map(|(name, damage)| {
                        format!("{}: {damage}", marker::journal_name(*name))
                    }).collect::<Vec<_>>(),
                })
            })
            .collect();
        let mut report = serde_json::json!({
            "size": wide_number(seen.size), "recovered": jobs, "writing": live,
            "went_back": went_back, "marker_written": marked,
        });
        NameFields::new("path", path.as_os_str().as_bytes()).add_to(&mut report);
        return Ok(Some(report));
    }
    let title = out.paint_text(HEAD, &path.display().to_string());
    if marked {
        writeln!(out, "{title}: its marker was damaged or missing, and is written anew")?;
    }
    if went_back {
        let size = seen.size;
        writeln!(out, "{title}: its index was damaged; {size} bytes are there that were synced")?;
    } else if settled.is_empty() && !marked {
        writeln!(out, "{title}: nothing to recover, {} bytes", seen.size)?;
    }
    for job in &settled {
        writeln!(
            out,
            "{title}: a job of {} ranks died; {} of them had written, {}{} bytes are there",
            job.ranks,
            job.writers,
            if job.damaged.is_empty() { "all " } else { "" },
            job.bytes,
        )?;
        for (name, damage) in &job.damaged {
            writeln!(
                out,
                "  {} was {damage}: the records there are lost",
                marker::journal_name(*name)
            )?;
        }
        if job.lost > 0 {
            writeln!(out, "  {} bytes that were not synced were lost in the power cut", job.lost)?;
        }
    }
    if live > 0 {
        writeln!(out, "  {live} jobs have it open for writing")?;
    }
    Ok(None)
}

/// Turns an ordinary file into a container.
///
/// # Errors
/// A path that is neither; those of the file system.
pub fn to_container(path: &Path) -> CommandResult<&'static str> {
    if tatami_tiled::is_container(path) {
        return Ok("is a container already");
    }
    relayout::to_container(path).map_err(|e| container_failure("relayout", path, e))?;
    Ok("is a container now")
}

/// Turns a container into an ordinary file, with `threads` threads.
///
/// # Errors
/// A file that a program is writing, a full disk, a path that is neither.
pub fn to_whole(path: &Path, threads: usize) -> CommandResult<String> {
    if !tatami_tiled::is_container(path) && path.is_file() {
        return Ok("is an ordinary file already".to_owned());
    }
    let total =
        describe_container(path, 0).map_err(|e| container_failure("look at", path, e))?.size;
    let bar = term::byte_bar(total);
    let size = relayout::to_whole(path, threads, &|bytes| bar.inc(bytes));
    bar.finish_and_clear();
    let size = size.map_err(|e| container_failure("relayout", path, e))?;
    Ok(format!("is an ordinary file now, {}", term::format_size(size)))
}

/// Lists the pieces of the container at `path` and the stretch of the file in each.
///
/// # Errors
/// A container that cannot be read.
pub fn locate_container(
    out: &mut TermOutput,
    path: &Path,
    json: bool,
) -> CommandResult<Option<serde_json::Value>> {
    let limit = if json { LISTED_JSON } else { LISTED };
    let report =
        describe_container(path, limit).map_err(|e| container_failure("look at", path, e))?;
    if json {
        return Ok(Some(description_json(path, &report)));
    }
    print_description(out, path, &report)?;
    Ok(None)
}

fn piece_name(name: Option<marker::PieceName>) -> String {
    name.map_or_else(|| marker::BASE.to_owned(), marker::piece_name)
}

fn description_json(path: &Path, report: &ContainerSummary) -> serde_json::Value {
    let pieces: Vec<_> = report
        .pieces
        .iter()
        .map(|piece| {
            serde_json::json!({
                "object": piece_name(piece.name), "rank": piece.name.map(|name| name.rank),
                "stored": wide_number(piece.stored), "used": wide_number(piece.used),
            })
        })
        .collect();
    let extents: Vec<_> = report
        .stretches
        .iter()
        .map(|s| {
            serde_json::json!({
                "offset": wide_number(s.offset), "len": wide_number(s.len),
                "object": s.piece.map(piece_name), "at": wide_number(s.at),
            })
        })
        .collect();
    let opens: Vec<_> = report
        .opens
        .iter()
        .map(|open| serde_json::json!({ "ranks": open.ranks, "dead": open.dead }))
        .collect();
    let mut value = serde_json::json!({
        "kind": "container", "size": wide_number(report.size),
        "index_bytes": wide_number(report.index), "pieces": pieces, "opens": opens,
        "extents": extents, "complete": !report.more,
    });
    NameFields::new("path", path.as_os_str().as_bytes()).add_to(&mut value);
    value
}

fn print_description(
    out: &mut TermOutput,
    path: &Path,
    report: &ContainerSummary,
) -> CommandResult {
    let plain = Style::new();
    let title = out.paint_text(HEAD, &path.display().to_string());
    let (size, pieces) = (report.size, report.pieces.len());
    writeln!(
        out,
        "{title}: {size} bytes ({}), a container of {pieces} pieces, index {} bytes",
        term::format_size(size),
        report.index
    )?;
    for open in &report.opens {
        let ranks = open.ranks;
        match open.dead {
            true => writeln!(out, "a job of {ranks} ranks died while writing: tatami recover")?,
            false => writeln!(out, "a job of {ranks} ranks has it open for writing")?,
        }
    }
    let mut table = TextTable::new(&["PIECE", ">RANK", ">STORED", ">IN USE"]);
    for piece in &report.pieces {
        let used = if report.more { "-".to_owned() } else { term::format_size(piece.used) };
        table.add_row([
            (piece_name(piece.name), plain),
            (piece.name.map_or_else(String::new, |name| name.rank.to_string()), plain),
            (term::format_size(piece.stored), plain),
            (used, plain),
        ]);
    }
    if !report.pieces.is_empty() {
        out.write_table(&table)?;
    }
    let mut table = TextTable::new(&[">OFFSET", ">LENGTH", "PIECE", ">AT"]);
    for stretch in &report.stretches {
        let piece = stretch.piece.map_or_else(|| "a hole".to_owned(), piece_name);
        table.add_row([
            (stretch.offset.to_string(), plain),
            (stretch.len.to_string(), plain),
            (piece, plain),
            (stretch.at.to_string(), DIM),
        ]);
    }
    if !report.stretches.is_empty() {
        out.write_table(&table)?;
    }
    if report.more {
        writeln!(out, "there are more: --json lists up to {LISTED_JSON} stretches")?;
    }
    Ok(())
}
