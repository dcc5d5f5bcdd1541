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
use tatami_wire::{Attr, Cred, Errno, Ino, NodeId, Piece};

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
