//! Replaces a file so that a crash leaves the old one or the new one.

use crate::trusted;
use rustix::fs::Mode;
use std::io;
use std::path::Path;

/// Writes `content` to the file `path`, with `mode`. When it returns, the file survives a power
/// cut.
///
/// # Errors
/// Those of the disk, and a directory that others can change. The file is unchanged then.
pub fn write_atomically(path: &Path, content: &[u8], mode: Mode) -> io::Result<()> {
    Ok(trusted::replace_file(path, content, mode, true)?)
}
