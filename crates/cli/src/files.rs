//! `tatami ls | cat | rm | mkdir | stat | df`: files of the volume without a mount.

use crate::error::{Failure, Outcome};
use crate::listing;
use crate::place::{At, Place};
use crate::status;
use crate::term::{self, DIM, Out, Table};
use crate::volume_path::{AnyPath, failed, last, tree, umask};
use anstyle::Style;
use indicatif::ProgressBar;
use std::collections::HashSet;
use std::io::{Read, Write};
use tatami_client::tree::{Tree, join};
use tatami_client::{Removing, VolumeSpace};
use tatami_wire::{Errno, Kind};

/// Bytes of one read: as much as one request carries.
pub const CHUNK: usize = 4 << 20;

/// `tatami ls`
#[derive(Debug, clap::Args)]
pub struct LsArgs {
    #[command(flatten)]
    at: At,
    /// Print mode, links, owner, group, size, time
    #[arg(short)]
    long: bool,
    /// Also list subdirectories
    #[arg(short = 'R', long)]
    recursive: bool,
    /// List directories themselves, not their entries
    #[arg(short = 'd', long)]
    directory: bool,
    /// Print sizes like 1.5 KiB
    #[arg(short = 'h', long)]
    human_readable: bool,
    /// Print one JSON object
    #[arg(long)]
    json: bool,
    /// Print help
    #[arg(long, action = clap::ArgAction::Help)]
    help: Option<bool>,
    /// Paths in the volume, with a colon in front
    #[arg(default_value = ":/")]
    paths: Vec<AnyPath>,
}

/// Lists directories.
///
/// # Errors
/// A path that does not exist; the others are listed.
pub fn ls(args: &LsArgs) -> Outcome {
    let (_, tree) = open(&args.at)?;
    let mut out = Out::new();
    let mut result = Ok(());
    let mut json = Vec::new();
    let mut todo: Vec<AnyPath> = args.paths.iter().rev().cloned().collect();
    let titled = args.paths.len() > 1 || args.recursive;
    let mut first = true;
    while let Some(any) = todo.pop() {
        let found = any.in_volume().and_then(|path| {
            listing::look(&tree, path, args.directory).map_err(|e| any.failed("cannot list", e))
        });
        let found = match found {
            Ok(found) => found,
            Err(e) => {
                keep_first(&mut result, e);
                continue;
            }
        };
        if args.recursive && found.is_dir {
            let dirs = found.rows.iter().rev().filter(|row| row.attr.kind == Kind::Dir);
            todo.extend(dirs.map(|row| AnyPath::Volume(join(&found.path, &row.name))));
        }
        if args.json {
            json.extend(found.rows.iter().map(|row| row.json(&found)));
            continue;
        }
        if titled && found.is_dir {
            writeln!(out, "{}{any}:", if first { "" } else { "\n" })?;
        }
        first = false;
        listing::print(&mut out, &found, args.long, args.human_readable)?;
    }
    if args.json {
        out.json(&serde_json::json!({ "entries": json }))?;
    }
    out.flush()?;
    result
}

/// Keeps the first failure for the exit code and prints the others at once.
fn keep_first(result: &mut Outcome, failure: Failure) {
    match result {
        Ok(()) => *result = Err(failure),
        Err(_) => term::complain(&failure.report()),
    }
}

/// Opens the volume and returns its directory and its tree.
pub fn open(at: &At) -> Outcome<(Place, Tree)> {
    let place = at.open()?;
    crate::log::start(&place.config, false)?;
    let tree = tree(&place, None)?;
    Ok((place, tree))
}

/// `tatami cat`
#[derive(Debug, clap::Args)]
pub struct CatArgs {
    #[command(flatten)]
    at: At,
    /// Paths in the volume, with a colon in front
    #[arg(required = true)]
    paths: Vec<AnyPath>,
}

/// Prints files.
///
/// # Errors
/// A file that cannot be read; the others are printed.
pub fn cat(args: &CatArgs) -> Outcome {
    let (_, tree) = open(&args.at)?;
    let mut out = std::io::stdout().lock();
    let mut buffer = vec![0; CHUNK];
    let mut result = Ok(());
    for any in &args.paths {
        let path = any.in_volume()?;
        let mut file = match tree.open(path) {
            Ok(file) => file,
            Err(e) => {
                keep_first(&mut result, any.failed("cannot read", e));
                continue;
            }
        };
        loop {
            match file.read(&mut buffer) {
                Ok(0) => break,
                Ok(n) => out.write_all(&buffer[..n])?,
                Err(e) => {
                    keep_first(&mut result, any.failed("cannot read", Errno::from(e)));
                    break;
                }
            }
        }
    }
    out.flush()?;
    result
}

/// `tatami rm`
#[derive(Debug, clap::Args)]
pub struct RmArgs {
    #[command(flatten)]
    at: At,
    /// Remove directories with all their entries
    #[arg(short = 'r', short_alias = 'R', long)]
    recursive: bool,
    /// Ignore paths that do not exist
    #[arg(short, long)]
    force: bool,
    /// Print each removed path
    #[arg(short, long)]
    verbose: bool,
    /// Paths in the volume, with a colon in front
    #[arg(required = true)]
    paths: Vec<AnyPath>,
}

/// Removes files and directories.
///
/// # Errors
/// A path that cannot be removed; the others are removed.
pub fn rm(args: &RmArgs) -> Outcome {
    let (_, tree) = open(&args.at)?;
    let mut out = Out::new();
    let mut result = Ok(());
    for any in &args.paths {
        let path = any.in_volume()?;
        if matches!(last(path), b"" | b"." | b"..") {
            let what = format!("will not remove {any}");
            keep_first(
                &mut result,
                Failure::usage(what).because("the path does not end in a name"),
            );
            continue;
        }
        let removed = match tree.stat(path, false) {
            Ok(attr) if attr.kind == Kind::Dir && !args.recursive => {
                let e = any.failed("cannot remove", Errno::EISDIR);
                keep_first(&mut result, e.try_this(format!("tatami rm -r {any}")));
                continue;
            }
            Ok(_) => remove(&tree, path, args.verbose, &mut out, &mut result),
            Err(e) => Err(e),
        };
        match removed {
            Err(Errno::ENOENT) if args.force => {}
            Err(e) => keep_first(&mut result, any.failed("cannot remove", e)),
            Ok(()) => {}
        }
    }
    out.flush()?;
    result
}

/// Removes a path with everything below it. Entries that cannot be removed go into `result`.
/// Returns an error only for other failures.
fn remove(
    tree: &Tree,
    path: &[u8],
    verbose: bool,
    out: &mut Out,
    result: &mut Outcome,
) -> Result<(), Errno> {
    let bar = if verbose { ProgressBar::hidden() } else { term::spinner("removing") };
    let (mut removed, mut is_told) = (0, false);
    let done = tree.remove_all(path, verbose, &mut |step| match step {
        Removing::Path(path) if verbose => {
            // A closed output shows up as an error of the flush at the end.
            let _ = writeln!(out, "removed :{}", term::safe(path));
        }
        Removing::Path(_) => removed += 1,
        Removing::Many(more) => {
            removed += more;
            bar.set_message(format!("{removed} removed"));
        }
        Removing::Failed(path, errno) => {
            is_told = true;
            let what = format!("cannot remove :{}", term::safe(path));
            bar.suspend(|| keep_first(result, failed(&what, errno)));
        }
    });
    bar.finish_and_clear();
    done.or_else(|errno| if is_told { Ok(()) } else { Err(errno) })
}

/// `tatami mkdir`
#[derive(Debug, clap::Args)]
pub struct MkdirArgs {
    #[command(flatten)]
    at: At,
    /// Also make missing parents; an existing directory is no error
    #[arg(short, long)]
    parents: bool,
    /// Permission bits, octal [default: 777 without the umask]
    #[arg(short, long, value_name = "MODE", value_parser = octal)]
    mode: Option<u16>,
    /// Paths in the volume, with a colon in front
    #[arg(required = true)]
    paths: Vec<AnyPath>,
}

fn octal(text: &str) -> Result<u16, String> {
    let mode = u16::from_str_radix(text, 8).ok().filter(|mode| *mode <= 0o7777);
    mode.ok_or_else(|| "permission bits are octal, 0 to 7777".to_owned())
}

/// Makes directories.
///
/// # Errors
/// A directory that cannot be made; the others are made.
pub fn mkdir(args: &MkdirArgs) -> Outcome {
    let (_, tree) = open(&args.at)?;
    let (mode, mask) = args.mode.map_or((0o777, umask()), |mode| (mode, 0));
    let mut result = Ok(());
    for any in &args.paths {
        let path = any.in_volume()?;
        let made = if args.parents {
            make_all(&tree, path, mode, mask)
        } else {
            tree.mkdir(path, mode, mask).map(drop)
        };
        if let Err(e) = made {
            let failure = any.failed("cannot make", e);
            keep_first(
                &mut result,
                match e {
                    Errno::ENOENT => failure.try_this(format!("tatami mkdir -p {any}")),
                    _ => failure,
                },
            );
        }
    }
    result
}

fn make_all(tree: &Tree, path: &[u8], mode: u16, mask: u16) -> Result<(), Errno> {
    let ends = (1..=path.len()).filter(|i| path.get(*i).is_none_or(|b| *b == b'/'));
    for end in ends {
        let part = &path[..end];
        if matches!(last(part), b"" | b"." | b"..") {
            continue;
        }
        match tree.mkdir(part, mode, mask) {
            Ok(_) => {}
            Err(Errno::EEXIST) if tree.stat(part, true)?.kind == Kind::Dir => {}
            Err(Errno::EEXIST) => return Err(Errno::ENOTDIR),
            Err(e) => return Err(e),
        }
    }
    Ok(())
}

/// `tatami stat`
#[derive(Debug, clap::Args)]
pub struct StatArgs {
    #[command(flatten)]
    at: At,
    /// Follow a symbolic link at the end
    #[arg(short = 'L', long)]
    dereference: bool,
    /// Print one JSON object
    #[arg(long)]
    json: bool,
    /// Paths in the volume, with a colon in front
    #[arg(required = true)]
    paths: Vec<AnyPath>,
}

/// Shows the attributes of files.
///
/// # Errors
/// A path that does not exist; the others are shown.
pub fn stat(args: &StatArgs) -> Outcome {
    let (place, tree) = open(&args.at)?;
    let volume = place.volume()?;
    let mut out = Out::new();
    let mut json = Vec::new();
    let mut result = Ok(());
    for any in &args.paths {
        let path = any.in_volume()?;
        match tree.stat(path, args.dereference) {
            Ok(attr) if args.json => json.push(listing::attr_json(path, &attr)),
            Ok(attr) => listing::print_attr(&mut out, &tree, path, &attr, &volume)?,
            Err(e) => keep_first(&mut result, any.failed("cannot look at", e)),
        }
    }
    if args.json {
        out.json(&serde_json::json!({ "files": json }))?;
    }
    out.flush()?;
    result
}

/// `tatami df`
#[derive(Debug, clap::Args)]
pub struct DfArgs {
    #[command(flatten)]
    at: At,
    /// Print one JSON object, in bytes
    #[arg(long)]
    json: bool,
}

/// Shows the space of the volume and of each node's disk.
///
/// # Errors
/// No daemon answers.
pub fn df(args: &DfArgs) -> Outcome {
    let place = args.at.open()?;
    crate::log::start(&place.config, false)?;
    let volume = place.volume()?;
    let mut space = VolumeSpace::default();
    let mut disks = HashSet::new();
    let mut nodes = Vec::new();
    let mut absent = None;
    for (entry, answer) in volume.nodes.iter().zip(status::ask_all(&place, &volume)) {
        let told = match answer {
            Ok(status) => Some(status),
            Err(absence) => {
                absent.get_or_insert((entry, absence));
                None
            }
        };
        if let Some(status) = &told {
            space.inodes += status.inodes;
            if disks.insert(status.space.disk) {
                space.total += status.space.total;
                space.free += status.space.free;
                space.available += status.space.available;
            }
        }
        nodes.push((entry.name.clone(), told.map(|status| status.space)));
    }
    if let Some((entry, absence)) = absent
        && nodes.iter().all(|(_, space)| space.is_none())
    {
        let volume = &volume.name;
        return Err(Failure::degraded(format!("no node of volume {volume} can be reached"))
            .because(format!("{}: {}", entry.name, absence.why))
            .try_this(absence.remedy));
    }
    let mut out = Out::new();
    if args.json {
        let nodes: Vec<_> = nodes
            .iter()
            .map(|(name, s)| {
                serde_json::json!({
                    "name": name, "up": s.is_some(), "total": s.map(|s| s.total),
                    "free": s.map(|s| s.free), "available": s.map(|s| s.available),
                })
            })
            .collect();
        out.json(&serde_json::json!({
            "volume": volume.name, "total": space.total, "free": space.free,
            "available": space.available, "inodes": space.inodes, "nodes": nodes,
        }))?;
        return Ok(());
    }
    let plain = Style::new();
    let mut table = Table::new(&["", ">SIZE", ">USED", ">AVAILABLE", ">USE"]);
    let mut row = |name: String, total: u64, free: u64, available: u64, style: Style| {
        let used = total.saturating_sub(free);
        let percent = match used + available {
            0 => "-".to_owned(),
            all => format!("{:.0}%", 100.0 * used as f64 / all as f64),
        };
        table.row([
            (name, style),
            (term::size(total), plain),
            (term::size(used), plain),
            (term::size(available), plain),
            (percent, plain),
        ]);
    };
    row(volume.name.clone(), space.total, space.free, space.available, term::HEAD);
    let mut down = Vec::new();
    for (name, space) in nodes {
        match space {
            Some(s) => row(format!("  {name}"), s.total, s.free, s.available, DIM),
            None => down.push(name),
        }
    }
    out.table(&table)?;
    if !down.is_empty() {
        writeln!(out, "not counted, because they are down or do not answer: {}", down.join(", "))?;
    }
    writeln!(out, "{} inodes; nodes on one disk share its space", space.inodes)?;
    out.flush()?;
    Ok(())
}
