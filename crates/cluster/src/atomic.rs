//! Replacing a file so that a crash leaves the old one or the new one.

use rustix::fs::{Mode, OFlags};
use std::fs::File;
use std::io::{self, Write};
use std::path::{Path, PathBuf};

/// The name under which the new content is written first.
pub(crate) fn temporary(path: &Path) -> PathBuf {
    let mut name = path.as_os_str().to_owned();
    name.push(".tmp");
    name.into()
}

/// Puts `content` at `path`, with `mode`. When it returns, the file survives a
/// power cut.
///
/// # Errors
/// Those of the disk. The file is as it was then.
pub fn write(path: &Path, content: &[u8], mode: Mode) -> io::Result<()> {
    let temporary = temporary(path);
    let flags = OFlags::WRONLY | OFlags::CREATE | OFlags::TRUNC | OFlags::CLOEXEC;
    let mut file = File::from(rustix::fs::open(&temporary, flags, mode)?);
    // A leftover of an earlier attempt keeps its mode when opened.
    rustix::fs::fchmod(&file, mode)?;
    file.write_all(content)?;
    file.sync_all()?;
    std::fs::rename(&temporary, path)?;
    sync_parent(path)
}

/// Makes the name `path` survive a power cut.
pub(crate) fn sync_parent(path: &Path) -> io::Result<()> {
    let parent = match path.parent() {
        Some(parent) if parent != Path::new("") => parent,
        _ => Path::new("."),
    };
    File::open(parent)?.sync_all()
}
