//! How a volume is to be mounted.

use std::path::PathBuf;
use std::time::Duration;
use tatami_fuse::Restrictions;

/// Whether the kernel may read and write local files past us.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Passthrough {
    /// Where the system permits it; otherwise through us.
    #[default]
    Auto,
    /// Never.
    Off,
}

/// How a volume is to be mounted.
#[derive(Clone, Debug)]
pub struct MountOptions {
    /// The directory on which it is to appear.
    pub mountpoint: PathBuf,
    /// No writing through this mount.
    pub read_only: bool,
    /// Threads that are kept for requests.
    pub threads: usize,
    /// Most threads. Each request that waits for a node occupies one; so many
    /// can wait before others have to.
    pub threads_max: usize,
    /// How long the kernel may believe attributes. Zero: other mounts' changes
    /// are seen at once.
    pub attr_timeout: Duration,
    /// How long the kernel may believe that a name leads to an inode. Zero:
    /// other mounts' changes are seen at once.
    pub entry_timeout: Duration,
    /// Whether the kernel may keep names and attributes that are delegated to this mount. It forgets
    /// them before other mounts' changes are seen.
    pub kernel_cache: bool,
    /// Whether the kernel may read and write local files past us.
    pub passthrough: Passthrough,
    /// Other users than the one who mounts may enter. For anyone but root the
    /// system must allow it (`user_allow_other` in `/etc/fuse.conf`).
    pub allow_other: bool,
    /// What the kernel does not do with files of the mount.
    pub restrictions: Restrictions,
    /// Most bytes of one read or write request.
    pub max_write: u32,
}

impl MountOptions {
    /// Defaults for mounting on `mountpoint`: everything at once, everybody
    /// may enter if root mounts.
    pub fn new(mountpoint: impl Into<PathBuf>) -> MountOptions {
        MountOptions {
            mountpoint: mountpoint.into(),
            read_only: false,
            threads: 2,
            threads_max: 64,
            attr_timeout: Duration::ZERO,
            entry_timeout: Duration::ZERO,
            kernel_cache: true,
            passthrough: Passthrough::Auto,
            allow_other: rustix::process::geteuid().is_root(),
            restrictions: Restrictions::default(),
            max_write: 1 << 20,
        }
    }
}
