//! Replaces a small file in one step.

use crate::error::CommandResult;
use rustix::fs::Mode;
use std::path::Path;
use tatami_cluster::trusted;

/// Replaces a file atomically: a crash leaves the old one or the new one.
///
/// # Errors
/// Those of the file system.
pub fn replace_file(path: &Path, text: &str) -> CommandResult {
    Ok(trusted::replace_file(path, text.as_bytes(), Mode::from_raw_mode(0o644), false)?)
}
