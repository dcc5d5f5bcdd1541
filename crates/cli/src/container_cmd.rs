//! Containers in `tatami recover`, `tatami relayout` and `tatami where`.

use crate::error::{Failure, Outcome};
use crate::term::{self, DIM, HEAD, Out, Table};
use anstyle::Style;
use std::io::Write;
use std::path::Path;
use tatami_tiled::describe::{Description, describe};
use tatami_tiled::settle::Damaged;
use tatami_tiled::{marker, relayout};

/// Most stretches of a file that `tatami where` lists.
const LISTED: usize = 64;
/// Most stretches in its JSON output.
const LISTED_JSON: usize = 65_536;

fn failed(what: &str, path: &Path, error: tatami_tiled::Error) -> Failure {
    Failure::new(format!("cannot {what} {}", path.display())).because(error)
}

/// Recovers a container that dead jobs left open. With `accept_loss` it keeps the whole records of damaged journals, and
/// writes a damaged marker anew.
/// Prints the report to `out`, or returns it if `json`.
///
/// # Errors
/// A path that is no container, or cannot be written; damage that is not accepted.
pub fn recover(
    out: &mut Out,
    path: &Path,
    json: bool,
    accept_loss: bool,
) -> Outcome<Option<serde_json::Value>> {
    let damaged = if accept_loss { Damaged::Accept } else { Damaged::Refuse };
    let marked = accept_loss
        && tatami_tiled::restore_marker(path).map_err(|e| failed("recover", path, e))?;
    let went_back =
        accept_loss && tatami_tiled::go_back(path).map_err(|e| failed("recover", path, e))?;
    let settled = tatami_tiled::recover(path, damaged).map_err(|e| failed("recover", path, e))?;
    let seen = describe(path, 0).map_err(|e| failed("look at", path, e))?;
    let live = seen.opens.iter().filter(|open| !open.dead).count();
    if json {
        let jobs: Vec<_> = settled
            .iter()
            .map(|s| {
                serde_json::json!({
                    "open": format!("{:016x}", s.open), "ranks": s.ranks,
                    "writers": s.writers, "bytes": s.bytes, "lost": s.lost,
                    "damaged": s.damaged.iter().map(|(name, damage)| {
                        format!("{}: {damage}", marker::journal(*name))
                    }).collect::<Vec<_>>(),
                })
            })
            .collect();
        let path = path.display().to_string();
        return Ok(Some(serde_json::json!({
            "path": path, "size": seen.size, "recovered": jobs, "writing": live,
            "went_back": went_back, "marker_written": marked,
        })));
    }
    let title = out.paint(HEAD, &path.display().to_string());
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
            writeln!(out, "  {} was {damage}: the records there are lost", marker::journal(*name))?;
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
pub fn to_container(path: &Path) -> Outcome<&'static str> {
    if tatami_tiled::is_container(path) {
        return Ok("is a container already");
    }
    relayout::to_container(path).map_err(|e| failed("relayout", path, e))?;
    Ok("is a container now")
}

/// Turns a container into an ordinary file, with `threads` threads.
///
/// # Errors
/// A file that a program is writing, a full disk, a path that is neither.
pub fn to_whole(path: &Path, threads: usize) -> Outcome<String> {
    if !tatami_tiled::is_container(path) && path.is_file() {
        return Ok("is an ordinary file already".to_owned());
    }
    let total = describe(path, 0).map_err(|e| failed("look at", path, e))?.size;
    let bar = term::byte_bar(total);
    let size = relayout::to_whole(path, threads, &|bytes| bar.inc(bytes));
    bar.finish_and_clear();
    let size = size.map_err(|e| failed("relayout", path, e))?;
    Ok(format!("is an ordinary file now, {}", term::size(size)))
}

/// Lists the pieces of the container at `path` and the stretch of the file in each.
///
/// # Errors
/// A container that cannot be read.
pub fn locate(out: &mut Out, path: &Path, json: bool) -> Outcome<Option<serde_json::Value>> {
    let limit = if json { LISTED_JSON } else { LISTED };
    let told = describe(path, limit).map_err(|e| failed("look at", path, e))?;
    if json {
        return Ok(Some(as_json(path, &told)));
    }
    print(out, path, &told)?;
    Ok(None)
}

fn piece_name(name: Option<marker::Name>) -> String {
    name.map_or_else(|| marker::BASE.to_owned(), marker::piece)
}

fn as_json(path: &Path, told: &Description) -> serde_json::Value {
    let pieces: Vec<_> = told
        .pieces
        .iter()
        .map(|piece| {
            serde_json::json!({
                "object": piece_name(piece.name), "rank": piece.name.map(|name| name.rank),
                "stored": piece.stored, "used": piece.used,
            })
        })
        .collect();
    let extents: Vec<_> = told
        .stretches
        .iter()
        .map(|s| {
            serde_json::json!({
                "offset": s.offset, "len": s.len, "object": s.piece.map(piece_name), "at": s.at,
            })
        })
        .collect();
    let opens: Vec<_> = told
        .opens
        .iter()
        .map(|open| serde_json::json!({ "ranks": open.ranks, "dead": open.dead }))
        .collect();
    serde_json::json!({
        "path": path.display().to_string(), "kind": "container", "size": told.size,
        "index_bytes": told.index, "pieces": pieces, "opens": opens, "extents": extents,
        "complete": !told.more,
    })
}

fn print(out: &mut Out, path: &Path, told: &Description) -> Outcome {
    let plain = Style::new();
    let title = out.paint(HEAD, &path.display().to_string());
    let (size, pieces) = (told.size, told.pieces.len());
    writeln!(
        out,
        "{title}: {size} bytes ({}), a container of {pieces} pieces, index {} bytes",
        term::size(size),
        told.index
    )?;
    for open in &told.opens {
        let ranks = open.ranks;
        match open.dead {
            true => writeln!(out, "a job of {ranks} ranks died while writing: tatami recover")?,
            false => writeln!(out, "a job of {ranks} ranks has it open for writing")?,
        }
    }
    let mut table = Table::new(&["PIECE", ">RANK", ">STORED", ">IN USE"]);
    for piece in &told.pieces {
        let used = if told.more { "-".to_owned() } else { term::size(piece.used) };
        table.row([
            (piece_name(piece.name), plain),
            (piece.name.map_or_else(String::new, |name| name.rank.to_string()), plain),
            (term::size(piece.stored), plain),
            (used, plain),
        ]);
    }
    if !told.pieces.is_empty() {
        out.table(&table)?;
    }
    let mut table = Table::new(&[">OFFSET", ">LENGTH", "PIECE", ">AT"]);
    for stretch in &told.stretches {
        let piece = stretch.piece.map_or_else(|| "a hole".to_owned(), piece_name);
        table.row([
            (stretch.offset.to_string(), plain),
            (stretch.len.to_string(), plain),
            (piece, plain),
            (stretch.at.to_string(), DIM),
        ]);
    }
    if !told.stretches.is_empty() {
        out.table(&table)?;
    }
    if told.more {
        writeln!(out, "there are more: --json lists up to {LISTED_JSON} stretches")?;
    }
    Ok(())
}
