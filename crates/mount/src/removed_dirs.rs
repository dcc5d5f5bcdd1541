//! Directories that were removed through this mount. A process may still have one as its working
//! directory. The shard has no record of it, but `stat .` must succeed, with no link left, and `ls`
//! must show nothing. Inode numbers are never reused, so these records stay valid.

use parking_lot::Mutex;
use std::collections::VecDeque;
use tatami_wire::{Attr, Ino};

/// Most removed directories in the table. Older ones get `ESTALE`.
const REMOVED_MAX: usize = 256;

/// The last attributes of removed directories, oldest first.
#[derive(Default)]
pub(crate) struct RemovedDirs(Mutex<VecDeque<Attr>>);

impl RemovedDirs {
    /// Records a directory whose last name was removed.
    pub(crate) fn record_removed(&self, attr: Attr) {
        let mut gone = self.0.lock();
        if gone.len() >= REMOVED_MAX {
            gone.pop_front();
        }
        gone.push_back(Attr { nlink: 0, ..attr });
    }

    /// Returns the attributes of a removed directory.
    pub(crate) fn removed_attr(&self, ino: Ino) -> Option<Attr> {
        self.0.lock().iter().rev().find(|attr| attr.ino == ino).cloned()
    }
}
