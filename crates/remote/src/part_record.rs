//! The record at the end of a part file, and the sums by which its bytes are compared.
//!
//! A part file has the size of the source, and then this record, 64 bytes:
//!
//! ```text
//!  0  "tATAMIpt"                         8 bytes
//!  8  version, 1                         u32, little endian, as all numbers
//! 12  nanoseconds of the last change     u32
//! 16  seconds of the last change         i64
//! 24  size of the source                 u64
//! 32  inode number of the source         u64
//! 40  zero                               20 bytes
//! 60  CRC-32C of the bytes before        u32
//! ```

use serde::{Deserialize, Serialize};
use std::ffi::{OsStr, OsString};
use std::os::unix::ffi::{OsStrExt, OsStringExt};

/// Bytes of an encoded record.
pub const PART_RECORD: usize = 64;
/// Bytes of a block with a sum of its own. The last block of a file may be shorter.
pub const BLOCK: u64 = 1 << 20;
/// The first bytes of a record.
const MAGIC: &[u8; 8] = b"tATAMIpt";
/// The version of this layout.
const VERSION: u32 = 1;
/// Where the checksum lies.
const SUM_AT: usize = PART_RECORD - 4;
/// Most bytes of a file, as the kernel counts them, less room for the record.
const SIZE_MAX: u64 = i64::MAX as u64 - PART_RECORD as u64;
/// Bytes of a name that the name of its part file keeps: with the rest it is at most 255 long.
const STEM_MAX: usize = 240;

/// The source of a part file, as it was when the copy began.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct PartRecord {
    /// Bytes.
    pub size: u64,
    /// Last change of the bytes: seconds since 1970, nanoseconds.
    pub modified: (i64, u32),
    /// Inode number.
    pub ino: u64,
}

/// Why bytes are no record.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum PartRecordError {
    /// They have another length.
    #[error("the record of a part file has {PART_RECORD} bytes")]
    Length,
    /// They are something else, or damaged.
    #[error("the record of a part file is damaged; remove the part file to begin anew")]
    Damaged,
}

/// The sum of a block: BLAKE3 of its bytes, cut to 16 bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct BlockSum([u8; 16]);

/// Returns the sum of the bytes of a block.
pub fn sum_block(bytes: &[u8]) -> BlockSum {
    let mut sum = [0; 16];
    sum.copy_from_slice(&blake3::hash(bytes).as_bytes()[..16]);
    BlockSum(sum)
}

/// How a copy that can be continued begins.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum PartStart {
    /// There was no part file.
    Fresh,
    /// There is a part of a copy of this source.
    Continued,
    /// There was a part of a copy of another source, and it was removed.
    Replaced,
    /// The file at the destination is written in place, so nothing of an earlier copy counts.
    InPlace,
}

/// Returns the name of the part file of a file.
pub fn name_part(name: &OsStr) -> OsString {
    let stem = &name.as_bytes()[..name.len().min(STEM_MAX)];
    OsString::from_vec([b".", stem, b".tatami-part"].concat())
}

fn take_array<const N: usize>(bytes: &[u8], at: usize) -> Result<[u8; N], PartRecordError> {
    let part = bytes.get(at..at + N).and_then(|part| part.try_into().ok());
    part.ok_or(PartRecordError::Length)
}

impl PartRecord {
    /// Encodes the record.
    pub fn encode(&self) -> [u8; PART_RECORD] {
        let mut bytes = [0; PART_RECORD];
        bytes[..8].copy_from_slice(MAGIC);
        bytes[8..12].copy_from_slice(&VERSION.to_le_bytes());
        bytes[12..16].copy_from_slice(&self.modified.1.to_le_bytes());
        bytes[16..24].copy_from_slice(&self.modified.0.to_le_bytes());
        bytes[24..32].copy_from_slice(&self.size.to_le_bytes());
        bytes[32..40].copy_from_slice(&self.ino.to_le_bytes());
        let sum = crc32c::crc32c(&bytes[..SUM_AT]);
        bytes[SUM_AT..].copy_from_slice(&sum.to_le_bytes());
        bytes
    }

    /// Decodes a record.
    ///
    /// # Errors
    /// [`PartRecordError`].
    pub fn decode(bytes: &[u8]) -> Result<PartRecord, PartRecordError> {
        if bytes.len() != PART_RECORD {
            return Err(PartRecordError::Length);
        }
        let sum = u32::from_le_bytes(take_array(bytes, SUM_AT)?);
        let record = PartRecord {
            size: u64::from_le_bytes(take_array(bytes, 24)?),
            modified: (
                i64::from_le_bytes(take_array(bytes, 16)?),
                u32::from_le_bytes(take_array(bytes, 12)?),
            ),
            ino: u64::from_le_bytes(take_array(bytes, 32)?),
        };
        // The same record has one encoding, so this checks magic, version and zeros, too.
        let is_whole = sum == crc32c::crc32c(&bytes[..SUM_AT]) && record.encode() == bytes;
        match is_whole && record.size <= SIZE_MAX {
            true => Ok(record),
            false => Err(PartRecordError::Damaged),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    proptest! {
        #[test]
        fn a_record_is_read_as_written(
            size in 0..=SIZE_MAX, sec: i64, nsec in 0..1_000_000_000_u32, ino: u64
        ) {
            let record = PartRecord { size, modified: (sec, nsec), ino };
            prop_assert_eq!(PartRecord::decode(&record.encode()), Ok(record));
        }

        #[test]
        fn one_wrong_bit_is_found(bit in 0..PART_RECORD * 8) {
            let mut bytes = PartRecord { size: 1 << 40, modified: (7, 8), ino: 9 }.encode();
            bytes[bit / 8] ^= 1 << (bit % 8);
            prop_assert_eq!(PartRecord::decode(&bytes), Err(PartRecordError::Damaged));
        }
    }

    #[test]
    fn a_size_that_no_file_has_is_refused() {
        let record = PartRecord { size: SIZE_MAX + 1, modified: (0, 0), ino: 1 };
        assert_eq!(PartRecord::decode(&record.encode()), Err(PartRecordError::Damaged));
        assert_eq!(PartRecord::decode(&[0; 63]), Err(PartRecordError::Length));
    }

    #[test]
    fn a_long_name_has_a_part_file_too() {
        assert_eq!(name_part(OsStr::new("a b")), ".a b.tatami-part");
        assert_eq!(name_part(OsStr::from_bytes(&[b'x'; 255])).len(), 253);
    }
}
