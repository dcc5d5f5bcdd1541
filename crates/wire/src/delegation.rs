//! Delegations: they let a client answer lookups by itself.
//!
//! A client with an open connection of [`Role::Recall`](crate::handshake::Role) gets delegations
//! with replies: of an inode (the client's copy of its attributes is valid), and of a directory's
//! entries. Before another client sees a change, the shard recalls the delegation. It waits for the
//! holder's reply or for the end of the holder's term. (Read delegations as in NFSv4.1, RFC 8881
//! section 10.4; callbacks of AFS.)
//!
//! A *path delegation* of a directory covers what a path through it needs: that its name leads
//! there, its mode, owner and ACL. It outlives changes of the directory's entries by other clients.
//! Each delegation of a directory includes its path delegation.
//!
//! The client counts its term from the time at which it *sent* the last [`RecallCall::KeepAlive`]
//! that was answered. The daemon counts from the receipt, so the client's term ends first. When the
//! connection breaks, the client has no delegations any more. A client's own changes are not
//! recalled: the reply names them.

use crate::admin::DiskSpace;
use crate::meta::Bytes;
use crate::partition::HashRange;
use crate::{Attr, Ino};
use serde::{Deserialize, Serialize};

/// Most files in one [`RecallCall::OpenForReading`].
pub const OPEN_FOR_READING_MAX: usize = 4096;

/// A message of a client on its recall connection. The sequence number of the frame has no meaning.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum RecallCall {
    /// The client is alive: a new term begins. Reply: [`RecallNotice::Term`].
    KeepAlive,
    /// The client has returned the delegations of this recall.
    Returned(u64),
    /// The client has these files open only for reading, at most [`OPEN_FOR_READING_MAX`], as after
    /// [`MetaOp::Open`](crate::meta::MetaOp) with `noted`. Sent before the first `Alive`, because
    /// the daemon may have restarted, and after a change of the map.
    OpenForReading(Vec<Ino>),
}

/// A message of a daemon on a recall connection, with or without a request.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum RecallNotice {
    /// The reply to [`RecallCall::KeepAlive`].
    Term {
        /// Length of the delegations' term from now on, in milliseconds.
        term_millis: u32,
        /// Length of the lease of the client's locks, in milliseconds.
        lease_millis: u32,
        /// Epoch of the cluster map. A client with a lower one should request the map.
        epoch: u64,
        /// Changes of the executor that are older than this survive a power cut, including those of
        /// their participants, in milliseconds.
        durable_millis: u32,
        /// Space on the disk of the executor's node, if known.
        space: Option<DiskSpace>,
    },
    /// The client must return these delegations at once and confirm with `Returned`.
    Recall {
        /// Number of the recall.
        id: u64,
        /// The inodes whose delegations end.
        inos: Vec<Ino>,
        /// Directories of which other clients change entries: their path delegations stay.
        entries: Vec<Ino>,
    },
    /// Notifications about locks, see [`crate::lock`]. They may get lost: a waiting client repeats
    /// its request anyway, and a client that reconnects reclaims its locks.
    LockNotices {
        /// The client must return its lock delegations of these inodes.
        recalled: Vec<Ino>,
        /// Waits that have ended.
        ready: Vec<u64>,
    },
    /// The cluster map has changed, see [`RecallNotice::Term`].
    Map {
        /// Epoch of the new map.
        epoch: u64,
    },
}

/// Delegations and changes that a reply to a [`crate::meta::MetaOp`] has as the frame's payload, if
/// the client has a recall connection.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct DelegationGrant {
    /// Inodes that the operation has changed. The client must drop their cached attributes.
    pub changed: Vec<Ino>,
    /// Inodes that are delegated to the client.
    pub delegated: Vec<Ino>,
    /// The reply shows the attributes of a directory of which only the path is delegated.
    pub has_path: bool,
    /// Attributes, after the operation, of the directory in which the operation looked up or
    /// changed an entry, or which it listed with attributes. Only if the directory is delegated.
    pub dir: Option<Box<Attr>>,
    /// Like `dir`, for a partition of a directory, delegated with its entries.
    pub partition: Option<Box<PartitionAttr>>,
    /// The listed entries that are delegated, with the attributes in the reply.
    pub delegated_entries: DelegatedEntries,
}

/// A partition of a directory. A client that has them all can compute the directory's attributes.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct PartitionAttr {
    /// Number, counts and times of the partition, and the attributes that all partitions share:
    /// mode, owner and the like.
    pub attr: Attr,
    /// The hashes of its names.
    pub range: HashRange,
}

/// A bit for each entry of a listing, in its order. Bits past the end are 0.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct DelegatedEntries(Bytes);

impl FromIterator<bool> for DelegatedEntries {
    fn from_iter<T: IntoIterator<Item = bool>>(bits: T) -> DelegatedEntries {
        let mut bytes = Vec::new();
        for (n, bit) in bits.into_iter().take(DelegatedEntries::MAX).enumerate() {
            if n % 8 == 0 {
                bytes.push(0);
            }
            if let Some(last) = bytes.last_mut() {
                *last |= u8::from(bit) << (n % 8);
            }
        }
        DelegatedEntries(Bytes::from(bytes))
    }
}

impl DelegatedEntries {
    /// Longest listing that can delegate all of its entries.
    pub const MAX: usize = crate::READDIR_MAX as usize;

    /// Checks whether entry `n` is delegated.
    pub fn is_delegated(&self, n: usize) -> bool {
        self.0.as_slice().get(n / 8).is_some_and(|byte| byte >> (n % 8) & 1 == 1)
    }
}

impl DelegationGrant {
    /// Longest encoding, in bytes.
    pub const LEN_MAX: usize = 1024;
    /// Most inodes in `changed`. A client with delegations never runs an operation that changes
    /// more.
    pub const CHANGED_MAX: usize = 32;

    /// Encodes the payload.
    pub fn encode(&self) -> Vec<u8> {
        postcard::to_allocvec(self).expect("plain data: encoding into memory cannot fail")
    }

    /// Decodes a payload.
    ///
    /// # Errors
    /// Bytes that do not decode.
    pub fn decode(bytes: &[u8]) -> Result<DelegationGrant, crate::frame::FrameError> {
        crate::frame::decode_body(bytes)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    proptest! {
        #[test]
        fn a_listing_keeps_its_bits(bits in prop::collection::vec(any::<bool>(), 0..1100)) {
            let listed: DelegatedEntries = bits.iter().copied().collect();
            for (n, bit) in bits.iter().enumerate() {
                prop_assert_eq!(listed.is_delegated(n), *bit && n < DelegatedEntries::MAX);
            }
            prop_assert!(!listed.is_delegated(bits.len()));
            let granted = DelegationGrant { delegated_entries: listed, ..DelegationGrant::default() };
            prop_assert!(granted.encode().len() < DelegationGrant::LEN_MAX / 4);
        }

        #[test]
        fn any_bytes_are_read_or_refused(bytes in prop::collection::vec(any::<u8>(), 0..300)) {
            if let Ok(granted) = DelegationGrant::decode(&bytes) {
                let set = (0..2 * DelegatedEntries::MAX).filter(|n| granted.delegated_entries.is_delegated(*n)).count();
                prop_assert!(set <= bytes.len() * 8);
            }
        }
    }
}
