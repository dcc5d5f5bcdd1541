//! Decides which engine serves the file at a path: container, ordinary file, volume, or none of
//! ours.

use crate::error::{ErrorContext, Result, TiledError};
use crate::flags::Flags;
use crate::hints::{Environment, Hints, PathSelection};
use crate::{marker, volume};
use rustix::io::Errno;
use std::fs::Metadata;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use tatami_remote::SiteFile;

/// The decision about a path.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Claim {
    /// Not ours.
    NotOurs,
    /// An ordinary file, there or to be made.
    Plain(PathBuf),
    /// A container that exists.
    Container(PathBuf),
    /// A file on a mount of a volume, there or to be made.
    Volume {
        /// Its path, which may contain links to directories.
        place: PathBuf,
        /// Whether the path itself is a link, which may lead to another file system.
        linked: bool,
    },
    /// A file of another site.
    Remote(SiteFile),
    /// A container to be made, in place of an empty ordinary file if there is one.
    NewContainer(PathBuf),
}

/// Links followed at most, as in the kernel.
const LINKS: usize = 40;

/// Prefixes by which a caller of ROMIO selects another file system driver.
const OTHER_DRIVERS: [&str; 14] = [
    "ufs", "nfs", "nfsv4", "lustre", "gpfs", "pvfs", "pvfs2", "panfs", "xfs", "testfs", "daos",
    "quobyte", "ime", "gfarm",
];

/// Reports whether a path begins with the name of another driver and a colon.
pub fn names_other_driver(path: &Path) -> bool {
    let bytes = path.as_os_str().as_encoded_bytes();
    let Some(colon) = bytes.iter().position(|b| *b == b':') else { return false };
    OTHER_DRIVERS.iter().any(|name| name.as_bytes() == &bytes[..colon])
}

/// Returns the path without our prefix, and whether the path had it.
pub fn without_prefix(path: &Path) -> (&Path, bool) {
    use std::os::unix::ffi::OsStrExt;
    match path.as_os_str().as_bytes().strip_prefix(b"tatami:") {
        Some(rest) => (Path::new(std::ffi::OsStr::from_bytes(rest)), true),
        None => (path, false),
    }
}

/// Resolves all links of the path. A file that does not exist yet keeps its name, in the real path
/// of its directory.
///
/// # Errors
/// `ENOENT` where the directory is missing, `ELOOP` for too many links.
pub fn resolve_links(path: &Path) -> Result<PathBuf> {
    let mut path = path.to_path_buf();
    for _ in 0..LINKS {
        match std::fs::canonicalize(&path) {
            Err(e) if e.kind() == std::io::ErrorKind::NotFound => {}
            other => return other.context("resolve", &path),
        }
        // It does not exist, or is a link whose target does not exist.
        let Some(name) = path.file_name() else {
            return Err(TiledError::new("resolve", &path, Errno::NOENT));
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
    Err(TiledError::new("resolve", &path, Errno::LOOP))
}

/// Returns the file of another site that the program means, by a hint, a URL or the environment.
///
/// # Errors
/// `EINVAL` for an address that is none.
pub fn find_on_site(path: &Path, hints: &Hints, env: &Environment) -> Result<Option<SiteFile>> {
    let invalid = |why: String| TiledError::with_detail("open", path, Errno::INVAL, why);
    if let Some(url) = SiteFile::parse_url(path) {
        return url.map(Some).map_err(invalid);
    }
    let path_there = without_prefix(path).0;
    if let Some(site) = &hints.site {
        if !site.is_valid() {
            return Err(invalid(format!("{:?}: a hint of it is no word for ssh", site.host)));
        }
        return Ok(Some(SiteFile { site: site.clone(), path: path_there.to_path_buf() }));
    }
    if let Some(why) = &env.sites_error {
        return Err(invalid(why.clone()));
    }
    let absolute = std::path::absolute(path_there).context("resolve", path)?;
    Ok(env.sites.find_file(&absolute))
}

/// The state of a path.
struct PathStatus {
    /// The file, if it is there.
    file: Option<Metadata>,
    /// Whether the path itself is a link.
    linked: bool,
}

fn stat_path(path: &Path) -> Result<PathStatus> {
    let known = |found: std::io::Result<Metadata>| match found {
        Ok(found) => Ok(Some(found)),
        Err(e) if e.kind() == std::io::ErrorKind::NotFound => Ok(None),
        Err(e) => Err(e).context("stat", path),
    };
    let file = known(std::fs::symlink_metadata(path))?;
    match file {
        Some(link) if link.is_symlink() => {
            Ok(PathStatus { file: known(std::fs::metadata(path))?, linked: true })
        }
        file => Ok(PathStatus { file, linked: false }),
    }
}

/// Returns the path of a file on a mount of a volume, if the file is one or would be one. A path
/// that is no link stays as it is: resolving it would cost a system call for each of its parts.
fn find_on_volume(path: &Path, seen: &PathStatus) -> Result<Option<PathBuf>> {
    let place = match seen.linked {
        true => resolve_links(path)?,
        false => std::path::absolute(path).context("resolve", path)?,
    };
    let device = match &seen.file {
        Some(file) => file.dev(),
        None => match volume::device_of(volume::parent_dir(&place)) {
            Some(device) => device,
            None => return Ok(None),
        },
    };
    Ok(volume::is_on_volume(device, &place, seen.file.is_some()).then_some(place))
}

/// Decides about `path`. Where no hint, prefix or environment variable asks for an engine, this
/// costs one look at the path, one at its directory if there is no file yet, and one at the mount
/// table.
///
/// # Errors
/// A container that cannot be read; for requested paths also the reason why they cannot be
/// examined.
pub fn decide_claim(path: &Path, flags: Flags, hints: &Hints, env: &Environment) -> Result<Claim> {
    if let Some(file) = find_on_site(path, hints, env)? {
        return Ok(Claim::Remote(file));
    }
    if names_other_driver(path) {
        return Ok(Claim::NotOurs);
    }
    let (path, prefixed) = without_prefix(path);
    let asked = prefixed
        || hints.container == Some(true)
        || hints.plain == Some(true)
        || env.container != PathSelection::Nowhere
        || env.plain != PathSelection::Nowhere;
    let seen = match stat_path(path) {
        Ok(seen) => seen,
        // A path that nobody asked us to serve must not fail because of us: leave the error to the
        // MPI library.
        Err(error) if asked => return Err(error),
        Err(_) => return Ok(Claim::NotOurs),
    };
    let found = &seen.file;
    if let Some(meta) = found
        && meta.is_dir()
    {
        return match marker::is_container(path)? {
            true => Ok(Claim::Container(resolve_links(path)?)),
            false => Ok(Claim::NotOurs),
        };
    }
    if found.as_ref().is_some_and(|meta| !meta.is_file()) {
        return Ok(Claim::NotOurs);
    }
    let on_volume = || -> Result<Claim> {
        let wanted = hints.tiled.or(env.tiled).unwrap_or(hints.container != Some(false));
        let place = if wanted { find_on_volume(path, &seen)? } else { None };
        let linked = seen.linked;
        Ok(place.map_or(Claim::NotOurs, |place| Claim::Volume { place, linked }))
    };
    if !asked {
        return on_volume();
    }
    let real = resolve_links(path)?;
    let wants_plain = hints.plain.unwrap_or_else(|| env.plain.covers_path(&real));
    // A prefix alone selects any existing file, and containers for new files.
    let wants_container = hints.container.unwrap_or_else(|| env.container.covers_path(&real));
    if !wants_container
        && !wants_plain
        && let claim @ Claim::Volume { .. } = on_volume()?
    {
        return Ok(claim);
    }
    let wants_container =
        wants_container || (prefixed && !wants_plain && hints.container.is_none());
    // A file with bytes stays as it is: only an empty one is replaced by a container.
    let replaceable = match found {
        Some(meta) => meta.len() == 0 && flags.can_write() && !flags.contains(Flags::EXCL),
        None => true,
    };
    Ok(match (wants_container && replaceable, wants_plain || prefixed) {
        (true, _) => Claim::NewContainer(real),
        (false, true) => Claim::Plain(real),
        (false, false) => Claim::NotOurs,
    })
}
