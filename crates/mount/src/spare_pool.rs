//! Spare files: empty files on this node's disk that are registered with the kernel in advance, for
//! new files. See `tatami_tables::SpareTable` and [`tatami_client::BorrowedSpares`].
//!
//! The backing file is most of the cost of a new file: a request to the daemon, an inode of the
//! disk and the registration. A file that is closed without a byte returns its spare file. For one
//! with bytes, nobody waits: a thread requests new files for many slots at once, and the daemon
//! makes objects of their former files before it answers. Until then the daemon finds the bytes by
//! the table, whenever a client asks for the object.

use crate::backing::{Backing, SpareInUse, UnwrittenTimes};
use parking_lot::{Condvar, Mutex, MutexGuard};
use std::os::fd::OwnedFd;
use std::sync::Arc;
use std::thread::JoinHandle;
use std::time::Duration;
use tatami_client::{BorrowedSpares, DataFile, SpareFile};
use tatami_fuse::{BackingId, Device};
use tatami_wire::{Errno, Ino, Piece, Timestamp};

/// Most consecutive refusals of a table. After these, the mount requests no further table.
const TABLE_REFUSALS_MAX: u32 = 8;
/// Longest time in which slots of written files are collected. A power cut takes the bytes of files
/// that are no objects yet, so this is far below the time after which the kernel writes bytes.
const COLLECT_TIME: Duration = Duration::from_millis(50);
/// Number of slots for one request. Several such batches make up the table, so that new files find
/// spare files while a request is under way.
const BATCH: usize = 16;
/// The thread fetches more spare files when fewer are ready.
const READY_MIN: usize = 8;
/// Longest wait of an open for the spare files of a request under way. After that, a request for an
/// object of its own costs less.
const READY_WAIT: Duration = Duration::from_millis(5);
/// Pause after a request that failed, such as on a full disk.
const RETRY_PAUSE: Duration = Duration::from_secs(1);

/// A registered spare file that is free.
struct ReadySpare {
    slot: usize,
    file: Arc<OwnedFd>,
    id: BackingId,
    mtime: Timestamp,
}

#[derive(Default)]
struct SparePoolState {
    loan: Option<Arc<BorrowedSpares>>,
    ready: Vec<ReadySpare>,
    /// Slots whose files have bytes, and are no objects yet as far as this mount knows.
    written: Vec<usize>,
    /// Slots without a registered file.
    vacant: Vec<usize>,
    /// Consecutive refusals of a table.
    refused: u32,
    /// Files have become objects since the last sync of the disk.
    renamed: bool,
    /// A file was created since the last request of the thread.
    wanted: bool,
    /// The thread waits for the daemon.
    under_way: bool,
    ended: bool,
}

struct SharedSparePool {
    device: Arc<Device>,
    state: Mutex<SparePoolState>,
    /// Signals work for the thread.
    wake: Condvar,
    /// Signals the end of a request.
    fetched: Condvar,
}

/// The spare pool of a mount.
pub(crate) struct SparePool {
    shared: Arc<SharedSparePool>,
    thread: Option<JoinHandle<()>>,
}

/// A moment before the creation of an inode.
pub(crate) struct SparePoolMoment(Option<(Arc<BorrowedSpares>, tatami_client::ClaimCount)>);

impl SparePool {
    /// Starts the thread. Without a thread, each slot costs a request when it is needed.
    pub(crate) fn new(device: Arc<Device>) -> SparePool {
        let shared = Arc::new(SharedSparePool {
            device,
            state: Mutex::default(),
            wake: Condvar::new(),
            fetched: Condvar::new(),
        });
        let run = {
            let shared = shared.clone();
            move || shared.run_renewals()
        };
        let thread = std::thread::Builder::new()
            .name("spares".into())
            .spawn(run)
            .inspect_err(|error| tracing::warn!(%error, "each spare file is fetched by itself"))
            .ok();
        SparePool { shared, thread }
    }

    /// Returns the current moment. Must be called before the request for a new inode.
    pub(crate) fn current_moment(&self) -> SparePoolMoment {
        let loan = self.shared.state.lock().loan.clone();
        SparePoolMoment(loan.map(|loan| {
            let now = loan.now();
            (loan, now)
        }))
    }

    /// Takes a spare file for `ino`, an inode that was created after `before`. The file shows the
    /// time `mtime`. `None` if no spare file is available.
    pub(crate) fn take_spare(
        &self,
        data: &DataFile,
        before: &SparePoolMoment,
        mtime: Timestamp,
    ) -> Option<Backing> {
        let Some((loan, moment)) = before.0.as_ref().filter(|(loan, _)| !loan.is_ended()) else {
            self.shared.request_table(data);
            return None;
        };
        let ready = self.shared.take_ready(loan)?;
        if !loan.assign_slot(ready.slot, data.ino(), *moment) {
            // Another client may have created the object; only the daemon knows.
            if data.make_object().is_ok() {
                self.shared.return_spare(loan, data.ino(), ready);
            }
            return None;
        }
        let unwritten = Some(UnwrittenTimes { real: ready.mtime, shown: mtime });
        let lent = Some(SpareInUse { loan: loan.clone(), slot: ready.slot });
        let file = Some(ready.file);
        Some(Backing { id: ready.id, file, base: Piece::BASE, spare: lent, unwritten })
    }

    /// Hands in the slot of an inode whose bytes are about to be committed. The caller keeps the
    /// file, which becomes an object soon, and must not return it.
    pub(crate) fn hand_in_slot(&self, lent: &SpareInUse) {
        let mut state = self.shared.state.lock();
        // The daemon makes objects of all files of a table that has ended.
        if !state.is_current(&lent.loan) {
            return;
        }
        state.written.push(lent.slot);
        // The first starts the collection, and a full batch ends it.
        if matches!(state.written.len(), 1 | BATCH) {
            self.shared.wake.notify_one();
        }
    }

    /// Makes objects of all files that were handed in, and syncs the disk with their names.
    ///
    /// # Errors
    /// Those of the disk; `EHOSTDOWN` if the calling program is being ended.
    pub(crate) fn sync_written(&self) -> Result<(), Errno> {
        let mut state = self.shared.state.lock();
        let Some(loan) = state.loan.clone().filter(|loan| !loan.is_ended()) else {
            return Ok(());
        };
        // The request under way may be for some of them.
        while state.under_way {
            MutexGuard::unlocked(&mut state, || loan.wait_until_idle())?;
            self.shared.fetched.wait_for(&mut state, READY_WAIT);
        }
        while !state.written.is_empty() && state.is_current(&loan) {
            let most = state.written.len().min(BATCH);
            let slots = state.written.drain(..most).collect();
            if !self.shared.fetch_spares(&mut state, &loan, slots) {
                break;
            }
        }
        // A full disk may have no room for new spare files, which is no error here.
        let left = state.written.iter().any(|slot| loan.stands_for_inode(*slot));
        let renamed = std::mem::take(&mut state.renamed);
        drop(state);
        if renamed && let Err(error) = loan.sync_disk() {
            self.shared.state.lock().renamed = true;
            return Err(error);
        }
        if left { Err(Errno::EIO) } else { Ok(()) }
    }

    /// Returns the backing file after the last close of `ino`. If it is empty by the caller's
    /// commit, the pool reuses it. Returns whether `ino` has no object.
    pub(crate) fn return_backing(&self, ino: Ino, backing: Backing, is_empty: bool) -> bool {
        let device = &self.shared.device;
        let Backing { id, file: Some(file), spare: Some(lent), unwritten: Some(unwritten), .. } =
            backing
        else {
            unregister_backing(device, backing.id);
            return false;
        };
        let SpareInUse { loan, slot } = &lent;
        if is_empty {
            let ready = ReadySpare { slot: *slot, file, id, mtime: unwritten.real };
            self.shared.return_spare(loan, ino, ready)
        } else {
            // The commit has failed. The file stays in use until the table ends.
            unregister_backing(device, id);
            false
        }
    }
}

impl Drop for SparePool {
    fn drop(&mut self) {
        self.shared.state.lock().ended = true;
        self.shared.wake.notify_one();
        if let Some(thread) = self.thread.take() {
            // The thread does not panic, and has no result.
            let _ = thread.join();
        }
    }
}

impl SharedSparePool {
    /// Requests a table, for later files.
    fn request_table(&self, data: &DataFile) {
        let mut state = self.state.lock();
        if state.loan.as_ref().is_some_and(|loan| !loan.is_ended())
            || state.refused >= TABLE_REFUSALS_MAX
        {
            return;
        }
        for ready in std::mem::take(&mut state.ready) {
            unregister_backing(&self.device, ready.id);
        }
        state.loan = BorrowedSpares::begin(data)
            .inspect_err(|error| tracing::debug!(%error, "nothing is lent by the node"))
            .ok()
            .map(Arc::new);
        state.refused = if state.loan.is_some() { 0 } else { state.refused + 1 };
        state.written.clear();
        state.vacant = (0..BorrowedSpares::SLOTS).rev().collect();
    }

    fn take_ready(&self, loan: &Arc<BorrowedSpares>) -> Option<ReadySpare> {
        let mut state = self.state.lock();
        if !state.is_current(loan) {
            return None;
        }
        state.wanted = true;
        if state.ready.is_empty() && state.under_way {
            self.fetched.wait_for(&mut state, READY_WAIT);
            if state.ready.is_empty() && state.under_way {
                return None;
            }
        }
        let ready = state.ready.pop();
        if state.lacks_ready() {
            self.wake.notify_one();
        }
        if ready.is_some() || !state.is_current(loan) {
            return ready;
        }
        let slot = state.vacant.pop().or_else(|| state.written.pop())?;
        self.fetch_spares(&mut state, loan, vec![slot]);
        if state.is_current(loan) { state.ready.pop() } else { None }
    }

    /// Gets and registers new files for free or written slots, which the caller has taken out of
    /// the state. Returns whether all were fetched. The others are vacant afterwards, or written.
    fn fetch_spares(
        &self,
        state: &mut MutexGuard<'_, SparePoolState>,
        loan: &Arc<BorrowedSpares>,
        slots: Vec<usize>,
    ) -> bool {
        let answer = MutexGuard::unlocked(state, || {
            loan.request_spares(&slots).map(|files| {
                let files = files.unwrap_or_default().into_iter();
                files.map(|file| self.register_spare(file)).collect::<Vec<_>>()
            })
        });
        if !state.is_current(loan) {
            for ready in answer.into_iter().flatten().flatten() {
                unregister_backing(&self.device, ready.id);
            }
            return true;
        }
        let fetched = answer.inspect_err(|error| tracing::debug!(%error, "no spare file"));
        let fetched = fetched.unwrap_or_default();
        let done = fetched.len();
        let mut is_whole = done == slots.len();
        state.renamed |= done > 0;
        for (slot, ready) in slots[..done].iter().zip(fetched) {
            match ready {
                Some(ready) => state.ready.push(ready),
                None => {
                    state.vacant.push(*slot);
                    is_whole = false;
                }
            }
        }
        // Their files may have bytes, so they come first in a later request.
        state.written.extend(&slots[done..]);
        is_whole
    }

    fn register_spare(&self, spare: SpareFile) -> Option<ReadySpare> {
        let SpareFile { slot, file, state } = spare;
        match self.device.open_backing(&file) {
            Ok(id) => Some(ReadySpare { slot, file, id, mtime: state.mtime }),
            Err(errno) => {
                tracing::warn!(%errno, "a spare file could not be registered");
                None
            }
        }
    }

    /// Makes objects of written files and fetches new ones, until the pool ends.
    fn run_renewals(&self) {
        let mut state = self.state.lock();
        while !state.ended {
            if state.written.is_empty() && !state.lacks_ready() {
                self.wake.wait(&mut state);
                continue;
            }
            if state.written.len() < BATCH && !state.lacks_ready() {
                self.wake.wait_for(&mut state, COLLECT_TIME);
            }
            let Some(loan) = state.loan.clone().filter(|_| !state.ended) else {
                state.written.clear();
                state.wanted = false;
                continue;
            };
            let slots = state.take_batch();
            if slots.is_empty() {
                continue;
            }
            state.under_way = true;
            let is_whole = self.fetch_spares(&mut state, &loan, slots);
            state.under_way = false;
            self.fetched.notify_all();
            if !is_whole && !state.ended {
                // Wakened earlier, it tries earlier.
                state.wanted = false;
                self.wake.wait_for(&mut state, RETRY_PAUSE);
            }
        }
    }

    fn keep_ready(&self, loan: &Arc<BorrowedSpares>, ready: ReadySpare) {
        let mut state = self.state.lock();
        if state.is_current(loan) {
            state.ready.push(ready);
        } else {
            drop(state);
            unregister_backing(&self.device, ready.id);
        }
    }

    /// Takes a file back. Returns whether it has not become an object.
    fn return_spare(&self, loan: &Arc<BorrowedSpares>, ino: Ino, ready: ReadySpare) -> bool {
        let is_back = loan.release_slot(ready.slot, ino);
        if is_back {
            self.keep_ready(loan, ready);
        } else {
            // The file is an object now, because another client has asked for it.
            unregister_backing(&self.device, ready.id);
            let mut state = self.state.lock();
            if state.is_current(loan) {
                state.vacant.push(ready.slot);
            }
        }
        is_back
    }
}

impl SparePoolState {
    fn is_current(&self, loan: &Arc<BorrowedSpares>) -> bool {
        self.loan.as_ref().is_some_and(|ours| Arc::ptr_eq(ours, loan)) && !loan.is_ended()
    }

    /// Returns whether new files may soon find no spare file, while there are slots for more.
    fn lacks_ready(&self) -> bool {
        self.wanted && self.ready.len() < READY_MIN && !self.vacant.is_empty()
    }

    /// Takes the slots of the next request.
    fn take_batch(&mut self) -> Vec<usize> {
        let written = self.written.len().min(BATCH);
        let mut slots: Vec<usize> = self.written.drain(..written).collect();
        if self.lacks_ready() {
            let more = self.vacant.len().min(BATCH.saturating_sub(written));
            slots.extend(self.vacant.drain(self.vacant.len() - more..));
        }
        self.wanted = false;
        slots
    }
}

fn unregister_backing(device: &Device, id: BackingId) {
    if let Err(errno) = device.close_backing(id) {
        tracing::debug!(%errno, "a backing file was unregistered before");
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use tatami_wire::object::ObjectState;

    #[test]
    fn a_spare_shows_the_time_of_its_inode_until_it_is_written_to() {
        let (real, shown) = (Timestamp::from_sec(5), Timestamp::from_sec(9));
        let unwritten = Some(UnwrittenTimes { real, shown });
        let state = ObjectState { exists: true, mtime: real, ..ObjectState::default() };
        assert_eq!(UnwrittenTimes::adjust_time(unwritten, state).mtime, shown);
        assert_eq!(UnwrittenTimes::adjust_time(None, state).mtime, real);
        let cut = ObjectState { mtime: Timestamp::from_sec(10), ..state };
        assert_eq!(UnwrittenTimes::adjust_time(unwritten, cut), cut);
        let written = ObjectState { size: 1, ..state };
        assert_eq!(UnwrittenTimes::adjust_time(unwritten, written), written);
    }
}
