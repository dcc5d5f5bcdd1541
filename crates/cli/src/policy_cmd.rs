//! `tatami set` and `tatami get`: the policies of directories.

use crate::error::{CommandFailure, CommandResult};
use crate::json::NameFields;
use crate::session::{FoundPath, VolumeSessions};
use crate::term::{DIM, HEAD, TermOutput, TextTable};
use crate::volume_dir::VolumeArgs;
use crate::volume_path::AnyPath;
use anstyle::Style;
use std::io::Write;
use tatami_client::tree::VolumeTree;
use tatami_wire::meta::XattrMode;
use tatami_wire::policy::{POLICIES, PolicyKind, PolicyRow};
use tatami_wire::{Attr, Errno, InodeKind};

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
    /// Remove a policy: `inline` or `engine`
    #[arg(long, value_name = "POLICY", value_parser = parse_name)]
    unset: Vec<&'static PolicyRow>,
    /// Directories on a mount, or in the volume with a colon in front
    #[arg(required = true)]
    dirs: Vec<AnyPath>,
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
    let said = [(PolicyKind::Inline, args.inline), (PolicyKind::Engine, args.engine)];
    let said: Vec<(&PolicyRow, u64)> =
        said.into_iter().filter_map(|(kind, value)| Some((row_of(kind)?, value?))).collect();
    if said.is_empty() && args.unset.is_empty() {
        let what = "no policy is named".to_owned();
        return Err(CommandFailure::usage(what).try_this("tatami set --inline 4k DIR"));
    }
    let mut sessions = VolumeSessions::new(&args.at);
    for any in &args.dirs {
        let (tree, attr, _) = find_dir(&mut sessions, any)?;
        let (client, cred) = (tree.client(), tree.cred());
        let failed = |errno| match errno {
            Errno::EOPNOTSUPP => CommandFailure::new(format!(
                "{any}: the nodes are limited to an older version of the protocol, which has no \
                 policies"
            ))
            .try_this("tatami config --unset node.protocol"),
            errno => any.operation_failure("cannot set the policies of", errno),
        };
        for (row, value) in &said {
            let (name, value) = (row.attribute(), (row.format)(*value));
            let mode = XattrMode::Set;
            client
                .set_xattr(cred, attr.ino, name.as_bytes(), value.as_bytes(), mode)
                .map_err(failed)?;
        }
        for row in &args.unset {
            match client.remove_xattr(cred, attr.ino, row.attribute().as_bytes()) {
                // It has none.
                Err(Errno::ENODATA) => {}
                removed => removed.map_err(failed)?,
            }
        }
    }
    Ok(())
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
        for row in &POLICIES {
            let name = row.attribute();
            let value = match tree.client().get_xattr(tree.cred(), attr.ino, name.as_bytes()) {
                Ok(value) => String::from_utf8(value).ok().and_then(|text| (row.parse)(&text)),
                Err(Errno::ENODATA) => None,
                Err(e) => return Err(any.operation_failure("cannot read the policies of", e)),
            };
            let shown = value.map_or_else(|| "not set".to_owned(), row.format);
            let style = if value.is_some() { plain } else { DIM };
            table.add_row([(any.to_string(), HEAD), (row.name.to_owned(), plain), (shown, style)]);
            let shown = match row.kind {
                PolicyKind::Inline => value.into(),
                PolicyKind::Engine => value.map(row.format).into(),
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
