//! A mount from its start to its end.

use crate::announce::Announcer;
use crate::error::MountError;
use crate::filesystem::FileSystem;
use crate::kernel_cache::FuseKernelCache;
use crate::locks::LockThreads;
use crate::options::{MountOptions, Passthrough};
use crate::recalls::MountRecalls;
use crate::serving::{self, MountEnd};
use crate::{mountpoint, passthrough};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;
use tatami_client::connection::{Caller, Endpoint};
use tatami_client::{Client, KernelCache};
use tatami_fuse::abi::init;
use tatami_fuse::{
    CacheTimeouts, Channel, FuseSession, MountSettings, RequestedFeatures, ThreadLimits,
    UnmountError,
};
use tatami_wire::admin::MountInfo;
use tatami_wire::{Cred, Ino};

/// The kernel's read-ahead, in units of 1024 bytes: two requests of full length. So one is in
/// transit while the program consumes the other.
const READ_AHEAD_KIB: u32 = 2048;

/// The reason why requests do not come over io_uring, if this process could use it.
const NOT_OFFERED: &str = "the kernel does not offer it \
    (Linux 6.14 and later does, if /sys/module/fuse/parameters/enable_uring is Y)";

/// A mounted volume. Dropping it unmounts it.
pub struct Mount {
    // Fields end in this order: first the announcement, then the requests.
    announcer: Option<Announcer>,
    recalls: Option<MountRecalls>,
    /// These threads hold `fs`, so they must end before it.
    locks: Option<LockThreads>,
    session: Arc<FuseSession>,
    fs: Arc<FileSystem>,
    info: MountInfo,
}

/// Returns the features that the mount requests from the kernel.
///
/// With `HANDLE_KILLPRIV_V2` the kernel clears setuid only for writes that reach this process. So
/// it need not ask for file capabilities before each write.
pub(crate) fn requested_features(
    max_write: u32,
    stack_depth: u32,
    plus: bool,
) -> RequestedFeatures {
    let common = RequestedFeatures::default();
    let passthrough = if stack_depth > 0 { init::PASSTHROUGH } else { 0 };
    let plus = if plus { init::DO_READDIRPLUS | init::READDIRPLUS_AUTO } else { 0 };
    RequestedFeatures {
        flags: common.flags
            | init::POSIX_ACL
            | init::DONT_MASK
            | init::HANDLE_KILLPRIV_V2
            | init::CREATE_SUPP_GROUP
            | init::DIRECT_IO_ALLOW_MMAP
            | init::HAS_SYNCFS
            | passthrough
            | plus,
        max_write,
        max_stack_depth: stack_depth,
        ..common
    }
}

impl Mount {
    /// Mounts the volume. The mount answers when this returns.
    ///
    /// # Errors
    /// [`MountError`], with a remedy.
    pub fn start(client: Arc<Client>, options: &MountOptions) -> Result<Mount, MountError> {
        let path = mountpoint::check_mountpoint(&options.mountpoint)?;
        // A volume that does not answer must fail here, before programs can hang on the mount.
        client.getattr(&Cred::ROOT, Ino::ROOT).map_err(MountError::Root)?;
        tatami_client::raise_descriptor_limit();
        let map = client.map();
        let home = client.home().and_then(|id| map.find_member(id));
        let data_dir = home.and_then(|n| Path::new(&n.socket).parent());
        let depth = match options.passthrough {
            Passthrough::Auto => passthrough::stack_depth(data_dir),
            Passthrough::Off => 0,
        };
        let source = options.source.clone().unwrap_or_else(|| format!("tatami:{}", map.name));
        let settings = MountSettings {
            restrictions: options.restrictions,
            ..mountpoint::mount_settings(source, options.read_only, options.allow_other)
        };
        let channel = Channel::mount(&path, &settings)?;
        // Attributes in a listing are only useful if the kernel may cache them.
        let plus = options.kernel_cache || !options.attr_timeout.is_zero();
        let mut wanted = requested_features(options.max_write, depth, plus);
        wanted.flags |= init::POSIX_LOCKS | init::FLOCK_LOCKS | init::HAS_EXPIRE_ONLY;
        let usable_ring = match options.io_uring {
            true => tatami_fuse::probe_ring(),
            false => Err("switched off".to_owned()),
        };
        if usable_ring.is_ok() {
            wanted.flags |= init::OVER_IO_URING;
        }
        let agreed = channel.negotiate_features(&wanted)?;
        let io_uring = agreed.has_flags(init::OVER_IO_URING);
        let why_no_io_uring = (!io_uring).then(|| usable_ring.err().unwrap_or(NOT_OFFERED.into()));
        mountpoint::set_read_ahead(&path, READ_AHEAD_KIB);
        let why_not = match options.passthrough {
            Passthrough::Off => Some("switched off".to_owned()),
            Passthrough::Auto => {
                passthrough::probe_passthrough(channel.device(), &agreed, data_dir).err()
            }
        };
        let info = MountInfo {
            path: path.display().to_string(),
            pid: std::process::id(),
            passthrough: why_not.is_none(),
            why_not,
            io_uring,
            why_no_io_uring,
        };
        let valid = CacheTimeouts { entry: options.entry_timeout, attr: options.attr_timeout };
        let device = channel.device().clone();
        let kernel = options.kernel_cache.then(|| -> Arc<dyn KernelCache> {
            Arc::new(FuseKernelCache::new(device.clone(), &agreed))
        });
        let (passes, keeps) = (info.passthrough, options.kernel_cache);
        let fs = Arc::new(FileSystem::new(client.clone(), device, passes, valid, keeps));
        let threads = ThreadLimits { base: options.threads, max: options.threads_max };
        let session = FuseSession::start(channel, &agreed, fs.clone(), threads)
            .map_err(|source| MountError::Serve { path, source })?;
        let locks = LockThreads::start(&fs)
            .map_err(|source| MountError::Serve { path: info.path.clone().into(), source })?;
        let recalls = MountRecalls::start(&fs, kernel)
            .inspect_err(|error| tracing::warn!(%error, "names are asked for each time"))
            .ok();
        let announcer = home.map(|node| {
            let caller =
                Caller { client: client.id(), volume: Some(client.volume()), key: None, tls: None };
            let endpoint = Endpoint::Unix(PathBuf::from(&node.socket));
            Announcer::start(endpoint, caller, info.clone())
        });
        Ok(Mount { announcer, recalls, locks: Some(locks), session: Arc::new(session), fs, info })
    }

    /// Returns the mount point, and whether local files use passthrough.
    pub fn info(&self) -> &MountInfo {
        &self.info
    }

    /// Unmounts the volume. All changes are committed when this returns.
    ///
    /// # Errors
    /// [`UnmountError::Busy`] while a program uses it. Then the mount continues.
    pub fn stop(&self) -> Result<(), UnmountError> {
        self.session.channel().unmount(false)?;
        self.session.wait_until_unmounted(None);
        // Before the end of the deferred closes, so that the last report has these closes.
        self.fs.close_all();
        self.fs.deferred_closes.report_all();
        self.fs.client.end_lock_sessions();
        Ok(())
    }

    /// Serves until an unmount or SIGTERM or SIGINT.
    ///
    /// # Errors
    /// When the system is short of descriptors.
    pub fn run(self) -> std::io::Result<MountEnd> {
        let ended = serving::serve_until_end(&self.session)?;
        self.commit_pending();
        Ok(ended)
    }
}

impl Mount {
    /// Commits all pending changes to the volume.
    fn commit_pending(&self) {
        if self.session.wait_until_unmounted(Some(Duration::ZERO)) {
            self.fs.close_all();
            self.fs.client.end_lock_sessions();
        } else {
            self.fs.commit_all();
        }
        self.fs.deferred_closes.report_all();
    }
}

impl Drop for Mount {
    fn drop(&mut self) {
        self.announcer = None;
        self.locks = None;
        self.commit_pending();
        self.recalls = None;
    }
}
