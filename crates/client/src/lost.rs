//! Lost bytes: bytes that an inode has and its object has not. Either a disk was lost, or the
//! object was removed or cut behind the daemon's back.
//!
//! A client that changes the length of a file changes the object first, and then reports to the
//! shard. So an object is at least as long as its inode says, unless the shard has yet to hear of a
//! truncation. A client truncates a file only while it has the file open for writing. The shard
//! records such an open, and gives the inode a new version for it.
//!
//! So bytes are lost if three things hold: the object is too short, no client has the file open for
//! writing, and the inode has the same version before and after the look at the object. The shard
//! reports only other clients as writers; each client remembers its own truncations.
//!
//! While another client has the file open for writing, a missing object is lost, because no
//! truncation removes an object. An object that is merely too short does not count as lost then.

use crate::Client;
use parking_lot::Mutex;
use std::collections::{HashMap, HashSet};
use tatami_wire::{Attr, Cred, Errno, Ino, NodeId, Piece};

/// Most objects that are remembered as reported; beyond, some are reported again.
const REPORTED_MAX: usize = 4096;

/// Most inodes whose truncation by this client is remembered. When so many truncations could not be
/// reported to their shards, no byte counts as lost.
const CUTTING_MAX: usize = 65_536;

/// Truncations by this client of which the shard has not heard yet, and the objects that were
/// reported as lost.
#[derive(Default)]
pub(crate) struct LossTracker {
    cutting: Mutex<HashMap<Ino, u32>>,
    reported: Mutex<HashSet<(Ino, Piece)>>,
}

impl LossTracker {
    /// Begins a truncation of an object of `ino`: until [`LossTracker::end_cut`] its length proves
    /// nothing.
    pub(crate) fn begin_cut(&self, ino: Ino) {
        let mut cutting = self.cutting.lock();
        if cutting.len() < CUTTING_MAX || cutting.contains_key(&ino) {
            *cutting.entry(ino).or_default() += 1;
        }
    }

    /// Ends a truncation: the shard knows of it, or the object was not changed.
    pub(crate) fn end_cut(&self, ino: Ino) {
        let mut cutting = self.cutting.lock();
        if let Some(count) = cutting.get_mut(&ino) {
            *count -= 1;
            if *count == 0 {
                cutting.remove(&ino);
            }
        }
    }

    /// Ends all truncations of `ino`: the shard knows the object's length, also after a truncation
    /// that could not be reported before.
    pub(crate) fn forget_cuts(&self, ino: Ino) {
        self.cutting.lock().remove(&ino);
    }

    fn is_cutting(&self, ino: Ino) -> bool {
        let cutting = self.cutting.lock();
        cutting.len() >= CUTTING_MAX || cutting.contains_key(&ino)
    }

    /// Records a report. Returns whether it is the first of this object.
    fn record_report(&self, ino: Ino, piece: Piece) -> bool {
        let mut reported = self.reported.lock();
        if reported.len() >= REPORTED_MAX {
            reported.clear();
        }
        reported.insert((ino, piece))
    }
}

/// An object that is too short, as it was seen.
pub(crate) struct ShortObject {
    pub(crate) node: NodeId,
    pub(crate) piece: Piece,
    /// Bytes that it must have at least.
    pub(crate) least: u64,
    /// Bytes that it has; `None` where it does not exist.
    pub(crate) has: Option<u64>,
}

impl Client {
    /// Returns whether bytes of `ino` are lost for good. `look` reads the state of an object, given
    /// the inode as it is, and returns it if it is too short for that inode.
    ///
    /// # Errors
    /// Those of the shard and of `look`.
    pub(crate) fn is_lost(
        &self,
        ino: Ino,
        look: impl FnOnce(&Attr) -> Result<Option<ShortObject>, Errno>,
    ) -> Result<bool, Errno> {
        let before = self.getattr(&Cred::ROOT, ino)?;
        // The order counts. A truncation that begins after this check changes the version, if the
        // shard hears of it before the second look at the inode.
        if self.loss_tracker.is_cutting(ino) {
            return Ok(false);
        }
        let Some(short) = look(&before)? else { return Ok(false) };
        // Once more: a truncation that began after the first check may have cut the object before
        // it was looked at.
        if self.loss_tracker.is_cutting(ino) {
            return Ok(false);
        }
        // Another client's open for writing since the first look has changed the version.
        let after = self.getattr(&Cred::ROOT, ino)?;
        let is_written = before.maybe_written_elsewhere || after.maybe_written_elsewhere;
        if before.version != after.version || is_written && short.has.is_some() {
            return Ok(false);
        }
        self.report_lost(ino, &short);
        Ok(true)
    }

    /// Reports, once, an object that lacks bytes.
    pub(crate) fn report_lost(&self, ino: Ino, short: &ShortObject) {
        if self.loss_tracker.record_report(ino, short.piece) {
            tracing::error!(
                %ino, node = short.node.0, object = short.piece.0, least = short.least,
                has = short.has.unwrap_or(0), there = short.has.is_some(),
                "bytes of a file are lost: reading them fails with EIO; tatami fsck --lost names the file"
            );
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn cuts_are_counted_and_reports_bounded() {
        let losses = LossTracker::default();
        losses.begin_cut(Ino(5));
        losses.begin_cut(Ino(5));
        losses.end_cut(Ino(5));
        assert!(losses.is_cutting(Ino(5)) && !losses.is_cutting(Ino(6)));
        losses.end_cut(Ino(5));
        losses.end_cut(Ino(5));
        assert!(!losses.is_cutting(Ino(5)));
        assert!(losses.record_report(Ino(5), Piece(0)));
        assert!(!losses.record_report(Ino(5), Piece(0)) && losses.record_report(Ino(5), Piece(1)));
        for ino in 0..2 * REPORTED_MAX as u64 {
            losses.record_report(Ino(ino), Piece(0));
        }
        assert!(losses.reported.lock().len() <= REPORTED_MAX);
    }
}
