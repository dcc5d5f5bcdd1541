//! What the kernel may keep for itself: names and attributes that are delegated to this mount.
//!
//! It asks us again when the time is over, or when we have told it so, which we do before anybody sees a change that
//! another mount makes. Of its own changes it knows itself. What it cannot know are the bytes that somebody writes
//! here: attributes of a file that is open for writing it must ask for.

use crate::filesystem::FileSystem;
use parking_lot::{Condvar, Mutex};
use std::sync::Arc;
use std::time::{Duration, Instant};
use tatami_client::KernelCache;
use tatami_fuse::{Device, Notifier, Validity};
use tatami_wire::{Attr, Ino, Kind};

/// An inode of which the kernel has just been told for the first time may be unknown to it until the thread that has
/// asked runs again: no longer than this.
const UNKNOWN: Duration = Duration::from_millis(100);
/// Pause between two looks whether it is known.
const PAUSE: Duration = Duration::from_millis(1);

/// The kernel's side of a mount.
pub(crate) struct Kernel {
    notifier: Notifier,
    sleeping: (Mutex<()>, Condvar),
}

impl Kernel {
    pub(crate) fn new(device: Arc<Device>) -> Kernel {
        Kernel { notifier: Notifier::new(device), sleeping: Default::default() }
    }
}

impl KernelCache for Kernel {
    fn forget_attr(&self, ino: Ino, ago: Duration) {
        let begun = Instant::now();
        // The bytes stay: whether they are old is asked when the file is opened.
        while let Err(rustix::io::Errno::NOENT) = self.notifier.inval_inode(ino.0, -1, 0) {
            if ago + begun.elapsed() >= UNKNOWN {
                break;
            }
            let (lock, never) = &self.sleeping;
            never.wait_for(&mut lock.lock(), PAUSE);
        }
    }
}

impl FileSystem {
    /// How long the kernel may keep the attributes.
    pub(crate) fn attr_time(&self, attr: &Attr) -> Duration {
        if !self.keeps || self.is_written(attr) {
            return self.valid.attr;
        }
        let time = self.client.attr_time(attr);
        // Who has opened it for writing meanwhile may have ended the time before we began it.
        if !time.is_zero() && self.is_written(attr) {
            self.client.end_attr_time(attr.ino);
            return self.valid.attr;
        }
        time.max(self.valid.attr)
    }

    fn is_written(&self, attr: &Attr) -> bool {
        attr.kind == Kind::File
            && self
                .open
                .find(attr.ino)
                .is_some_and(|inode| inode.state.lock().writers > 0 || self.is_changed(&inode))
    }

    /// How long the kernel may keep that the name leads to `to`, or to nothing.
    pub(crate) fn name_time(&self, parent: Ino, name: &[u8], to: Option<Ino>) -> Duration {
        match self.keeps {
            true => self.client.name_time(parent, name, to).max(self.valid.entry),
            false => self.valid.entry,
        }
    }

    /// Both.
    pub(crate) fn times(&self, parent: Ino, name: &[u8], attr: &Attr) -> Validity {
        Validity { entry: self.name_time(parent, name, Some(attr.ino)), attr: self.attr_time(attr) }
    }
}
