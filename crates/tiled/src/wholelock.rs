//! The lock of atomic mode: one for the whole file, across processes and
//! machines, and among the threads of a handle.
//!
//! flock(2) where it reaches all of them, and a turn besides where it may be known to one machine
//! alone. It does not reach from one mount of a volume to another:
//! there an extended attribute of the file is the lock, which only one of them can make.

use crate::error::{Context, Result};
use crate::reach;
use crate::turn::{Turn, Turns};
use parking_lot::{Condvar, Mutex};
use rustix::fs::{FlockOperation, XattrFlags};
use rustix::io::Errno;
use std::fs::File;
use std::path::{Path, PathBuf};
use std::time::Duration;

/// Waits between two attempts to make the attribute: the first, and the longest.
const WAIT: (Duration, Duration) = (Duration::from_micros(50), Duration::from_millis(2));

#[derive(Debug)]
enum Way {
    Flock { file: File, turns: Option<Turns> },
    Attribute(String),
}

/// A lock on a file of its own handle.
#[derive(Debug)]
pub struct WholeLock {
    way: Way,
    path: PathBuf,
    held: Mutex<bool>,
    freed: Condvar,
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
        Ok(WholeLock::by(Way::Flock { file, turns }, path))
    }

    fn by(way: Way, path: PathBuf) -> WholeLock {
        let (held, turn) = (Mutex::new(false), Mutex::new(None));
        WholeLock { way, path, held, freed: Condvar::new(), turn }
    }

    /// Who has made this extended attribute of the file at `path` has the lock. If it dies with it,
    /// the attribute stays, so the name must be that of one open.
    pub fn across(path: &Path, name: String) -> WholeLock {
        WholeLock::by(Way::Attribute(name), path.to_path_buf())
    }

    /// Waits until nobody else has it.
    ///
    /// # Errors
    /// Those of flock(2), or setxattr(2).
    pub fn lock(&self) -> Result<()> {
        let mut held = self.held.lock();
        while *held {
            self.freed.wait(&mut held);
        }
        *held = true;
        drop(held);
        let locked = match &self.way {
            Way::Flock { file, turns } => self.lock_file(file, turns.as_ref()),
            Way::Attribute(name) => self.make(name),
        };
        if locked.is_err() {
            self.free();
        }
        locked.context("lock", &self.path)
    }

    fn lock_file(&self, file: &File, turns: Option<&Turns>) -> std::result::Result<(), Errno> {
        loop {
            match rustix::fs::flock(file, FlockOperation::LockExclusive) {
                Err(Errno::INTR) => {}
                Err(errno) if turns.is_some() && reach::has_no_locks(errno) => break,
                other => break other?,
            }
        }
        match turns.map(Turns::take).transpose() {
            Ok(turn) => *self.turn.lock() = turn,
            Err(errno) => {
                let _ = rustix::fs::flock(file, FlockOperation::Unlock);
                return Err(errno);
            }
        }
        Ok(())
    }

    #[allow(clippy::disallowed_methods)] // nobody tells when the attribute goes
    fn make(&self, name: &str) -> std::result::Result<(), Errno> {
        let mut wait = WAIT.0;
        loop {
            match rustix::fs::setxattr(&self.path, name, b"1", XattrFlags::CREATE) {
                Err(Errno::EXIST) => std::thread::sleep(wait),
                other => return other,
            }
            wait = (wait * 2).min(WAIT.1);
        }
    }

    /// Lets the next one have it.
    ///
    /// # Errors
    /// `EPERM` where it was not held.
    pub fn unlock(&self) -> Result<()> {
        if !*self.held.lock() {
            return Err(Errno::PERM).context("unlock", &self.path);
        }
        let unlocked = match &self.way {
            Way::Flock { file, turns } => {
                self.turn.lock().take();
                match rustix::fs::flock(file, FlockOperation::Unlock) {
                    Err(errno) if turns.is_some() && reach::has_no_locks(errno) => Ok(()),
                    other => other,
                }
            }
            Way::Attribute(name) => rustix::fs::removexattr(&self.path, name.as_str()),
        };
        self.free();
        unlocked.context("unlock", &self.path)
    }

    fn free(&self) {
        *self.held.lock() = false;
        self.freed.notify_one();
    }
}
