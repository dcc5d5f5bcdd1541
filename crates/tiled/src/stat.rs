//! Metadata and removal of a file by its path, whether ordinary or a container.

use crate::container::{self, Container};
use crate::container_state::ContainerState;
use crate::error::{ErrorContext, Result, TiledError};
use crate::file_state::FileState;
use crate::{claim, marker};
use rustix::io::Errno;
use std::fs::Metadata;
use std::os::unix::fs::MetadataExt;
use std::path::Path;
use std::sync::Arc;

/// The metadata of a file, as of an ordinary one.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct TiledStat {
    /// Bytes.
    pub size: u64,
    /// Type and permissions, as in `st_mode`.
    pub mode: u32,
    /// Whether it is a container.
    pub container: bool,
    /// Last change of its bytes: seconds since 1970, nanoseconds.
    pub modified: (i64, i64),
}

/// Returns the metadata of the file at a path.
///
/// # Errors
/// As for stat(2).
pub fn stat_file(path: &Path) -> Result<TiledStat> {
    let path = claim::without_prefix(path).0;
    let meta = std::fs::metadata(path).context("stat", path)?;
    if meta.is_dir() && marker::is_container(path)? {
        return stat_container(path, &meta);
    }
    let modified = (meta.mtime(), meta.mtime_nsec());
    Ok(TiledStat { size: meta.len(), mode: meta.mode(), container: false, modified })
}

fn stat_container(path: &Path, dir: &Metadata) -> Result<TiledStat> {
    let container = Arc::new(Container::open(path)?);
    let mut world = ContainerState::new(container.clone());
    let size = world.current_size(None)?;
    // The newest time of all files: a write changes a piece and not the directory.
    let mut modified = (dir.mtime(), dir.mtime_nsec());
    for entry in std::fs::read_dir(path).context("list", path)? {
        // Files come and go while a program writes, so errors are skipped.
        if let Ok(meta) = entry.and_then(|entry| entry.metadata()) {
            modified = modified.max((meta.mtime(), meta.mtime_nsec()));
        }
    }
    let mode = libc_regular() | dir.mode() & 0o666;
    Ok(TiledStat { size, mode, container: true, modified })
}

/// `S_IFREG`.
fn libc_regular() -> u32 {
    rustix::fs::FileType::RegularFile.as_raw_mode()
}

/// Removes the file at a path.
///
/// # Errors
/// As for unlink(2); `EISDIR` for a directory that is no container.
pub fn delete_file(path: &Path) -> Result<()> {
    let path = claim::without_prefix(path).0;
    let meta = std::fs::symlink_metadata(path).context("remove", path)?;
    if !meta.is_dir() {
        return std::fs::remove_file(path).context("remove", path);
    }
    match marker::is_container(path)? {
        true => container::remove_container(path),
        false => Err(TiledError::new("remove", path, Errno::ISDIR)),
    }
}
