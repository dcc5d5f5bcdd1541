//! What a device says of itself: superblock, heads of extents, heads of regions.
//!
//! Every checksum is CRC-32C and covers the rest of its record. That of a head also covers its
//! place, so that a head counts only where it was written. Numbers are little-endian.

use crate::class::{BLOCK, EXTENT_LENGTHS, Geometry, RegionNumber, SizeClass};
use tatami_wire::{Ino, Piece, Timestamp};

const SUPERBLOCK_MAGIC: [u8; 8] = *b"TATAMI-R";
const EXTENT_MAGIC: [u8; 8] = *b"TATAMI-E";
const HEAD_MAGIC: u32 = u32::from_le_bytes(*b"TRGN");
/// The same of a version.
const VERSION_MAGIC: u32 = u32::from_le_bytes(*b"TRGV");
const VERSION: u32 = 1;
/// Numbers of changes are below it.
pub(crate) const SEQ_END: u64 = 1 << 63;
/// Bytes of a head before the checksums of its chunks.
const HEAD_FIELDS: usize = 68;

/// The object of a region: inode and piece.
pub type RegionKey = (Ino, Piece);

/// The identity of a device. Each extent repeats it, so a device without superblock can be read.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Superblock {
    /// A random number of this device.
    pub device: u128,
    /// The volume that uses it.
    pub volume: u128,
    /// The node that uses it.
    pub node: u16,
    /// Its extents.
    pub geometry: Geometry,
}

/// The head of an extent in use.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ExtentHead {
    /// The device.
    pub superblock: Superblock,
    /// The extent's number.
    pub extent: u32,
    /// The size of its regions.
    pub class: SizeClass,
    /// Another one each time that the extent gets a class. Heads of other generations do not count.
    pub generation: u64,
}

/// The head of a region in use.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct RegionHead {
    /// The generation of the extent.
    pub generation: u64,
    /// The object.
    pub key: RegionKey,
    /// The number of the last change that the region has. Of two regions of one object, the higher
    /// counts.
    pub seq: u64,
    /// Bytes of the object.
    pub size: u64,
    /// Last change of the bytes.
    pub mtime: Timestamp,
    /// Last change of any kind. Of a version: when the object got another state.
    pub changed: Timestamp,
    /// Of a version: its number, from 1. Otherwise the number of the object's last version, or 0.
    pub number: u32,
    /// The region has an earlier state of the object, which is kept.
    pub is_version: bool,
    /// The checksum of each chunk.
    pub sums: Vec<u32>,
}

/// What a block at the place of a superblock is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum FoundSuperblock {
    /// It has only zeros.
    Blank,
    /// It is one of this version.
    Whole(Superblock),
    /// It is one of another version.
    OtherVersion(u32),
    /// It is something else.
    Foreign,
}

struct HeadReader<'a>(&'a [u8]);

impl HeadReader<'_> {
    fn take<const N: usize>(&mut self) -> Option<[u8; N]> {
        let (field, rest) = self.0.split_first_chunk::<N>()?;
        self.0 = rest;
        Some(*field)
    }

    fn take_u16(&mut self) -> Option<u16> {
        self.take().map(u16::from_le_bytes)
    }

    fn take_u32(&mut self) -> Option<u32> {
        self.take().map(u32::from_le_bytes)
    }

    fn take_u64(&mut self) -> Option<u64> {
        self.take().map(u64::from_le_bytes)
    }

    fn take_time(&mut self) -> Option<Timestamp> {
        let (sec, nsec) = (self.take().map(i64::from_le_bytes)?, self.take_u32()?);
        (nsec < 1_000_000_000).then_some(Timestamp { sec, nsec })
    }
}

pub(crate) fn put_time(out: &mut Vec<u8>, time: Timestamp) {
    out.extend_from_slice(&time.sec.to_le_bytes());
    out.extend_from_slice(&time.nsec.to_le_bytes());
}

impl Superblock {
    fn put_fields(&self, out: &mut Vec<u8>) {
        out.extend_from_slice(&self.device.to_le_bytes());
        out.extend_from_slice(&self.volume.to_le_bytes());
        out.extend_from_slice(&self.node.to_le_bytes());
        out.extend_from_slice(&self.geometry.extent_len.to_le_bytes());
        out.extend_from_slice(&self.geometry.extents.to_le_bytes());
    }

    fn take_fields(fields: &mut HeadReader<'_>) -> Option<Superblock> {
        let device = fields.take().map(u128::from_le_bytes)?;
        let volume = fields.take().map(u128::from_le_bytes)?;
        let node = fields.take_u16()?;
        let geometry = Geometry { extent_len: fields.take_u64()?, extents: fields.take_u32()? };
        let known = EXTENT_LENGTHS.contains(&geometry.extent_len);
        known.then_some(Superblock { device, volume, node, geometry })
    }

    /// Returns it as a block.
    pub fn encode(&self) -> Vec<u8> {
        let mut fields = Vec::new();
        self.put_fields(&mut fields);
        seal_block(SUPERBLOCK_MAGIC, &fields)
    }

    /// Reads a block.
    pub fn decode(block: &[u8]) -> FoundSuperblock {
        if block.iter().all(|b| *b == 0) {
            return FoundSuperblock::Blank;
        }
        match open_block(SUPERBLOCK_MAGIC, block) {
            Ok(mut fields) => Superblock::take_fields(&mut fields)
                .map_or(FoundSuperblock::Foreign, FoundSuperblock::Whole),
            Err(Some(version)) => FoundSuperblock::OtherVersion(version),
            Err(None) => FoundSuperblock::Foreign,
        }
    }
}

impl ExtentHead {
    /// Returns it as a block.
    pub fn encode(&self) -> Vec<u8> {
        let mut fields = Vec::new();
        self.superblock.put_fields(&mut fields);
        fields.extend_from_slice(&self.extent.to_le_bytes());
        fields.push(self.class.number());
        fields.extend_from_slice(&self.generation.to_le_bytes());
        seal_block(EXTENT_MAGIC, &fields)
    }

    /// Reads a block; `None` for anything else.
    pub fn decode(block: &[u8]) -> Option<ExtentHead> {
        let mut fields = open_block(EXTENT_MAGIC, block).ok()?;
        let superblock = Superblock::take_fields(&mut fields)?;
        let extent = fields.take_u32()?;
        let class = SizeClass::with_number(u8::from_le_bytes(fields.take()?))?;
        Some(ExtentHead { superblock, extent, class, generation: fields.take_u64()? })
    }
}

/// Returns a block with magic, version, checksum and fields.
fn seal_block(magic: [u8; 8], fields: &[u8]) -> Vec<u8> {
    let mut block = Vec::with_capacity(BLOCK);
    block.extend_from_slice(&magic);
    block.extend_from_slice(&VERSION.to_le_bytes());
    block.extend_from_slice(&[0; 4]);
    block.extend_from_slice(fields);
    block.resize(BLOCK, 0);
    let sum = crc32c::crc32c(&block);
    block[12..16].copy_from_slice(&sum.to_le_bytes());
    block
}

/// Returns the fields of a block that [`seal_block`] made; otherwise its version, if that is
/// another one.
fn open_block(magic: [u8; 8], block: &[u8]) -> Result<HeadReader<'_>, Option<u32>> {
    let mut fields = HeadReader(block);
    if block.len() != BLOCK || fields.take() != Some(magic) {
        return Err(None);
    }
    let (version, sum) = (fields.take_u32().ok_or(None)?, fields.take_u32().ok_or(None)?);
    let mut zeroed = block.to_vec();
    zeroed[12..16].fill(0);
    if crc32c::crc32c(&zeroed) != sum {
        return Err(None);
    }
    if version != VERSION {
        return Err(Some(version));
    }
    Ok(fields)
}

impl RegionHead {
    /// Returns it as bytes for the region `region` of this class: [`SizeClass::head_len`] bytes.
    pub fn encode(&self, class: SizeClass, region: RegionNumber) -> Vec<u8> {
        let mut out = Vec::with_capacity(class.head_len());
        let magic = if self.is_version { VERSION_MAGIC } else { HEAD_MAGIC };
        out.extend_from_slice(&magic.to_le_bytes());
        out.extend_from_slice(&[0; 4]);
        out.extend_from_slice(&self.generation.to_le_bytes());
        out.extend_from_slice(&self.key.1.0.to_le_bytes());
        for number in [self.key.0.0, self.seq] {
            out.extend_from_slice(&number.to_le_bytes());
        }
        out.extend_from_slice(&(self.size as u32).to_le_bytes());
        put_time(&mut out, self.mtime);
        put_time(&mut out, self.changed);
        out.extend_from_slice(&self.number.to_le_bytes());
        assert_eq!(out.len(), HEAD_FIELDS, "the fields of a head have another length");
        for sum in &self.sums {
            out.extend_from_slice(&sum.to_le_bytes());
        }
        assert!(out.len() <= class.head_len(), "a head does not fit into its place");
        out.resize(class.head_len(), 0);
        let sum = sum_in_place(&out, region);
        out[4..8].copy_from_slice(&sum.to_le_bytes());
        out
    }

    /// Reads the head of `region`; `None` for a region that is free, or whose head is damaged.
    pub fn decode(bytes: &[u8], class: SizeClass, region: RegionNumber) -> Option<RegionHead> {
        let mut fields = HeadReader(bytes);
        let is_version = match fields.take_u32()? {
            HEAD_MAGIC => false,
            VERSION_MAGIC => true,
            _ => return None,
        };
        if bytes.len() != class.head_len() {
            return None;
        }
        let sum = fields.take_u32()?;
        let mut zeroed = bytes.to_vec();
        zeroed[4..8].fill(0);
        if sum_in_place(&zeroed, region) != sum {
            return None;
        }
        let (generation, piece) = (fields.take_u64()?, Piece(fields.take_u32()?));
        let (ino, seq) = (Ino(fields.take_u64()?), fields.take_u64()?);
        let size = u64::from(fields.take_u32()?);
        let (mtime, changed) = (fields.take_time()?, fields.take_time()?);
        let number = fields.take_u32()?;
        if size > class.capacity() || seq >= SEQ_END || is_version && number == 0 {
            return None;
        }
        let chunks = (size as usize).div_ceil(crate::class::CHUNK);
        let sums = (0..chunks).map(|_| fields.take_u32()).collect::<Option<Vec<_>>>()?;
        let key = (ino, piece);
        Some(RegionHead { generation, key, seq, size, mtime, changed, number, is_version, sums })
    }

    /// Whether bytes at the place of a head are damaged, rather than those of a free region.
    pub fn is_damaged(bytes: &[u8], class: SizeClass, region: RegionNumber) -> bool {
        bytes.iter().any(|b| *b != 0) && RegionHead::decode(bytes, class, region).is_none()
    }
}

fn sum_in_place(bytes: &[u8], region: RegionNumber) -> u32 {
    crc32c::crc32c_append(crc32c::crc32c(&region.code().to_le_bytes()), bytes)
}

/// Returns the checksum of each chunk of an object.
pub fn sum_chunks(bytes: &[u8]) -> Vec<u32> {
    bytes.chunks(crate::class::CHUNK).map(crc32c::crc32c).collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn superblock() -> Superblock {
        let geometry = Geometry::for_device(64 << 20).expect("long enough");
        Superblock { device: 0x1234_5678_9abc, volume: 77, node: 3, geometry }
    }

    #[test]
    fn blocks_read_back_and_every_flipped_bit_is_noticed() {
        let class = SizeClass::for_size(100_000).expect("fits");
        let head = ExtentHead { superblock: superblock(), extent: 9, class, generation: 4 };
        let blocks = [superblock().encode(), head.encode()];
        assert_eq!(Superblock::decode(&blocks[0]), FoundSuperblock::Whole(superblock()));
        assert_eq!(ExtentHead::decode(&blocks[1]), Some(head));
        for (which, block) in blocks.iter().enumerate() {
            for bit in (0..BLOCK * 8).step_by(7) {
                let mut flipped = block.clone();
                flipped[bit / 8] ^= 1 << (bit % 8);
                match which {
                    0 => assert_eq!(Superblock::decode(&flipped), FoundSuperblock::Foreign),
                    _ => assert_eq!(ExtentHead::decode(&flipped), None),
                }
            }
        }
        assert_eq!(Superblock::decode(&[0; BLOCK]), FoundSuperblock::Blank);
    }

    #[test]
    fn a_superblock_of_another_version_is_named() {
        let mut block = superblock().encode();
        block[8..12].copy_from_slice(&9u32.to_le_bytes());
        block[12..16].fill(0);
        let sum = crc32c::crc32c(&block);
        block[12..16].copy_from_slice(&sum.to_le_bytes());
        assert_eq!(Superblock::decode(&block), FoundSuperblock::OtherVersion(9));
    }

    proptest! {
        #[test]
        fn a_head_reads_back_in_its_place_only(
            ino: u64, piece: u32, seq in 0u64..1 << 63, size in 0u64..=4 << 20, sec: i64, nsec in 0u32..1_000_000_000,
            slot in 0u32..100, bit in 0usize..128 * 8, number in 1u32.., is_version: bool,
        ) {
            let class = SizeClass::for_size(size).expect("fits");
            let (region, time) = (RegionNumber { extent: 2, slot }, Timestamp { sec, nsec });
            let sums = (0..(size as usize).div_ceil(crate::class::CHUNK) as u32).collect();
            let key = (Ino(ino), Piece(piece));
            let (mtime, changed) = (time, time);
            let head = RegionHead {
                generation: 1, key, seq, size, mtime, changed, number, is_version, sums,
            };
            let bytes = head.encode(class, region);
            prop_assert_eq!(RegionHead::decode(&bytes, class, region), Some(head));
            let other = RegionNumber { extent: 2, slot: slot + 1 };
            prop_assert!(RegionHead::is_damaged(&bytes, class, other));
            let mut flipped = bytes;
            flipped[bit / 8] ^= 1 << (bit % 8);
            prop_assert!(RegionHead::is_damaged(&flipped, class, region));
        }
    }
}
