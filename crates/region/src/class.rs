//! Where regions lie: sizes, numbers and addresses.
//!
//! ```text
//! device  superblock │ to 1 MiB: zeros │ extent 0 │ extent 1 │ … │ at the end: superblock again
//! extent  its head, one block │ heads of its regions, whole blocks │ regions │ its head again
//! ```
//!
//! All regions of an extent have one size, its *class*. A number is (extent, slot), so it gives the
//! address without a look at a table of objects. This is the idea of PPOSS, the storage server of
//! PPMDS, whose regions all have one size.

/// Unit of all reads and writes of a device, in bytes.
pub const BLOCK: usize = 4096;
/// Bytes of an object that one checksum covers.
pub const CHUNK: usize = 64 << 10;
/// Number of classes: 4 KiB to 4 MiB, powers of two.
pub const CLASSES: u8 = 11;
/// The largest object, in bytes.
pub const REGION_MAX: u64 = tatami_wire::object::REGION_MAX;
const _: () = assert!(REGION_MAX == (BLOCK as u64) << (CLASSES - 1));
/// Where the first extent begins, in bytes.
pub const EXTENTS_AT: u64 = 1 << 20;
/// Shortest device, in bytes.
pub const DEVICE_MIN: u64 = 64 << 20;
/// Length of an extent of a short device, in bytes.
const EXTENT_SHORT: u64 = 16 << 20;
/// Length of an extent otherwise, in bytes.
const EXTENT_LONG: u64 = 64 << 20;
/// Shortest device with long extents, in bytes.
const LONG_FROM: u64 = 8 << 30;

/// All lengths that an extent can have, in bytes.
pub const EXTENT_LENGTHS: [u64; 2] = [EXTENT_SHORT, EXTENT_LONG];

/// The size of a region.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct SizeClass(u8);

impl SizeClass {
    /// Returns the class with this number.
    pub fn with_number(number: u8) -> Option<SizeClass> {
        (number < CLASSES).then_some(SizeClass(number))
    }

    /// Returns the smallest class for an object of `size` bytes; `None` above [`REGION_MAX`].
    pub fn for_size(size: u64) -> Option<SizeClass> {
        (0..CLASSES).map(SizeClass).find(|class| size <= class.capacity())
    }

    /// Returns its number, from 0.
    pub fn number(self) -> u8 {
        self.0
    }

    /// Returns the bytes of a region.
    pub fn capacity(self) -> u64 {
        (BLOCK as u64) << self.0
    }

    /// Returns the most chunks that a region has.
    pub fn chunks(self) -> usize {
        (self.capacity() as usize).div_ceil(CHUNK)
    }

    /// Returns the room for the head of a region, in bytes: 68 and a checksum for each chunk.
    pub fn head_len(self) -> usize {
        if self.chunks() <= 8 { 128 } else { 512 }
    }
}

/// The number of a region.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct RegionNumber {
    /// The extent, from 0.
    pub extent: u32,
    /// The place within the extent, from 0.
    pub slot: u32,
}

impl RegionNumber {
    /// Returns the number as one integer.
    pub fn code(self) -> u64 {
        u64::from(self.extent) << 32 | u64::from(self.slot)
    }
}

/// The extents of a device.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Geometry {
    /// Bytes of an extent.
    pub extent_len: u64,
    /// Number of extents.
    pub extents: u32,
}

impl Geometry {
    /// Returns the geometry of a new device; `None` if it is shorter than [`DEVICE_MIN`].
    pub fn for_device(len: u64) -> Option<Geometry> {
        let extent_len = if len < LONG_FROM { EXTENT_SHORT } else { EXTENT_LONG };
        (len >= DEVICE_MIN).then(|| Geometry::with_extents(len, extent_len))
    }

    /// Returns the geometry of a device of `len` bytes with extents of this length.
    pub fn with_extents(len: u64, extent_len: u64) -> Geometry {
        let room = copy_offset(len).saturating_sub(EXTENTS_AT);
        Geometry { extent_len, extents: u32::try_from(room / extent_len).unwrap_or(u32::MAX) }
    }

    /// Returns the number of regions of an extent.
    pub fn slots(&self, class: SizeClass) -> u32 {
        let each = class.capacity() + class.head_len() as u64;
        // Two blocks for the head of the extent. One because heads of regions fill whole blocks.
        let room = self.extent_len - 3 * BLOCK as u64;
        (room / each) as u32
    }

    /// Returns where an extent begins.
    pub fn extent_offset(&self, extent: u32) -> u64 {
        EXTENTS_AT + u64::from(extent) * self.extent_len
    }

    /// Returns where both copies of the head of an extent are.
    pub fn extent_heads(&self, extent: u32) -> [u64; 2] {
        let start = self.extent_offset(extent);
        [start, start + self.extent_len - BLOCK as u64]
    }

    /// Returns where the heads of an extent begin.
    pub fn heads_offset(&self, extent: u32) -> u64 {
        self.extent_offset(extent) + BLOCK as u64
    }

    /// Returns the length of the heads of an extent: whole blocks.
    pub fn heads_len(&self, class: SizeClass) -> usize {
        (self.slots(class) as usize * class.head_len()).next_multiple_of(BLOCK)
    }

    /// Returns where a region begins.
    pub fn region_offset(&self, class: SizeClass, region: RegionNumber) -> u64 {
        let first = self.heads_offset(region.extent) + self.heads_len(class) as u64;
        first + u64::from(region.slot) * class.capacity()
    }

    /// Returns the block that has the head of a region, and the place of the head in it.
    pub fn head_place(&self, class: SizeClass, region: RegionNumber) -> (u64, usize) {
        let at = region.slot as usize * class.head_len();
        (self.heads_offset(region.extent) + (at / BLOCK * BLOCK) as u64, at % BLOCK)
    }
}

/// Returns where the second superblock of a device of `len` bytes is.
pub fn copy_offset(len: u64) -> u64 {
    len / BLOCK as u64 * BLOCK as u64 - BLOCK as u64
}

#[cfg(test)]
mod tests {
    use super::*;

    fn all_classes() -> impl Iterator<Item = SizeClass> {
        (0..CLASSES).map(SizeClass)
    }

    #[test]
    fn an_object_gets_the_smallest_region_that_holds_it() {
        let class = |size| SizeClass::for_size(size).map(SizeClass::capacity);
        assert_eq!(class(0), Some(4096));
        assert_eq!(class(4096), Some(4096));
        assert_eq!(class(4097), Some(8192));
        assert_eq!(class(REGION_MAX), Some(4 << 20));
        assert_eq!(class(REGION_MAX + 1), None);
    }

    /// Heads and regions of an extent lie in it, at block boundaries, and none overlap.
    #[test]
    fn places_of_an_extent_do_not_overlap() {
        for len in [DEVICE_MIN, 100 << 20, LONG_FROM, 3 << 40] {
            let geometry = Geometry::for_device(len).expect("long enough");
            assert!(geometry.extents > 0);
            let end = geometry.extent_offset(geometry.extents - 1) + geometry.extent_len;
            assert!(end <= copy_offset(len));
            for class in all_classes() {
                let slots = geometry.slots(class);
                assert!(slots > 0, "{class:?}");
                let region = |slot| RegionNumber { extent: 1, slot };
                let first = geometry.region_offset(class, region(0));
                let heads = geometry.heads_offset(1);
                assert_eq!(first % BLOCK as u64, 0);
                assert!(heads + geometry.heads_len(class) as u64 <= first);
                let end = geometry.region_offset(class, region(slots - 1)) + class.capacity();
                assert!(end <= geometry.extent_heads(1)[1], "{class:?} {len}");
                let (block, at) = geometry.head_place(class, region(slots - 1));
                assert!(block < first && at + class.head_len() <= BLOCK);
                assert!(64 + 4 * class.chunks() <= class.head_len());
            }
        }
        assert_eq!(Geometry::for_device(DEVICE_MIN - 1), None);
    }

    #[test]
    fn extents_waste_little() {
        let geometry = Geometry::for_device(LONG_FROM).expect("long enough");
        for class in all_classes() {
            let used = u64::from(geometry.slots(class)) * class.capacity();
            assert!(used * 100 >= geometry.extent_len * 93, "{class:?}");
        }
    }
}
