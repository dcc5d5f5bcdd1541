//! The lock of atomic mode: one for the whole file, across processes and machines, and among the
//! threads of a handle.
//!
//! It is flock(2) where that reaches all of them. Where a flock may be known to one machine alone,
//! the file mutex is taken, too. For a volume's file that ranks of several mounts have open, the
//! shard keeps the lock and grants it in the order of the requests.

use crate::error::{Context, Result};
use crate::reach;
use crate::turn::{Turn, Turns};
use crate::volume::Told;
use parking_lot::{Condvar, Mutex};
use rustix::fs::FlockOperation;
use rustix::io::Errno;
use std::fs::File;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use tatami_client::JobMember;

#[derive(Debug)]
enum Way {
    Flock { file: File, turns: Option<Turns> },
    Shard(Arc<JobMember>),
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

    /// The lock that the shard keeps for the ranks of `job`, of the file at `path`.
    pub fn at_shard(job: Arc<JobMember>, path: &Path) -> WholeLock {
        WholeLock::by(Way::Shard(job), path.to_path_buf())
    }

    /// Waits for the lock.
    ///
    /// # Errors
    /// Those of flock(2), or of the shard.
    pub fn lock(&self) -> Result<()> {
        // First the threads of this handle: flock(2) and the shard know the handle only.
        let mut held = self.held.lock();
        while *held {
            self.freed.wait(&mut held);
        }
        *held = true;
        drop(held);
        let locked = match &self.way {
            Way::Flock { file, turns } => {
                self.lock_file(file, turns.as_ref()).context("lock", &self.path)
            }
            Way::Shard(job) => job.lock().told("lock", &self.path),
        };
        // Other threads of the handle must not wait for a lock that nobody has.
        if locked.is_err() {
            self.free();
        }
        locked
    }

    fn lock_file(&self, file: &File, turns: Option<&Turns>) -> std::result::Result<(), Errno> {
        loop {
            match rustix::fs::flock(file, FlockOperation::LockExclusive) {
                Err(Errno::INTR) => {}
                Err(errno) if turns.is_some() && reach::has_no_locks(errno) => break,
                other => break other?,
            }
        }
        // The flock first, so that only one process of each machine competes for the file mutex.
        match turns.map(Turns::take).transpose() {
            Ok(turn) => *self.turn.lock() = turn,
            Err(errno) => {
                let _ = rustix::fs::flock(file, FlockOperation::Unlock);
                return Err(errno);
            }
        }
        Ok(())
    }

    /// Releases the lock.
    ///
    /// # Errors
    /// `EPERM` where it is not held.
    pub fn unlock(&self) -> Result<()> {
        if !*self.held.lock() {
            return Err(Errno::PERM).context("unlock", &self.path);
        }
        let unlocked = match &self.way {
            Way::Flock { file, turns } => {
                // In the reverse order of `lock_file`, so that the next process that gets the flock
                // finds the mutex free.
                self.turn.lock().take();
                match rustix::fs::flock(file, FlockOperation::Unlock) {
                    Err(errno) if turns.is_some() && reach::has_no_locks(errno) => Ok(()),
                    other => other.context("unlock", &self.path),
                }
            }
            Way::Shard(job) => job.unlock().told("unlock", &self.path),
        };
        self.free();
        unlocked
    }

    fn free(&self) {
        *self.held.lock() = false;
        self.freed.notify_one();
    }
}
