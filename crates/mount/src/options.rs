//! The options of a mount.

use std::path::PathBuf;
use std::time::Duration;
use tatami_fuse::Restrictions;

/// Whether the kernel may read and write local files directly.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Passthrough {
    /// Passthrough if the system permits it.
    #[default]
    Auto,
    /// No passthrough.
    Off,
}

/// The options of a mount.
#[derive(Clone, Debug)]
pub struct MountOptions {
    /// The directory for the mount.
    pub mountpoint: PathBuf,
    /// The source that `mount` and `df` show; without it, the name of the volume.
    pub source: Option<String>,
    /// The mount is read-only.
    pub read_only: bool,
    /// Number of threads that stay alive when idle.
    pub threads: usize,
    /// Most threads. A request that waits for a node occupies a thread, so this bounds the
    /// concurrent waits.
    pub threads_max: usize,
    /// Time for which the kernel may cache attributes that are not delegated. Zero: changes of
    /// other mounts are visible at once.
    pub attr_timeout: Duration,
    /// Time for which the kernel may cache names that are not delegated. Zero: changes of other
    /// mounts are visible at once.
    pub entry_timeout: Duration,
    /// Whether the kernel may cache names and attributes that are delegated to this mount. They are
    /// invalidated before another mount's change becomes visible.
    pub kernel_cache: bool,
    /// Whether the kernel may read and write local files directly.
    pub passthrough: Passthrough,
    /// Whether requests may come over io_uring, if the system permits it.
    pub io_uring: bool,
    /// Other users than the mounting user have access. For a user other than root, the system must
    /// allow this (`user_allow_other` in `/etc/fuse.conf`).
    pub allow_other: bool,
    /// Things that the kernel must not do with files of the mount.
    pub restrictions: Restrictions,
    /// Most bytes of one read or write request.
    pub max_write: u32,
}

impl MountOptions {
    /// Returns the defaults for a mount on `mountpoint`: changes are visible at once. All users
    /// have access if root mounts.
    pub fn new(mountpoint: impl Into<PathBuf>) -> MountOptions {
        MountOptions {
            mountpoint: mountpoint.into(),
            source: None,
            read_only: false,
            threads: 2,
            threads_max: 64,
            attr_timeout: Duration::ZERO,
            entry_timeout: Duration::ZERO,
            kernel_cache: true,
            passthrough: Passthrough::Auto,
            io_uring: true,
            allow_other: rustix::process::geteuid().is_root(),
            restrictions: Restrictions::default(),
            max_write: 1 << 20,
        }
    }
}
