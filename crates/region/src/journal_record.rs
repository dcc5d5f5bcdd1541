//! The records of the journal: each change of an object, until a region has it.
//!
//! ```text
//! half    head, one block: "TATAMI-J" │ version u32 │ checksum u32 │ device u128 │ generation u64
//!         then records, each at a multiple of 8
//! record  checksum of the next 60 bytes u32 │ checksum of the bytes u32 │ their length u32
//!         │ kind u32 │ number u64 │ synced u64 │ ino u64 │ argument u64
//!         │ time i64 + u32 │ piece u32 │ bytes │ up to a multiple of 8: anything
//! ```
//!
//! Checksums are CRC-32C. The first one also covers generation and offset: a record that is left
//! from an earlier generation counts nowhere. A search for records needs only the first one.

use crate::class::{BLOCK, REGION_MAX};
use crate::region_head::{RegionKey, SEQ_END, put_time};
use tatami_wire::{Ino, Piece, Timestamp};

const MAGIC: [u8; 8] = *b"TATAMI-J";
const VERSION: u32 = 1;
/// Bytes of a record before its payload.
pub(crate) const RECORD_HEAD: usize = 64;

/// A change of an object.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum JournalChange<'a> {
    /// These bytes are written to `offset`.
    Write {
        /// In bytes.
        offset: u64,
        /// At least one.
        bytes: &'a [u8],
    },
    /// The object is cut or extended.
    SetSize {
        /// In bytes.
        size: u64,
    },
    /// Zeros are written, within the object.
    Zero {
        /// In bytes.
        offset: u64,
        /// In bytes.
        len: u64,
    },
    /// The object ends, with its versions.
    Remove,
    /// The object has these bytes, and no others.
    Replace {
        /// At least one.
        bytes: &'a [u8],
    },
    /// The object becomes a file. Its versions stay.
    Leave,
    /// The state of the object at this moment is kept as a version.
    Keep {
        /// The number of the version, from 1.
        number: u32,
    },
}

/// A record.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct JournalRecord<'a> {
    /// Counts all changes of the store.
    pub seq: u64,
    /// Up to where the half was synced when the record was written, in bytes.
    pub synced: u64,
    /// The object.
    pub key: RegionKey,
    /// When it was changed.
    pub time: Timestamp,
    /// The change.
    pub change: JournalChange<'a>,
}

/// Returns the bytes that a record with `payload` bytes takes.
pub fn record_len(payload: usize) -> u64 {
    (RECORD_HEAD + payload.next_multiple_of(8)) as u64
}

impl JournalChange<'_> {
    /// Returns the bytes that its record takes.
    pub fn record_len(&self) -> u64 {
        record_len(match self {
            JournalChange::Write { bytes, .. } | JournalChange::Replace { bytes } => bytes.len(),
            JournalChange::Zero { .. } => 8,
            JournalChange::SetSize { .. }
            | JournalChange::Remove
            | JournalChange::Leave
            | JournalChange::Keep { .. } => 0,
        })
    }
}

/// Returns the head of a half.
pub fn encode_half_head(device: u128, generation: u64) -> Vec<u8> {
    let mut block = Vec::with_capacity(BLOCK);
    block.extend_from_slice(&MAGIC);
    block.extend_from_slice(&VERSION.to_le_bytes());
    block.extend_from_slice(&[0; 4]);
    block.extend_from_slice(&device.to_le_bytes());
    block.extend_from_slice(&generation.to_le_bytes());
    block.resize(BLOCK, 0);
    let sum = crc32c::crc32c(&block);
    block[12..16].copy_from_slice(&sum.to_le_bytes());
    block
}

/// Reads the head of a half: device and generation.
pub fn decode_half_head(block: &[u8]) -> Option<(u128, u64)> {
    if block.len() != BLOCK || block[..8] != MAGIC || block[8..12] != VERSION.to_le_bytes() {
        return None;
    }
    let mut zeroed = block.to_vec();
    zeroed[12..16].fill(0);
    if crc32c::crc32c(&zeroed).to_le_bytes() != block[12..16] {
        return None;
    }
    let device = u128::from_le_bytes(block[16..32].try_into().ok()?);
    Some((device, u64::from_le_bytes(block[32..40].try_into().ok()?)))
}

impl<'a> JournalRecord<'a> {
    /// Returns head and padded payload of the record at `offset` of a half of this generation; the
    /// payload in two parts: bytes, and zeros behind them.
    pub fn encode(&self, generation: u64, offset: u64) -> (Vec<u8>, &'a [u8]) {
        let mut small = Vec::new();
        let (kind, argument, payload): (u32, u64, &'a [u8]) = match self.change {
            JournalChange::Write { offset, bytes } => (1, offset, bytes),
            JournalChange::SetSize { size } => (2, size, &[]),
            JournalChange::Zero { offset, len } => {
                small.extend_from_slice(&len.to_le_bytes());
                (3, offset, &[])
            }
            JournalChange::Remove => (4, 0, &[]),
            JournalChange::Replace { bytes } => (5, 0, bytes),
            JournalChange::Leave => (6, 0, &[]),
            JournalChange::Keep { number } => (7, number.into(), &[]),
        };
        let mut head = Vec::with_capacity(RECORD_HEAD + small.len());
        let payload_sum = crc32c::crc32c_append(crc32c::crc32c(&small), payload);
        let len = (payload.len() + small.len()) as u32;
        for number in [0, payload_sum, len, kind] {
            head.extend_from_slice(&number.to_le_bytes());
        }
        for number in [self.seq, self.synced, self.key.0.0, argument] {
            head.extend_from_slice(&number.to_le_bytes());
        }
        put_time(&mut head, self.time);
        head.extend_from_slice(&self.key.1.0.to_le_bytes());
        assert_eq!(head.len(), RECORD_HEAD, "the fields of a record have another length");
        let sum = sum_in_place(generation, offset, &head[4..]);
        head[..4].copy_from_slice(&sum.to_le_bytes());
        head.extend_from_slice(&small);
        (head, payload)
    }

    /// Reads the record at the start of `bytes`, which is at `offset` of a half of this generation:
    /// the record and its length. `None` where no whole record is.
    pub fn decode(
        bytes: &'a [u8],
        generation: u64,
        offset: u64,
    ) -> Option<(JournalRecord<'a>, u64)> {
        let (head, rest) = bytes.split_at_checked(RECORD_HEAD)?;
        let u32_at = |at: usize| Some(u32::from_le_bytes(head[at..at + 4].try_into().ok()?));
        let u64_at = |at: usize| Some(u64::from_le_bytes(head[at..at + 8].try_into().ok()?));
        let len = u32_at(8)? as usize;
        if len as u64 > REGION_MAX || sum_in_place(generation, offset, &head[4..]) != u32_at(0)? {
            return None;
        }
        let payload = rest.get(..len)?;
        if crc32c::crc32c(payload) != u32_at(4)? {
            return None;
        }
        let argument = u64_at(40)?;
        let change = match (u32_at(12)?, len) {
            (1, 1..) => JournalChange::Write { offset: argument, bytes: payload },
            (2, 0) => JournalChange::SetSize { size: argument },
            (3, 8) => {
                let len = u64::from_le_bytes(payload.try_into().ok()?);
                JournalChange::Zero { offset: argument, len }
            }
            (4, 0) => JournalChange::Remove,
            (5, 1..) => JournalChange::Replace { bytes: payload },
            (6, 0) => JournalChange::Leave,
            (7, 0) if argument > 0 => JournalChange::Keep { number: u32::try_from(argument).ok()? },
            _ => return None,
        };
        let time = Timestamp { sec: u64_at(48)? as i64, nsec: u32_at(56)? };
        let end = match change {
            JournalChange::Write { offset, bytes } => offset.checked_add(bytes.len() as u64)?,
            JournalChange::SetSize { size } => size,
            JournalChange::Zero { offset, len } => offset.checked_add(len)?,
            JournalChange::Replace { bytes } => bytes.len() as u64,
            JournalChange::Remove | JournalChange::Leave | JournalChange::Keep { .. } => 0,
        };
        if time.nsec >= 1_000_000_000 || end > REGION_MAX || u64_at(16)? >= SEQ_END {
            return None;
        }
        let key = (Ino(u64_at(32)?), Piece(u32_at(60)?));
        let record = JournalRecord { seq: u64_at(16)?, synced: u64_at(24)?, key, time, change };
        Some((record, record_len(len)))
    }
}

fn sum_in_place(generation: u64, offset: u64, head: &[u8]) -> u32 {
    let place = [generation.to_le_bytes(), offset.to_le_bytes()].concat();
    crc32c::crc32c_append(crc32c::crc32c(&place), head)
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn change_of(bytes: &[u8], kind: u8, a: u64, b: u64) -> JournalChange<'_> {
        match kind {
            0 if !bytes.is_empty() => JournalChange::Write { offset: a, bytes },
            1 => JournalChange::SetSize { size: a },
            2 => JournalChange::Zero { offset: a, len: b },
            3 if !bytes.is_empty() => JournalChange::Replace { bytes },
            4 => JournalChange::Leave,
            5 => JournalChange::Keep { number: a as u32 + 1 },
            _ => JournalChange::Remove,
        }
    }

    proptest! {
        #[test]
        fn a_record_reads_back_in_its_place_only(
            seq in 0u64..1 << 63, ino: u64, kind in 0u8..7, a in 0u64..1 << 20, b in 0u64..1 << 20,
            bytes in prop::collection::vec(any::<u8>(), 0..100), bit: prop::sample::Index,
        ) {
            let change = change_of(&bytes, kind, a, b);
            let time = Timestamp { sec: -5, nsec: 7 };
            let key = (Ino(ino), Piece(9));
            let record = JournalRecord { seq, synced: 4096, key, time, change };
            let (head, payload) = record.encode(3, 4096);
            let whole = [&head[..], payload].concat();
            let decoded = JournalRecord::decode(&whole, 3, 4096);
            prop_assert_eq!(decoded, Some((record, change.record_len())));
            prop_assert_eq!(JournalRecord::decode(&whole, 4, 4096), None);
            prop_assert_eq!(JournalRecord::decode(&whole, 3, 4104), None);
            let mut flipped = whole.clone();
            let bit = bit.index(flipped.len() * 8);
            flipped[bit / 8] ^= 1 << (bit % 8);
            prop_assert_eq!(JournalRecord::decode(&flipped, 3, 4096), None);
        }
    }

    #[test]
    fn the_head_of_a_half_reads_back() {
        let block = encode_half_head(5, 6);
        assert_eq!(decode_half_head(&block), Some((5, 6)));
        for bit in 0..40 * 8 {
            let mut flipped = block.clone();
            flipped[bit / 8] ^= 1 << (bit % 8);
            assert_eq!(decode_half_head(&flipped), None, "bit {bit}");
        }
    }
}
