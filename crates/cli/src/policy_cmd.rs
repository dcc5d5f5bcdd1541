//! `tatami set` and `tatami get`: the policies of directories.

use crate::background::{self, RelayoutNoteFile};
use crate::error::{CommandFailure, CommandResult};
use crate::json::NameFields;
use crate::move_pace::{MovePace, PaceArgs};
use crate::policy_mover::{EnterFailure, PolicyMoveReport, PolicyMover, read_policies};
use crate::session::{FoundPath, VolumeSessions};
use crate::term::{DIM, HEAD, TermOutput, TextTable};
use crate::volume_dir::VolumeArgs;
use crate::volume_path::AnyPath;
use anstyle::Style;
use std::io::Write;
use std::path::PathBuf;
use std::time::Duration;
use tatami_client::tree::VolumeTree;
use tatami_wire::meta::XattrMode;
use tatami_wire::policy::{POLICIES, Policies, PolicyKind, PolicyRow};
use tatami_wire::{Attr, Errno, Ino, InodeKind};

/// `tatami set`
#[derive(Debug, clap::Args)]
pub struct SetArgs {
    #[command(flatten)]
    at: VolumeArgs,
    /// Keep files up to this size beside their inode, without an object on a disk: 0 (none) to 64k
    #[arg(long, value_name = "SIZE", value_parser = parse_inline)]
    inline: Option<u64>,
    /// What keeps the bytes of new files: `file`, the disks of the nodes, or `region`, their region
    /// devices, for files up to 4 MiB. A node without a device uses its disk
    #[arg(long, value_name = "ENGINE", value_parser = parse_engine)]
    engine: Option<u64>,
    /// Keep earlier versions of each file: at most COUNT, 0 (none) to 200, and none that was
    /// replaced longer ago than AGE, such as 90s, 12h or 7d. Needs `--engine region`
    #[arg(long, value_name = "COUNT[,AGE]", value_parser = parse_versions)]
    versions: Option<u64>,
    /// The bytes of a new file go to the node of the program that makes it, and to the next one if
    /// that is full. So it is without a policy
    #[arg(long, conflicts_with = "spread")]
    local_first: bool,
    /// The bytes of new files go to all nodes, by a hash of their names: one node makes a data set
    /// that all will read
    #[arg(long)]
    spread: bool,
    /// Remove a policy: `inline`, `engine`, `versions` or `placement`
    #[arg(long, value_name = "POLICY", value_parser = parse_name)]
    unset: Vec<&'static PolicyRow>,
    /// Also all directories below, and move the files that are there to where the policies want
    /// them. A file that a program has open is left, and so is one in pieces on several nodes
    #[arg(short = 'r', short_alias = 'R', long)]
    recursive: bool,
    /// Files that are moved at a time [default: 2]
    #[arg(long, requires = "recursive", value_parser = clap::value_parser!(u16).range(1..=256))]
    threads: Option<u16>,
    #[command(flatten)]
    pace: PaceArgs,
    /// Print one JSON object
    #[arg(long, requires = "recursive")]
    json: bool,
    /// Move the files in the background; `tatami relayout --status` shows the progress
    #[arg(long, requires = "recursive", conflicts_with = "json")]
    background: bool,
    /// File for the progress of a process in the background
    #[arg(long, hide = true, value_name = "FILE")]
    report: Option<PathBuf>,
    /// Directories on a mount, or in the volume with a colon in front
    #[arg(required = true)]
    dirs: Vec<AnyPath>,
}

impl SetArgs {
    /// Returns the wanted value of [`PolicyKind::Placement`].
    fn wanted_placement(&self) -> Option<u64> {
        let chosen = [self.local_first, self.spread].into_iter().position(|is_chosen| is_chosen);
        chosen.map(|value| value as u64)
    }
}

/// `tatami get`
#[derive(Debug, clap::Args)]
pub struct GetArgs {
    #[command(flatten)]
    at: VolumeArgs,
    /// Print one JSON object
    #[arg(long)]
    json: bool,
    /// Directories on a mount, or in the volume with a colon in front
    #[arg(required = true)]
    dirs: Vec<AnyPath>,
}

fn row_of(kind: PolicyKind) -> Option<&'static PolicyRow> {
    POLICIES.iter().find(|row| row.kind == kind)
}

fn parse_value(kind: PolicyKind, text: &str) -> Result<u64, String> {
    let row = row_of(kind).ok_or("unknown")?;
    (row.parse)(text).ok_or_else(|| format!("it must be {}", row.values))
}

fn parse_inline(text: &str) -> Result<u64, String> {
    parse_value(PolicyKind::Inline, text)
}

fn parse_engine(text: &str) -> Result<u64, String> {
    parse_value(PolicyKind::Engine, text)
}

fn parse_versions(text: &str) -> Result<u64, String> {
    parse_value(PolicyKind::Versions, text)
}

fn parse_name(name: &str) -> Result<&'static PolicyRow, String> {
    let names: Vec<&str> = POLICIES.iter().map(|row| row.name).collect();
    let found = POLICIES.iter().find(|row| row.name == name);
    found.ok_or_else(|| format!("no such policy: there is {}", names.join(", ")))
}

fn find_dir(
    sessions: &mut VolumeSessions<'_>,
    any: &AnyPath,
) -> CommandResult<(VolumeTree, Attr, Vec<u8>)> {
    let FoundPath { tree, path, .. } = sessions.find_path(any)?;
    let attr = tree.stat(&path, true).map_err(|e| any.operation_failure("cannot look at", e))?;
    match attr.kind {
        InodeKind::Dir => Ok((tree, attr, path)),
        _ => {
            let what = format!("{any} is no directory, and policies are those of directories");
            Err(CommandFailure::usage(what))
        }
    }
}

/// Sets and removes policies.
///
/// # Errors
/// A path that is no directory of a volume; no permission to change it.
pub fn set_policies(args: &SetArgs) -> CommandResult {
    let said = [
        (PolicyKind::Inline, args.inline),
        (PolicyKind::Engine, args.engine),
        (PolicyKind::Versions, args.versions),
        (PolicyKind::Placement, args.wanted_placement()),
    ];
    let said: Vec<(&PolicyRow, u64)> =
        said.into_iter().filter_map(|(kind, value)| Some((row_of(kind)?, value?))).collect();
    if said.is_empty() && args.unset.is_empty() {
        let what = "no policy is named".to_owned();
        return Err(CommandFailure::usage(what).try_this("tatami set --inline 4k DIR"));
    }
    let mut sessions = VolumeSessions::new(&args.at);
    let has_pace = args.pace != PaceArgs::default();
    if has_pace && !args.recursive {
        let what = "without -r no file is moved";
        return Err(CommandFailure::usage(what).try_this("tatami set -r --inline 4k DIR"));
    }
    let changes = PolicyChanges { said, unset: &args.unset };
    if args.background {
        // Mistakes are reported here, and not in the background.
        for any in &args.dirs {
            let (tree, attr, _) = find_dir(&mut sessions, any)?;
            changes.require_consistent(any, &tree, attr.ino)?;
        }
        return background::continue_in_background();
    }
    if args.recursive {
        return set_trees(args, &changes, &mut sessions);
    }
    for any in &args.dirs {
        let (tree, attr, _) = find_dir(&mut sessions, any)?;
        changes.require_consistent(any, &tree, attr.ino)?;
        changes.apply(&tree, attr.ino).map_err(|errno| set_failure(any, errno))?;
    }
    Ok(())
}

/// The policies that a command sets and removes.
struct PolicyChanges<'a> {
    said: Vec<(&'static PolicyRow, u64)>,
    unset: &'a [&'static PolicyRow],
}

impl PolicyChanges<'_> {
    /// Returns the policies of a directory after the changes.
    fn change_policies(&self, mut policies: Policies) -> Policies {
        self.said.iter().for_each(|(row, value)| policies.set_value(row.kind, Some(*value)));
        self.unset.iter().for_each(|row| policies.set_value(row.kind, None));
        policies
    }

    /// Sets and removes the policies of a directory.
    fn apply(&self, tree: &VolumeTree, dir: Ino) -> Result<(), Errno> {
        let (client, cred) = (tree.client(), tree.cred());
        let mut changes: Vec<(&PolicyRow, Option<u64>)> =
            self.said.iter().map(|(row, value)| (*row, Some(*value))).collect();
        changes.extend(self.unset.iter().map(|row| (*row, None)));
        // No step on the way has policies that contradict each other, which a shard refuses: what
        // ends versions goes first, and what begins them last.
        changes.sort_by_key(|(row, value)| match (row.kind, value.unwrap_or(0)) {
            (PolicyKind::Versions, 0) => 0,
            (PolicyKind::Versions, _) => 2,
            _ => 1,
        });
        for (row, value) in changes {
            let name = row.attribute();
            let Some(value) = value else {
                match client.remove_xattr(cred, dir, name.as_bytes()) {
                    // It has none.
                    Err(Errno::ENODATA) => {}
                    removed => removed?,
                }
                continue;
            };
            let (value, mode) = ((row.format)(value), XattrMode::Set);
            client.set_xattr(cred, dir, name.as_bytes(), value.as_bytes(), mode)?;
        }
        Ok(())
    }

    /// Checks that the policies of a directory do not contradict each other after the changes.
    fn require_consistent(&self, any: &AnyPath, tree: &VolumeTree, dir: Ino) -> CommandResult {
        let before = read_policies(tree, dir).map_err(|errno| set_failure(any, errno))?;
        let after = self.change_policies(before);
        match after.are_consistent() {
            true => Ok(()),
            false => Err(inconsistent_policies(any, &after)),
        }
    }
}

fn set_failure(any: &AnyPath, errno: Errno) -> CommandFailure {
    match errno {
        Errno::EOPNOTSUPP => CommandFailure::new(format!(
            "{any}: the nodes are limited to an older version of the protocol, which has no \
             policies"
        ))
        .try_this("tatami config --unset node.protocol"),
        errno => any.operation_failure("cannot set the policies of", errno),
    }
}

/// Sets policies on all directories of trees, and moves the files there.
fn set_trees(
    args: &SetArgs,
    changes: &PolicyChanges<'_>,
    sessions: &mut VolumeSessions<'_>,
) -> CommandResult {
    let begin = |path: &PathBuf| {
        RelayoutNoteFile::create_detached(path, args.dirs.iter().map(AnyPath::to_bytes).collect())
    };
    let notes = args.report.as_ref().map(begin).transpose()?;
    let pace = MovePace::new(&args.pace, args.threads);
    let (mut sum, mut failures) = (PolicyMoveReport::default(), Vec::new());
    for any in &args.dirs {
        let (tree, attr, path) = find_dir(sessions, any)?;
        // The first one tells what would fail for all.
        changes.require_consistent(any, &tree, attr.ino)?;
        if !args.pace.dry_run {
            changes.apply(&tree, attr.ino).map_err(|errno| set_failure(any, errno))?;
        }
        let mover = PolicyMover::new(&tree, &pace, &args.pace, Duration::ZERO, notes.as_ref());
        mover.move_tree(&path, &|any, dir, before| {
            let after = changes.change_policies(before);
            if !after.are_consistent() {
                return Err(EnterFailure::Contradiction(inconsistent_policies(any, &after)));
            }
            if !args.pace.dry_run {
                changes.apply(&tree, dir)?;
            }
            Ok(after)
        });
        let (report, failure) = mover.finish()?;
        sum.add(report);
        failures.extend(failure);
    }
    notes.iter().for_each(RelayoutNoteFile::mark_ended);
    let mut out = TermOutput::new();
    if notes.is_none() {
        sum.print(&mut out, args.json)?;
    }
    out.flush()?;
    failures.into_iter().next().map_or(Ok(()), Err)
}

/// Only files in regions keep versions.
fn inconsistent_policies(any: &AnyPath, wanted: &Policies) -> CommandFailure {
    let inline = if wanted.inline_limit() > 0 { "--inline 0 " } else { "" };
    let cause = match inline {
        "" => "with the engine file, a file keeps none",
        _ => "a file beside its inode keeps none",
    };
    let rule = wanted.version_rule();
    CommandFailure::usage(format!("{any}: only files in regions keep versions, and {cause}"))
        .try_this(format!(
            "tatami set {inline}--engine region --versions {rule} {any}; or --versions 0 for none"
        ))
}

/// Prints the policies of directories.
///
/// # Errors
/// A path that is no directory of a volume, or cannot be read.
pub fn get_policies(args: &GetArgs) -> CommandResult {
    let (mut out, plain) = (TermOutput::new(), Style::new());
    let mut table = TextTable::new(&["DIRECTORY", "POLICY", "VALUE"]);
    let mut found = Vec::new();
    let mut sessions = VolumeSessions::new(&args.at);
    for any in &args.dirs {
        let (tree, attr, path) = find_dir(&mut sessions, any)?;
        let mut values = serde_json::Map::new();
        let policies = read_policies(&tree, attr.ino)
            .map_err(|e| any.operation_failure("cannot read the policies of", e))?;
        for row in &POLICIES {
            let value = policies.value_of(row.kind);
            let shown = value.map_or_else(|| "not set".to_owned(), row.format);
            let style = if value.is_some() { plain } else { DIM };
            table.add_row([(any.to_string(), HEAD), (row.name.to_owned(), plain), (shown, style)]);
            let shown = match row.kind {
                PolicyKind::Inline => value.into(),
                PolicyKind::Engine | PolicyKind::Versions | PolicyKind::Placement => {
                    value.map(row.format).into()
                }
            };
            values.insert(row.name.to_owned(), shown);
        }
        let mut one = serde_json::to_value(NameFields::new("path", path)).unwrap_or_default();
        if let Some(fields) = one.as_object_mut() {
            fields.insert("policies".to_owned(), values.into());
        }
        found.push(one);
    }
    if args.json {
        let volume = sessions.volume_name();
        out.write_json(&serde_json::json!({ "volume": volume, "directories": found }))?;
    } else {
        out.write_table(&table)?;
    }
    out.flush()?;
    Ok(())
}
