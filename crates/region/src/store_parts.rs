//! What callers and the thread that writes regions share.

use crate::aligned::AlignedBuffer;
use crate::allocator::RegionAllocator;
use crate::block_device::BlockDevice;
use crate::class::{BLOCK, CHUNK, REGION_MAX, RegionNumber, SizeClass};
use crate::generation::make_generation;
use crate::journal::Journal;
use crate::region_head::{RegionKey, Superblock};
use crate::signal::Signal;
use crate::stored_object::{ImageCache, ObjectContent, RegionObject, StoredVersion, chunks_around};
use crate::version_table::{VersionEntry, VersionTable};
use parking_lot::{Condvar, Mutex, RwLock};
use std::collections::{BTreeMap, VecDeque};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, OnceLock};
use tatami_wire::object::ObjectVersion;
use tatami_wire::{Errno, Ino, Timestamp};

/// Bounds of memory, in bytes.
#[derive(Clone, Copy, Debug)]
pub struct RegionLimits {
    /// Most bytes of objects that wait for their regions. Writers wait above it.
    pub dirty: usize,
    /// Most bytes of objects that regions have as well.
    pub cached: usize,
    /// Bytes of each half of the journal.
    pub journal_half: u64,
}

impl Default for RegionLimits {
    fn default() -> RegionLimits {
        RegionLimits { dirty: 64 << 20, cached: 64 << 20, journal_half: 64 << 20 }
    }
}

/// A region that nothing needs any more, and that has a head.
#[derive(Clone, Copy, Debug)]
pub(crate) struct EndedRegion {
    pub region: RegionNumber,
    /// It cannot be written, so it stays out of use.
    pub is_bad: bool,
}

/// Regions with heads that must end, the oldest first.
#[derive(Debug, Default)]
pub(crate) struct EndedQueue {
    pub regions: VecDeque<EndedRegion>,
    /// How many were ever added.
    pub added: u64,
    /// How many of these are done: they are free, or out of use.
    pub done: u64,
}

/// Objects that must be written, the oldest first.
#[derive(Debug, Default)]
pub(crate) struct DirtyQueue {
    pub objects: VecDeque<Arc<RegionObject>>,
    /// Versions, which go first: the journal has them only as states on the way to newer ones.
    pub versions: VecDeque<Arc<RegionObject>>,
    pub bytes: usize,
}

/// See the module.
pub(crate) struct StoreParts {
    pub device: Arc<dyn BlockDevice>,
    pub superblock: Superblock,
    pub limits: RegionLimits,
    /// Absent while the store opens.
    pub journal: OnceLock<Journal>,
    pub table: RwLock<BTreeMap<RegionKey, Arc<RegionObject>>>,
    pub allocator: Mutex<RegionAllocator>,
    pub cache: ImageCache,
    pub dirty: Mutex<DirtyQueue>,
    pub dirty_room: Condvar,
    pub versions: Mutex<VersionTable>,
    pub ended: Mutex<EndedQueue>,
    /// Regions have become free.
    pub ended_signal: Condvar,
    /// A change waits for regions that become free.
    pub must_end: AtomicBool,
    /// Extents that have become empty.
    pub emptied: Mutex<Vec<u32>>,
    pub must_write: Arc<Signal>,
    pub must_stop: AtomicBool,
    /// Reads that failed or had a wrong checksum, and the last such object.
    pub damaged_reads: AtomicU64,
    pub damaged_ino: AtomicU64,
    buffers: Mutex<Vec<AlignedBuffer>>,
}

impl StoreParts {
    pub(crate) fn new(
        device: Arc<dyn BlockDevice>,
        superblock: Superblock,
        limits: RegionLimits,
    ) -> StoreParts {
        StoreParts {
            device,
            superblock,
            limits,
            journal: OnceLock::new(),
            table: RwLock::default(),
            allocator: Mutex::new(RegionAllocator::new(superblock.geometry)),
            cache: ImageCache::default(),
            dirty: Mutex::default(),
            dirty_room: Condvar::new(),
            versions: Mutex::default(),
            ended: Mutex::default(),
            ended_signal: Condvar::new(),
            must_end: AtomicBool::new(false),
            emptied: Mutex::default(),
            must_write: Arc::default(),
            must_stop: AtomicBool::new(false),
            damaged_reads: AtomicU64::new(0),
            damaged_ino: AtomicU64::new(0),
            buffers: Mutex::default(),
        }
    }

    /// Returns the journal.
    ///
    /// # Errors
    /// `EIO` while the store opens.
    pub(crate) fn journal(&self) -> Result<&Journal, Errno> {
        self.journal.get().ok_or(Errno::EIO)
    }

    /// Returns bytes of a stored object, as `chunks_around` cuts them.
    ///
    /// # Errors
    /// `EIO` for bytes that cannot be read or have a wrong checksum.
    pub(crate) fn read_stored(
        &self,
        ino: Ino,
        stored: &StoredVersion,
        from: usize,
        end: usize,
    ) -> Result<Vec<u8>, Errno> {
        if from == end {
            return Ok(Vec::new());
        }
        let class = self.allocator.lock().class_of(stored.region.extent).map(|(class, _)| class);
        let class = class.ok_or(Errno::EIO)?;
        let offset = self.superblock.geometry.region_offset(class, stored.region) + from as u64;
        let len = (end - from).next_multiple_of(BLOCK);
        let mut buffer = self.take_buffer(len);
        let read = self.device.read_at(&mut buffer, len, offset);
        let is_right = read.is_ok()
            && buffer.bytes()[..end - from].chunks(CHUNK).enumerate().all(|(n, chunk)| {
                stored.sums.of_chunk(from / CHUNK + n) == Some(crc32c::crc32c(chunk))
            });
        let bytes = buffer.bytes()[..end - from].to_vec();
        self.buffers.lock().push(buffer);
        if !is_right {
            let cause = read.err().map_or("its checksum is wrong".to_owned(), |e| e.to_string());
            tracing::error!(%ino, offset, "an object on the region device is damaged: {cause}");
            self.damaged_reads.fetch_add(1, Ordering::Relaxed);
            self.damaged_ino.store(ino.0, Ordering::Relaxed);
            return Err(Errno::EIO);
        }
        Ok(bytes)
    }

    fn take_buffer(&self, len: usize) -> AlignedBuffer {
        let found = self.buffers.lock().pop().filter(|buffer| buffer.len() >= len);
        // Two sizes serve all reads, so that buffers fit again.
        let len = if len <= CHUNK { CHUNK } else { REGION_MAX as usize };
        found.unwrap_or_else(|| AlignedBuffer::new(len))
    }

    /// Brings all bytes of an object to memory.
    ///
    /// # Errors
    /// `EIO` for bytes that cannot be read.
    pub(crate) fn load_image(
        &self,
        object: &Arc<RegionObject>,
        content: &mut ObjectContent,
    ) -> Result<(), Errno> {
        if content.is_damaged {
            return Err(Errno::EIO);
        }
        content.was_used = true;
        if content.image.is_some() {
            return Ok(());
        }
        let bytes = match &content.stored {
            Some(stored) => self.read_stored(object.key.0, stored, 0, stored.size as usize)?,
            None => Vec::new(),
        };
        self.cache.count_image(object, content, Some(bytes.len()));
        content.image = Some(Arc::new(bytes));
        Ok(())
    }

    /// Reads bytes of an object, up to its end.
    ///
    /// # Errors
    /// `EIO` for bytes that cannot be read.
    pub(crate) fn read_object(
        &self,
        object: &Arc<RegionObject>,
        content: &mut ObjectContent,
        buf: &mut [u8],
        offset: u64,
    ) -> Result<usize, Errno> {
        let len = (buf.len() as u64).min(content.size.saturating_sub(offset)) as usize;
        if len == 0 {
            return Ok(0);
        }
        let stored = content.stored.clone();
        match stored.filter(|_| content.image.is_none() && !content.is_damaged) {
            // Large ones would fill the memory with bytes that are read once.
            Some(stored) if stored.size > CHUNK as u64 => {
                let (from, end) = chunks_around(offset, len, stored.size);
                let bytes = self.read_stored(object.key.0, &stored, from, end)?;
                let at = offset as usize - from;
                buf[..len].copy_from_slice(&bytes[at..at + len]);
            }
            _ => {
                self.load_image(object, content)?;
                let image = content.image.as_ref().ok_or(Errno::EIO)?;
                buf[..len].copy_from_slice(&image[offset as usize..offset as usize + len]);
            }
        }
        Ok(len)
    }

    /// Reserves a region for an object of `size` bytes; `None` if the device has none.
    pub(crate) fn reserve_region(&self, size: u64) -> Option<RegionNumber> {
        let class = SizeClass::for_size(size)?;
        self.allocator.lock().reserve_region(class, make_generation)
    }

    /// Frees a region whose head is not on the device.
    pub(crate) fn free_region(&self, region: RegionNumber) {
        let emptied = self.allocator.lock().free_region(region);
        self.emptied.lock().extend(emptied);
    }

    /// Adds a region whose head must end.
    pub(crate) fn push_ended(&self, region: EndedRegion) {
        let mut ended = self.ended.lock();
        ended.added += 1;
        ended.regions.push_back(region);
    }

    /// Takes an object out of the count of bytes that must be written.
    pub(crate) fn uncount_dirty(&self, content: &mut ObjectContent) {
        let bytes = std::mem::take(&mut content.dirty_bytes);
        if bytes > 0 {
            self.dirty.lock().bytes -= bytes;
            self.dirty_room.notify_all();
        }
    }

    /// Counts all bytes of a changed object as not written, and puts it into the queue.
    pub(crate) fn count_dirty(&self, object: &Arc<RegionObject>, content: &mut ObjectContent) {
        let len = content.image.as_ref().map_or(0, |image| image.len());
        let mut dirty = self.dirty.lock();
        dirty.bytes = dirty.bytes - content.dirty_bytes + len;
        content.dirty_bytes = len;
        if !content.is_queued {
            content.is_queued = true;
            match object.number {
                0 => dirty.objects.push_back(object.clone()),
                _ => dirty.versions.push_back(object.clone()),
            }
        }
        if dirty.bytes > self.limits.dirty / 2 {
            self.must_write.raise();
        }
    }

    /// Waits until fewer bytes than the limit wait for their regions. The caller holds nothing.
    pub(crate) fn wait_for_dirty_room(&self) {
        let mut dirty = self.dirty.lock();
        while dirty.bytes > self.limits.dirty && !self.journal.get().is_none_or(Journal::has_failed)
        {
            self.dirty_room.wait(&mut dirty);
        }
    }

    /// Removes an object from the table.
    pub(crate) fn drop_from_table(&self, object: &Arc<RegionObject>) {
        let mut table = self.table.write();
        if table.get(&object.key).is_some_and(|found| Arc::ptr_eq(found, object)) {
            table.remove(&object.key);
        }
    }

    /// Ends an object: its regions become free, and its memory.
    pub(crate) fn end_object(&self, object: &Arc<RegionObject>, content: &mut ObjectContent) {
        content.is_gone = true;
        if let Some(target) = content.target.take() {
            self.free_region(target);
        }
        if let Some(stored) = content.stored.take() {
            let region = stored.region;
            self.push_ended(EndedRegion { region, is_bad: false });
        }
        self.uncount_dirty(content);
        self.cache.count_image(object, content, None);
        content.image = None;
        if object.number == 0 {
            self.drop_from_table(object);
        }
    }

    /// Ends a version that is not in the table any more.
    pub(crate) fn end_version(&self, version: &Arc<RegionObject>) {
        self.end_object(version, &mut version.content.lock());
    }

    /// Ends all versions of an object.
    pub(crate) fn end_versions(&self, key: RegionKey) {
        let all = self.versions.lock().of_object(key);
        for entry in all {
            if self.versions.lock().take(key, entry.state.number).is_some() {
                self.end_version(&entry.object);
            }
        }
    }

    /// Ends the versions of an object that its rule does not keep.
    pub(crate) fn thin_versions(&self, key: RegionKey, now: Timestamp) {
        let ended = self.versions.lock().take_surplus(key, now);
        ended.iter().for_each(|entry| self.end_version(&entry.object));
    }

    /// Ends the oldest versions of all objects until their regions have `wanted` bytes. Returns how
    /// many these have. They are free when their heads have ended.
    pub(crate) fn give_up_oldest(&self, wanted: u64) -> u64 {
        let mut given = 0;
        while given < wanted {
            let Some(oldest) = self.versions.lock().take_oldest() else { break };
            given += SizeClass::for_size(oldest.state.size).map_or(0, SizeClass::capacity);
            self.end_version(&oldest.object);
        }
        given
    }

    /// Gives up versions for which the device has no room.
    pub(crate) fn drop_unplaced_versions(&self) {
        let all = self.versions.lock().list_all();
        for VersionEntry { object, state } in all {
            let is_placed = {
                let content = object.content.lock();
                content.target.is_some() || content.stored.is_some()
            };
            if !is_placed {
                self.versions.lock().take(object.key, state.number);
                self.end_version(&object);
            }
        }
    }

    /// Whether a version of an object is not in its region yet. The caller may hold the object.
    pub(crate) fn has_unstored_version(&self, key: RegionKey) -> bool {
        if key.1.version_rule() == 0 {
            return false;
        }
        let all = self.versions.lock().of_object(key);
        all.iter().any(|entry| {
            let content = entry.object.content.lock();
            content.target.is_some() || content.is_in_flight
        })
    }

    /// Keeps the present state of an object as a version, which `number` and `now` name. The
    /// journal says so already, and the object is not empty.
    pub(crate) fn add_version(
        &self,
        object: &RegionObject,
        content: &mut ObjectContent,
        number: u32,
        (seq, now): (u64, Timestamp),
        target: Option<RegionNumber>,
    ) {
        let state = ObjectContent {
            size: content.size,
            mtime: content.mtime,
            changed: now,
            seq,
            image: content.image.clone(),
            target,
            ..ObjectContent::default()
        };
        let (size, mtime) = (content.size, content.mtime);
        content.last_number = content.last_number.max(number);
        content.kept_seq = seq;
        let version = RegionObject::new_version(object.key, number, state);
        if target.is_some() {
            self.count_dirty(&version, &mut version.content.lock());
        }
        let state = ObjectVersion { number, size, mtime, replaced: now };
        self.versions.lock().insert(VersionEntry { object: version, state });
    }
}
