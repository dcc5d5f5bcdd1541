//! Mounts of file systems that are no volume: of a directory of another site, and baselines for the
//! cost of a request, with the features of a volume's mount.

use crate::error::MountError;
use crate::mount::requested_features;
use crate::{mountpoint, passthrough};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use tatami_fuse::abi::init;
use tatami_fuse::{
    Channel, Device, FuseSession, Handler, MountSettings, RequestedFeatures, Restrictions,
    ThreadLimits,
};

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

/// How the file system of a handler is mounted.
#[derive(Clone, Debug)]
pub struct HandlerSettings {
    /// The directory for the mount.
    pub path: PathBuf,
    /// The source that `mount` and `df` show.
    pub source: String,
    /// The type that they show after `fuse.`.
    pub subtype: String,
    /// The mount is read-only.
    pub read_only: bool,
    /// Other users than the mounting user have access.
    pub allow_other: bool,
    /// The kernel checks permission bits before it sends a request.
    pub default_permissions: bool,
    /// Things that the kernel must not do with files of the mount.
    pub restrictions: Restrictions,
    /// Features that are requested from the kernel.
    pub features: RequestedFeatures,
    /// Threads that serve it.
    pub threads: ThreadLimits,
}

/// Mounts the file system of a handler. Its requests come from the device alone.
///
/// # Errors
/// [`MountError`].
pub fn serve_handler<H: Handler>(
    settings: &HandlerSettings,
    handler: Arc<H>,
) -> Result<FuseSession, MountError> {
    let path = mountpoint::check_mountpoint(&settings.path)?;
    let channel = Channel::mount(
        &path,
        &MountSettings {
            source: settings.source.clone(),
            subtype: settings.subtype.clone(),
            read_only: settings.read_only,
            allow_other: settings.allow_other,
            default_permissions: settings.default_permissions,
            restrictions: settings.restrictions,
        },
    )?;
    let agreed = channel.negotiate_features(&settings.features)?;
    mountpoint::set_read_ahead(&path, settings.features.max_readahead / 1024);
    FuseSession::start(channel, &agreed, handler, settings.threads)
        .map_err(|source| MountError::Serve { path, source })
}
