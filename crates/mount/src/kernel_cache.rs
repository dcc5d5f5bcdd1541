//! The kernel attribute cache: names and attributes that are delegated to this mount.
//!
//! The kernel asks again after the timeout or after an invalidation. The mount invalidates before
//! any client sees another mount's change. The kernel knows its own changes. But it cannot know the
//! effect of writes in this process. So attributes of a file that is open for writing are not
//! cached.

use crate::filesystem::FileSystem;
use parking_lot::{Condvar, Mutex};
use std::sync::Arc;
use std::time::{Duration, Instant};
use tatami_client::KernelCache;
use tatami_fuse::{CacheTimeouts, Device, Notifier};
use tatami_wire::{Attr, Ino, InodeKind};

/// The kernel may not yet know an inode from a reply, until the requesting thread runs again. This
/// bounds the time.
const UNKNOWN_INODE_WAIT: Duration = Duration::from_millis(100);
/// Pause between two attempts to invalidate.
const PAUSE: Duration = Duration::from_millis(1);

/// The kernel's cache of a mount.
pub(crate) struct FuseKernelCache {
    notifier: Notifier,
    sleeping: (Mutex<()>, Condvar),
}

impl FuseKernelCache {
    pub(crate) fn new(device: Arc<Device>) -> FuseKernelCache {
        FuseKernelCache { notifier: Notifier::new(device), sleeping: Default::default() }
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

    fn is_written(&self, attr: &Attr) -> bool {
        attr.kind == InodeKind::File
            && self
                .open_inodes
                .get(attr.ino)
                .is_some_and(|inode| inode.state.lock().writers > 0 || self.has_changes(&inode))
    }

    /// Returns the time for which the kernel may cache that the name leads to `to`, or that it is
    /// absent.
    pub(crate) fn entry_timeout(&self, parent: Ino, name: &[u8], to: Option<Ino>) -> Duration {
        match self.kernel_cache {
            true => self.client.entry_timeout(parent, name, to).max(self.timeouts.entry),
            false => self.timeouts.entry,
        }
    }

    /// Returns the timeouts of the entry and of the attributes.
    pub(crate) fn cache_timeouts(&self, parent: Ino, name: &[u8], attr: &Attr) -> CacheTimeouts {
        CacheTimeouts {
            entry: self.entry_timeout(parent, name, Some(attr.ino)),
            attr: self.attr_timeout(attr),
        }
    }
}
