//! Spare files: empty files on this node's disk that are registered with the kernel in advance, for
//! new files. See `tatami_lend` and [`tatami_client::Loan`].
//!
//! The backing file is most of the cost of a new file: a request to the daemon, an inode of the
//! disk and the registration. All of it is wasted if the file is closed without a byte. A spare
//! file costs that once, and is reused until a program writes to it.

use crate::open::Backing;
use parking_lot::Mutex;
use std::os::fd::OwnedFd;
use std::sync::Arc;
use tatami_client::{DataFile, Loan, Spare};
use tatami_fuse::{BackingId, Device};
use tatami_wire::object::ObjectState;
use tatami_wire::{Errno, Ino, Piece, Timestamp};

/// Most consecutive refusals of a table. After these, the mount requests no further table.
const ATTEMPTS: u32 = 8;

/// A spare file that is in use for an inode. It must be returned, or turned into an object.
#[derive(Clone)]
pub(crate) struct Lent {
    loan: Arc<Loan>,
    slot: usize,
}

/// Times of a spare file in use.
///
/// The spare file is older than its inode. Until the first byte it shows the time of the inode.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Unwritten {
    pub(crate) real: Timestamp,
    pub(crate) shown: Timestamp,
}

impl Unwritten {
    /// Replaces the time in `state` if the file has not been written to.
    pub(crate) fn amend(this: Option<Unwritten>, mut state: ObjectState) -> ObjectState {
        if let Some(unwritten) = this.filter(|u| state.size == 0 && state.mtime == u.real) {
            state.mtime = unwritten.shown;
        }
        state
    }
}

/// A registered spare file that is free.
struct Ready {
    slot: usize,
    file: Arc<OwnedFd>,
    id: BackingId,
    mtime: Timestamp,
}

#[derive(Default)]
struct State {
    loan: Option<Arc<Loan>>,
    ready: Vec<Ready>,
    /// Slots without a registered file.
    vacant: Vec<usize>,
    /// Consecutive refusals of a table.
    refused: u32,
}

/// The spare pool of a mount.
#[derive(Default)]
pub(crate) struct Spares(Mutex<State>);

/// A moment before the creation of an inode.
pub(crate) struct Before(Option<(Arc<Loan>, tatami_client::Moment)>);

impl Spares {
    /// Returns the current moment. Must be called before the request for a new inode.
    pub(crate) fn now(&self) -> Before {
        let loan = self.0.lock().loan.clone();
        Before(loan.map(|loan| {
            let now = loan.now();
            (loan, now)
        }))
    }

    /// Takes a spare file for `ino`, an inode that was created after `before`. The file shows the
    /// time `mtime`. `None` if no spare file is available.
    pub(crate) fn lend(
        &self,
        device: &Device,
        data: &DataFile,
        before: &Before,
        mtime: Timestamp,
    ) -> Option<Backing> {
        let Some((loan, moment)) = before.0.as_ref().filter(|(loan, _)| !loan.is_ended()) else {
            self.begin(device, data);
            return None;
        };
        let ready = self.ready(device, data, loan)?;
        if !loan.lend(ready.slot, data.ino(), *moment) {
            // Another client may have created the object; only the daemon knows.
            if data.make_object().is_ok() {
                self.take_back(device, loan, data.ino(), ready);
            }
            return None;
        }
        let unwritten = Some(Unwritten { real: ready.mtime, shown: mtime });
        let lent = Some(Lent { loan: loan.clone(), slot: ready.slot });
        let file = Some(ready.file);
        Some(Backing { id: ready.id, file, base: Piece::BASE, lent, unwritten })
    }

    /// Requests a table, for later files.
    fn begin(&self, device: &Device, data: &DataFile) {
        let mut state = self.0.lock();
        if state.loan.as_ref().is_some_and(|loan| !loan.is_ended()) || state.refused >= ATTEMPTS {
            return;
        }
        for ready in std::mem::take(&mut state.ready) {
            unregister(device, ready.id);
        }
        state.loan = Loan::begin(data)
            .inspect_err(|error| tracing::debug!(%error, "nothing is lent by the node"))
            .ok()
            .map(Arc::new);
        state.refused = if state.loan.is_some() { 0 } else { state.refused + 1 };
        state.vacant = (0..Loan::SLOTS).rev().collect();
    }

    fn ready(&self, device: &Device, data: &DataFile, loan: &Arc<Loan>) -> Option<Ready> {
        let slot = {
            let mut state = self.0.lock();
            if !state.is_of(loan) {
                return None;
            }
            if let Some(ready) = state.ready.pop() {
                return Some(ready);
            }
            state.vacant.pop()?
        };
        match self.fetch(device, data, loan, slot) {
            Ok(ready) => ready,
            Err(error) => {
                tracing::debug!(%error, "no spare file");
                // After an answer from the daemon (such as a full disk), the slot has no pending
                // file, so it can be reused.
                if error != Errno::EHOSTDOWN {
                    self.vacate(loan, slot);
                }
                None
            }
        }
    }

    /// Gets and registers a new file for a free slot that the caller has reserved.
    fn fetch(
        &self,
        device: &Device,
        data: &DataFile,
        loan: &Arc<Loan>,
        slot: usize,
    ) -> Result<Option<Ready>, Errno> {
        let Spare { slot, file, state } = loan.spare(data, slot)?;
        match device.open_backing(&file) {
            Ok(id) => Ok(Some(Ready { slot, file, id, mtime: state.mtime })),
            Err(errno) => {
                tracing::warn!(%errno, "a spare file could not be registered");
                self.vacate(loan, slot);
                Ok(None)
            }
        }
    }

    fn vacate(&self, loan: &Arc<Loan>, slot: usize) {
        let mut state = self.0.lock();
        if state.is_of(loan) {
            state.vacant.push(slot);
        }
    }

    fn keep(&self, device: &Device, loan: &Arc<Loan>, ready: Ready) {
        let mut state = self.0.lock();
        if state.is_of(loan) {
            state.ready.push(ready);
        } else {
            drop(state);
            unregister(device, ready.id);
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
        lent: &Lent,
    ) -> Result<(), Errno> {
        let Lent { loan, slot } = lent;
        // The request for the next file of the slot turns the current one into an object.
        match self.fetch(device, data, loan, *slot) {
            Ok(ready) => {
                if let Some(ready) = ready {
                    self.keep(device, loan, ready);
                }
                Ok(())
            }
            // The table has ended, so the daemon has turned all files in use into objects.
            Err(Errno::ENOENT) => Ok(()),
            // The object must be created anyway, without a new file for the slot.
            Err(error) => {
                data.make_object()?;
                if error != Errno::EHOSTDOWN {
                    self.vacate(loan, *slot);
                }
                Ok(())
            }
        }
    }

    /// Returns the backing file after the last close of `ino`. If it is empty by the caller's
    /// commit, the pool reuses it. Returns whether `ino` has no object.
    pub(crate) fn give_back(
        &self,
        device: &Device,
        ino: Ino,
        backing: Backing,
        is_empty: bool,
    ) -> bool {
        let Backing { id, file: Some(file), lent: Some(lent), unwritten: Some(unwritten), .. } =
            backing
        else {
            unregister(device, backing.id);
            return false;
        };
        let Lent { loan, slot } = &lent;
        if is_empty {
            let ready = Ready { slot: *slot, file, id, mtime: unwritten.real };
            self.take_back(device, loan, ino, ready)
        } else {
            // The commit has failed. The file stays in use until the table ends.
            unregister(device, id);
            false
        }
    }

    /// Takes a file back. Returns whether it has not become an object.
    fn take_back(&self, device: &Device, loan: &Arc<Loan>, ino: Ino, ready: Ready) -> bool {
        let is_back = loan.give_back(ready.slot, ino);
        if is_back {
            self.keep(device, loan, ready);
        } else {
            // The file is an object now, because another client has asked for it.
            unregister(device, ready.id);
            self.vacate(loan, ready.slot);
        }
        is_back
    }
}

impl State {
    fn is_of(&self, loan: &Arc<Loan>) -> bool {
        self.loan.as_ref().is_some_and(|ours| Arc::ptr_eq(ours, loan)) && !loan.is_ended()
    }
}

fn unregister(device: &Device, id: BackingId) {
    if let Err(errno) = device.close_backing(id) {
        tracing::debug!(%errno, "a backing file was unregistered before");
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_spare_shows_the_time_of_its_inode_until_it_is_written_to() {
        let (real, shown) = (Timestamp::from_sec(5), Timestamp::from_sec(9));
        let unwritten = Some(Unwritten { real, shown });
        let state = ObjectState { exists: true, mtime: real, ..ObjectState::default() };
        assert_eq!(Unwritten::amend(unwritten, state).mtime, shown);
        assert_eq!(Unwritten::amend(None, state).mtime, real);
        let cut = ObjectState { mtime: Timestamp::from_sec(10), ..state };
        assert_eq!(Unwritten::amend(unwritten, cut), cut);
        let written = ObjectState { size: 1, ..state };
        assert_eq!(Unwritten::amend(unwritten, written), written);
    }
}
