//! The files of a rank's own piece: on this node's disk, or on the node of a volume to which this
//! process sends them.

use crate::shared::{SharedWords, reserve_blocks};
use rustix::io::Errno;
use std::fmt;
use std::fs::File;
use std::os::unix::fs::{FileExt, MetadataExt};
use tatami_client::DataFile;

fn to_errno(errno: tatami_wire::Errno) -> Errno {
    Errno::from_raw_os_error(errno.0)
}

/// An object of another node. Each write waits until that node has made it: a record of a journal
/// must not be there before the bytes that it names.
pub struct AwayFile(DataFile);

impl fmt::Debug for AwayFile {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("AwayFile").finish_non_exhaustive()
    }
}

impl AwayFile {
    /// An object of another node.
    pub fn new(object: DataFile) -> AwayFile {
        AwayFile(object)
    }

    fn write_all(&self, mut bytes: &[u8], mut offset: u64) -> Result<(), Errno> {
        while !bytes.is_empty() {
            let part = bytes.len().min(tatami_wire::frame::PAYLOAD_MAX);
            match self.0.write_at(&bytes[..part], offset).map_err(to_errno)? {
                0 => return Err(Errno::IO),
                written => (bytes, offset) = (&bytes[written..], offset + written as u64),
            }
        }
        self.0.flush().map_err(to_errno)
    }

    fn sync(&self) -> Result<(), Errno> {
        self.0.sync(true).map(|_| ()).map_err(to_errno)
    }
}

/// The file with the bytes of a piece.
#[derive(Debug)]
pub enum PieceFile {
    /// On this node.
    Local(File),
    /// On another node.
    Away(AwayFile),
}

impl PieceFile {
    /// Writes all bytes at an offset.
    ///
    /// # Errors
    /// `ENOSPC`, and others of the disk or of the node.
    pub fn write_all_at(&self, bytes: &[u8], offset: u64) -> Result<(), Errno> {
        match self {
            PieceFile::Local(file) => {
                let written = file.write_all_at(bytes, offset);
                written.map_err(|e| Errno::from_io_error(&e).unwrap_or(Errno::IO))
            }
            PieceFile::Away(file) => file.write_all(bytes, offset),
        }
    }

    /// Brings the bytes to the disk.
    ///
    /// # Errors
    /// Those of fdatasync(2), or of the node.
    pub fn sync_bytes(&self) -> Result<(), Errno> {
        match self {
            PieceFile::Local(file) => rustix::fs::fdatasync(file),
            PieceFile::Away(file) => file.sync(),
        }
    }

    /// Returns its blocks on the disk, of 512 bytes.
    ///
    /// # Errors
    /// Those of fstat(2), or of the node.
    pub fn count_blocks(&self) -> Result<u64, Errno> {
        match self {
            PieceFile::Local(file) => {
                let found = file.metadata();
                found.map(|m| m.blocks()).map_err(|e| Errno::from_io_error(&e).unwrap_or(Errno::IO))
            }
            PieceFile::Away(AwayFile(object)) => {
                object.stat().map(|state| state.blocks).map_err(to_errno)
            }
        }
    }
}

/// The words of a journal that this process writes.
#[derive(Debug)]
pub enum JournalWords {
    /// On this machine.
    Shared(SharedWords),
    /// On another node.
    Away(AwayFile),
}

impl JournalWords {
    /// Begins words of `len` bytes in an empty file of this machine.
    ///
    /// # Errors
    /// `ENOSPC`, and other errors of the disk.
    pub fn in_file(file: File, mapped: bool, len: u64) -> Result<JournalWords, Errno> {
        // Blocks before the mapping: a store into a hole on a full disk would be a signal.
        reserve_blocks(&file, len)?;
        Ok(JournalWords::Shared(SharedWords::of_len(file, mapped, len)))
    }

    /// Stores one word, after all earlier stores.
    ///
    /// # Errors
    /// Those of the disk or of the node.
    pub fn store(&self, offset: u64, value: u64) -> Result<(), Errno> {
        match self {
            JournalWords::Shared(words) => words.store(offset, value),
            JournalWords::Away(file) => file.write_all(&value.to_le_bytes(), offset),
        }
    }

    /// Stores a record so that no reader sees its first word before the others.
    ///
    /// # Errors
    /// As [`JournalWords::store`].
    pub fn store_record(&self, offset: u64, record: &[u64]) -> Result<(), Errno> {
        let JournalWords::Away(file) = self else {
            let JournalWords::Shared(words) = self else { return Err(Errno::IO) };
            return words.store_record(offset, record);
        };
        let Some((first, others)) = record.split_first() else { return Ok(()) };
        // The first word makes the record valid. A reader may read while the node writes, so the
        // others must be there before it.
        let bytes: Vec<u8> = others.iter().flat_map(|word| word.to_le_bytes()).collect();
        file.write_all(&bytes, offset + 8)?;
        file.write_all(&first.to_le_bytes(), offset)
    }

    /// Extends the words to `len` bytes.
    ///
    /// # Errors
    /// `ENOSPC` where the disk is full.
    pub fn grow_to(&mut self, len: u64) -> Result<(), Errno> {
        match self {
            JournalWords::Shared(words) => words.grow_to(len),
            // A reader of that node maps the file, so it must be as long as its words. Nothing is
            // stored into a mapping, so a full disk is the error of a later store.
            JournalWords::Away(file) => file.write_all(&0u64.to_le_bytes(), len - 8),
        }
    }

    /// Brings all of it to the disk.
    ///
    /// # Errors
    /// Those of msync(2), fdatasync(2), or of the node.
    pub fn flush(&self) -> Result<(), Errno> {
        match self {
            JournalWords::Shared(words) => words.flush(),
            JournalWords::Away(file) => file.sync(),
        }
    }
}
