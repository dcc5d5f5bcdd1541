//! What the kernel caches: attributes that are delegated to this mount, and names of directories
//! that programs walk through.
//!
//! The kernel asks again after the timeout or after an invalidation. The mount invalidates before
//! any client sees another mount's change. The kernel knows its own changes. But it cannot know the
//! effect of writes in this process. So attributes of a file that is open for writing are not
//! cached.
//!
//! Since Linux 6.16 a mount can also end all names at once (`FUSE_NOTIFY_INC_EPOCH`), without any
//! lock. Tatami does not use that: the kernel then drops every entry of the mount at its next use,
//! unchanged ones too. Mounts inside are detached, and open files count as deleted in `/proc`.

use crate::attr;
use crate::filesystem::FileSystem;
use parking_lot::{Condvar, Mutex};
use std::sync::Arc;
use std::time::{Duration, Instant};
use tatami_client::{KernelCache, KernelName, NamesExpired};
use tatami_fuse::abi::init;
use tatami_fuse::{CacheTimeouts, Device, NegotiatedFeatures, Notifier};
use tatami_wire::{Attr, Ino, InodeKind};

/// The kernel may not yet know an inode from a reply, until the requesting thread runs again. This
/// bounds the time.
const UNKNOWN_INODE_WAIT: Duration = Duration::from_millis(100);
/// Pause between two attempts to invalidate.
const PAUSE: Duration = Duration::from_millis(1);

/// The kernel's cache of a mount.
pub(crate) struct FuseKernelCache {
    notifier: Notifier,
    can_expire_names: bool,
    sleeping: (Mutex<()>, Condvar),
}

impl FuseKernelCache {
    pub(crate) fn new(device: Arc<Device>, agreed: &NegotiatedFeatures) -> FuseKernelCache {
        FuseKernelCache {
            notifier: Notifier::new(device),
            // Linux 6.2 and later.
            can_expire_names: agreed.has_flags(init::HAS_EXPIRE_ONLY),
            sleeping: Default::default(),
        }
    }
}

/// Makes the kernel ask again for a name. Returns whether it surely does not use the name any more.
fn expire_name(notifier: &Notifier, name: &KernelName) -> bool {
    match notifier.expire_entry(name.dir.0, &name.name) {
        Ok(()) => true,
        // Without the directory, the kernel has no name in it. With the directory, the entry may
        // have been moved to another place.
        Err(_) => notifier.inval_inode(name.dir.0, -1, 0) == Err(rustix::io::Errno::NOENT),
    }
}

impl KernelCache for FuseKernelCache {
    fn invalidate_attr(&self, ino: Ino, ago: Duration) {
        let begun = Instant::now();
        // The pages stay. Their validity is checked at the next open.
        while let Err(rustix::io::Errno::NOENT) = self.notifier.inval_inode(ino.0, -1, 0) {
            if ago + begun.elapsed() >= UNKNOWN_INODE_WAIT {
                break;
            }
            let (lock, never) = &self.sleeping;
            never.wait_for(&mut lock.lock(), PAUSE);
        }
    }

    fn can_expire_names(&self) -> bool {
        self.can_expire_names
    }

    fn expire_names(&self, names: Vec<KernelName>, done: NamesExpired) {
        let notifier = self.notifier.clone();
        // A thread for each call: they are rare, and one that waits must not hold up another.
        let work = move || done(names.iter().map(|name| expire_name(&notifier, name)).collect());
        if let Err(error) = std::thread::Builder::new().name("names".into()).spawn(work) {
            // The names stay until their time is over, and the recall waits for that.
            tracing::warn!(%error, "names in the kernel end by themselves");
        }
    }
}

impl FileSystem {
    /// Returns the time for which the kernel may cache the attributes.
    pub(crate) fn attr_timeout(&self, attr: &Attr) -> Duration {
        if !self.kernel_cache || self.is_written(attr) {
            return self.timeouts.attr;
        }
        let time = self.client.attr_timeout(attr);
        // An open for writing may have ended the timeout before it was set here.
        if !time.is_zero() && self.is_written(attr) {
            self.client.revoke_attr_timeout(attr.ino);
            return self.timeouts.attr;
        }
        time.max(self.timeouts.attr)
    }

    /// Returns the time for which the kernel may cache the attributes of a file that it has just
    /// created, and that is open. open(2) asks for them once more, and most programs do so before
    /// they write.
    ///
    /// The file is empty, so no mapping of it has bytes yet. To extend it takes a system call, at
    /// which the kernel drops length and times. The answer to its next request has no timeout,
    /// while the file is open for writing. A write takes setuid away, and the kernel would not drop
    /// the mode then: such a file gets no timeout.
    pub(crate) fn new_file_timeout(&self, attr: &Attr) -> Duration {
        let keeps_mode = attr::without_suid(attr.mode) == attr.mode;
        let time = match self.kernel_cache && keeps_mode {
            true => self.client.attr_timeout(attr),
            false => Duration::ZERO,
        };
        time.max(self.timeouts.attr)
    }

    fn is_written(&self, attr: &Attr) -> bool {
        attr.kind == InodeKind::File
            && self
                .open_inodes
                .get(attr.ino)
                .is_some_and(|inode| inode.state.lock().writers > 0 || self.has_changes(&inode))
    }

    /// Returns the timeouts of the entry and of the attributes.
    pub(crate) fn cache_timeouts(&self, parent: Ino, name: &[u8], attr: &Attr) -> CacheTimeouts {
        let entry = self.entry_timeout(parent, name, attr);
        CacheTimeouts { entry, attr: self.attr_timeout(attr) }
    }

    /// Returns the time for which the kernel may cache a name. Only names of directories are
    /// cached: see `tatami_client::KernelName`.
    pub(crate) fn entry_timeout(&self, parent: Ino, name: &[u8], attr: &Attr) -> Duration {
        let lends = self.kernel_cache && attr.kind == InodeKind::Dir;
        match lends {
            true => self.client.name_timeout(parent, name, attr.ino).max(self.timeouts.entry),
            false => self.timeouts.entry,
        }
    }
}
