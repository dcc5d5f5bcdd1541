//! Errors: the operation, the path and the system's error number.

use crate::journal::JournalError;
use rustix::io::Errno;
use std::path::{Path, PathBuf};

/// Advice where a part of the written bytes can no longer be read.
pub const ACCEPT_LOSS: &str = "restore the file from a copy, or keep what is whole of it when no program has it \
    open: tatami recover --accept-loss";

/// A failed operation on a file.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{operation} {}: {}", path.display(), self.describe_cause())]
pub struct TiledError {
    /// The operation, as a verb: `open`, `write`.
    pub operation: &'static str,
    /// The file.
    pub path: PathBuf,
    /// The error number that a system call would have returned.
    pub errno: Errno,
    /// A sentence in addition to the error number, or empty.
    pub detail: String,
}

/// A result of this crate.
pub type Result<T> = std::result::Result<T, TiledError>;

impl TiledError {
    /// An error without a sentence of its own.
    pub fn new(operation: &'static str, path: &Path, errno: Errno) -> TiledError {
        TiledError { operation, path: path.to_path_buf(), errno, detail: String::new() }
    }

    /// An error with a sentence of its own.
    pub fn with_detail(
        operation: &'static str,
        path: &Path,
        errno: Errno,
        detail: impl Into<String>,
    ) -> TiledError {
        TiledError { operation, path: path.to_path_buf(), errno, detail: detail.into() }
    }

    /// An error for bytes at `path` that this program did not write.
    pub fn from_damage(path: &Path, detail: impl Into<String>) -> TiledError {
        TiledError::with_detail("read", path, Errno::IO, detail)
    }

    fn describe_cause(&self) -> String {
        let system = std::io::Error::from(self.errno);
        match self.detail.as_str() {
            "" => system.to_string(),
            // Another site reports its system's own words.
            detail if detail.ends_with(&system.to_string()) => detail.to_owned(),
            detail => format!("{detail} ({system})"),
        }
    }
}

/// Adds the operation and the path to the error of a system call.
pub trait ErrorContext<T> {
    /// `operation` is a verb, `path` the file.
    ///
    /// # Errors
    /// The given one, with its context.
    fn context(self, operation: &'static str, path: &Path) -> Result<T>;
}

impl<T> ErrorContext<T> for std::result::Result<T, Errno> {
    fn context(self, operation: &'static str, path: &Path) -> Result<T> {
        self.map_err(|errno| TiledError::new(operation, path, errno))
    }
}

impl<T> ErrorContext<T> for std::result::Result<T, JournalError> {
    fn context(self, operation: &'static str, path: &Path) -> Result<T> {
        self.map_err(|trouble| match trouble {
            JournalError::Disk(errno) => TiledError::new(operation, path, errno),
            JournalError::Damage(damage) => TiledError::with_detail(
                operation,
                path,
                Errno::IO,
                format!("{damage}; {ACCEPT_LOSS}"),
            ),
        })
    }
}

impl<T> ErrorContext<T> for std::io::Result<T> {
    fn context(self, operation: &'static str, path: &Path) -> Result<T> {
        self.map_err(|error| {
            let errno = Errno::from_io_error(&error).unwrap_or(Errno::IO);
            TiledError::new(operation, path, errno)
        })
    }
}

/// Converts the error number of a daemon to that of a system call.
pub(crate) fn to_system_errno(errno: tatami_wire::Errno) -> rustix::io::Errno {
    rustix::io::Errno::from_raw_os_error(errno.0)
}

/// Adds the operation and the path to the error of a daemon.
pub(crate) trait DaemonErrorContext<T> {
    fn daemon_context(self, operation: &'static str, path: &Path) -> Result<T>;
}

impl<T> DaemonErrorContext<T> for std::result::Result<T, tatami_wire::Errno> {
    fn daemon_context(self, operation: &'static str, path: &Path) -> Result<T> {
        self.map_err(|errno| TiledError::new(operation, path, to_system_errno(errno)))
    }
}
