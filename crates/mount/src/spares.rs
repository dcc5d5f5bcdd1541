//! Empty files of our node's disk, registered with the kernel ahead, for files that are being
//! made. See `tatami_lend`, and [`tatami_client::Loan`].
//!
//! Most of what an open of a new file costs is its backing file: a request to the daemon, an inode
//! of the disk, and the registration, all of it for nothing where the file is closed
//! without a byte. A spare costs that once and is used until somebody writes to it.

use crate::open::Backing;
use parking_lot::Mutex;
use std::os::fd::OwnedFd;
use std::sync::Arc;
use tatami_client::{DataFile, Loan, Spare};
use tatami_fuse::{BackingId, Device};
use tatami_wire::object::ObjectState;
use tatami_wire::{Errno, Ino, Piece, Timestamp};

/// So often in a row may a table be refused before none is asked for any more.
const ATTEMPTS: u32 = 8;

/// A spare that stands for an inode: what must be said of it in the end.
#[derive(Clone)]
pub(crate) struct Lent {
    loan: Arc<Loan>,
    slot: usize,
}

/// When a backing file that was lent was last changed before it was written to.
///
/// It is older than the inode that it stands for. Until its first byte it shows the
/// time that the inode has.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Unwritten {
    pub(crate) real: Timestamp,
    pub(crate) shown: Timestamp,
}

impl Unwritten {
    /// What is to be taken for the state of the file.
    pub(crate) fn amend(this: Option<Unwritten>, mut state: ObjectState) -> ObjectState {
        if let Some(unwritten) = this.filter(|u| state.size == 0 && state.mtime == u.real) {
            state.mtime = unwritten.shown;
        }
        state
    }
}

/// A registered file that stands for nothing.
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
    /// Slots without a file of ours.
    vacant: Vec<usize>,
    /// Tables refused since the last one.
    refused: u32,
}

/// See the module.
#[derive(Default)]
pub(crate) struct Spares(Mutex<State>);

/// A moment before an inode is made.
pub(crate) struct Before(Option<(Arc<Loan>, tatami_client::Moment)>);

impl Spares {
    /// Now. To be called before the shard is asked for a new inode.
    pub(crate) fn now(&self) -> Before {
        let loan = self.0.lock().loan.clone();
        Before(loan.map(|loan| {
            let now = loan.now();
            (loan, now)
        }))
    }

    /// A file for `ino`, a new inode that nobody knew before `before`; it shows the time `mtime`.
    /// `None` where there is none to be had.
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
            // Somebody else may have made the object: the daemon knows.
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

    /// Asks for a table, for the files to come.
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
                // Where the daemon has answered, as it does on a full disk, it makes none later.
                if error != Errno::EHOSTDOWN {
                    self.vacate(loan, slot);
                }
                None
            }
        }
    }

    /// A new file for a slot that we do not use, and that is nobody else's meanwhile.
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

    /// The file of an inode that has bytes becomes its object, and the slot gets a new one.
    ///
    /// # Errors
    /// Those of the disk and of the daemon; then it is still lent.
    pub(crate) fn make_object(
        &self,
        device: &Device,
        data: &DataFile,
        lent: &Lent,
    ) -> Result<(), Errno> {
        let Lent { loan, slot } = lent;
        match self.fetch(device, data, loan, *slot) {
            Ok(ready) => {
                if let Some(ready) = ready {
                    self.keep(device, loan, ready);
                }
                Ok(())
            }
            // The table has ended: the daemon has made objects of all.
            Err(Errno::ENOENT) => Ok(()),
            // Without a new file, then.
            Err(error) => {
                data.make_object()?;
                if error != Errno::EHOSTDOWN {
                    self.vacate(loan, *slot);
                }
                Ok(())
            }
        }
    }

    /// Nobody has `ino` open any more. Where its file has no byte, as the caller says, it is
    /// used again. Returns whether `ino` has no object.
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
            // Telling of it has failed. It stays lent until the table ends.
            unregister(device, id);
            false
        }
    }

    /// Whether the file has become no object.
    fn take_back(&self, device: &Device, loan: &Arc<Loan>, ino: Ino, ready: Ready) -> bool {
        let is_back = loan.give_back(ready.slot, ino);
        if is_back {
            self.keep(device, loan, ready);
        } else {
            // It is an object now, somebody else has asked for it.
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
