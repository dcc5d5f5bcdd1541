//! Turns among machines, on file systems where a lock may be known to one
//! machine alone: who makes the symbolic link `NAME.turn` has its turn until
//! it is removed. A name is made by one process only on every file system.
//!
//! The link's text says who has the turn, and changes with each beat. Who
//! waits and sees the same text for a whole lease takes the turn away, under
//! `NAME.turn.break`, so that no two do so at once.

use crate::heart::{self, Beat, LEASE};
use crate::machine;
use parking_lot::Mutex;
use rustix::fs::AtFlags;
use rustix::io::Errno;
use std::fs::File;
use std::path::Path;
use std::sync::Arc;
use std::time::{Duration, Instant};

/// What the names of turns end with.
pub const SUFFIX: &str = ".turn";
/// Who takes a turn away from a dead process.
pub const BREAK: &str = ".turn.break";
/// A turn's next text.
pub const NEXT: &str = ".turn.next";

const WAIT_MIN: Duration = Duration::from_micros(200);
const WAIT_MAX: Duration = Duration::from_millis(10);

/// Where turns are taken.
#[derive(Debug)]
pub struct Turns {
    dir: Arc<File>,
    name: String,
}

/// A turn, until it is dropped.
#[derive(Debug)]
pub struct Turn(#[allow(dead_code)] Arc<Held>);

#[derive(Debug)]
struct Held {
    dir: Arc<File>,
    name: String,
    /// What the link says, and when we last knew that it is ours.
    said: Mutex<(String, Instant)>,
}

impl Turns {
    /// Those of the file `name` in `dir`.
    pub fn new(dir: Arc<File>, name: &str) -> Turns {
        Turns { dir, name: name.to_owned() }
    }

    /// Those of the file at `path`.
    ///
    /// # Errors
    /// As for opening its directory.
    pub fn of(path: &Path) -> Result<Turns, Errno> {
        let name = path.file_name().unwrap_or_default().to_string_lossy();
        let dir = File::open(path.parent().unwrap_or(Path::new(".")));
        let dir = dir.map_err(|e| Errno::from_io_error(&e).unwrap_or(Errno::IO))?;
        Ok(Turns::new(Arc::new(dir), &name))
    }

    /// Waits for a turn.
    ///
    /// # Errors
    /// As for symlink(2).
    pub fn take(&self) -> Result<Turn, Errno> {
        let name = format!("{}{SUFFIX}", self.name);
        let text = text()?;
        let (mut seen, mut since, mut wait) = (None, Instant::now(), WAIT_MIN);
        loop {
            match rustix::fs::symlinkat(&text, &self.dir, &name) {
                Ok(()) => break,
                Err(Errno::EXIST) => {}
                Err(errno) => return Err(errno),
            }
            let now = read(&self.dir, &name)?;
            if now.is_none() {
                continue;
            }
            if now != seen {
                (seen, since) = (now, Instant::now());
            } else if since.elapsed() >= LEASE {
                self.take_away(&name, seen.as_deref())?;
                (seen, since) = (None, Instant::now());
            }
            #[allow(clippy::disallowed_methods)]
            // another machine's removal of a link tells nobody
            std::thread::sleep(wait);
            wait = (wait * 2).min(WAIT_MAX);
        }
        let said = Mutex::new((text, Instant::now()));
        let held = Arc::new(Held { dir: self.dir.clone(), name, said });
        heart::keep(&held);
        Ok(Turn(held))
    }

    /// Removes the turn of a process that has not changed the text `seen`.
    fn take_away(&self, name: &str, seen: Option<&str>) -> Result<(), Errno> {
        let guard = format!("{}{BREAK}", self.name);
        match rustix::fs::symlinkat(text()?, &self.dir, &guard) {
            Ok(()) => {}
            // Somebody else does; if that one died, too, the next one tries after a lease.
            Err(Errno::EXIST) => return remove(&self.dir, &guard),
            Err(errno) => return Err(errno),
        }
        let removed = match read(&self.dir, name)?.as_deref() == seen {
            true => remove(&self.dir, name),
            false => Ok(()),
        };
        remove(&self.dir, &guard).and(removed)
    }
}

fn text() -> Result<String, Errno> {
    Ok(format!("{:08x}.{}.{:016x}", machine::id(), std::process::id(), machine::draw()?))
}

fn read(dir: &File, name: &str) -> Result<Option<String>, Errno> {
    match rustix::fs::readlinkat(dir, name, Vec::new()) {
        Ok(text) => Ok(Some(text.to_string_lossy().into_owned())),
        Err(Errno::NOENT) => Ok(None),
        Err(errno) => Err(errno),
    }
}

fn remove(dir: &File, name: &str) -> Result<(), Errno> {
    match rustix::fs::unlinkat(dir, name, AtFlags::empty()) {
        Err(Errno::NOENT) => Ok(()),
        other => other,
    }
}

impl Held {
    /// Is it still ours? Nobody takes it away before a lease is over, so that
    /// mostly nothing has to be read; and what is read may be late.
    fn is_ours(&self, said: &(String, Instant)) -> bool {
        said.1.elapsed() < LEASE / 2
            || matches!(read(&self.dir, &self.name), Ok(Some(now)) if now == said.0)
    }
}

impl Beat for Held {
    fn beat(&self) {
        let next = format!("{}.next", self.name);
        let mut said = self.said.lock();
        let Ok(text) = text() else { return };
        let at = Instant::now();
        if self.is_ours(&said)
            && rustix::fs::symlinkat(&text, &self.dir, &next).is_ok()
            && rustix::fs::renameat(&self.dir, &next, &self.dir, &self.name).is_ok()
        {
            *said = (text, at);
        }
    }
}

impl Drop for Held {
    fn drop(&mut self) {
        if self.is_ours(&self.said.lock()) {
            // Whoever waits takes it away after a lease if this fails.
            let _ = remove(&self.dir, &self.name);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::sync::atomic::{AtomicU32, Ordering};

    #[test]
    fn one_at_a_time_has_a_turn() {
        let dir = tempfile::tempdir().unwrap();
        let (inside, total) = (AtomicU32::new(0), AtomicU32::new(0));
        std::thread::scope(|scope| {
            for _ in 0..4 {
                scope.spawn(|| {
                    let turns = Turns::of(&dir.path().join("it")).unwrap();
                    for _ in 0..50 {
                        let turn = turns.take().unwrap();
                        assert_eq!(inside.fetch_add(1, Ordering::SeqCst), 0);
                        total.fetch_add(1, Ordering::SeqCst);
                        inside.fetch_sub(1, Ordering::SeqCst);
                        drop(turn);
                    }
                });
            }
        });
        assert_eq!(total.into_inner(), 200);
        assert_eq!(std::fs::read_dir(dir.path()).unwrap().count(), 0);
    }

    #[test]
    fn a_turn_is_taken_away_by_its_text_alone() {
        let dir = tempfile::tempdir().unwrap();
        let turns = Turns::of(&dir.path().join("it")).unwrap();
        let turn = turns.take().unwrap();
        let seen = read(&turns.dir, "it.turn").unwrap().unwrap();
        // It beats, so what was seen is not true any more.
        turn.0.beat();
        turns.take_away("it.turn", Some(&seen)).unwrap();
        let now = read(&turns.dir, "it.turn").unwrap().unwrap();
        assert_ne!(seen, now);
        turns.take_away("it.turn", Some(&now)).unwrap();
        assert_eq!(std::fs::read_dir(dir.path()).unwrap().count(), 0);
        // Whoever has the next turn keeps it when the first one ends, late.
        turn.0.said.lock().1 -= LEASE;
        let next = turns.take().unwrap();
        drop(turn);
        assert!(read(&turns.dir, "it.turn").unwrap().is_some());
        drop(next);
        assert_eq!(std::fs::read_dir(dir.path()).unwrap().count(), 0);
    }
}
