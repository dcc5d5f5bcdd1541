//! Closes of which the shard hears in batches: of files that were created, opened for writing and
//! closed without a byte, and of files with their bytes beside the inode, where the shard has
//! recorded each write.

use crate::session::{Session, generation, session};
use parking_lot::Mutex;
use std::time::{Duration, Instant};
use tatami_wire::Ino;

/// Most closes of a batch.
const BATCH: usize = 64;
/// A call on the volume sends a batch that has waited for this time.
const WAIT: Duration = Duration::from_millis(200);

struct PendingCloses {
    generation: u32,
    since: Option<Instant>,
    inos: Vec<Ino>,
    /// Those of `inos` without a byte.
    empty: Vec<Ino>,
}

/// The lock is held during the request, so that no open overtakes the report of an earlier close.
static PENDING: Mutex<PendingCloses> =
    Mutex::new(PendingCloses { generation: 0, since: None, inos: Vec::new(), empty: Vec::new() });

impl PendingCloses {
    /// Drops those of the parent process.
    fn renew(&mut self) {
        if self.generation != generation() {
            (self.generation, self.since) = (generation(), None);
            self.inos.clear();
            self.empty.clear();
        }
    }

    fn send(&mut self, session: &Session) {
        let (inos, empty) = (std::mem::take(&mut self.inos), std::mem::take(&mut self.empty));
        self.since = None;
        if !inos.is_empty() {
            // If this request is lost, the daemon closes the files when this process ends.
            let _ = session.client.report_closed(inos, empty, Vec::new());
        }
    }
}

/// Adds a file that its last writer has closed. `is_empty`: it had no byte.
pub(crate) fn add_close(session: &Session, ino: Ino, is_empty: bool) {
    let mut pending = PENDING.lock();
    pending.renew();
    pending.since.get_or_insert_with(Instant::now);
    pending.inos.push(ino);
    if is_empty {
        pending.empty.push(ino);
    }
    if pending.inos.len() >= BATCH {
        pending.send(session);
    }
}

/// Withdraws the close of a file that is opened for writing again.
pub(crate) fn withdraw_close(ino: Ino) {
    let mut pending = PENDING.lock();
    pending.inos.retain(|other| *other != ino);
    pending.empty.retain(|other| *other != ino);
}

/// Sends the batch if it has waited for long.
pub(crate) fn send_old_closes(session: &Session) {
    // Another thread that holds the lock is about to send.
    let Some(mut pending) = PENDING.try_lock() else { return };
    pending.renew();
    if pending.since.is_some_and(|since| since.elapsed() > WAIT) {
        pending.send(session);
    }
}

/// Sends the batch now.
pub(crate) fn send_closes() {
    let mut pending = PENDING.lock();
    pending.renew();
    if pending.inos.is_empty() {
        return;
    }
    if let Ok(session) = session() {
        pending.send(&session);
    }
}

/// Keeps the lock of this file during a fork.
pub(crate) fn hold_for_fork() -> impl Sized {
    PENDING.lock()
}
