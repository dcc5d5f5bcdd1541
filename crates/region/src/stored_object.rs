//! An object, and the images of objects in memory.

use crate::class::{CHUNK, RegionNumber};
use crate::region_head::RegionKey;
use parking_lot::Mutex;
use std::collections::VecDeque;
use std::sync::{Arc, Weak};
use tatami_wire::object::ObjectState;
use tatami_wire::{ClientId, Timestamp};

/// The checksums of the chunks of an object.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum ChunkSums {
    One(u32),
    Many(Box<[u32]>),
}

impl ChunkSums {
    pub(crate) fn new(sums: &[u32]) -> ChunkSums {
        match sums {
            [] => ChunkSums::One(0),
            [one] => ChunkSums::One(*one),
            many => ChunkSums::Many(many.into()),
        }
    }

    /// Returns the checksum of a chunk.
    pub(crate) fn of_chunk(&self, chunk: usize) -> Option<u32> {
        match self {
            ChunkSums::One(sum) => (chunk == 0).then_some(*sum),
            ChunkSums::Many(sums) => sums.get(chunk).copied(),
        }
    }
}

/// What a region has of an object.
#[derive(Clone, Debug)]
pub(crate) struct StoredVersion {
    pub region: RegionNumber,
    /// The last change that it has.
    pub seq: u64,
    /// In bytes.
    pub size: u64,
    pub sums: ChunkSums,
}

/// The state of an object.
#[derive(Debug, Default)]
pub(crate) struct ObjectContent {
    /// It was removed, or has become a file.
    pub is_gone: bool,
    /// In bytes.
    pub size: u64,
    pub mtime: Timestamp,
    pub changed: Timestamp,
    /// The number of its last change.
    pub seq: u64,
    /// All its bytes, while they are in memory.
    pub image: Option<Arc<Vec<u8>>>,
    pub stored: Option<StoredVersion>,
    /// The region that is reserved for the image, while the device does not have it.
    pub target: Option<RegionNumber>,
    /// Bytes of the image that count as not written.
    pub dirty_bytes: usize,
    /// It waits in the queue of those that must be written.
    pub is_queued: bool,
    /// The image is on its way to a region.
    pub is_in_flight: bool,
    /// Bytes for which its image counts in the cache, while it is there.
    pub cached_len: Option<usize>,
    /// The image was used since the last look of the cache.
    pub was_used: bool,
    /// Its bytes cannot be read, so neither can they be changed.
    pub is_damaged: bool,
    /// The number of its last version.
    pub last_number: u32,
    /// The number of the record that made it. An object without a later change is that version.
    pub kept_seq: u64,
    /// The next change keeps this state as a version.
    pub is_sealed: bool,
    /// Clients that have changed the object since it was sealed, and have not ended that.
    pub writers: Vec<ClientId>,
}

/// An object, or an earlier state of one.
#[derive(Debug)]
pub(crate) struct RegionObject {
    pub key: RegionKey,
    /// The number of a version; 0 for the object itself.
    pub number: u32,
    pub content: Mutex<ObjectContent>,
}

impl RegionObject {
    pub(crate) fn new(key: RegionKey) -> Arc<RegionObject> {
        Arc::new(RegionObject { key, number: 0, content: Mutex::default() })
    }

    pub(crate) fn new_version(
        key: RegionKey,
        number: u32,
        content: ObjectContent,
    ) -> Arc<RegionObject> {
        Arc::new(RegionObject { key, number, content: Mutex::new(content) })
    }
}

/// Most clients that count as in the middle of changes. Others do not hold up a version.
const WRITERS_MAX: usize = 32;

impl ObjectContent {
    /// Makes the next change keep the present state, if the object's rule says so.
    pub(crate) fn seal(&mut self) {
        self.is_sealed = true;
        self.writers.clear();
    }

    /// Records that a client changes the object.
    pub(crate) fn note_writer(&mut self, writer: Option<ClientId>) {
        if let Some(writer) = writer
            && self.writers.len() < WRITERS_MAX
            && !self.writers.contains(&writer)
        {
            self.writers.push(writer);
        }
    }

    /// Returns size and storage, `allocated` bytes.
    pub(crate) fn state(&self, allocated: u64) -> ObjectState {
        ObjectState {
            exists: true,
            size: self.size,
            blocks: allocated / 512,
            mtime: self.mtime,
            changed: self.changed,
            is_restarted: self.mtime.sec < tatami_tables::boot_seconds(),
        }
    }
}

/// Returns the whole chunks around a range of an object of `size` bytes: first byte and end.
pub(crate) fn chunks_around(offset: u64, len: usize, size: u64) -> (usize, usize) {
    let end = offset.saturating_add(len as u64).min(size) as usize;
    let from = (offset as usize).min(end) / CHUNK * CHUNK;
    (from, end.next_multiple_of(CHUNK).min(size as usize))
}

/// The images that regions have as well: they can be dropped. The oldest goes first, but one that
/// was used since gets a second chance.
#[derive(Debug, Default)]
pub(crate) struct ImageCache {
    queue: Mutex<ImageQueue>,
}

#[derive(Debug, Default)]
struct ImageQueue {
    objects: VecDeque<Weak<RegionObject>>,
    bytes: usize,
}

impl ImageCache {
    /// Counts the image of an object with `len` bytes from now on, or not at all.
    pub(crate) fn count_image(
        &self,
        object: &Arc<RegionObject>,
        content: &mut ObjectContent,
        len: Option<usize>,
    ) {
        let mut queue = self.queue.lock();
        if content.cached_len.is_none() && len.is_some() {
            queue.objects.push_back(Arc::downgrade(object));
        }
        queue.bytes -= content.cached_len.unwrap_or(0);
        queue.bytes += len.unwrap_or(0);
        content.cached_len = len;
    }

    /// Drops images until at most `limit` bytes are left. The caller holds no object.
    pub(crate) fn drop_images(&self, limit: usize) {
        let mut chances = 2 * self.queue.lock().objects.len();
        while chances > 0 {
            chances -= 1;
            let object = {
                let mut queue = self.queue.lock();
                if queue.bytes <= limit {
                    return;
                }
                let Some(object) = queue.objects.pop_front() else { return };
                object
            };
            let Some(object) = object.upgrade() else { continue };
            let mut content = object.content.lock();
            if content.cached_len.is_none() {
                continue;
            }
            if std::mem::take(&mut content.was_used) {
                self.queue.lock().objects.push_back(Arc::downgrade(&object));
                continue;
            }
            self.count_image(&object, &mut content, None);
            // One that was changed is needed until it is written. It comes back after that.
            if content.target.is_none() && !content.is_queued && !content.is_in_flight {
                content.image = None;
            }
        }
    }

    /// Returns the bytes of all images that can be dropped.
    #[cfg(test)]
    pub(crate) fn bytes(&self) -> usize {
        self.queue.lock().bytes
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use tatami_wire::{Ino, Piece};

    #[test]
    fn chunks_cover_the_range_and_end_with_the_object() {
        assert_eq!(chunks_around(0, 10, 4096), (0, 4096));
        assert_eq!(chunks_around(CHUNK as u64 + 5, 1, 1 << 20), (CHUNK, 2 * CHUNK));
        assert_eq!(chunks_around(CHUNK as u64 - 1, 2, 100_000), (0, 100_000));
        assert_eq!(chunks_around(200_000, 5, 100_000), (CHUNK, 100_000));
    }

    #[test]
    fn unused_images_go_first_and_changed_ones_stay() {
        let cache = ImageCache::default();
        let objects: Vec<_> = (0..4)
            .map(|n| {
                let object = RegionObject::new((Ino(n), Piece(0)));
                let mut content = object.content.lock();
                content.image = Some(Arc::new(vec![0; 100]));
                content.was_used = n == 0;
                content.is_queued = n == 1;
                cache.count_image(&object, &mut content, Some(100));
                drop(content);
                object
            })
            .collect();
        cache.drop_images(100);
        let left: Vec<_> = objects.iter().map(|o| o.content.lock().image.is_some()).collect();
        assert_eq!(left, [true, true, false, false]);
        assert_eq!(cache.bytes(), 100);
    }
}
