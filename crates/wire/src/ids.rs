//! Ids of shards, executors, inodes, volumes and clients.

use crate::NodeId;
use serde::{Deserialize, Serialize};
use std::fmt;

/// A slice of the namespace: one position on the ring of a [`ShardMap`](crate::ShardMap). Below
/// [`SHARDS_MAX`](crate::SHARDS_MAX) in every message and record: a higher number is not decoded,
/// since no inode number has room for it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(try_from = "u16")]
pub struct ShardId(pub u16);

/// A number that is no shard's.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{0} is no shard: there are {max} at most", max = 1 << SHARD_BITS)]
pub struct UnknownShard(u16);

impl TryFrom<u16> for ShardId {
    type Error = UnknownShard;

    fn try_from(number: u16) -> Result<ShardId, UnknownShard> {
        match number >> SHARD_BITS {
            0 => Ok(ShardId(number)),
            _ => Err(UnknownShard(number)),
        }
    }
}

/// Most executors of a node.
pub const EXECUTORS_MAX: u8 = 64;

/// An executor: a thread of a node's daemon that serves shards and has its own store and
/// connections. The namespace treats two executors of one node like executors of two nodes.
///
/// The first executor of a node has the same text and the same encoding as the node.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(try_from = "u32", into = "u32")]
pub struct ExecutorId {
    /// The node of the executor.
    pub node: NodeId,
    /// Index of the executor among those of the node, from 0, below [`EXECUTORS_MAX`].
    pub index: u8,
}

impl ExecutorId {
    /// Returns the first executor of a node. Every node has one.
    pub fn first_of_node(node: NodeId) -> ExecutorId {
        ExecutorId { node, index: 0 }
    }
}

impl From<ExecutorId> for u32 {
    fn from(executor: ExecutorId) -> u32 {
        u32::from(executor.index) << 16 | u32::from(executor.node.0)
    }
}

/// The error for an executor index of [`EXECUTORS_MAX`] or more.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("a node has at most {EXECUTORS_MAX} executors")]
pub struct InvalidExecutor;

impl TryFrom<u32> for ExecutorId {
    type Error = InvalidExecutor;

    fn try_from(bits: u32) -> Result<ExecutorId, InvalidExecutor> {
        let index = u8::try_from(bits >> 16).ok().filter(|index| *index < EXECUTORS_MAX);
        Ok(ExecutorId { node: NodeId(bits as u16), index: index.ok_or(InvalidExecutor)? })
    }
}

impl fmt::Display for ExecutorId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.index {
            0 => write!(f, "{}", self.node),
            index => write!(f, "{}.{index}", self.node),
        }
    }
}

/// An inode number. From the top it has 12 bits for the owner shard, which has the inode record, so
/// a client can route a request by the number alone; 12 bits for the allocating shard, which gave
/// the number out; one bit that is always 0; and 39 bits that are unique on the allocating shard.
///
/// Both shards are equal except for directories. A hash of the other bits spreads directories over
/// all shards.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
pub struct Ino(pub u64);

const SHARD_BITS: u32 = 12;
/// Includes the bit that is always 0.
const COUNTER_BITS: u32 = 40;

impl Ino {
    /// The root directory of every volume: inode 1 of shard 0.
    pub const ROOT: Ino = Ino(1);
    /// Highest value of [`Ino::counter`].
    pub const COUNTER_MAX: u64 = Ino::MARK - 1;
    /// A bit that is 0 in every number. Tables may store one more fact about an inode in it.
    pub const MARK: u64 = 1 << (COUNTER_BITS - 1);

    /// Returns the inode with the owner shard `home` and the allocating shard `birth`. Both must be
    /// below [`SHARDS_MAX`](crate::SHARDS_MAX), and `counter` at most [`Ino::COUNTER_MAX`].
    pub fn new(home: ShardId, birth: ShardId, counter: u64) -> Ino {
        assert!(counter <= Ino::COUNTER_MAX, "counters have 39 bits");
        assert!((home.0 | birth.0) >> SHARD_BITS == 0, "shards have 12 bits");
        let shards = u64::from(home.0) << SHARD_BITS | u64::from(birth.0);
        Ino(shards << COUNTER_BITS | counter)
    }

    /// Returns the lowest inode number of `shard`.
    pub fn first_in_shard(shard: ShardId) -> Ino {
        Ino::new(shard, ShardId(0), 0)
    }

    /// Returns the owner shard: the shard that has the inode record.
    pub fn owner_shard(self) -> ShardId {
        ShardId((self.0 >> (SHARD_BITS + COUNTER_BITS)) as u16)
    }

    /// Returns the allocating shard: the shard that gave the number out.
    pub fn allocating_shard(self) -> ShardId {
        ShardId((self.0 >> COUNTER_BITS) as u16 & ((1 << SHARD_BITS) - 1))
    }

    /// Returns the part of the number that is unique on the allocating shard.
    pub fn counter(self) -> u64 {
        self.0 & Ino::COUNTER_MAX
    }
}

impl fmt::Display for Ino {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:016x}", self.0)
    }
}

impl fmt::Debug for Ino {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Ino({self})")
    }
}

macro_rules! id128 {
    ($(#[$doc:meta])* $name:ident) => {
        $(#[$doc])*
        #[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
        pub struct $name(pub [u8; 16]);

        impl fmt::Display for $name {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                self.0.iter().try_for_each(|b| write!(f, "{b:02x}"))
            }
        }

        impl fmt::Debug for $name {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                write!(f, concat!(stringify!($name), "({})"), self)
            }
        }

        impl std::str::FromStr for $name {
            type Err = InvalidId;
            fn from_str(s: &str) -> Result<Self, InvalidId> {
                parse_hex(s).map($name)
            }
        }
    };
}

id128! {
    /// Id of a volume, drawn at random when the volume is created.
    VolumeId
}
id128! {
    /// Id of a mount or library client, drawn at random when the client starts. A client keeps its
    /// id when it reconnects.
    ClientId
}

/// The error for text that is not the 32 hexadecimal digits of an id.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("an id is 32 hexadecimal digits")]
pub struct InvalidId;

pub(crate) fn parse_hex<const N: usize>(s: &str) -> Result<[u8; N], InvalidId> {
    let s = s.as_bytes();
    if s.len() != 2 * N {
        return Err(InvalidId);
    }
    let digit = |c: u8| (c as char).to_digit(16).ok_or(InvalidId);
    let mut out = [0; N];
    for (byte, pair) in out.iter_mut().zip(s.chunks_exact(2)) {
        *byte = (digit(pair[0])? << 4 | digit(pair[1])?) as u8;
    }
    Ok(out)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_inode_number_carries_its_shards() {
        let ino = Ino::new(ShardId(513), ShardId(4095), 7);
        assert_eq!(
            (ino.owner_shard(), ino.allocating_shard(), ino.counter()),
            (ShardId(513), ShardId(4095), 7)
        );
        assert_eq!(Ino::ROOT, Ino::new(ShardId(0), ShardId(0), 1));
        assert!(Ino::first_in_shard(ShardId(513)) < ino && ino < Ino::first_in_shard(ShardId(514)));
        let last = Ino::new(ShardId(4095), ShardId(4095), Ino::COUNTER_MAX);
        assert_eq!((last.0 & Ino::MARK, last.counter()), (0, Ino::COUNTER_MAX));
    }

    #[test]
    fn a_shard_that_no_inode_number_has_room_for_is_not_decoded() {
        let decode = |number: u16| {
            let bytes = postcard::to_allocvec(&number).expect("plain data");
            postcard::from_bytes::<ShardId>(&bytes)
        };
        assert_eq!(decode(4095).ok(), Some(ShardId(4095)));
        for number in [4096, u16::MAX] {
            assert!(decode(number).is_err());
        }
    }

    #[test]
    fn the_first_executor_of_a_node_is_written_as_the_node() {
        let of = |node, index| ExecutorId { node: NodeId(node), index };
        let bytes = postcard::to_allocvec(&of(700, 0)).expect("plain data");
        assert_eq!(bytes, postcard::to_allocvec(&NodeId(700)).expect("plain data"));
        for id in [of(0, 0), of(u16::MAX, EXECUTORS_MAX - 1), of(7, 1)] {
            assert_eq!(ExecutorId::try_from(u32::from(id)), Ok(id));
        }
        assert_eq!(ExecutorId::try_from(u32::from(EXECUTORS_MAX) << 16), Err(InvalidExecutor));
        assert_eq!([of(3, 0), of(3, 2)].map(|id| id.to_string()), ["3", "3.2"]);
    }

    #[test]
    fn ids_read_what_they_print() {
        let id = VolumeId([0xa5; 16]);
        assert_eq!(id.to_string().parse(), Ok(id));
        assert_eq!("xyz".parse::<VolumeId>(), Err(InvalidId));
        assert_eq!("é".repeat(16).parse::<VolumeId>(), Err(InvalidId));
    }
}
