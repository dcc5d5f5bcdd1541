//! The error of a call to another site.

use rustix::io::Errno;

/// A failed call.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{what}")]
pub struct RemoteError {
    /// The error number of the system there; `EHOSTDOWN` where the other side is not reached.
    pub errno: Errno,
    /// A sentence with the site.
    pub what: String,
}
