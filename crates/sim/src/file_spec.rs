//! The specification of a small file that lies beside its inode: its bytes, the clients that have
//! it open, and its move to an object when it outgrows its limit.
//!
//! It promises that acknowledged bytes are there, that each change is done once and as a whole, and
//! that a read returns the bytes of its moment. The object of a moved file is outside of this
//! world: the copy that a client made of the bytes is all that can be said of it.

use std::collections::BTreeSet;
use tatami_wire::Errno;

/// The largest size of a file beside its inode, in bytes: small, so that files outgrow it.
pub(crate) const INLINE_LIMIT: u64 = 8;

/// The process that has a file open for writing.
pub(crate) type OpenerNumber = usize;

/// An operation on a small file, as requested.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum FileCall {
    /// Writes to the end.
    Append { bytes: Vec<u8> },
    /// Writes to a place, also behind the end.
    Overwrite { offset: u64, bytes: Vec<u8> },
    /// Cuts or extends the file.
    Cut { size: u64 },
    /// Reads all bytes.
    Read,
    /// Opens it for writing.
    Open { opener: OpenerNumber },
    /// Reserves an object for the bytes.
    Reserve { opener: OpenerNumber },
    /// Makes the reserved object, which has a copy of the bytes, the file's.
    Move { opener: OpenerNumber, object: u32, copy: Vec<u8> },
    /// Closes it.
    Close { opener: OpenerNumber },
}

/// A reply that has no attributes.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum FileAnswer {
    /// The size after a change.
    Changed {
        size: u64,
    },
    /// Nothing was done: the file would be larger than its limit.
    TooLarge,
    /// Nothing was done: the bytes are in an object, or the file had none and has an object now.
    Moved,
    Bytes(Vec<u8>),
    /// The number of the object.
    Reserved {
        object: u32,
    },
    Closed,
}

/// The effect of an operation on a file.
pub(crate) enum FileOutcome {
    /// The reply has the attributes of the file.
    Attributes,
    Answer(FileAnswer),
    /// The reply names an object, which the shard chooses.
    AnyObject,
}

/// A file.
#[derive(Clone, Debug, Default, PartialEq, Eq, Hash)]
pub(crate) struct SpecFile {
    pub bytes: Vec<u8>,
    has_moved: bool,
    openers: BTreeSet<OpenerNumber>,
}

impl SpecFile {
    /// Returns a file beside its inode.
    pub fn new(bytes: &[u8]) -> SpecFile {
        SpecFile { bytes: bytes.to_vec(), ..SpecFile::default() }
    }

    /// Returns whether a process has it open for writing. Then it stays without a name.
    pub fn is_open(&self) -> bool {
        !self.openers.is_empty()
    }

    /// Does the operation.
    pub fn run_call(&mut self, call: &FileCall) -> Result<FileOutcome, Errno> {
        Ok(match call {
            FileCall::Append { bytes } => self.overwrite(self.bytes.len() as u64, bytes),
            FileCall::Overwrite { offset, bytes } => self.overwrite(*offset, bytes),
            FileCall::Cut { size } => self.change_bytes(*size, |_| {}),
            FileCall::Read if self.has_moved => FileOutcome::Answer(FileAnswer::Moved),
            FileCall::Read => FileOutcome::Answer(FileAnswer::Bytes(self.bytes.clone())),
            FileCall::Open { opener } => {
                self.openers.insert(*opener);
                FileOutcome::Attributes
            }
            FileCall::Reserve { opener } => {
                self.require_opener(*opener)?;
                FileOutcome::AnyObject
            }
            FileCall::Move { opener, copy, .. } => {
                self.require_opener(*opener)?;
                if *copy != self.bytes {
                    return Err(Errno::EBUSY);
                }
                self.has_moved = true;
                FileOutcome::Attributes
            }
            FileCall::Close { opener } => {
                self.openers.remove(opener);
                FileOutcome::Answer(FileAnswer::Closed)
            }
        })
    }

    fn require_opener(&self, opener: OpenerNumber) -> Result<(), Errno> {
        if self.openers.contains(&opener) { Ok(()) } else { Err(Errno::EBADF) }
    }

    fn overwrite(&mut self, offset: u64, bytes: &[u8]) -> FileOutcome {
        let (from, end) = (offset as usize, offset as usize + bytes.len());
        let size = self.bytes.len().max(end) as u64;
        self.change_bytes(size, |all| all[from..end].copy_from_slice(bytes))
    }

    /// Gives the file this size, with zeros where it had no bytes, and changes its bytes.
    fn change_bytes(&mut self, size: u64, change: impl FnOnce(&mut [u8])) -> FileOutcome {
        FileOutcome::Answer(if self.has_moved {
            FileAnswer::Moved
        } else if size > INLINE_LIMIT && self.bytes.is_empty() {
            // There is nothing to copy, so the shard gives it an object.
            self.has_moved = true;
            FileAnswer::Moved
        } else if size > INLINE_LIMIT {
            FileAnswer::TooLarge
        } else {
            self.bytes.resize(size as usize, 0);
            change(&mut self.bytes);
            FileAnswer::Changed { size }
        })
    }
}

impl FileCall {
    /// Returns whether the shard may refuse the operation by this error, with no effect. It does so
    /// when other clients could have changed the file since the copy began. The specification does
    /// not say when they could: it says that a move that is *not* refused has all bytes.
    pub fn may_fail(&self, errno: Errno) -> bool {
        matches!(
            (self, errno),
            (FileCall::Reserve { .. } | FileCall::Move { .. }, Errno::EBUSY)
                // Another client's move has released the object.
                | (FileCall::Move { .. }, Errno::EINVAL)
        )
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn answer(file: &mut SpecFile, call: &FileCall) -> Result<Option<FileAnswer>, Errno> {
        Ok(match file.run_call(call)? {
            FileOutcome::Answer(answer) => Some(answer),
            _ => None,
        })
    }

    #[test]
    fn a_file_has_what_was_written_and_zeros_between() {
        let mut file = SpecFile::new(b"ab");
        for (call, size) in [
            (FileCall::Append { bytes: b"c".to_vec() }, 3),
            (FileCall::Overwrite { offset: 5, bytes: b"f".to_vec() }, 6),
            (FileCall::Cut { size: 1 }, 1),
            (FileCall::Cut { size: 3 }, 3),
        ] {
            assert_eq!(answer(&mut file, &call), Ok(Some(FileAnswer::Changed { size })));
        }
        assert_eq!(answer(&mut file, &FileCall::Cut { size: 9 }), Ok(Some(FileAnswer::TooLarge)));
        let bytes = FileAnswer::Bytes(b"a\0\0".to_vec());
        assert_eq!(answer(&mut file, &FileCall::Read), Ok(Some(bytes)));
    }

    #[test]
    fn a_file_moves_with_its_bytes_and_by_a_client_that_has_it_open() {
        let mut file = SpecFile::new(b"ab");
        let to = |copy: &[u8]| FileCall::Move { opener: 1, object: 7, copy: copy.to_vec() };
        assert_eq!(answer(&mut file, &to(b"ab")), Err(Errno::EBADF));
        assert_eq!(answer(&mut file, &FileCall::Open { opener: 1 }), Ok(None));
        assert_eq!(answer(&mut file, &to(b"b")), Err(Errno::EBUSY));
        assert_eq!(answer(&mut file, &to(b"ab")), Ok(None));
        let late = FileCall::Append { bytes: b"c".to_vec() };
        assert_eq!(answer(&mut file, &late), Ok(Some(FileAnswer::Moved)));
        assert!(file.is_open());
    }
}
