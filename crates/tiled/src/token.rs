//! What rank 0 tells the others of an open: a few words.

use crate::error::{Error, Result};
use crate::machine;
use rustix::io::Errno;
use std::path::{Path, PathBuf};

/// The longest encoded token, bytes.
pub const TOKEN_MAX: usize = 512;

/// Which engine serves an open.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Kind {
    /// One ordinary file.
    Plain,
    /// A directory of pieces.
    Container,
    /// A file of a Tatami volume, with pieces on the nodes of the ranks.
    Volume,
}

/// An open that has begun.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Token {
    /// Which engine.
    pub kind: Kind,
    /// A number of the open, drawn.
    pub open: u64,
    /// The stamp of its first view epoch.
    pub stamp: u64,
    /// Processes that take part.
    pub ranks: u32,
    /// The machine of all ranks, or 0 if they are on several.
    pub machine: u32,
    /// The container's number, or the inode of a volume's file; 0 for an ordinary file.
    pub id: u64,
    /// The piece of rank 0 of an open for writing of a volume's file; those of the other ranks
    /// follow, and then one for each node.
    pub first: u32,
    /// Nodes of a volume on which the ranks of such an open run.
    pub nodes: u32,
}

const MAGIC: u64 = u64::from_le_bytes(*b"TATAMIO1");
const WORDS: usize = 8;

impl Token {
    /// Do ranks of several mounts of a volume have the file open? Then no lock or memory of one machine is enough.
    pub fn is_across(&self) -> bool {
        self.kind == Kind::Volume && self.machine != machine::id()
    }

    /// Its bytes, fewer than [`TOKEN_MAX`].
    pub fn encode(&self) -> Vec<u8> {
        let kind = match self.kind {
            Kind::Plain => 1,
            Kind::Container => 2,
            Kind::Volume => 3,
        };
        let counts = u64::from(self.ranks) << 32 | u64::from(self.machine);
        let pieces = u64::from(self.first) << 32 | u64::from(self.nodes);
        let mut words = vec![MAGIC, kind, self.open, self.stamp, counts, self.id, pieces];
        let bytes: Vec<u8> = words.iter().flat_map(|w: &u64| w.to_le_bytes()).collect();
        words.push(u64::from(crc32c::crc32c(&bytes)));
        words.iter().flat_map(|w| w.to_le_bytes()).collect()
    }

    /// Reads a token.
    ///
    /// # Errors
    /// `EINVAL` for bytes that are none.
    pub fn decode(bytes: &[u8], path: &Path) -> Result<Token> {
        let bad = || Error::because("open", path, Errno::INVAL, "the token is none of tio_begin's");
        let mut words = [0u64; WORDS];
        let bytes = bytes.get(..WORDS * 8).ok_or_else(bad)?;
        for (word, bytes) in words.iter_mut().zip(bytes.as_chunks::<8>().0) {
            *word = u64::from_le_bytes(*bytes);
        }
        let [magic, kind, open, stamp, counts, id, pieces, sum] = words;
        let right = u64::from(crc32c::crc32c(&bytes[..WORDS * 8 - 8]));
        if magic != MAGIC || sum != right {
            return Err(bad());
        }
        let kind = match kind {
            1 => Kind::Plain,
            2 => Kind::Container,
            3 => Kind::Volume,
            _ => return Err(bad()),
        };
        let (ranks, machine) = ((counts >> 32) as u32, counts as u32);
        let (first, nodes) = ((pieces >> 32) as u32, pieces as u32);
        Ok(Token { kind, open, stamp, ranks, machine, id, first, nodes })
    }

    /// Where the shared pointer of an open of an ordinary file is: beside it.
    pub fn pointer_beside(&self, file: &Path) -> PathBuf {
        let mut name = std::ffi::OsString::from(".");
        name.push(file.file_name().unwrap_or_default());
        name.push(format!(".tatami.{:016x}", self.open));
        file.with_file_name(name)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_token_is_read_as_written_and_nothing_else_is_one() {
        let path = Path::new("/f");
        let (ranks, machine, first, nodes) = (7, 8, 10, 11);
        let of = |kind| Token { kind, open: 5, stamp: 6, ranks, machine, id: 9, first, nodes };
        for kind in [Kind::Plain, Kind::Container, Kind::Volume] {
            assert_eq!(Token::decode(&of(kind).encode(), path), Ok(of(kind)));
        }
        let bytes = of(Kind::Volume).encode();
        assert!(bytes.len() < TOKEN_MAX);
        for at in 0..bytes.len() {
            let mut wrong = bytes.clone();
            wrong[at] ^= 0x10;
            assert!(Token::decode(&wrong, path).is_err());
            assert!(Token::decode(&bytes[..at], path).is_err());
        }
    }
}
