//! The shared file pointer of an open: one number that all its ranks share.
//!
//! Where all ranks run on one machine it is a word of a mapped file, changed by
//! one atomic addition; elsewhere a file that is locked (flock) meanwhile, or
//! whose turn is taken where a lock may be known to one machine alone.

use crate::error::{Context, Result};
use crate::machine;
use crate::reach;
use crate::shared::Words;
use crate::token::Token;
use crate::turn::Turns;
use rustix::fs::FallocateFlags;
use rustix::io::Errno;
use std::fs::{File, OpenOptions};
use std::path::{Path, PathBuf};

const LEN: u64 = 4096;

/// The pointer, once somebody has used it.
#[derive(Debug)]
pub struct Pointer {
    words: Words,
    path: PathBuf,
    turns: Option<Turns>,
}

/// Where no file can be made beside the data.
fn in_memory(token: &Token) -> PathBuf {
    PathBuf::from(format!("/dev/shm/tatami-pointer.{:016x}", token.open))
}

fn make(path: &Path) -> std::io::Result<File> {
    OpenOptions::new().read(true).write(true).create(true).truncate(false).open(path)
}

impl Pointer {
    /// The pointer of the open `token`, in a file at `path`, which the first
    /// rank that needs it makes.
    ///
    /// # Errors
    /// Those of the disk.
    pub fn open(path: &Path, token: &Token) -> Result<Pointer> {
        let here = token.machine == machine::id();
        let (file, path) = match make(path) {
            Err(_) if here => {
                let path = in_memory(token);
                (make(&path).context("open the shared pointer", &path)?, path)
            }
            other => (other.context("open the shared pointer", path)?, path.to_path_buf()),
        };
        let reserved = rustix::fs::fallocate(&file, FallocateFlags::empty(), 0, LEN);
        let reach = reach::of(&file);
        let mapped = here && reach.maps && reserved.is_ok();
        if reserved.is_err() {
            // Sets the length alone, so that what another rank has stored stays.
            file.set_len(LEN).context("make the shared pointer", &path)?;
        }
        let words = Words::new(file, mapped, true).context("open the shared pointer", &path)?;
        let turns = match reach.remote && !words.is_mapped() {
            true => Some(Turns::of(&path).context("open the shared pointer", &path)?),
            false => None,
        };
        Ok(Pointer { words, path, turns })
    }

    fn update(&self, change: impl Fn(u64) -> u64) -> std::result::Result<u64, Errno> {
        let Some(turns) = &self.turns else { return self.words.update(0, change) };
        let _turn = turns.take()?;
        let old = self.words.load(0)?;
        self.words.store(0, change(old))?;
        Ok(old)
    }

    /// Adds to it; returns what it was.
    ///
    /// # Errors
    /// `EOVERFLOW`; those of the disk.
    pub fn add(&self, delta: i64) -> Result<i64> {
        let add = |old: u64| (old as i64).checked_add(delta).map_or(old, |new| new as u64);
        let old = self.update(add).context("move the shared pointer of", &self.path)?;
        match (old as i64).checked_add(delta) {
            Some(_) => Ok(old as i64),
            None => Err(Errno::OVERFLOW).context("move the shared pointer of", &self.path),
        }
    }

    /// Sets it.
    ///
    /// # Errors
    /// Those of the disk.
    pub fn set(&self, value: i64) -> Result<()> {
        let set = self.update(|_| value as u64);
        set.context("set the shared pointer of", &self.path).map(|_| ())
    }
}

/// Removes what an open's pointer left behind.
pub fn remove(path: &Path, token: &Token) {
    // Mostly there is none.
    if std::fs::remove_file(path).is_err() && token.machine == machine::id() {
        let _ = std::fs::remove_file(in_memory(token));
    }
}
