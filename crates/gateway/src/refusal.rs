//! Refusals of calls, and the checks that several kinds of calls share.

use rustix::io::Errno;
use std::ffi::OsStr;
use std::os::unix::ffi::OsStrExt;
use std::path::Path;
use tatami_remote::RemoteFailure;
use tatami_tiled::TiledError;

/// Most files that one process at the other site may have open here.
pub(crate) const FILES_MAX: usize = 65_536;

pub(crate) fn refuse(errno: Errno, what: &str) -> RemoteFailure {
    RemoteFailure { errno: errno.raw_os_error(), what: what.to_owned() }
}

/// Returns a failed operation on a file as the reply to a call.
pub(crate) fn failure(error: TiledError) -> RemoteFailure {
    RemoteFailure { errno: error.errno.raw_os_error(), what: error.to_string() }
}

pub(crate) fn path_of(bytes: &[u8]) -> Result<&Path, RemoteFailure> {
    match bytes.is_empty() || bytes.contains(&0) {
        true => Err(refuse(Errno::INVAL, "no path of a file")),
        false => Ok(Path::new(OsStr::from_bytes(bytes))),
    }
}

pub(crate) fn not_open() -> RemoteFailure {
    refuse(Errno::BADF, "the file is not open")
}
