//! Numbers that name things.

use serde::{Deserialize, Serialize};
use std::fmt;

/// A slice of the namespace.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
pub struct ShardId(pub u16);

/// An inode number. Its upper 16 bits are the shard on which the inode record
/// lives, so that whoever knows an inode number knows whom to ask.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
pub struct Ino(pub u64);

impl Ino {
    /// The root directory of every volume: inode 1 of shard 0.
    pub const ROOT: Ino = Ino(1);

    /// The inode with number `local` (below 2^48) of `shard`.
    pub fn new(shard: ShardId, local: u64) -> Ino {
        assert!(local >> 48 == 0, "inode numbers of a shard have 48 bits");
        Ino((u64::from(shard.0) << 48) | local)
    }

    /// The shard that keeps the inode record.
    pub fn shard(self) -> ShardId {
        ShardId((self.0 >> 48) as u16)
    }

    /// The number within its shard.
    pub fn local(self) -> u64 {
        self.0 & ((1 << 48) - 1)
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
    fn an_inode_number_carries_its_shard() {
        let ino = Ino::new(ShardId(513), 7);
        assert_eq!((ino.shard(), ino.local()), (ShardId(513), 7));
        assert_eq!(Ino::ROOT.shard(), ShardId(0));
    }

    #[test]
    fn ids_read_what_they_print() {
        let id = VolumeId([0xa5; 16]);
        assert_eq!(id.to_string().parse(), Ok(id));
        assert_eq!("xyz".parse::<VolumeId>(), Err(BadId));
        assert_eq!("é".repeat(16).parse::<VolumeId>(), Err(BadId));
    }
}
