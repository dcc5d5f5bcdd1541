//! Whose file is at a path: a container, an ordinary file to be taken over, or
//! somebody else's business.

use crate::error::{Context, Error, Result};
use crate::flags::Flags;
use crate::hints::{Environment, Hints, Wanted};
use crate::{marker, volume};
use rustix::io::Errno;
use std::fs::Metadata;
use std::path::{Path, PathBuf};

/// What to do about a path.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Claim {
    /// Not ours.
    No,
    /// An ordinary file, there or to be made.
    Plain(PathBuf),
    /// A container that exists.
    Container(PathBuf),
    /// A file on a mount of a volume, there or to be made.
    Volume(PathBuf),
    /// A container to be made, in place of an empty ordinary file if there is one.
    NewContainer(PathBuf),
}

/// Links followed at most, as in the kernel.
const LINKS: usize = 40;

/// Prefixes by which a caller of ROMIO chooses another file system driver.
const FOREIGN: [&str; 14] = [
    "ufs", "nfs", "nfsv4", "lustre", "gpfs", "pvfs", "pvfs2", "panfs", "xfs", "testfs", "daos",
    "quobyte", "ime", "gfarm",
];

/// Does a path begin with a driver's name and a colon that is not ours?
pub fn is_foreign(path: &Path) -> bool {
    let bytes = path.as_os_str().as_encoded_bytes();
    let Some(colon) = bytes.iter().position(|b| *b == b':') else { return false };
    FOREIGN.iter().any(|name| name.as_bytes() == &bytes[..colon])
}

/// The path without our own prefix, and whether it had it.
pub fn without_prefix(path: &Path) -> (&Path, bool) {
    use std::os::unix::ffi::OsStrExt;
    match path.as_os_str().as_bytes().strip_prefix(b"tatami:") {
        Some(rest) => (Path::new(std::ffi::OsStr::from_bytes(rest)), true),
        None => (path, false),
    }
}

/// The path with no link in it. What does not exist yet is named by the real
/// path of its directory.
///
/// # Errors
/// `ENOENT` where the directory is missing, `ELOOP` for too many links.
pub fn real(path: &Path) -> Result<PathBuf> {
    let mut path = path.to_path_buf();
    for _ in 0..LINKS {
        match std::fs::canonicalize(&path) {
            Err(e) if e.kind() == std::io::ErrorKind::NotFound => {}
            other => return other.context("resolve", &path),
        }
        // It does not exist, or is a link to something that does not.
        let Some(name) = path.file_name() else {
            return Err(Error::new("resolve", &path, Errno::NOENT));
        };
        let parent = match path.parent() {
            Some(parent) if !parent.as_os_str().is_empty() => parent,
            _ => Path::new("."),
        };
        let parent = std::fs::canonicalize(parent).context("resolve", &path)?;
        match std::fs::read_link(&path) {
            Ok(target) => path = parent.join(target),
            Err(_) => return Ok(parent.join(name)),
        }
    }
    Err(Error::new("resolve", &path, Errno::LOOP))
}

fn look(path: &Path) -> Result<Option<Metadata>> {
    match std::fs::metadata(path) {
        Ok(found) => Ok(Some(found)),
        Err(e) if e.kind() == std::io::ErrorKind::NotFound => Ok(None),
        Err(e) => Err(e).context("stat", path),
    }
}

/// Decides about `path`. What is not asked for by hint, prefix or environment
/// costs one look at the path, and one at its file system.
///
/// # Errors
/// A container that cannot be read; for paths that are asked for also what
/// keeps them from being looked at.
pub fn claim(path: &Path, flags: Flags, hints: &Hints, env: &Environment) -> Result<Claim> {
    if is_foreign(path) {
        return Ok(Claim::No);
    }
    let (path, prefixed) = without_prefix(path);
    let asked = prefixed
        || hints.container == Some(true)
        || hints.plain == Some(true)
        || env.container != Wanted::Nowhere
        || env.plain != Wanted::Nowhere;
    let found = match look(path) {
        Ok(found) => found,
        Err(error) if asked => return Err(error),
        Err(_) => return Ok(Claim::No),
    };
    if let Some(meta) = &found
        && meta.is_dir()
    {
        return match marker::is_container(path)? {
            true => Ok(Claim::Container(real(path)?)),
            false => Ok(Claim::No),
        };
    }
    if found.as_ref().is_some_and(|meta| !meta.is_file()) {
        return Ok(Claim::No);
    }
    let on_volume = || -> Result<Claim> {
        let wanted = hints.tiled.or(env.tiled).unwrap_or(hints.container != Some(false));
        match wanted && volume::is_on_volume(path) {
            true => Ok(Claim::Volume(real(path)?)),
            false => Ok(Claim::No),
        }
    };
    if !asked {
        return on_volume();
    }
    let real = real(path)?;
    let wants_plain = hints.plain.unwrap_or_else(|| env.plain.covers(&real));
    // A prefix without more means: whatever is there, and containers for what is new.
    let wants_container = hints.container.unwrap_or_else(|| env.container.covers(&real));
    if !wants_container
        && !wants_plain
        && let Claim::Volume(real) = on_volume()?
    {
        return Ok(Claim::Volume(real));
    }
    let wants_container =
        wants_container || (prefixed && !wants_plain && hints.container.is_none());
    let replaceable = match &found {
        Some(meta) => meta.len() == 0 && flags.writes() && !flags.has(Flags::EXCL),
        None => true,
    };
    Ok(match (wants_container && replaceable, wants_plain || prefixed) {
        (true, _) => Claim::NewContainer(real),
        (false, true) => Claim::Plain(real),
        (false, false) => Claim::No,
    })
}
