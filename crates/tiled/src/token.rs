//! What rank 0 tells the others of an open: a few words.

use crate::error::{Error, Result};
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
    /// The container's number; 0 for an ordinary file.
    pub id: u64,
}

const MAGIC: u64 = u64::from_le_bytes(*b"TATAMIO1");
const WORDS: usize = 7;

impl Token {
    /// Its bytes, fewer than [`TOKEN_MAX`].
    pub fn encode(&self) -> Vec<u8> {
        let kind = match self.kind {
            Kind::Plain => 1,
            Kind::Container => 2,
        };
        let counts = u64::from(self.ranks) << 32 | u64::from(self.machine);
        let mut words = vec![MAGIC, kind, self.open, self.stamp, counts, self.id];
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
        let [magic, kind, open, stamp, counts, id, sum] = words;
        let right = u64::from(crc32c::crc32c(&bytes[..WORDS * 8 - 8]));
        if magic != MAGIC || sum != right {
            return Err(bad());
        }
        let kind = match kind {
            1 => Kind::Plain,
            2 => Kind::Container,
            _ => return Err(bad()),
        };
        Ok(Token { kind, open, stamp, ranks: (counts >> 32) as u32, machine: counts as u32, id })
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
        let token = Token { kind: Kind::Container, open: 5, stamp: 6, ranks: 7, machine: 8, id: 9 };
        let bytes = token.encode();
        assert!(bytes.len() < TOKEN_MAX);
        let path = Path::new("/f");
        assert_eq!(Token::decode(&bytes, path), Ok(token));
        for at in 0..bytes.len() {
            let mut wrong = bytes.clone();
            wrong[at] ^= 0x10;
            assert!(Token::decode(&wrong, path).is_err());
            assert!(Token::decode(&bytes[..at], path).is_err());
        }
    }
}
