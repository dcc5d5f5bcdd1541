//! The number of descriptors that this process may have.

use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};
use std::os::fd::{AsRawFd, OwnedFd};

/// Descriptors that files leave for connections, which daemons need to learn of a close.
const KEPT: u64 = 64;
/// Where only few are allowed, one part in `KEPT_SHARE` of them.
const KEPT_SHARE: u64 = 8;
/// The file with the system's limit for a process.
const MOST: &str = "/proc/sys/fs/nr_open";

/// Raises the limit of open descriptors as far as possible: for the superuser to the system's limit
/// for a process, for others to their hard limit. Each file that is written takes a descriptor in
/// the mount of its node.
pub fn raise_descriptor_limit() {
    let hard = getrlimit(Resource::Nofile).maximum;
    let most = std::fs::read_to_string(MOST).ok().and_then(|text| text.trim().parse().ok());
    let most = most.filter(|most| hard.is_some_and(|hard| hard < *most));
    let raised = most.is_some_and(|most: u64| {
        setrlimit(Resource::Nofile, Rlimit { current: Some(most), maximum: Some(most) }).is_ok()
    });
    if !raised
        && let Err(error) = setrlimit(Resource::Nofile, Rlimit { current: hard, maximum: hard })
    {
        tracing::debug!(%error, "the limit of open descriptors stays as it is");
    }
}

/// Returns whether a descriptor is one of the last that this process may have: the kernel gives out
/// the lowest numbers first. Files do not get the last ones.
pub(crate) fn is_reserved_descriptor(fd: &OwnedFd) -> bool {
    let limit = getrlimit(Resource::Nofile).current.unwrap_or(u64::MAX);
    u64::from(fd.as_raw_fd().unsigned_abs()) >= limit - KEPT.min(limit / KEPT_SHARE)
}
