//! The lock of atomic mode: one for the whole file, across processes and machines, and among the
//! threads of a handle.
//!
//! It is flock(2) where that reaches all of them. Where a flock may be known to one machine alone,
//! the file mutex is taken, too. For a volume's file that ranks of several mounts have open, the
//! shard keeps the lock and grants it in the order of the requests.

use crate::error::{DaemonErrorContext, ErrorContext, Result};
use crate::file_mutex::{FileMutex, FileMutexGuard};
use crate::sharing;
use parking_lot::{Condvar, Mutex};
use rustix::fs::FlockOperation;
use rustix::io::Errno;
use std::fs::File;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use tatami_client::JobMember;

#[derive(Debug)]
enum LockBackend {
    Flock { file: File, turns: Option<FileMutex> },
    Shard(Arc<JobMember>),
}

/// A lock on a file of its own handle.
#[derive(Debug)]
pub struct WholeLock {
    backend: LockBackend,
    path: PathBuf,
    held: Mutex<bool>,
    freed: Condvar,
    turn: Mutex<Option<FileMutexGuard>>,
}

impl WholeLock {
    /// Locks are taken on `file`, which must not be shared with another lock.
    ///
    /// # Errors
    /// As for opening its directory.
    pub fn new(file: File, path: PathBuf) -> Result<WholeLock> {
        let turns = match sharing::detect_scope(&file).remote {
            true => Some(FileMutex::for_path(&path).context("lock", &path)?),
            false => None,
        };
        Ok(WholeLock::with_backend(LockBackend::Flock { file, turns }, path))
    }

    fn with_backend(way: LockBackend, path: PathBuf) -> WholeLock {
        let (held, turn) = (Mutex::new(false), Mutex::new(None));
        WholeLock { backend: way, path, held, freed: Condvar::new(), turn }
    }

    /// The lock that the shard keeps for the ranks of `job`, of the file at `path`.
    pub fn at_shard(job: Arc<JobMember>, path: &Path) -> WholeLock {
        WholeLock::with_backend(LockBackend::Shard(job), path.to_path_buf())
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
        let locked = match &self.backend {
            LockBackend::Flock { file, turns } => {
                self.lock_file(file, turns.as_ref()).context("lock", &self.path)
            }
            LockBackend::Shard(job) => job.lock().daemon_context("lock", &self.path),
        };
        // Other threads of the handle must not wait for a lock that nobody has.
        if locked.is_err() {
            self.release_handle();
        }
        locked
    }

    fn lock_file(&self, file: &File, turns: Option<&FileMutex>) -> std::result::Result<(), Errno> {
        loop {
            match rustix::fs::flock(file, FlockOperation::LockExclusive) {
                Err(Errno::INTR) => {}
                Err(errno) if turns.is_some() && sharing::has_no_locks(errno) => break,
                other => break other?,
            }
        }
        // The flock first, so that only one process of each machine competes for the file mutex.
        match turns.map(FileMutex::acquire_mutex).transpose() {
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
        let unlocked = match &self.backend {
            LockBackend::Flock { file, turns } => {
                // In the reverse order of `lock_file`, so that the next process that gets the flock
                // finds the mutex free.
                self.turn.lock().take();
                match rustix::fs::flock(file, FlockOperation::Unlock) {
                    Err(errno) if turns.is_some() && sharing::has_no_locks(errno) => Ok(()),
                    other => other.context("unlock", &self.path),
                }
            }
            LockBackend::Shard(job) => job.unlock().daemon_context("unlock", &self.path),
        };
        self.release_handle();
        unlocked
    }

    fn release_handle(&self) {
        *self.held.lock() = false;
        self.freed.notify_one();
    }
}
