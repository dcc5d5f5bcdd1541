//! Mounts of file systems that are no volume, with the features of a volume's mount. The kernel
//! sends them the same requests, so they are baselines for the cost of a request.

use crate::error::MountError;
use crate::mount::requested_features;
use crate::{mountpoint, passthrough};
use std::path::Path;
use std::sync::Arc;
use tatami_fuse::abi::init;
use tatami_fuse::{Channel, Device, FuseSession, Handler, ThreadLimits};

/// Bytes of the longest write request.
const WRITE_MAX: u32 = 1 << 20;

/// Mounts the file system of a handler on `path`, served by `threads` threads. With `below`, its
/// files can lie on the disk of that directory, by passthrough.
///
/// # Errors
/// [`MountError`], and the error of `create`.
pub fn mount_handler<H: Handler, E: From<MountError>>(
    path: &Path,
    below: Option<&Path>,
    threads: usize,
    create: impl FnOnce(&Device) -> Result<H, E>,
) -> Result<FuseSession, E> {
    let path = mountpoint::check_mountpoint(path)?;
    let settings = mountpoint::mount_settings("null".into(), false, true);
    let depth = below.map_or(0, |dir| passthrough::stack_depth(Some(dir)));
    let channel = Channel::mount(&path, &settings).map_err(MountError::from)?;
    let mut features = requested_features(WRITE_MAX, depth, false);
    if tatami_fuse::probe_ring().is_ok() {
        features.flags |= init::OVER_IO_URING;
    }
    let agreed = channel.negotiate_features(&features).map_err(MountError::from)?;
    let handler = Arc::new(create(channel.device())?);
    let threads = ThreadLimits { base: threads, max: threads };
    FuseSession::start(channel, &agreed, handler, threads)
        .map_err(|source| MountError::Serve { path, source }.into())
}
