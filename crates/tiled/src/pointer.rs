//! The shared file pointer of an open: one number that all its ranks share.
//!
//! Where all ranks run on one machine it is a word of a mapped file, changed by one atomic
//! addition. Elsewhere it is a word of a file that each operation locks (flock); where a flock may
//! be known to one machine alone, the operation takes the file mutex instead. For a volume's file
//! that ranks of several mounts have open, the shard keeps the pointer, and each operation is one
//! request.

use crate::error::{DaemonErrorContext, ErrorContext, Result};
use crate::file_mutex::FileMutex;
use crate::machine;
use crate::shared::SharedWords;
use crate::sharing;
use crate::token::{EngineKind, OpenToken};
use rustix::fs::FallocateFlags;
use rustix::io::Errno;
use std::fs::{File, OpenOptions};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use tatami_client::JobMember;

const LEN: u64 = 4096;

#[derive(Debug)]
enum PointerBackend {
    Words { words: SharedWords, turns: Option<FileMutex> },
    Shard(Arc<JobMember>),
}

/// The pointer; it exists from its first use on.
#[derive(Debug)]
pub struct SharedPointer {
    backend: PointerBackend,
    path: PathBuf,
}

/// The path of the pointer where no file can be made beside the data.
fn shm_path(token: &OpenToken) -> PathBuf {
    PathBuf::from(format!("/dev/shm/tatami-pointer.{:016x}", token.open))
}

fn open_pointer_file(path: &Path) -> std::io::Result<File> {
    OpenOptions::new().read(true).write(true).create(true).truncate(false).open(path)
}

impl SharedPointer {
    /// The pointer that the shard keeps for the ranks of `job`, of the file at `path`.
    pub fn at_shard(job: Arc<JobMember>, path: &Path) -> SharedPointer {
        SharedPointer { backend: PointerBackend::Shard(job), path: path.to_path_buf() }
    }

    /// Opens the pointer of the open `token` in a file at `path`; the first rank that needs it
    /// creates it.
    ///
    /// # Errors
    /// Those of the disk.
    pub fn open(path: &Path, token: &OpenToken) -> Result<SharedPointer> {
        let here = token.machine == machine::machine_id();
        // Beside a volume's file there is no file that all its ranks could map.
        let made = match token.kind {
            EngineKind::Volume | EngineKind::Remote => Err(Errno::NODEV.into()),
            EngineKind::Plain | EngineKind::Container => open_pointer_file(path),
        };
        let (file, path) = match made {
            Err(_) if here => {
                let path = shm_path(token);
                (open_pointer_file(&path).context("open the shared pointer", &path)?, path)
            }
            other => (other.context("open the shared pointer", path)?, path.to_path_buf()),
        };
        // Blocks before the mapping: a store into a hole on a full disk would be a signal.
        let reserved = rustix::fs::fallocate(&file, FallocateFlags::empty(), 0, LEN);
        let reach = sharing::detect_scope(&file);
        // A mapped word needs all ranks on this machine; each other rank must see the change.
        let mapped = here && reach.shares_maps && reserved.is_ok();
        if reserved.is_err() {
            // Sets only the length, so that a value that another rank has stored stays.
            file.set_len(LEN).context("make the shared pointer", &path)?;
        }
        let words =
            SharedWords::new(file, mapped, true).context("open the shared pointer", &path)?;
        let turns = match reach.remote && !words.is_mapped() {
            true => Some(FileMutex::for_path(&path).context("open the shared pointer", &path)?),
            false => None,
        };
        Ok(SharedPointer { backend: PointerBackend::Words { words, turns }, path })
    }

    /// Replaces the value by `change(value)`; returns the old one.
    fn update_word(
        words: &SharedWords,
        turns: Option<&FileMutex>,
        change: impl Fn(u64) -> u64,
    ) -> std::result::Result<u64, Errno> {
        let Some(turns) = turns else { return words.update_word(0, change) };
        // The file mutex replaces the flock here, so a plain load and store are one step.
        let _turn = turns.acquire_mutex()?;
        let old = words.load(0)?;
        words.store(0, change(old)).map(|()| old)
    }

    /// Adds to the pointer; returns its old value.
    ///
    /// # Errors
    /// `EOVERFLOW`; those of the disk, and of the shard.
    pub fn add_delta(&self, delta: i64) -> Result<i64> {
        let what = "move the shared pointer of";
        let (words, turns) = match &self.backend {
            PointerBackend::Words { words, turns } => (words, turns.as_ref()),
            PointerBackend::Shard(job) => {
                return job.add_to_pointer(delta).daemon_context(what, &self.path);
            }
        };
        // On overflow the value stays, so that no other rank sees a wrapped pointer.
        let add = |old: u64| (old as i64).checked_add(delta).map_or(old, |new| new as u64);
        let old = SharedPointer::update_word(words, turns, add).context(what, &self.path)?;
        match (old as i64).checked_add(delta) {
            Some(_) => Ok(old as i64),
            None => Err(Errno::OVERFLOW).context(what, &self.path),
        }
    }

    /// Sets the pointer.
    ///
    /// # Errors
    /// Those of the disk, and of the shard.
    pub fn set_value(&self, value: i64) -> Result<()> {
        let what = "set the shared pointer of";
        let old = match &self.backend {
            PointerBackend::Words { words, turns } => {
                SharedPointer::update_word(words, turns.as_ref(), |_| value as u64)
                    .context(what, &self.path)
            }
            PointerBackend::Shard(job) => {
                job.set_pointer(value).map(|old| old as u64).daemon_context(what, &self.path)
            }
        };
        old.map(drop)
    }
}

/// Removes the files of an open's pointer.
pub fn remove_pointer(path: &Path, token: &OpenToken) {
    if token.kind == EngineKind::Volume {
        if token.machine == machine::machine_id() {
            let _ = std::fs::remove_file(shm_path(token));
        }
        return;
    }
    // Most opens have no pointer file.
    if std::fs::remove_file(path).is_err() && token.machine == machine::machine_id() {
        let _ = std::fs::remove_file(shm_path(token));
    }
}
