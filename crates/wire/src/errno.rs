//! Error codes that cross the wire: the POSIX ones, by their Linux numbers.

use serde::{Deserialize, Serialize};
use std::fmt;

/// A POSIX error number (Linux x86-64 numbering, always positive).
#[derive(Clone, Copy, PartialEq, Eq, Hash, Serialize, Deserialize, thiserror::Error)]
pub struct Errno(pub i32);

macro_rules! errnos {
    ($($name:ident $text:literal),* $(,)?) => {
        #[allow(missing_docs)] // the names are those of errno(3)
        impl Errno { $(pub const $name: Errno = Errno(libc::$name);)* }

        impl Errno {
            /// Returns the symbol of errno(3), if the number is one that Tatami uses.
            pub fn name(self) -> Option<&'static str> {
                match self { $(Errno::$name => Some(stringify!($name)),)* _ => None }
            }

            fn text(self) -> Option<&'static str> {
                match self { $(Errno::$name => Some($text),)* _ => None }
            }
        }
    };
}

errnos! {
    EPERM "operation not permitted",
    ENOENT "no such file or directory",
    EINTR "interrupted",
    EIO "input/output error",
    ENXIO "no data or hole beyond this offset",
    E2BIG "argument too large",
    EBADF "file not open for this",
    EAGAIN "try again",
    ENOMEM "out of memory",
    EACCES "permission denied",
    EBUSY "busy",
    EEXIST "file exists",
    EXDEV "on another file system",
    ENODEV "no such device",
    ENOTDIR "not a directory",
    EISDIR "is a directory",
    EINVAL "invalid argument",
    ENFILE "too many open files",
    EFBIG "file too large",
    ENOSPC "no space left",
    EROFS "read-only",
    EMLINK "too many links",
    EDEADLK "deadlock",
    ENOLCK "no lock to be had",
    ERANGE "buffer too small",
    ENAMETOOLONG "name too long",
    ENOSYS "not implemented",
    ENOTEMPTY "directory not empty",
    ELOOP "too many symbolic links",
    ENODATA "no such attribute",
    EPROTO "protocol error",
    EOVERFLOW "value too large",
    EOPNOTSUPP "not supported",
    ETIMEDOUT "timed out",
    ECONNREFUSED "connection refused",
    EHOSTDOWN "node is down",
    ESTALE "stale handle",
    EDQUOT "quota exceeded",
    EKEYEXPIRED "capability expired",
    EKEYREJECTED "capability rejected",
}

impl fmt::Display for Errno {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match (self.text(), self.name()) {
            (Some(text), Some(name)) => write!(f, "{text} ({name})"),
            _ => write!(f, "error {}", self.0),
        }
    }
}

impl fmt::Debug for Errno {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.name() {
            Some(name) => f.write_str(name),
            None => write!(f, "Errno({})", self.0),
        }
    }
}

impl From<&std::io::Error> for Errno {
    /// Returns the system's error number, or `EIO` for errors of other origin.
    fn from(e: &std::io::Error) -> Errno {
        Errno(e.raw_os_error().filter(|n| *n > 0).unwrap_or(libc::EIO))
    }
}

impl From<std::io::Error> for Errno {
    fn from(e: std::io::Error) -> Errno {
        Errno::from(&e)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_error_prints_its_meaning_and_its_symbol() {
        assert_eq!(Errno::ENOENT.to_string(), "no such file or directory (ENOENT)");
        assert_eq!(Errno(9999).to_string(), "error 9999");
    }
}
