//! Spare files: empty files on this node's disk that are registered with the kernel in advance, for
//! new files. See `tatami_tables::SpareTable` and [`tatami_client::BorrowedSpares`].
//!
//! The backing file is most of the cost of a new file: a request to the daemon, an inode of the
//! disk and the registration. All of it is wasted if the file is closed without a byte. A spare
//! file costs that once, and is reused until a program writes to it.

use crate::backing::{Backing, SpareInUse, UnwrittenTimes};
use parking_lot::Mutex;
use std::os::fd::OwnedFd;
use std::sync::Arc;
use tatami_client::{BorrowedSpares, DataFile, SpareFile};
use tatami_fuse::{BackingId, Device};
use tatami_wire::{Errno, Ino, Piece, Timestamp};

/// Most consecutive refusals of a table. After these, the mount requests no further table.
const TABLE_REFUSALS_MAX: u32 = 8;

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
    /// Slots without a registered file.
    vacant: Vec<usize>,
    /// Consecutive refusals of a table.
    refused: u32,
}

/// The spare pool of a mount.
#[derive(Default)]
pub(crate) struct SparePool(Mutex<SparePoolState>);

/// A moment before the creation of an inode.
pub(crate) struct SparePoolMoment(Option<(Arc<BorrowedSpares>, tatami_client::ClaimCount)>);

impl SparePool {
    /// Returns the current moment. Must be called before the request for a new inode.
    pub(crate) fn current_moment(&self) -> SparePoolMoment {
        let loan = self.0.lock().loan.clone();
        SparePoolMoment(loan.map(|loan| {
            let now = loan.now();
            (loan, now)
        }))
    }

    /// Takes a spare file for `ino`, an inode that was created after `before`. The file shows the
    /// time `mtime`. `None` if no spare file is available.
    pub(crate) fn take_spare(
        &self,
        device: &Device,
        data: &DataFile,
        before: &SparePoolMoment,
        mtime: Timestamp,
    ) -> Option<Backing> {
        let Some((loan, moment)) = before.0.as_ref().filter(|(loan, _)| !loan.is_ended()) else {
            self.request_table(device, data);
            return None;
        };
        let ready = self.take_ready(device, data, loan)?;
        if !loan.assign_slot(ready.slot, data.ino(), *moment) {
            // Another client may have created the object; only the daemon knows.
            if data.make_object().is_ok() {
                self.return_spare(device, loan, data.ino(), ready);
            }
            return None;
        }
        let unwritten = Some(UnwrittenTimes { real: ready.mtime, shown: mtime });
        let lent = Some(SpareInUse { loan: loan.clone(), slot: ready.slot });
        let file = Some(ready.file);
        Some(Backing { id: ready.id, file, base: Piece::BASE, spare: lent, unwritten })
    }

    /// Requests a table, for later files.
    fn request_table(&self, device: &Device, data: &DataFile) {
        let mut state = self.0.lock();
        if state.loan.as_ref().is_some_and(|loan| !loan.is_ended())
            || state.refused >= TABLE_REFUSALS_MAX
        {
            return;
        }
        for ready in std::mem::take(&mut state.ready) {
            unregister_backing(device, ready.id);
        }
        state.loan = BorrowedSpares::begin(data)
            .inspect_err(|error| tracing::debug!(%error, "nothing is lent by the node"))
            .ok()
            .map(Arc::new);
        state.refused = if state.loan.is_some() { 0 } else { state.refused + 1 };
        state.vacant = (0..BorrowedSpares::SLOTS).rev().collect();
    }

    fn take_ready(
        &self,
        device: &Device,
        data: &DataFile,
        loan: &Arc<BorrowedSpares>,
    ) -> Option<ReadySpare> {
        let slot = {
            let mut state = self.0.lock();
            if !state.is_current(loan) {
                return None;
            }
            if let Some(ready) = state.ready.pop() {
                return Some(ready);
            }
            state.vacant.pop()?
        };
        match self.fetch_spare(device, data, loan, slot) {
            Ok(ready) => ready,
            Err(error) => {
                tracing::debug!(%error, "no spare file");
                // After an answer from the daemon (such as a full disk), the slot has no pending
                // file, so it can be reused.
                if error != Errno::EHOSTDOWN {
                    self.vacate_slot(loan, slot);
                }
                None
            }
        }
    }

    /// Gets and registers a new file for a free slot that the caller has reserved.
    fn fetch_spare(
        &self,
        device: &Device,
        data: &DataFile,
        loan: &Arc<BorrowedSpares>,
        slot: usize,
    ) -> Result<Option<ReadySpare>, Errno> {
        let SpareFile { slot, file, state } = loan.request_spare(data, slot)?;
        match device.open_backing(&file) {
            Ok(id) => Ok(Some(ReadySpare { slot, file, id, mtime: state.mtime })),
            Err(errno) => {
                tracing::warn!(%errno, "a spare file could not be registered");
                self.vacate_slot(loan, slot);
                Ok(None)
            }
        }
    }

    fn vacate_slot(&self, loan: &Arc<BorrowedSpares>, slot: usize) {
        let mut state = self.0.lock();
        if state.is_current(loan) {
            state.vacant.push(slot);
        }
    }

    fn keep_ready(&self, device: &Device, loan: &Arc<BorrowedSpares>, ready: ReadySpare) {
        let mut state = self.0.lock();
        if state.is_current(loan) {
            state.ready.push(ready);
        } else {
            drop(state);
            unregister_backing(device, ready.id);
        }
    }

    /// Turns the file of an inode with bytes into its object, and gets a new file for the slot.
    ///
    /// # Errors
    /// Those of the disk and of the daemon. Then the file is still a spare file.
    pub(crate) fn make_object(
        &self,
        device: &Device,
        data: &DataFile,
        lent: &SpareInUse,
    ) -> Result<(), Errno> {
        let SpareInUse { loan, slot } = lent;
        // The request for the next file of the slot turns the current one into an object.
        match self.fetch_spare(device, data, loan, *slot) {
            Ok(ready) => {
                if let Some(ready) = ready {
                    self.keep_ready(device, loan, ready);
                }
                Ok(())
            }
            // The table has ended, so the daemon has turned all files in use into objects.
            Err(Errno::ENOENT) => Ok(()),
            // The object must be created anyway, without a new file for the slot.
            Err(error) => {
                data.make_object()?;
                if error != Errno::EHOSTDOWN {
                    self.vacate_slot(loan, *slot);
                }
                Ok(())
            }
        }
    }

    /// Returns the backing file after the last close of `ino`. If it is empty by the caller's
    /// commit, the pool reuses it. Returns whether `ino` has no object.
    pub(crate) fn return_backing(
        &self,
        device: &Device,
        ino: Ino,
        backing: Backing,
        is_empty: bool,
    ) -> bool {
        let Backing { id, file: Some(file), spare: Some(lent), unwritten: Some(unwritten), .. } =
            backing
        else {
            unregister_backing(device, backing.id);
            return false;
        };
        let SpareInUse { loan, slot } = &lent;
        if is_empty {
            let ready = ReadySpare { slot: *slot, file, id, mtime: unwritten.real };
            self.return_spare(device, loan, ino, ready)
        } else {
            // The commit has failed. The file stays in use until the table ends.
            unregister_backing(device, id);
            false
        }
    }

    /// Takes a file back. Returns whether it has not become an object.
    fn return_spare(
        &self,
        device: &Device,
        loan: &Arc<BorrowedSpares>,
        ino: Ino,
        ready: ReadySpare,
    ) -> bool {
        let is_back = loan.release_slot(ready.slot, ino);
        if is_back {
            self.keep_ready(device, loan, ready);
        } else {
            // The file is an object now, because another client has asked for it.
            unregister_backing(device, ready.id);
            self.vacate_slot(loan, ready.slot);
        }
        is_back
    }
}

impl SparePoolState {
    fn is_current(&self, loan: &Arc<BorrowedSpares>) -> bool {
        self.loan.as_ref().is_some_and(|ours| Arc::ptr_eq(ours, loan)) && !loan.is_ended()
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
