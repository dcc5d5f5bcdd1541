//! What a file is to those who look at it or remove it by its path.

use crate::error::{Context, Error, Result};
use crate::{marker, place};
use rustix::io::Errno;
use std::os::unix::fs::MetadataExt;
use std::path::Path;

/// A file as one that is ordinary.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Stat {
    /// Bytes.
    pub size: u64,
    /// Type and permissions, as in `st_mode`.
    pub mode: u32,
    /// Is it a container?
    pub container: bool,
    /// Last change of its bytes: seconds since 1970, nanoseconds.
    pub modified: (i64, i64),
}

/// Looks at a path.
///
/// # Errors
/// As for stat(2).
pub fn stat(path: &Path) -> Result<Stat> {
    let path = place::without_prefix(path).0;
    let meta = std::fs::metadata(path).context("stat", path)?;
    if meta.is_dir() && marker::is_container(path)? {
        return Err(Error::new("stat", path, Errno::NOSYS));
    }
    let modified = (meta.mtime(), meta.mtime_nsec());
    Ok(Stat { size: meta.len(), mode: meta.mode(), container: false, modified })
}

/// Removes the file at a path.
///
/// # Errors
/// As for unlink(2); `EISDIR` for a directory that is no container.
pub fn delete(path: &Path) -> Result<()> {
    let path = place::without_prefix(path).0;
    let meta = std::fs::symlink_metadata(path).context("remove", path)?;
    if !meta.is_dir() {
        return std::fs::remove_file(path).context("remove", path);
    }
    match marker::is_container(path)? {
        true => Err(Error::new("remove", path, Errno::NOSYS)),
        false => Err(Error::new("remove", path, Errno::ISDIR)),
    }
}
