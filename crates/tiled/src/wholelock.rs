//! The lock of atomic mode: one for the whole file, across processes and
//! machines by flock(2), and among the threads of a handle.

use crate::error::{Context, Result};
use parking_lot::{Condvar, Mutex};
use rustix::fs::FlockOperation;
use rustix::io::Errno;
use std::fs::File;
use std::path::PathBuf;

/// A lock on a file of its own handle.
#[derive(Debug)]
pub struct WholeLock {
    file: File,
    path: PathBuf,
    held: Mutex<bool>,
    freed: Condvar,
}

impl WholeLock {
    /// Locks are taken on `file`, which must not be shared with another lock.
    pub fn new(file: File, path: PathBuf) -> WholeLock {
        WholeLock { file, path, held: Mutex::new(false), freed: Condvar::new() }
    }

    /// Waits until nobody else has it.
    ///
    /// # Errors
    /// Those of flock(2).
    pub fn lock(&self) -> Result<()> {
        let mut held = self.held.lock();
        while *held {
            self.freed.wait(&mut held);
        }
        *held = true;
        drop(held);
        let locked = loop {
            match rustix::fs::flock(&self.file, FlockOperation::LockExclusive) {
                Err(Errno::INTR) => {}
                other => break other,
            }
        };
        if locked.is_err() {
            self.free();
        }
        locked.context("lock", &self.path)
    }

    /// Lets the next one have it.
    ///
    /// # Errors
    /// `EPERM` where it was not held.
    pub fn unlock(&self) -> Result<()> {
        if !*self.held.lock() {
            return Err(Errno::PERM).context("unlock", &self.path);
        }
        let unlocked = rustix::fs::flock(&self.file, FlockOperation::Unlock);
        self.free();
        unlocked.context("unlock", &self.path)
    }

    fn free(&self) {
        *self.held.lock() = false;
        self.freed.notify_one();
    }
}
