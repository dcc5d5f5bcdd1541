//! Delegations: what lets a client answer questions about names by itself.
//!
//! A client that has a connection of [`Role::Recall`](crate::handshake::Role)
//! open is given delegations along with answers: of an inode (its attributes
//! are what the client was told) and, if that is a directory, of its entries.
//! Before anybody sees a change that somebody else makes, the shard recalls the
//! delegation and waits until the client has answered, or until its term is over.
//! (Read delegations as in NFSv4.1, RFC 8881 section 10.4; callbacks of AFS.)
//!
//! A client counts its term from the moment at which it *sent* the
//! [`RecallCall::Alive`] that was answered last, the daemon from when that came in,
//! so the client's is over first. When the connection breaks, the client has
//! nothing any more. A client's own changes are not recalled: it is told of
//! them with the answer.

use crate::admin::Space;
use crate::meta::Bytes;
use crate::partition::Range;
use crate::{Attr, Ino};
use serde::{Deserialize, Serialize};

/// Most files that one [`RecallCall::Holds`] names.
pub const HELD_MAX: usize = 4096;

/// What a client says on its recall connection. The sequence number of the
/// frame has no meaning.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum RecallCall {
    /// It is alive: its term begins anew. Answered by [`RecallNote::Term`].
    Alive,
    /// It has given back what this recall named.
    Returned(u64),
    /// It has these files open, at most [`HELD_MAX`], without writing: as after [`MetaOp::Open`](crate::meta::MetaOp) with `noted`.
    /// Said before the first `Alive`, since the daemon may be another one, and when the map has changed.
    Holds(Vec<Ino>),
}

/// What a daemon says on a recall connection, asked or not.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum RecallNote {
    /// The answer to [`RecallCall::Alive`].
    Term {
        /// How long the delegations last from now on, in milliseconds.
        millis: u32,
        /// How long the node keeps the client's locks once the client is away, in milliseconds.
        lease: u32,
        /// Of the cluster map: a client with a lower one should ask for it.
        epoch: u64,
        /// What the executor had done so many milliseconds ago survives a power cut, the parts of others included.
        lasting: u32,
        /// Of the executor's node, if its disk tells.
        space: Option<Space>,
    },
    /// The client must give these back at once, and say so.
    Recall {
        /// Number of the recall.
        id: u64,
        /// Of which inodes.
        inos: Vec<Ino>,
    },
    /// News of locks, see [`crate::lock`]. It is no harm if they get lost: clients that wait ask
    /// again by themselves, and who comes back tells what it holds.
    Locks {
        /// The client shall give back what was delegated to it of these inodes.
        wanted: Vec<Ino>,
        /// Waits that have come to their end.
        ready: Vec<u64>,
    },
    /// The cluster map has changed, see [`RecallNote::Term`].
    Map {
        /// Its epoch.
        epoch: u64,
    },
}

/// What comes along with the answer to a [`crate::meta::MetaOp`], as the
/// frame's payload, if the client has a recall connection.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Granted {
    /// Inodes that the operation has changed: what the client knew of their
    /// attributes is past.
    pub changed: Vec<Ino>,
    /// Inodes that are delegated to the client.
    pub delegated: Vec<Ino>,
    /// The attributes of the directory in which the operation looked up or
    /// changed an entry, or which it listed with attributes, after it, if that is delegated.
    pub dir: Option<Box<Attr>>,
    /// The partition of a directory in which the operation looked up or changed an entry, or which it listed with attributes,
    /// after it, if that is delegated, with its entries.
    pub part: Option<Box<PartTold>>,
    /// Which of the entries that the answer lists are delegated, with the attributes that it tells.
    pub listed: Listed,
}

/// One of the partitions of a directory. Whoever has been told of all knows the attributes of the directory.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct PartTold {
    /// Its number, its counts and times, and what is the same in all: mode, owner and the like.
    pub attr: Attr,
    /// The hashes of its names.
    pub range: Range,
}

/// A bit for each entry of a listing, in its order. Those past the end are not set.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Listed(Bytes);

impl FromIterator<bool> for Listed {
    fn from_iter<T: IntoIterator<Item = bool>>(bits: T) -> Listed {
        let mut bytes = Vec::new();
        for (n, bit) in bits.into_iter().take(Listed::MAX).enumerate() {
            if n % 8 == 0 {
                bytes.push(0);
            }
            if let Some(last) = bytes.last_mut() {
                *last |= u8::from(bit) << (n % 8);
            }
        }
        Listed(Bytes::from(bytes))
    }
}

impl Listed {
    /// Longest listing of which all entries can be delegated.
    pub const MAX: usize = crate::READDIR_MAX as usize;

    /// Whether entry `n` is delegated.
    pub fn has(&self, n: usize) -> bool {
        self.0.as_slice().get(n / 8).is_some_and(|byte| byte >> (n % 8) & 1 == 1)
    }
}

impl Granted {
    /// Longest encoding, in bytes.
    pub const LEN_MAX: usize = 1024;
    /// Most inodes that are named as changed. An operation that changes more is none of a
    /// client that anything is delegated to.
    pub const CHANGED_MAX: usize = 32;

    /// The payload.
    pub fn encode(&self) -> Vec<u8> {
        postcard::to_allocvec(self).expect("plain data: encoding into memory cannot fail")
    }

    /// Reads a payload.
    ///
    /// # Errors
    /// What does not read.
    pub fn decode(bytes: &[u8]) -> Result<Granted, crate::frame::FrameError> {
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
            let listed: Listed = bits.iter().copied().collect();
            for (n, bit) in bits.iter().enumerate() {
                prop_assert_eq!(listed.has(n), *bit && n < Listed::MAX);
            }
            prop_assert!(!listed.has(bits.len()));
            let granted = Granted { listed, ..Granted::default() };
            prop_assert!(granted.encode().len() < Granted::LEN_MAX / 4);
        }

        #[test]
        fn any_bytes_are_read_or_refused(bytes in prop::collection::vec(any::<u8>(), 0..300)) {
            if let Ok(granted) = Granted::decode(&bytes) {
                let set = (0..2 * Listed::MAX).filter(|n| granted.listed.has(*n)).count();
                prop_assert!(set <= bytes.len() * 8);
            }
        }
    }
}
