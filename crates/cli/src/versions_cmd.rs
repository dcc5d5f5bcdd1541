//! `tatami versions` and `tatami restore`: earlier states of files, which policy `versions` keeps.

use crate::error::{CommandFailure, CommandResult};
use crate::json::{NameFields, wide_number};
use crate::listing::{time_json, time_text};
use crate::session::{FoundPath, VolumeSessions};
use crate::term::{self, HEAD, TermOutput, TextTable};
use crate::volume_dir::VolumeArgs;
use crate::volume_path::AnyPath;
use anstyle::Style;
use std::fs::OpenOptions;
use std::io::Write;
use std::os::unix::fs::OpenOptionsExt;
use std::path::Path;
use tatami_client::DataFile;
use tatami_client::tree::VolumeTree;
use tatami_wire::object::ObjectVersion;
use tatami_wire::{Access, Attr, Errno, InodeKind, SetAttr};

/// Bytes that are copied at a time.
const CHUNK: usize = 1 << 20;

/// `tatami versions`
#[derive(Debug, clap::Args)]
pub struct VersionsArgs {
    #[command(flatten)]
    at: VolumeArgs,
    /// Print one JSON object
    #[arg(long)]
    json: bool,
    /// Files on a mount, or in the volume with a colon in front
    #[arg(required = true)]
    files: Vec<AnyPath>,
}

/// `tatami restore`
#[derive(Debug, clap::Args)]
pub struct RestoreArgs {
    #[command(flatten)]
    at: VolumeArgs,
    /// The number of the version, as `tatami versions` shows it
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u32).range(1..))]
    version: u32,
    /// Copy the version to a new file, and leave the file as it is
    #[arg(long, value_name = "PATH")]
    to: Option<AnyPath>,
    /// A file on a mount, or in the volume with a colon in front
    file: AnyPath,
}

/// Returns a failure of a request for versions of `any`.
fn version_failure(any: &AnyPath, what: &str, errno: Errno) -> CommandFailure {
    match errno {
        Errno::EOPNOTSUPP => CommandFailure::new(format!("{any} keeps no versions"))
            .because("a file keeps them if its directory had policy versions when it was made")
            .try_this("tatami set --engine region --versions 10 DIR, and copy the file anew"),
        errno => any.operation_failure(what, errno),
    }
}

/// Opens a file of the volume.
fn open_versioned(
    sessions: &mut VolumeSessions<'_>,
    any: &AnyPath,
    access: Access,
) -> CommandResult<(VolumeTree, Attr, DataFile, Vec<u8>)> {
    let FoundPath { tree, path, .. } = sessions.find_path(any)?;
    let what = if access.write { "cannot change" } else { "cannot read" };
    let failed = |errno| any.operation_failure(what, errno);
    let found = tree.stat(&path, true).map_err(failed)?;
    if found.kind != InodeKind::File {
        return Err(CommandFailure::usage(format!(
            "{any} is no file, and only files have versions"
        )));
    }
    let (attr, cap) = tree.client().open(tree.cred(), found.ino, access).map_err(failed)?;
    let data = tree.client().open_data(&attr, cap).map_err(failed)?;
    Ok((tree, attr, data, path))
}

/// Prints the versions of files.
///
/// # Errors
/// A path that is no file of a volume, cannot be read, or keeps no versions.
pub fn print_versions(args: &VersionsArgs) -> CommandResult {
    let (mut out, plain) = (TermOutput::new(), Style::new());
    let mut table = TextTable::new(&["FILE", ">VERSION", "CHANGED", "REPLACED", ">SIZE"]);
    let mut sessions = VolumeSessions::new(&args.at);
    let (mut files, mut without) = (Vec::new(), Vec::new());
    for any in &args.files {
        let (_, _, data, path) = open_versioned(&mut sessions, any, Access::READ)?;
        let versions = data
            .list_versions()
            .map_err(|errno| version_failure(any, "cannot list the versions of", errno))?;
        for ObjectVersion { number, size, mtime, replaced } in &versions {
            table.add_row([
                (any.to_string(), HEAD),
                (number.to_string(), plain),
                (time_text(*mtime), plain),
                (time_text(*replaced), plain),
                (term::format_size(*size), plain),
            ]);
        }
        if versions.is_empty() {
            without.push(any.to_string());
        }
        let as_json = |version: &ObjectVersion| {
            serde_json::json!({
                "version": version.number, "size": wide_number(version.size),
                "mtime": time_json(version.mtime), "replaced": time_json(version.replaced),
            })
        };
        let all: Vec<_> = versions.iter().map(as_json).collect();
        let mut one = serde_json::json!({ "versions": all });
        NameFields::new("path", path).add_to(&mut one);
        files.push(one);
    }
    if args.json {
        out.write_json(&serde_json::json!({ "volume": sessions.volume_name(), "files": files }))?;
        return Ok(());
    }
    if without.len() < files.len() {
        out.write_table(&table)?;
    }
    for file in without {
        writeln!(out, "{file}: no older version yet")?;
    }
    out.flush()?;
    Ok(())
}

/// Brings back a version of a file.
///
/// # Errors
/// A path that is no file of a volume, no permission, no such version.
pub fn restore_version(args: &RestoreArgs) -> CommandResult {
    let (any, number) = (&args.file, args.version);
    let mut sessions = VolumeSessions::new(&args.at);
    let access = if args.to.is_some() { Access::READ } else { Access::WRITE };
    let (tree, attr, data, _) = open_versioned(&mut sessions, any, access)?;
    let failed = |errno| match errno {
        Errno::ENOENT => CommandFailure::new(format!("{any} has no version {number}"))
            .because("it never had, or the version was too old, or one too many")
            .try_this(format!("tatami versions {any}")),
        Errno::EFBIG => CommandFailure::new(format!("{any} is in no region any more"))
            .because("a file above 4 MiB, and one of a node without a device, is on a disk")
            .try_this(format!("tatami restore --version {number} --to PATH {any}")),
        errno => version_failure(any, "cannot restore", errno),
    };
    let Some(to) = &args.to else {
        // Sends the size to the shard in any case, which otherwise keeps this client as a writer.
        let restored = data.restore_version(number).map_err(failed);
        let told = restored.and_then(|state| {
            let set = SetAttr {
                size: Some(state.size),
                blocks: Some(state.blocks),
                changed: Some(state.changed),
                by_handle: true,
                ..SetAttr::default()
            };
            data.sync(false).map_err(failed)?;
            tree.client().setattr(tree.cred(), attr.ino, set).map_err(failed)
        });
        let closed = tree.client().commit(tree.cred(), attr.ino, None, true).map_err(failed);
        return told.and(closed).map(drop);
    };
    let versions = data.list_versions().map_err(failed)?;
    let found = versions.iter().find(|version| version.number == number);
    let size = found.ok_or_else(|| failed(Errno::ENOENT))?.size;
    let mut bytes = vec![0; size as usize];
    let got = data.read_version(number, &mut bytes, 0).map_err(failed)?;
    if got < bytes.len() {
        return Err(failed(Errno::ENOENT));
    }
    write_copy(&mut sessions, to, attr.mode & 0o777, &bytes)
}

/// Writes a new file.
fn write_copy(
    sessions: &mut VolumeSessions<'_>,
    to: &AnyPath,
    mode: u16,
    bytes: &[u8],
) -> CommandResult {
    let exists = || {
        CommandFailure::new(format!("{to} exists"))
            .try_this("name another path, or remove it first")
    };
    match to {
        AnyPath::Local(path) => {
            write_local(path, mode, bytes).map_err(|error| match error.kind() {
                std::io::ErrorKind::AlreadyExists => exists(),
                _ => CommandFailure::new(format!("cannot write {to}: {error}")),
            })
        }
        _ => {
            let FoundPath { tree, path, .. } = sessions.find_path(to)?;
            let failed = |errno| to.operation_failure("cannot write", errno);
            match tree.stat(&path, false) {
                Ok(_) => return Err(exists()),
                Err(Errno::ENOENT) => {}
                Err(errno) => return Err(failed(errno)),
            }
            let mut file = tree.create(&path, mode, 0).map_err(failed)?;
            for chunk in bytes.chunks(CHUNK) {
                file.write_all_at_position(chunk).map_err(failed)?;
            }
            file.close().map(drop).map_err(failed)
        }
    }
}

fn write_local(path: &Path, mode: u16, bytes: &[u8]) -> std::io::Result<()> {
    let mut file = OpenOptions::new().write(true).create_new(true).mode(mode.into()).open(path)?;
    file.write_all(bytes)
}
