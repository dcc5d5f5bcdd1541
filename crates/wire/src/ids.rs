//! Numbers that name things.

use crate::NodeId;
use serde::{Deserialize, Serialize};
use std::fmt;

/// A slice of the namespace: one of the places of a ring, see [`ShardMap`](crate::ShardMap).
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
pub struct ShardId(pub u16);

/// Most executors of a node.
pub const EXECUTORS_MAX: u8 = 64;

/// An executor: a thread of a node's daemon that serves shards, with a store and connections of its own. To
/// the namespace executors of one node are as far from each other as those of different nodes.
///
/// The first of a node is written as the node is, also in what is encoded.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(try_from = "u32", into = "u32")]
pub struct ExecutorId {
    /// The node it runs on.
    pub node: NodeId,
    /// Which of the node's executors it is, counted from 0, below [`EXECUTORS_MAX`].
    pub index: u8,
}

impl ExecutorId {
    /// The first executor of a node: every node has it.
    pub fn first(node: NodeId) -> ExecutorId {
        ExecutorId { node, index: 0 }
    }
}

impl From<ExecutorId> for u32 {
    fn from(executor: ExecutorId) -> u32 {
        u32::from(executor.index) << 16 | u32::from(executor.node.0)
    }
}

/// An executor's number beyond [`EXECUTORS_MAX`].
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("a node has at most {EXECUTORS_MAX} executors")]
pub struct NoExecutor;

impl TryFrom<u32> for ExecutorId {
    type Error = NoExecutor;

    fn try_from(bits: u32) -> Result<ExecutorId, NoExecutor> {
        let index = u8::try_from(bits >> 16).ok().filter(|index| *index < EXECUTORS_MAX);
        Ok(ExecutorId { node: NodeId(bits as u16), index: index.ok_or(NoExecutor)? })
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

/// An inode number: 12 bits for the shard on which the inode record lives, so that whoever
/// knows an inode number knows whom to ask; 12 bits for the shard on which it was given out; and
/// 39 bits that nothing else has that was given out there, below a bit that is never set.
///
/// Both shards are the same but for directories, which are dealt out to all shards
/// by a hash of the rest.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
pub struct Ino(pub u64);

const SHARD_BITS: u32 = 12;
/// With the bit that is never set.
const COUNTER_BITS: u32 = 40;

impl Ino {
    /// The root directory of every volume: inode 1 of shard 0.
    pub const ROOT: Ino = Ino(1);
    /// Highest [`Ino::counter`].
    pub const COUNTER_MAX: u64 = Ino::MARK - 1;
    /// A bit that no number has, for tables that say one thing more about an inode in the same word.
    pub const MARK: u64 = 1 << (COUNTER_BITS - 1);

    /// The inode that lives on `home` and got its number on `birth`. Shards lie below
    /// [`SHARDS_MAX`](crate::SHARDS_MAX), `counter` not above [`Ino::COUNTER_MAX`].
    pub fn new(home: ShardId, birth: ShardId, counter: u64) -> Ino {
        assert!(counter <= Ino::COUNTER_MAX, "counters have 39 bits");
        assert!((home.0 | birth.0) >> SHARD_BITS == 0, "shards have 12 bits");
        let shards = u64::from(home.0) << SHARD_BITS | u64::from(birth.0);
        Ino(shards << COUNTER_BITS | counter)
    }

    /// The least number that an inode of `shard` can have.
    pub fn first_of(shard: ShardId) -> Ino {
        Ino::new(shard, ShardId(0), 0)
    }

    /// The shard that keeps the inode record.
    pub fn shard(self) -> ShardId {
        ShardId((self.0 >> (SHARD_BITS + COUNTER_BITS)) as u16)
    }

    /// The shard that gave the number out.
    pub fn birth(self) -> ShardId {
        ShardId((self.0 >> COUNTER_BITS) as u16 & ((1 << SHARD_BITS) - 1))
    }

    /// What the number is among those of its birth shard.
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
            type Err = BadId;
            fn from_str(s: &str) -> Result<Self, BadId> {
                parse_hex(s).map($name)
            }
        }
    };
}

id128! {
    /// One file system, drawn at random when it is created.
    VolumeId
}
id128! {
    /// One mount or library client, drawn at random when it starts. It outlives
    /// connections: a client that reconnects keeps its id.
    ClientId
}

/// Text that is not the 32 hexadecimal digits of an id.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("an id is 32 hexadecimal digits")]
pub struct BadId;

pub(crate) fn parse_hex<const N: usize>(s: &str) -> Result<[u8; N], BadId> {
    let s = s.as_bytes();
    if s.len() != 2 * N {
        return Err(BadId);
    }
    let digit = |c: u8| (c as char).to_digit(16).ok_or(BadId);
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
        assert_eq!((ino.shard(), ino.birth(), ino.counter()), (ShardId(513), ShardId(4095), 7));
        assert_eq!(Ino::ROOT, Ino::new(ShardId(0), ShardId(0), 1));
        assert!(Ino::first_of(ShardId(513)) < ino && ino < Ino::first_of(ShardId(514)));
        let last = Ino::new(ShardId(4095), ShardId(4095), Ino::COUNTER_MAX);
        assert_eq!((last.0 & Ino::MARK, last.counter()), (0, Ino::COUNTER_MAX));
    }

    #[test]
    fn the_first_executor_of_a_node_is_written_as_the_node() {
        let of = |node, index| ExecutorId { node: NodeId(node), index };
        let bytes = postcard::to_allocvec(&of(700, 0)).expect("plain data");
        assert_eq!(bytes, postcard::to_allocvec(&NodeId(700)).expect("plain data"));
        for id in [of(0, 0), of(u16::MAX, EXECUTORS_MAX - 1), of(7, 1)] {
            assert_eq!(ExecutorId::try_from(u32::from(id)), Ok(id));
        }
        assert_eq!(ExecutorId::try_from(u32::from(EXECUTORS_MAX) << 16), Err(NoExecutor));
        assert_eq!([of(3, 0), of(3, 2)].map(|id| id.to_string()), ["3", "3.2"]);
    }

    #[test]
    fn ids_read_what_they_print() {
        let id = VolumeId([0xa5; 16]);
        assert_eq!(id.to_string().parse(), Ok(id));
        assert_eq!("xyz".parse::<VolumeId>(), Err(BadId));
        assert_eq!("é".repeat(16).parse::<VolumeId>(), Err(BadId));
    }
}
