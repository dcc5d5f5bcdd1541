//! What a transport is: the table of its properties and operations (as `struct proto_ops` of the
//! Linux kernel).

use crate::trust::PeerIdentity;
use std::fmt;
use std::io;
use std::os::fd::BorrowedFd;
use std::time::Duration;
use tatami_wire::handshake::Authentication;

/// A way to carry bytes between two processes. There is one value for each transport, in the file
/// of that transport.
pub struct Transport {
    /// The name, for logs.
    pub(crate) name: &'static str,
    /// How the daemon learns the identity of a client.
    pub authentication: Authentication,
    /// Both sides are on one machine, and an answer can carry open files.
    pub passes_descriptors: bool,
    /// Pages of a file that are spliced into the socket leave this machine without a copy.
    pub splices_pages: bool,
    /// The kernel sizes the socket's buffers by the path, until a program sets a size.
    pub(crate) tunes_buffers: bool,
    /// Longest wait until a connection is established, where the transport has such a limit.
    pub(crate) connect_timeout: Option<Duration>,
    /// Sets the options of a connected socket that both sides need.
    pub(crate) prepare: fn(BorrowedFd<'_>) -> io::Result<()>,
    /// Makes the kernel end a connection whose other side has died silently.
    pub(crate) detect_death: fn(BorrowedFd<'_>) -> io::Result<()>,
    /// Determines the other side of a connected socket.
    pub(crate) identify_peer: fn(BorrowedFd<'_>) -> io::Result<PeerIdentity>,
}

impl fmt::Debug for Transport {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name)
    }
}
