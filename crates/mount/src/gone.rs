//! Directories removed through this mount: a process may still stand in one.
//! The shard has forgotten it, but `stat .` must answer, with no link left, and
//! `ls` must show nothing. Inode numbers are never given out again, so what is
//! noted here stays true.

use parking_lot::Mutex;
use std::collections::VecDeque;
use tatami_wire::{Attr, Ino};

/// Removed directories remembered; beyond, the oldest is forgotten and answers
/// `ESTALE`.
const GONE_MAX: usize = 256;

/// The last attributes of removed directories, the oldest first.
#[derive(Default)]
pub(crate) struct Gone(Mutex<VecDeque<Attr>>);

impl Gone {
    /// Notes a directory whose last name is gone.
    pub(crate) fn note(&self, attr: Attr) {
        let mut gone = self.0.lock();
        if gone.len() >= GONE_MAX {
            gone.pop_front();
        }
        gone.push_back(Attr { nlink: 0, ..attr });
    }

    /// The attributes, if it is one of them.
    pub(crate) fn attr(&self, ino: Ino) -> Option<Attr> {
        self.0.lock().iter().rev().find(|attr| attr.ino == ino).cloned()
    }
}
