//! The descriptors of the library's own connections. They have high numbers, so that a program
//! finds the low numbers that it expects, and the program cannot close them.

use rustix::io::fcntl_dupfd_cloexec;
use rustix::process::{Resource, getrlimit};
use std::os::fd::{AsRawFd, OwnedFd};
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};

/// Descriptors for connections: the last ones below [`LAST`] and the limit of the process.
const OWN_MAX: u64 = 64;
/// Numbers above make the kernel's table of descriptors large.
const LAST: u64 = 1024;
/// Numbers that are recorded.
const RECORDED: usize = 1 << 16;

static OWN: [AtomicU64; RECORDED / 64] = [const { AtomicU64::new(0) }; RECORDED / 64];

fn place(fd: i32) -> Option<(&'static AtomicU64, u64)> {
    let fd = usize::try_from(fd).ok()?;
    Some((OWN.get(fd / 64)?, 1 << (fd % 64)))
}

/// Returns whether the library uses this descriptor for itself.
pub(crate) fn is_own(fd: i32) -> bool {
    place(fd).is_some_and(|(word, bit)| word.load(Relaxed) & bit != 0)
}

/// Records that the library has closed one of its descriptors.
pub(crate) fn forget_own(fd: i32) {
    if let Some((word, bit)) = place(fd) {
        word.fetch_and(!bit, Relaxed);
    }
}

/// Moves a new socket to a high number.
pub(crate) fn move_up(socket: OwnedFd) -> OwnedFd {
    let limit = getrlimit(Resource::Nofile).current.unwrap_or(LAST).min(LAST);
    let floor = limit.saturating_sub(OWN_MAX) as i32;
    // Without room above, the socket stays where it is: it works there as well.
    let moved = fcntl_dupfd_cloexec(&socket, floor).unwrap_or(socket);
    if let Some((word, bit)) = place(moved.as_raw_fd()) {
        word.fetch_or(bit, Relaxed);
    }
    moved
}

/// Returns all descriptors of the library, in order.
pub(crate) fn list_own() -> Vec<i32> {
    let words = OWN.iter().enumerate().filter(|(_, word)| word.load(Relaxed) != 0);
    words
        .flat_map(|(at, word)| {
            let bits = word.load(Relaxed);
            (0..64).filter(move |bit| bits >> bit & 1 == 1).map(move |bit| (at * 64 + bit) as i32)
        })
        .collect()
}
