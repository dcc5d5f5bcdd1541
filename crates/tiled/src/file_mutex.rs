//! A mutex among machines, on file systems where a lock may be known to one machine alone. The
//! process that creates the symbolic link `NAME.turn` holds the mutex until it removes the link. On
//! every file system only one process succeeds in creating a name.
//!
//! The link's text names the holder and changes with each heartbeat. A waiting process that reads
//! the same text for a whole lease breaks the mutex. It does so under the link `NAME.turn.break`,
//! so that no two processes break it at once. The link of a process that died while it broke the
//! mutex is removed by the same rule: after a whole lease.

use crate::heartbeat::{self, Heartbeat, LEASE};
use crate::machine;
use parking_lot::Mutex;
use rustix::fs::AtFlags;
use rustix::io::Errno;
use std::fs::File;
use std::path::Path;
use std::sync::Arc;
use std::time::{Duration, Instant};

/// Suffix of the mutex's link.
pub const SUFFIX: &str = ".turn";
/// Suffix of the link that a process holds while it breaks the mutex of a dead process.
pub const BREAK: &str = ".turn.break";
/// Suffix of the link with the next text.
pub const NEXT: &str = ".turn.next";

const WAIT_MIN: Duration = Duration::from_micros(200);
const WAIT_MAX: Duration = Duration::from_millis(10);

/// The mutex of one file.
#[derive(Debug)]
pub struct FileMutex {
    dir: Arc<File>,
    name: String,
}

/// A link's text as a waiting process saw it first.
#[derive(Debug)]
struct LinkSighting {
    text: Option<String>,
    since: Instant,
}

impl LinkSighting {
    fn new() -> LinkSighting {
        LinkSighting { text: None, since: Instant::now() }
    }

    /// Reports whether the link had this same text for a whole lease. The own clock measures the
    /// lease, from the first sight of a text: clocks of machines differ.
    fn has_expired(&mut self, text: Option<String>) -> bool {
        if text.is_none() || text != self.text {
            *self = LinkSighting { text, since: Instant::now() };
        }
        self.since.elapsed() >= LEASE
    }
}

/// Holds the mutex, until it is dropped.
#[derive(Debug)]
pub struct FileMutexGuard(#[allow(dead_code)] Arc<HeldFileMutex>);

#[derive(Debug)]
struct HeldFileMutex {
    dir: Arc<File>,
    name: String,
    /// The text of the link, and the last time when it was known to be ours.
    link_text: Mutex<(String, Instant)>,
}

impl FileMutex {
    /// The mutex of the file `name` in `dir`.
    pub fn new(dir: Arc<File>, name: &str) -> FileMutex {
        FileMutex { dir, name: name.to_owned() }
    }

    /// The mutex of the file at `path`.
    ///
    /// # Errors
    /// As for opening its directory.
    pub fn for_path(path: &Path) -> Result<FileMutex, Errno> {
        let name = path.file_name().unwrap_or_default().to_string_lossy();
        let dir = File::open(path.parent().unwrap_or(Path::new(".")));
        let dir = dir.map_err(|e| Errno::from_io_error(&e).unwrap_or(Errno::IO))?;
        Ok(FileMutex::new(Arc::new(dir), &name))
    }

    /// Waits for the mutex.
    ///
    /// # Errors
    /// As for symlink(2).
    pub fn acquire_mutex(&self) -> Result<FileMutexGuard, Errno> {
        // The text has a random number, so that no two holders ever have the same.
        let name = format!("{}{SUFFIX}", self.name);
        let text = new_link_text()?;
        let (mut held, mut broken, mut wait) = (LinkSighting::new(), LinkSighting::new(), WAIT_MIN);
        loop {
            match rustix::fs::symlinkat(&text, &self.dir, &name) {
                Ok(()) => break,
                Err(Errno::EXIST) => {}
                Err(errno) => return Err(errno),
            }
            let now = read_link_text(&self.dir, &name)?;
            // Released meanwhile: try again at once.
            if now.is_none() {
                continue;
            }
            if held.has_expired(now) {
                self.break_expired(&name, held.text.as_deref(), &mut broken)?;
            }
            #[allow(clippy::disallowed_methods)]
            // no notification of a link's removal comes from another machine
            std::thread::sleep(wait);
            wait = (wait * 2).min(WAIT_MAX);
        }
        let said = Mutex::new((text, Instant::now()));
        let held = Arc::new(HeldFileMutex { dir: self.dir.clone(), name, link_text: said });
        heartbeat::register_heartbeat(&held);
        Ok(FileMutexGuard(held))
    }

    /// Removes the link of a process that has not changed the text `seen`. `broken` is the break
    /// link as this process saw it in its attempts before.
    fn break_expired(
        &self,
        name: &str,
        seen: Option<&str>,
        broken: &mut LinkSighting,
    ) -> Result<(), Errno> {
        let guard = format!("{}{BREAK}", self.name);
        let began = Instant::now();
        match rustix::fs::symlinkat(new_link_text()?, &self.dir, &guard) {
            Ok(()) => {}
            // Another process breaks the mutex: it needs its link. If it died while it did, the
            // link stays the same for a lease, and the next attempt finds it removed.
            Err(Errno::EXIST) => {
                return match broken.has_expired(read_link_text(&self.dir, &guard)?) {
                    true => remove_link(&self.dir, &guard),
                    false => Ok(()),
                };
            }
            Err(errno) => return Err(errno),
        }
        // Read once more under the break link: the holder may have sent a heartbeat, or another may
        // hold it. A process that was stopped for long under its break link may have lost it.
        let is_same = read_link_text(&self.dir, name)?.as_deref() == seen;
        let removed = match is_same && began.elapsed() < LEASE / 2 {
            true => remove_link(&self.dir, name),
            false => Ok(()),
        };
        remove_link(&self.dir, &guard).and(removed)
    }
}

fn new_link_text() -> Result<String, Errno> {
    Ok(format!(
        "{:08x}.{}.{:016x}",
        machine::machine_id(),
        std::process::id(),
        machine::draw_number()?
    ))
}

fn read_link_text(dir: &File, name: &str) -> Result<Option<String>, Errno> {
    match rustix::fs::readlinkat(dir, name, Vec::new()) {
        Ok(text) => Ok(Some(text.to_string_lossy().into_owned())),
        Err(Errno::NOENT) => Ok(None),
        Err(errno) => Err(errno),
    }
}

fn remove_link(dir: &File, name: &str) -> Result<(), Errno> {
    match rustix::fs::unlinkat(dir, name, AtFlags::empty()) {
        Err(Errno::NOENT) => Ok(()),
        other => other,
    }
}

impl HeldFileMutex {
    /// Reports whether the link is still ours. No process breaks it before a lease is over, so most
    /// calls need not read it; and a read may return an old text.
    fn is_ours(&self, said: &(String, Instant)) -> bool {
        said.1.elapsed() < LEASE / 2
            || matches!(read_link_text(&self.dir, &self.name), Ok(Some(now)) if now == said.0)
    }

    /// Creates the link that replaces the present one. Only the holder creates it. So a link that
    /// is there already was left by a holder that died before its rename.
    fn create_next_link(&self, text: &str, next: &str) -> Result<(), Errno> {
        match rustix::fs::symlinkat(text, &self.dir, next) {
            Err(Errno::EXIST) => {
                remove_link(&self.dir, next)?;
                rustix::fs::symlinkat(text, &self.dir, next)
            }
            other => other,
        }
    }
}

impl Heartbeat for HeldFileMutex {
    fn send_heartbeat(&self) {
        let next = format!("{}.next", self.name);
        let mut said = self.link_text.lock();
        let Ok(text) = new_link_text() else { return };
        // The time is taken before the write: the lease of the waiting process may begin with it.
        let at = Instant::now();
        // A new link is renamed over the old one, so that the name never disappears in between.
        if self.is_ours(&said)
            && self.create_next_link(&text, &next).is_ok()
            && rustix::fs::renameat(&self.dir, &next, &self.dir, &self.name).is_ok()
        {
            *said = (text, at);
        }
    }
}

impl Drop for HeldFileMutex {
    fn drop(&mut self) {
        if self.is_ours(&self.link_text.lock()) {
            // If this fails, a waiting process breaks the mutex after a lease.
            let _ = remove_link(&self.dir, &self.name);
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
                    let turns = FileMutex::for_path(&dir.path().join("it")).unwrap();
                    for _ in 0..50 {
                        let turn = turns.acquire_mutex().unwrap();
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
        let turns = FileMutex::for_path(&dir.path().join("it")).unwrap();
        let turn = turns.acquire_mutex().unwrap();
        let seen = read_link_text(&turns.dir, "it.turn").unwrap().unwrap();
        // A heartbeat changes the text, so the text that was seen is no longer true.
        turn.0.send_heartbeat();
        turns.break_expired("it.turn", Some(&seen), &mut LinkSighting::new()).unwrap();
        let now = read_link_text(&turns.dir, "it.turn").unwrap().unwrap();
        assert_ne!(seen, now);
        turns.break_expired("it.turn", Some(&now), &mut LinkSighting::new()).unwrap();
        assert_eq!(std::fs::read_dir(dir.path()).unwrap().count(), 0);
        // The next holder keeps the mutex when the first one ends, late.
        turn.0.link_text.lock().1 -= LEASE;
        let next = turns.acquire_mutex().unwrap();
        drop(turn);
        assert!(read_link_text(&turns.dir, "it.turn").unwrap().is_some());
        drop(next);
        assert_eq!(std::fs::read_dir(dir.path()).unwrap().count(), 0);
    }

    #[test]
    fn a_heartbeat_succeeds_beside_the_link_that_a_dead_holder_left() {
        let dir = tempfile::tempdir().unwrap();
        let turns = FileMutex::for_path(&dir.path().join("it")).unwrap();
        rustix::fs::symlinkat("of the dead", &turns.dir, "it.turn.next").unwrap();
        let turn = turns.acquire_mutex().unwrap();
        let before = read_link_text(&turns.dir, "it.turn").unwrap();
        turn.0.send_heartbeat();
        assert_ne!(read_link_text(&turns.dir, "it.turn").unwrap(), before);
        drop(turn);
        assert_eq!(std::fs::read_dir(dir.path()).unwrap().count(), 0);
    }

    #[test]
    fn the_link_of_a_process_that_breaks_the_mutex_stays_for_a_lease() {
        let dir = tempfile::tempdir().unwrap();
        let turns = FileMutex::for_path(&dir.path().join("it")).unwrap();
        rustix::fs::symlinkat("of the dead", &turns.dir, "it.turn").unwrap();
        rustix::fs::symlinkat("breaking", &turns.dir, "it.turn.break").unwrap();
        let exists = |name: &str| read_link_text(&turns.dir, name).unwrap().is_some();
        let mut broken = LinkSighting::new();
        for _ in 0..2 {
            turns.break_expired("it.turn", Some("of the dead"), &mut broken).unwrap();
            assert!(exists("it.turn") && exists("it.turn.break"));
        }
        broken.since -= LEASE;
        turns.break_expired("it.turn", Some("of the dead"), &mut broken).unwrap();
        assert!(exists("it.turn") && !exists("it.turn.break"));
        turns.break_expired("it.turn", Some("of the dead"), &mut broken).unwrap();
        assert_eq!(std::fs::read_dir(dir.path()).unwrap().count(), 0);
    }
}
