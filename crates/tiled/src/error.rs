//! What can go wrong: the operation, the path and what the system said.

use crate::journal::Trouble;
use rustix::io::Errno;
use std::path::{Path, PathBuf};

/// What to do where a part of what was written cannot be read any more.
pub const ACCEPT_LOSS: &str = "restore the file from a copy, or keep what is whole of it when no program has it \
    open: tatami recover --accept-loss";

/// A failed operation on a file.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{operation} {}: {}", path.display(), self.why())]
pub struct Error {
    /// What was being done, as a verb: `open`, `write`.
    pub operation: &'static str,
    /// To which file.
    pub path: PathBuf,
    /// What a system call would have returned.
    pub errno: Errno,
    /// More than the number says, or empty.
    pub detail: String,
}

/// A result of this crate.
pub type Result<T> = std::result::Result<T, Error>;

impl Error {
    /// An error that has nothing to add to its number.
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

    /// What was found at `path` is not what this program writes.
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

/// Adds the operation and the path to what a system call said.
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
