//! Errors: the operation, the path and the system's error number.

use crate::journal::Trouble;
use rustix::io::Errno;
use std::path::{Path, PathBuf};

/// Advice where a part of the written bytes can no longer be read.
pub const ACCEPT_LOSS: &str = "restore the file from a copy, or keep what is whole of it when no program has it \
    open: tatami recover --accept-loss";

/// A failed operation on a file.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{operation} {}: {}", path.display(), self.why())]
pub struct Error {
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
pub type Result<T> = std::result::Result<T, Error>;

impl Error {
    /// An error without a sentence of its own.
    pub fn new(operation: &'static str, path: &Path, errno: Errno) -> Error {
        Error { operation, path: path.to_path_buf(), errno, detail: String::new() }
    }

    /// An error with a sentence of its own.
    pub fn because(
        operation: &'static str,
        path: &Path,
        errno: Errno,
        detail: impl Into<String>,
    ) -> Error {
        Error { operation, path: path.to_path_buf(), errno, detail: detail.into() }
    }

    /// An error for bytes at `path` that this program did not write.
    pub fn damaged(path: &Path, detail: impl Into<String>) -> Error {
        Error::because("read", path, Errno::IO, detail)
    }

    fn why(&self) -> String {
        let system = std::io::Error::from(self.errno);
        match self.detail.as_str() {
            "" => system.to_string(),
            detail => format!("{detail} ({system})"),
        }
    }
}

/// Adds the operation and the path to the error of a system call.
pub trait Context<T> {
    /// `operation` is a verb, `path` the file.
    ///
    /// # Errors
    /// The given one, with its context.
    fn context(self, operation: &'static str, path: &Path) -> Result<T>;
}

impl<T> Context<T> for std::result::Result<T, Errno> {
    fn context(self, operation: &'static str, path: &Path) -> Result<T> {
        self.map_err(|errno| Error::new(operation, path, errno))
    }
}

impl<T> Context<T> for std::result::Result<T, Trouble> {
    fn context(self, operation: &'static str, path: &Path) -> Result<T> {
        self.map_err(|trouble| match trouble {
            Trouble::Disk(errno) => Error::new(operation, path, errno),
            Trouble::Damage(damage) => {
                Error::because(operation, path, Errno::IO, format!("{damage}; {ACCEPT_LOSS}"))
            }
        })
    }
}

impl<T> Context<T> for std::io::Result<T> {
    fn context(self, operation: &'static str, path: &Path) -> Result<T> {
        self.map_err(|error| {
            let errno = Errno::from_io_error(&error).unwrap_or(Errno::IO);
            Error::new(operation, path, errno)
        })
    }
}
