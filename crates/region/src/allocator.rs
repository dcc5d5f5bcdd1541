//! Which regions are free. Only in memory: the heads on the device say which are in use.
//!
//! Regions of a class are given out in order within an extent, so objects that are written together
//! lie side by side. An extent belongs to no class until one needs it, and again when all its
//! regions are free.

use crate::class::{CLASSES, Geometry, RegionNumber, SizeClass};

/// An extent with a class.
#[derive(Debug)]
struct ClaimedExtent {
    class: SizeClass,
    generation: u64,
    /// One bit for each region: 1 is in use, or reserved.
    taken: Vec<u64>,
    used: u32,
    /// Where the search for a free region begins.
    next: u32,
}

/// An extent that has got a class: its head must be written before a region of it counts.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ExtentClaim {
    /// The extent.
    pub extent: u32,
    /// Its class.
    pub class: SizeClass,
    /// Its generation.
    pub generation: u64,
}

/// See the module.
#[derive(Debug)]
pub struct RegionAllocator {
    geometry: Geometry,
    extents: Vec<Option<ClaimedExtent>>,
    /// The extent of each class in which the search begins.
    current: [u32; CLASSES as usize],
    /// Claims that the device does not have yet.
    claims: Vec<ExtentClaim>,
    used_bytes: u64,
    /// Regions that cannot be written any more.
    bad: u32,
}

impl ClaimedExtent {
    fn take_next(&mut self, slots: u32) -> Option<u32> {
        if self.used == slots {
            return None;
        }
        let find = |from: u32, to: u32| {
            let mut slot = from;
            while slot < to {
                let word = self.taken[slot as usize / 64] >> (slot % 64);
                if word == u64::MAX >> (slot % 64) {
                    slot = (slot / 64 + 1) * 64;
                } else if word & 1 == 0 {
                    return Some(slot);
                } else {
                    slot += word.trailing_ones();
                }
            }
            None
        };
        let slot = find(self.next, slots).or_else(|| find(0, self.next))?;
        self.mark_taken(slot);
        self.next = slot + 1;
        Some(slot)
    }

    fn mark_taken(&mut self, slot: u32) {
        let (word, bit) = (&mut self.taken[slot as usize / 64], 1 << (slot % 64));
        assert_eq!(*word & bit, 0, "a region is given out twice");
        *word |= bit;
        self.used += 1;
    }
}

impl RegionAllocator {
    /// Makes an allocator of a device without any region in use.
    pub fn new(geometry: Geometry) -> RegionAllocator {
        let count = geometry.extents as usize;
        RegionAllocator {
            geometry,
            extents: (0..count).map(|_| None).collect(),
            current: [0; CLASSES as usize],
            claims: Vec::new(),
            used_bytes: 0,
            bad: 0,
        }
    }

    /// Takes over an extent that was found on the device, with the regions in use.
    pub fn adopt_extent(&mut self, claim: ExtentClaim, used: impl Iterator<Item = u32>) {
        self.claim_extent(claim);
        if let Some(extent) = &mut self.extents[claim.extent as usize] {
            for slot in used {
                extent.mark_taken(slot);
                self.used_bytes += claim.class.capacity();
            }
        }
        self.release_if_empty(claim.extent);
    }

    fn claim_extent(&mut self, claim: ExtentClaim) {
        let words = (self.geometry.slots(claim.class) as usize).div_ceil(64);
        let ExtentClaim { extent, class, generation } = claim;
        self.extents[extent as usize] =
            Some(ClaimedExtent { class, generation, taken: vec![0; words], used: 0, next: 0 });
    }

    /// Reserves a free region; `None` if the device has none for this class. An extent that gets a
    /// class gets a generation of `make_generation`. On a device without a free extent, the region
    /// may be larger.
    pub fn reserve_region(
        &mut self,
        class: SizeClass,
        make_generation: impl FnOnce() -> u64,
    ) -> Option<RegionNumber> {
        if let Some(region) = self.reserve_claimed(class) {
            return Some(region);
        }
        if let Some(extent) = self.extents.iter().position(Option::is_none) {
            let extent = extent as u32;
            let claim = ExtentClaim { extent, class, generation: make_generation() };
            self.claim_extent(claim);
            self.claims.push(claim);
            self.current[class.number() as usize] = extent;
            return self.reserve_claimed(class);
        }
        let mut larger = (class.number() + 1..CLASSES).filter_map(SizeClass::with_number);
        larger.find_map(|class| self.reserve_claimed(class))
    }

    /// Reserves a region of an extent with this class.
    fn reserve_claimed(&mut self, class: SizeClass) -> Option<RegionNumber> {
        let slots = self.geometry.slots(class);
        let count = self.extents.len() as u32;
        let start = self.current[class.number() as usize];
        for extent in (start..count).chain(0..start) {
            let Some(found) = &mut self.extents[extent as usize] else { continue };
            if found.class == class
                && let Some(slot) = found.take_next(slots)
            {
                self.current[class.number() as usize] = extent;
                self.used_bytes += class.capacity();
                return Some(RegionNumber { extent, slot });
            }
        }
        None
    }

    /// Frees a region that nothing on the device refers to. Returns the extent if that was its last
    /// one.
    pub fn free_region(&mut self, region: RegionNumber) -> Option<u32> {
        let extent = self.extents[region.extent as usize].as_mut()?;
        let (word, bit) = (&mut extent.taken[region.slot as usize / 64], 1 << (region.slot % 64));
        assert_ne!(*word & bit, 0, "a free region is freed");
        *word &= !bit;
        extent.used -= 1;
        self.used_bytes -= extent.class.capacity();
        self.release_if_empty(region.extent).then_some(region.extent)
    }

    fn release_if_empty(&mut self, extent: u32) -> bool {
        let is_empty = self.extents[extent as usize].as_ref().is_some_and(|e| e.used == 0);
        if is_empty {
            self.extents[extent as usize] = None;
            self.claims.retain(|claim| claim.extent != extent);
        }
        is_empty
    }

    /// Whether an extent has no class.
    pub fn is_unclaimed(&self, extent: u32) -> bool {
        self.extents[extent as usize].is_none()
    }

    /// Leaves a region out for as long as the daemon runs.
    pub fn note_bad(&mut self) {
        self.bad += 1;
    }

    /// Returns the number of regions that cannot be written.
    pub fn bad_regions(&self) -> u32 {
        self.bad
    }

    /// Returns the class of an extent and its generation.
    pub fn class_of(&self, extent: u32) -> Option<(SizeClass, u64)> {
        let found = self.extents.get(extent as usize)?.as_ref()?;
        Some((found.class, found.generation))
    }

    /// Returns the claims that must be written, once.
    pub fn take_claims(&mut self) -> Vec<ExtentClaim> {
        std::mem::take(&mut self.claims)
    }

    /// Returns claims that could not be written.
    pub fn put_back_claims(&mut self, claims: Vec<ExtentClaim>) {
        self.claims.extend(claims);
    }

    /// Returns the bytes of all regions in use.
    pub fn used_bytes(&self) -> u64 {
        self.used_bytes
    }

    /// Returns the bytes that extents have for regions.
    pub fn total_bytes(&self) -> u64 {
        u64::from(self.geometry.extents) * self.geometry.extent_len
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::collections::BTreeSet;

    fn allocator() -> RegionAllocator {
        RegionAllocator::new(Geometry::for_device(64 << 20).expect("long enough"))
    }

    fn class(size: u64) -> SizeClass {
        SizeClass::for_size(size).expect("fits")
    }

    #[test]
    fn a_full_device_has_no_region_until_one_is_freed() {
        let mut allocator = allocator();
        let mut given = BTreeSet::new();
        while let Some(region) = allocator.reserve_region(class(4096), || 1) {
            assert!(given.insert(region), "{region:?} twice");
        }
        let each = allocator.geometry.slots(class(4096)) as usize;
        assert_eq!(given.len(), each * allocator.geometry.extents as usize);
        assert_eq!(allocator.reserve_region(class(8192), || 1), None);
        let freed = *given.iter().nth(each / 2).expect("there");
        assert_eq!(allocator.free_region(freed), None);
        assert_eq!(allocator.reserve_region(class(4096), || 1), Some(freed));
        // An extent without objects serves another class, as another generation.
        let emptied: Vec<_> = given.iter().filter(|r| r.extent == 0).collect();
        let last = emptied.iter().filter_map(|r| allocator.free_region(**r)).count();
        assert_eq!(last, 1);
        let region = allocator.reserve_region(class(1 << 20), || 2).expect("room");
        assert_eq!(region, RegionNumber { extent: 0, slot: 0 });
        assert_eq!(allocator.class_of(0), Some((class(1 << 20), 2)));
        assert!(allocator.take_claims().iter().any(|claim| claim.generation == 2));
    }

    #[test]
    fn regions_of_a_class_lie_side_by_side() {
        let mut allocator = allocator();
        let mut last = None;
        for _ in 0..1000 {
            let region = allocator.reserve_region(class(4096), || 1).expect("room");
            if let Some(RegionNumber { extent, slot }) = last {
                assert_eq!(region, RegionNumber { extent, slot: slot + 1 });
            }
            last = Some(region);
        }
    }

    #[test]
    fn adopted_regions_are_not_given_out() {
        let mut allocator = allocator();
        let claim = ExtentClaim { extent: 1, class: class(4096), generation: 9 };
        allocator.adopt_extent(claim, [0, 1, 3].into_iter());
        let slots: Vec<_> = (0..3)
            .filter_map(|_| allocator.reserve_region(class(4096), || 1))
            .map(|r| r.slot)
            .collect();
        assert_eq!(slots, [2, 4, 5]);
        assert_eq!(allocator.used_bytes(), 6 * 4096);
    }
}
