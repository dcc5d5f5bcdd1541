//! The lock of atomic mode: one for the whole file, across processes and
//! machines by flock(2), with a turn where that may be known to one machine
//! alone, and among the threads of a handle.

use crate::error::{Context, Result};
use crate::reach;
use crate::turn::{Turn, Turns};
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
    turns: Option<Turns>,
    turn: Mutex<Option<Turn>>,
}

impl WholeLock {
    /// Locks are taken on `file`, which must not be shared with another lock.
    ///
    /// # Errors
    /// As for opening its directory.
    pub fn new(file: File, path: PathBuf) -> Result<WholeLock> {
        let turns = match reach::of(&file).remote {
            true => Some(Turns::of(&path).context("lock", &path)?),
            false => None,
        };
        let (held, turn) = (Mutex::new(false), Mutex::new(None));
        Ok(WholeLock { file, path, held, freed: Condvar::new(), turns, turn })
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
                Err(errno) if self.turns.is_some() && reach::has_no_locks(errno) => break Ok(()),
                other => break other,
            }
        };
        let turn = locked.and_then(|()| self.turns.as_ref().map(Turns::take).transpose());
        match turn {
            Ok(turn) => *self.turn.lock() = turn,
            Err(errno) => {
                let _ = rustix::fs::flock(&self.file, FlockOperation::Unlock);
                self.free();
                return Err(errno).context("lock", &self.path);
            }
        }
        Ok(())
    }

    /// Lets the next one have it.
    ///
    /// # Errors
    /// `EPERM` where it was not held.
    pub fn unlock(&self) -> Result<()> {
        if !*self.held.lock() {
            return Err(Errno::PERM).context("unlock", &self.path);
        }
        self.turn.lock().take();
        let unlocked = match rustix::fs::flock(&self.file, FlockOperation::Unlock) {
            Err(errno) if self.turns.is_some() && reach::has_no_locks(errno) => Ok(()),
            other => other,
        };
        self.free();
        unlocked.context("unlock", &self.path)
    }

    fn free(&self) {
        *self.held.lock() = false;
        self.freed.notify_one();
    }
}
