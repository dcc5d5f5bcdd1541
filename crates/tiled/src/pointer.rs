//! The shared file pointer of an open: one number that all its ranks share.
//!
//! Where all ranks run on one machine it is a word of a mapped file, changed by one atomic
//! addition. Elsewhere it is a word of a file that each operation locks (flock); where a flock may
//! be known to one machine alone, the operation takes the file mutex instead. For a volume's file
//! that ranks of several mounts have open, the shard keeps the pointer, and each operation is one
//! request.

use crate::error::{Context, Result};
use crate::machine;
use crate::reach;
use crate::shared::Words;
use crate::token::{Kind, Token};
use crate::turn::Turns;
use crate::volume::Told;
use rustix::fs::FallocateFlags;
use rustix::io::Errno;
use std::fs::{File, OpenOptions};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use tatami_client::JobMember;

const LEN: u64 = 4096;

#[derive(Debug)]
enum Way {
    Words { words: Words, turns: Option<Turns> },
    Shard(Arc<JobMember>),
}

/// The pointer; it exists from its first use on.
#[derive(Debug)]
pub struct Pointer {
    way: Way,
    path: PathBuf,
}

/// The path of the pointer where no file can be made beside the data.
fn in_memory(token: &Token) -> PathBuf {
    PathBuf::from(format!("/dev/shm/tatami-pointer.{:016x}", token.open))
}

fn make(path: &Path) -> std::io::Result<File> {
    OpenOptions::new().read(true).write(true).create(true).truncate(false).open(path)
}

impl Pointer {
    /// The pointer that the shard keeps for the ranks of `job`, of the file at `path`.
    pub fn at_shard(job: Arc<JobMember>, path: &Path) -> Pointer {
        Pointer { way: Way::Shard(job), path: path.to_path_buf() }
    }

    /// Opens the pointer of the open `token` in a file at `path`; the first rank that needs it
    /// creates it.
    ///
    /// # Errors
    /// Those of the disk.
    pub fn open(path: &Path, token: &Token) -> Result<Pointer> {
        let here = token.machine == machine::id();
        // Beside a volume's file there is no file that all its ranks could map.
        let made = match token.kind {
            Kind::Volume => Err(Errno::NODEV.into()),
            Kind::Plain | Kind::Container => make(path),
        };
        let (file, path) = match made {
            Err(_) if here => {
                let path = in_memory(token);
                (make(&path).context("open the shared pointer", &path)?, path)
            }
            other => (other.context("open the shared pointer", path)?, path.to_path_buf()),
        };
        // Blocks before the mapping: a store into a hole on a full disk would be a signal.
        let reserved = rustix::fs::fallocate(&file, FallocateFlags::empty(), 0, LEN);
        let reach = reach::of(&file);
        // A mapped word needs all ranks on this machine; each other rank must see the change.
        let mapped = here && reach.maps && reserved.is_ok();
        if reserved.is_err() {
            // Sets only the length, so that a value that another rank has stored stays.
            file.set_len(LEN).context("make the shared pointer", &path)?;
        }
        let words = Words::new(file, mapped, true).context("open the shared pointer", &path)?;
        let turns = match reach.remote && !words.is_mapped() {
            true => Some(Turns::of(&path).context("open the shared pointer", &path)?),
            false => None,
        };
        Ok(Pointer { way: Way::Words { words, turns }, path })
    }

    /// Replaces the value by `change(value)`; returns the old one.
    fn update(
        words: &Words,
        turns: Option<&Turns>,
        change: impl Fn(u64) -> u64,
    ) -> std::result::Result<u64, Errno> {
        let Some(turns) = turns else { return words.update(0, change) };
        // The file mutex replaces the flock here, so a plain load and store are one step.
        let _turn = turns.take()?;
        let old = words.load(0)?;
        words.store(0, change(old)).map(|()| old)
    }

    /// Adds to the pointer; returns its old value.
    ///
    /// # Errors
    /// `EOVERFLOW`; those of the disk, and of the shard.
    pub fn add(&self, delta: i64) -> Result<i64> {
        let what = "move the shared pointer of";
        let (words, turns) = match &self.way {
            Way::Words { words, turns } => (words, turns.as_ref()),
            Way::Shard(job) => return job.add(delta).told(what, &self.path),
        };
        // On overflow the value stays, so that no other rank sees a wrapped pointer.
        let add = |old: u64| (old as i64).checked_add(delta).map_or(old, |new| new as u64);
        let old = Pointer::update(words, turns, add).context(what, &self.path)?;
        match (old as i64).checked_add(delta) {
            Some(_) => Ok(old as i64),
            None => Err(Errno::OVERFLOW).context(what, &self.path),
        }
    }

    /// Sets the pointer.
    ///
    /// # Errors
    /// Those of the disk, and of the shard.
    pub fn set(&self, value: i64) -> Result<()> {
        let what = "set the shared pointer of";
        let old = match &self.way {
            Way::Words { words, turns } => {
                Pointer::update(words, turns.as_ref(), |_| value as u64).context(what, &self.path)
            }
            Way::Shard(job) => job.set(value).map(|old| old as u64).told(what, &self.path),
        };
        old.map(drop)
    }
}

/// Removes the files of an open's pointer.
pub fn remove(path: &Path, token: &Token) {
    if token.kind == Kind::Volume {
        if token.machine == machine::id() {
            let _ = std::fs::remove_file(in_memory(token));
        }
        return;
    }
    // Most opens have no pointer file.
    if std::fs::remove_file(path).is_err() && token.machine == machine::id() {
        let _ = std::fs::remove_file(in_memory(token));
    }
}
