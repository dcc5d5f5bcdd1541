//! The shared file pointer of an open: one number that all its ranks share.
//!
//! Where all ranks run on one machine it is a word of a mapped file, changed by
//! one atomic addition; elsewhere a file that is locked (flock) meanwhile, or
//! whose turn is taken where a lock may be known to one machine alone. Of a volume's file that ranks of several
//! nodes have open it is an extended attribute of the file, changed under a lock that is another one.

use crate::error::{Context, Result};
use crate::machine;
use crate::reach;
use crate::shared::Words;
use crate::token::{Kind, Token};
use crate::turn::Turns;
use crate::wholelock::WholeLock;
use rustix::fs::{FallocateFlags, XattrFlags};
use rustix::io::Errno;
use std::fs::{File, OpenOptions};
use std::path::{Path, PathBuf};

const LEN: u64 = 4096;

#[derive(Debug)]
enum Way {
    Words { words: Words, turns: Option<Turns> },
    Attribute { name: String, lock: WholeLock },
}

/// The pointer, once somebody has used it.
#[derive(Debug)]
pub struct Pointer {
    way: Way,
    path: PathBuf,
}

fn attribute(token: &Token) -> String {
    token.attribute("pointer")
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
        if token.kind == Kind::Volume && !here {
            let lock = WholeLock::across(path, token.attribute("turn"));
            let way = Way::Attribute { name: attribute(token), lock };
            return Ok(Pointer { way, path: path.to_path_buf() });
        }
        // Beside a volume's file there is nothing that all its ranks could map.
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
        Ok(Pointer { way: Way::Words { words, turns }, path })
    }

    /// Replaces it by what `change` makes of it; what it was.
    fn update(&self, change: impl Fn(u64) -> u64) -> std::result::Result<u64, Errno> {
        let (name, lock) = match &self.way {
            Way::Words { words, turns: None } => return words.update(0, change),
            Way::Words { words, turns: Some(turns) } => {
                let _turn = turns.take()?;
                let old = words.load(0)?;
                return words.store(0, change(old)).map(|()| old);
            }
            Way::Attribute { name, lock } => (name.as_str(), lock),
        };
        lock.lock().map_err(|e| e.errno)?;
        let mut value = [0; 8];
        let changed = match rustix::fs::getxattr(&self.path, name, &mut value[..]) {
            Ok(8) | Err(Errno::NODATA) => {
                let old = u64::from_le_bytes(value);
                let new = change(old).to_le_bytes();
                rustix::fs::setxattr(&self.path, name, &new, XattrFlags::empty()).map(|()| old)
            }
            Ok(_) => Err(Errno::IO),
            Err(errno) => Err(errno),
        };
        let unlocked = lock.unlock().map_err(|e| e.errno);
        changed.and_then(|old| unlocked.map(|()| old))
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
    if token.kind == Kind::Volume {
        if token.machine == machine::id() {
            let _ = std::fs::remove_file(in_memory(token));
        } else {
            let _ = rustix::fs::removexattr(path, attribute(token).as_str());
        }
        return;
    }
    // Mostly there is none.
    if std::fs::remove_file(path).is_err() && token.machine == machine::id() {
        let _ = std::fs::remove_file(in_memory(token));
    }
}
