//! `tatami ls | cat | rm | mkdir | stat | df`: files of the volume without a mount.

use crate::error::{CommandFailure, CommandResult, keep_first};
use crate::json::{optional_wide_number, wide_number};
use crate::listing::{self, FileListing, ListingOrder, ListingStyle};
use crate::site_tree::{self, SiteReader};
use crate::status::{self, RegionReport};
use crate::term::{self, DIM, TermOutput, TextTable};
use crate::volume_dir::{VolumeArgs, VolumeDir};
use crate::volume_path::{AnyPath, connect_tree, last_component, read_umask, volume_failure};
use anstyle::Style;
use indicatif::ProgressBar;
use std::collections::HashSet;
use std::io::{Read, Write};
use tatami_client::tree::VolumeTree;
use tatami_client::{RemovalEvent, VolumeSpace};
use tatami_remote::SiteFile;
use tatami_wire::{Errno, InodeKind, NodeId};

/// Bytes of one read: as much as one request carries.
pub const CHUNK: usize = 4 << 20;

/// `tatami ls`
#[derive(Debug, clap::Args)]
pub struct LsArgs {
    #[command(flatten)]
    at: VolumeArgs,
    /// Also list names that begin with a dot, . and ..
    #[arg(short, long)]
    all: bool,
    /// Also list names that begin with a dot, but not . and ..
    #[arg(short = 'A', long)]
    almost_all: bool,
    /// Print mode, links, owner, group, size, time
    #[arg(short)]
    long: bool,
    /// Print one name a line: on a terminal, names are printed in columns
    #[arg(short = '1')]
    one_per_line: bool,
    /// Sort by time, the newest first
    #[arg(short)]
    time: bool,
    /// Sort by size, the largest first
    #[arg(short = 'S', conflicts_with = "time")]
    size: bool,
    /// Reverse the order
    #[arg(short, long)]
    reverse: bool,
    /// Print the inode number before each name
    #[arg(short, long)]
    inode: bool,
    /// Append / to directories, @ to symbolic links, * to programs, | to pipes, = to sockets
    #[arg(short = 'F', long)]
    classify: bool,
    /// Also list subdirectories
    #[arg(short = 'R', long)]
    recursive: bool,
    /// List directories themselves, not their entries
    #[arg(short = 'd', long)]
    directory: bool,
    /// Print sizes like 1.5K with -l
    #[arg(short = 'h', long)]
    human_readable: bool,
    /// Print one JSON object
    #[arg(long)]
    json: bool,
    /// Print help
    #[arg(long, action = clap::ArgAction::Help)]
    help: Option<bool>,
    /// Paths in the volume, with a colon in front, or on another site: host:/path
    #[arg(default_value = ":/")]
    paths: Vec<AnyPath>,
}

/// Lists directories.
///
/// # Errors
/// A path that does not exist; the others are listed.
pub fn ls(args: &LsArgs) -> CommandResult {
    let volume = OpenVolume::for_paths(&args.at, &args.paths)?;
    let read_rows = |any: &AnyPath, itself: bool| {
        let read = match any {
            AnyPath::Site(file) => listing::read_site_listing(file, itself, args.all),
            _ => listing::read_listing(volume.tree()?, any.require_volume()?, itself, args.all),
        };
        read.map_err(|e| any.operation_failure("cannot list", e))
    };
    let mut out = TermOutput::new();
    let mut result = Ok(());
    let mut json = Vec::new();
    let titled = args.paths.len() > 1 || args.recursive;
    let mut first = true;
    let style = args.listing_style();
    // As in ls(1): the files among the arguments come first, in one listing.
    let (mut files, mut todo) = (FileListing::of_arguments(), Vec::new());
    for any in &args.paths {
        match read_rows(any, args.directory) {
            Ok(found) if found.is_dir => todo.push((any.clone(), Some(found))),
            Ok(found) => files.rows.extend(found.rows),
            Err(e) => keep_first(&mut result, e),
        }
    }
    if !files.rows.is_empty() {
        todo.push((AnyPath::Volume(Vec::new()), Some(files)));
        todo.rotate_right(1);
    }
    todo.reverse();
    while let Some((any, found)) = todo.pop() {
        let read = match found {
            Some(found) => Ok(found),
            None => read_rows(&any, false),
        };
        let mut found = match read {
            Ok(found) => found,
            Err(e) => {
                keep_first(&mut result, e);
                continue;
            }
        };
        listing::select_rows(&mut found, &style);
        if args.recursive && found.is_dir {
            let dirs = found.rows.iter().rev().filter(|row| {
                row.attr.kind == InodeKind::Dir && !matches!(row.name.as_slice(), b"." | b"..")
            });
            let below = dirs.map(|row| found.path.join(&row.name));
            todo.extend(below.map(|path| (path, None)));
        }
        if args.json {
            json.extend(found.rows.iter().map(|row| row.to_json(&found)));
            continue;
        }
        if titled && found.is_dir {
            writeln!(out, "{}{any}:", if first { "" } else { "\n" })?;
        }
        first = false;
        listing::print_listing(&mut out, &found, &style)?;
    }
    if args.json {
        out.write_json(&serde_json::json!({ "entries": json }))?;
    }
    out.flush()?;
    result
}

impl LsArgs {
    fn listing_style(&self) -> ListingStyle {
        let width = if self.one_per_line || self.long { None } else { term::output_width() };
        ListingStyle {
            long: self.long,
            human: self.human_readable,
            inode: self.inode,
            classify: self.classify,
            hidden: self.all || self.almost_all || self.directory,
            order: match (self.time, self.size) {
                (true, _) => ListingOrder::Time,
                (_, true) => ListingOrder::Size,
                _ => ListingOrder::Name,
            },
            reverse: self.reverse,
            width,
        }
    }
}

/// The volume of a command, if one of its paths is in it.
pub struct OpenVolume(Option<(VolumeDir, VolumeTree)>);

impl OpenVolume {
    /// Opens the volume, unless all paths are on other sites.
    ///
    /// # Errors
    /// No daemon answers.
    pub fn for_paths(at: &VolumeArgs, paths: &[AnyPath]) -> CommandResult<OpenVolume> {
        match paths.iter().all(AnyPath::is_site) {
            true => Ok(OpenVolume(None)),
            false => Ok(OpenVolume(Some(open_volume(at)?))),
        }
    }

    /// Returns the tree of the volume.
    ///
    /// # Errors
    /// No path of the command was in the volume.
    pub fn tree(&self) -> CommandResult<&VolumeTree> {
        let open = self.0.as_ref().map(|(_, tree)| tree);
        open.ok_or_else(|| CommandFailure::usage("none of the paths is in the volume"))
    }
}

/// Opens the volume and returns its directory and its tree.
pub fn open_volume(at: &VolumeArgs) -> CommandResult<(VolumeDir, VolumeTree)> {
    open_volume_at(at, None)
}

/// As [`open_volume`], with a node by number or name as the home of new files.
pub fn open_volume_at(
    at: &VolumeArgs,
    node: Option<&str>,
) -> CommandResult<(VolumeDir, VolumeTree)> {
    let place = at.open()?;
    crate::log::start_logging(&place.config, false)?;
    let node = match node {
        Some(which) => Some(NodeId(place.find_node(&place.load_volume()?, which)?.id)),
        None => None,
    };
    let tree = connect_tree(&place, node)?;
    Ok((place, tree))
}

/// `tatami cat`
#[derive(Debug, clap::Args)]
pub struct CatArgs {
    #[command(flatten)]
    at: VolumeArgs,
    /// Ignored, as in cat(1): bytes are printed as they come
    #[arg(short, hide = true)]
    unbuffered: bool,
    /// Paths in the volume, with a colon in front, or on another site: host:/path
    #[arg(required = true)]
    paths: Vec<AnyPath>,
}

/// Prints files.
///
/// # Errors
/// A file that cannot be read; the others are printed.
pub fn cat(args: &CatArgs) -> CommandResult {
    let volume = OpenVolume::for_paths(&args.at, &args.paths)?;
    let mut out = TermOutput::new();
    let mut buffer = vec![0; CHUNK];
    let mut result = Ok(());
    for any in &args.paths {
        let opened: Result<Box<dyn Read>, Errno> = match any {
            AnyPath::Site(file) => SiteReader::open(file).map(|file| Box::new(file) as _),
            _ => volume.tree()?.open(any.require_volume()?).map(|file| Box::new(file) as _),
        };
        let mut file = match opened {
            Ok(file) => file,
            Err(e) => {
                keep_first(&mut result, any.operation_failure("cannot read", e));
                continue;
            }
        };
        loop {
            match file.read(&mut buffer) {
                Ok(0) => break,
                Ok(n) => out.write_all(&buffer[..n])?,
                Err(e) => {
                    keep_first(&mut result, any.operation_failure("cannot read", Errno::from(e)));
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
    at: VolumeArgs,
    /// Remove directories with all their entries
    #[arg(short = 'r', short_alias = 'R', long)]
    recursive: bool,
    /// Remove empty directories
    #[arg(short = 'd', long = "empty-dirs")]
    dirs: bool,
    /// Ignore paths that do not exist
    #[arg(short, long)]
    force: bool,
    /// Print each removed path
    #[arg(short, long)]
    verbose: bool,
    /// Paths in the volume, with a colon in front, or on another site: host:/path
    #[arg(required = true)]
    paths: Vec<AnyPath>,
}

/// Removes files and directories.
///
/// # Errors
/// A path that cannot be removed; the others are removed.
pub fn rm(args: &RmArgs) -> CommandResult {
    let volume = OpenVolume::for_paths(&args.at, &args.paths)?;
    let mut out = TermOutput::new();
    let mut result = Ok(());
    for any in &args.paths {
        let path = match any {
            AnyPath::Site(file) => site_tree::path_of(file),
            _ => any.require_volume()?,
        };
        if matches!(last_component(path), b"" | b"." | b"..") {
            let what = format!("will not remove {any}");
            keep_first(
                &mut result,
                CommandFailure::usage(what).because("the path does not end in a name"),
            );
            continue;
        }
        let found = match any {
            AnyPath::Site(file) => {
                site_tree::look_at(file, false).and_then(|entry| site_tree::attr_of(&entry.attr))
            }
            _ => volume.tree()?.stat(path, false),
        };
        let removed = match found {
            Ok(attr) if attr.kind == InodeKind::Dir && args.dirs && !args.recursive => {
                let removed = match any {
                    AnyPath::Site(file) => site_tree::remove_dir(file),
                    _ => volume.tree()?.remove_dir(path),
                };
                if removed.is_ok() && args.verbose {
                    writeln!(out, "removed {any}")?;
                }
                removed
            }
            Ok(attr) if attr.kind == InodeKind::Dir && !args.recursive => {
                let e = any.operation_failure("cannot remove", Errno::EISDIR);
                keep_first(&mut result, e.try_this(format!("tatami rm -r {any}")));
                continue;
            }
            Ok(_) => match any {
                AnyPath::Site(file) => remove_site_tree(file, args.verbose, &mut out, &mut result),
                _ => remove_tree(volume.tree()?, path, args.verbose, &mut out, &mut result),
            },
            Err(e) => Err(e),
        };
        match removed {
            Err(Errno::ENOENT) if args.force => {}
            Err(e) => keep_first(&mut result, any.operation_failure("cannot remove", e)),
            Ok(()) => {}
        }
    }
    out.flush()?;
    result
}

/// Removes a path with everything below it. Entries that cannot be removed go into `result`.
/// Returns an error only for other failures.
fn remove_tree(
    tree: &VolumeTree,
    path: &[u8],
    verbose: bool,
    out: &mut TermOutput,
    result: &mut CommandResult,
) -> Result<(), Errno> {
    let bar = if verbose { ProgressBar::hidden() } else { term::new_spinner("removing") };
    let (mut removed, mut is_told) = (0, false);
    let done = tree.remove_all(path, verbose, &mut |step| match step {
        RemovalEvent::Path(path) if verbose => {
            // A closed output shows up as an error of the flush at the end.
            let _ = writeln!(out, "removed :{}", term::escape_name(path));
        }
        RemovalEvent::Path(_) => removed += 1,
        RemovalEvent::Many(more) => {
            removed += more;
            bar.set_message(format!("{removed} removed"));
        }
        RemovalEvent::Failed(path, errno) => {
            is_told = true;
            let what = format!("cannot remove :{}", term::escape_name(path));
            bar.suspend(|| keep_first(result, volume_failure(&what, errno)));
        }
    });
    bar.finish_and_clear();
    done.or_else(|errno| if is_told { Ok(()) } else { Err(errno) })
}

/// As [`remove_tree`], on another site.
fn remove_site_tree(
    file: &SiteFile,
    verbose: bool,
    out: &mut TermOutput,
    result: &mut CommandResult,
) -> Result<(), Errno> {
    let bar = if verbose { ProgressBar::hidden() } else { term::new_spinner("removing") };
    let mut removed = 0;
    let done = site_tree::remove_all(file, &mut |step| {
        removed += step.removed.len();
        bar.set_message(format!("{removed} removed"));
        for path in step.removed.iter().filter(|_| verbose) {
            // A closed output shows up as an error of the flush at the end.
            let _ = writeln!(out, "removed {}", AnyPath::Site(site_tree::with_path(file, path)));
        }
        for (path, errno) in &step.failed {
            let any = AnyPath::Site(site_tree::with_path(file, path));
            let failure = any.operation_failure("cannot remove", Errno(*errno));
            bar.suspend(|| keep_first(result, failure));
        }
    });
    bar.finish_and_clear();
    done
}

/// `tatami mkdir`
#[derive(Debug, clap::Args)]
pub struct MkdirArgs {
    #[command(flatten)]
    at: VolumeArgs,
    /// Also make missing parents; an existing directory is no error
    #[arg(short, long)]
    parents: bool,
    /// Permission bits, octal [default: 777 without the umask]
    #[arg(short, long, value_name = "MODE", value_parser = octal)]
    mode: Option<u16>,
    /// Paths in the volume, with a colon in front, or on another site: host:/path
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
pub fn mkdir(args: &MkdirArgs) -> CommandResult {
    let volume = OpenVolume::for_paths(&args.at, &args.paths)?;
    let (mode, mask) = args.mode.map_or((0o777, read_umask()), |mode| (mode, 0));
    let mut result = Ok(());
    for any in &args.paths {
        let made = match any {
            AnyPath::Site(file) => {
                let make = |part: &[u8]| {
                    let exact = args.mode.is_some();
                    site_tree::make_dir(&site_tree::with_path(file, part), mode, exact)
                };
                let kind = |part: &[u8]| {
                    let entry = site_tree::look_at(&site_tree::with_path(file, part), true)?;
                    site_tree::attr_of(&entry.attr).map(|attr| attr.kind)
                };
                make_one_or_all(args.parents, site_tree::path_of(file), make, kind)
            }
            _ => {
                let (tree, path) = (volume.tree()?, any.require_volume()?);
                let make = |part: &[u8]| tree.mkdir(part, mode, mask).map(drop);
                let kind = |part: &[u8]| tree.stat(part, true).map(|attr| attr.kind);
                make_one_or_all(args.parents, path, make, kind)
            }
        };
        if let Err(e) = made {
            let failure = any.operation_failure("cannot make", e);
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

/// Makes a directory; with `parents`, also the missing ones above it.
fn make_one_or_all(
    parents: bool,
    path: &[u8],
    make: impl Fn(&[u8]) -> Result<(), Errno>,
    kind_of: impl Fn(&[u8]) -> Result<InodeKind, Errno>,
) -> Result<(), Errno> {
    if !parents {
        return make(path);
    }
    let ends = (1..=path.len()).filter(|i| path.get(*i).is_none_or(|b| *b == b'/'));
    for end in ends {
        let part = &path[..end];
        if matches!(last_component(part), b"" | b"." | b"..") {
            continue;
        }
        match make(part) {
            Ok(()) => {}
            // A directory in which nothing may be made can exist all the same.
            Err(Errno::EEXIST | Errno::EACCES | Errno::EROFS)
                if kind_of(part) == Ok(InodeKind::Dir) => {}
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
    at: VolumeArgs,
    /// Follow a symbolic link at the end
    #[arg(short = 'L', long)]
    dereference: bool,
    /// Print one JSON object
    #[arg(long)]
    json: bool,
    /// Paths in the volume, with a colon in front, or on another site: host:/path
    #[arg(required = true)]
    paths: Vec<AnyPath>,
}

/// Shows the attributes of files.
///
/// # Errors
/// A path that does not exist; the others are shown.
pub fn stat(args: &StatArgs) -> CommandResult {
    let open = OpenVolume::for_paths(&args.at, &args.paths)?;
    let volume = open.0.as_ref().map(|(place, _)| place.load_volume()).transpose()?;
    let mut out = TermOutput::new();
    let mut json = Vec::new();
    let mut result = Ok(());
    for any in &args.paths {
        let (found, nodes) = match any {
            AnyPath::Site(file) => {
                let found = site_tree::look_at(file, args.dereference).and_then(|entry| {
                    let target = entry.target.map(|target| target.into_vec());
                    Ok((site_tree::attr_of(&entry.attr)?, target))
                });
                (found, None)
            }
            _ => {
                let (tree, path) = (open.tree()?, any.require_volume()?);
                let found = tree.stat(path, args.dereference);
                let found = found.map(|attr| {
                    let target = listing::link_target(tree, path, &attr);
                    (attr, target)
                });
                (found, volume.as_ref())
            }
        };
        match found {
            Ok((attr, _)) if args.json => json.push(listing::attr_json(any, &attr)),
            Ok((attr, target)) => {
                listing::print_attr(&mut out, any, &attr, target.as_deref(), nodes)?;
            }
            Err(e) => keep_first(&mut result, any.operation_failure("cannot look at", e)),
        }
    }
    if args.json {
        out.write_json(&serde_json::json!({ "files": json }))?;
    }
    out.flush()?;
    result
}

/// `tatami df`
#[derive(Debug, clap::Args)]
pub struct DfArgs {
    #[command(flatten)]
    at: VolumeArgs,
    /// Print one JSON object, in bytes
    #[arg(long)]
    json: bool,
}

/// Shows the space of the volume and of each node's disk.
///
/// # Errors
/// No daemon answers.
pub fn df(args: &DfArgs) -> CommandResult {
    let place = args.at.open()?;
    crate::log::start_logging(&place.config, false)?;
    let volume = place.load_volume()?;
    let mut space = VolumeSpace::default();
    let mut disks = HashSet::new();
    let mut nodes = Vec::new();
    let mut absent = None;
    for (entry, answer) in volume.nodes.iter().zip(status::ask_all_nodes(&place, &volume)) {
        let (reported, device) = match answer {
            Ok(answer) => (Some(answer.status), answer.regions),
            Err(absence) => {
                absent.get_or_insert((entry, absence));
                (None, None)
            }
        };
        if let Some(status) = &reported {
            space.inodes += status.inodes;
            if disks.insert(status.space.disk) {
                space.total += status.space.total;
                space.free += status.space.free;
                space.available += status.space.available;
            }
        }
        nodes.push((entry.name.clone(), reported.map(|status| status.space), device));
    }
    // The room that files of any size get is that of disks and devices together.
    let devices = RegionReport::add_devices(nodes.iter().filter_map(|(.., device)| *device));
    let RegionReport { total, free } = devices.unwrap_or_default();
    space.total = space.total.saturating_add(total);
    space.free = space.free.saturating_add(free);
    space.available = space.available.saturating_add(free);
    if let Some((entry, absence)) = absent
        && nodes.iter().all(|(_, space, _)| space.is_none())
    {
        let volume = &volume.name;
        return Err(CommandFailure::degraded(format!("no node of volume {volume} can be reached"))
            .because(format!("{}: {}", entry.name, absence.why))
            .try_this(absence.remedy));
    }
    let mut out = TermOutput::new();
    if args.json {
        let nodes: Vec<_> = nodes
            .iter()
            .map(|(name, s, device)| {
                serde_json::json!({
                    "name": name, "up": s.is_some(),
                    "total": optional_wide_number(s.map(|s| s.total)),
                    "free": optional_wide_number(s.map(|s| s.free)),
                    "available": optional_wide_number(s.map(|s| s.available)),
                    "regions": device,
                })
            })
            .collect();
        out.write_json(&serde_json::json!({
            "volume": volume.name, "total": wide_number(space.total),
            "free": wide_number(space.free), "available": wide_number(space.available),
            "regions": devices, "inodes": space.inodes, "nodes": nodes,
        }))?;
        return Ok(());
    }
    let plain = Style::new();
    let mut table = TextTable::new(&["", ">SIZE", ">USED", ">AVAILABLE", ">USE"]);
    let mut row = |name: String, total: u64, free: u64, available: u64, style: Style| {
        let used = total.saturating_sub(free);
        let percent = match used + available {
            0 => "-".to_owned(),
            all => format!("{:.0}%", 100.0 * used as f64 / all as f64),
        };
        table.add_row([
            (name, style),
            (term::format_size(total), plain),
            (term::format_size(used), plain),
            (term::format_size(available), plain),
            (percent, plain),
        ]);
    };
    row(volume.name.clone(), space.total, space.free, space.available, term::HEAD);
    let mut down = Vec::new();
    for (name, space, device) in nodes {
        match space {
            Some(s) => row(format!("  {name}"), s.total, s.free, s.available, DIM),
            None => down.push(name.clone()),
        }
        if let Some(RegionReport { total, free }) = device {
            row(format!("  {name}, regions"), total, free, free, DIM);
        }
    }
    out.write_table(&table)?;
    if !down.is_empty() {
        writeln!(out, "not counted, because they are down or do not answer: {}", down.join(", "))?;
    }
    writeln!(out, "{} inodes; nodes on one disk share its space", space.inodes)?;
    out.flush()?;
    Ok(())
}
