//! Opens a device: finds its objects by their heads, and carries out what only the journal has.

use crate::aligned::AlignedBuffer;
use crate::allocator::ExtentClaim;
use crate::block_device::{BlockDevice, LogFile, WritePart};
use crate::class::{
    BLOCK, DEVICE_MIN, EXTENT_LENGTHS, Geometry, REGION_MAX, RegionNumber, SizeClass, copy_offset,
};
use crate::error::RegionOpenError;
use crate::journal::{Journal, JournalStart, ReadJournal, read_journal};
use crate::journal_record::JournalChange;
use crate::region_head::RegionKey;
use crate::region_head::{ExtentHead, FoundSuperblock, RegionHead, Superblock, sum_chunks};
use crate::region_store::{RegionStore, apply_change, current_time};
use crate::store_parts::{EndedRegion, RegionLimits, StoreParts};
use crate::stored_object::{ChunkSums, ObjectContent, RegionObject, StoredVersion};
use crate::version_table::VersionEntry;
use crate::writeback::Writeback;
use std::collections::HashSet;
use std::io;
use std::path::PathBuf;
use std::sync::Arc;
use tatami_wire::Timestamp;
use tatami_wire::object::ObjectVersion;

/// What is opened.
pub struct RegionOptions {
    /// The device.
    pub device: Arc<dyn BlockDevice>,
    /// Its path, for messages.
    pub path: PathBuf,
    /// The file of the journal.
    pub journal: Box<dyn LogFile>,
    /// Its path, for messages.
    pub journal_path: PathBuf,
    /// The volume and the node that use the device.
    pub volume: u128,
    /// See `volume`.
    pub node: u16,
    /// The random number of the device that the node had, if it had one.
    pub expected: Option<u128>,
    /// Go on without what is lost.
    pub accept_loss: bool,
    /// Bounds of memory.
    pub limits: RegionLimits,
}

/// Opens the device, and makes it one of this node if it is empty. The thread that writes regions
/// is not started yet.
///
/// # Errors
/// See [`RegionOpenError`].
pub fn open_regions(options: RegionOptions) -> Result<RegionStore, RegionOpenError> {
    let superblock = find_superblock(&options)?;
    let RegionOptions { device, path, journal, journal_path, limits, accept_loss, .. } = options;
    let failed = |what| {
        let path = path.clone();
        move |source| RegionOpenError::Io { path, what, source }
    };
    let parts = StoreParts::new(device, superblock, limits);
    let read = read_journal(&*journal, limits.journal_half, superblock.device)
        .map_err(failed("read the journal"))?;
    let last_stored = find_objects(&parts, &read).map_err(failed("read the heads of regions"))?;
    // Both halves are begun before the first object is made.
    let is_missing = read.has_blank_half && last_stored > 0;
    if (read.is_damaged || is_missing) && !accept_loss {
        return Err(RegionOpenError::JournalDamaged { path: journal_path });
    }
    // What the journal has must survive a power cut before a region has it.
    journal.sync().map_err(failed("sync the journal"))?;
    replay_journal(&parts, &read);
    let last_seq = read.last_seq().max(last_stored);
    let older_half = read.find_older_half();
    drop(read);
    let parts = Arc::new(parts);
    let mut writeback = Writeback::new(parts.clone()).map_err(failed("make memory to write"))?;
    // The first pass frees older regions, which the rest may need on a full device. An object whose
    // write failed waits for another region. The journal has it until then, so it begins anew only
    // when no object waits. Writes that keep failing end in an error.
    let mut passes = 0;
    loop {
        writeback.write_all().map_err(|_| {
            failed("write what the journal has")(io::Error::other("see the log for the cause"))
        })?;
        let missing = reserve_missing(&parts);
        passes += 1;
        if passes < 2 || !parts.dirty.lock().objects.is_empty() {
            continue;
        }
        if missing == 0 {
            break;
        }
        // Versions that were given up just before the end are on the device still. They give way
        // once more: changes that were acknowledged need the room.
        if parts.give_up_oldest(REGION_MAX) == 0 {
            let cause = io::Error::from(io::ErrorKind::StorageFull);
            return Err(failed("find room for what the journal has")(cause));
        }
    }
    parts.drop_unplaced_versions();
    let must_write = parts.must_write.clone();
    let begun = JournalStart { device: superblock.device, last_seq, older_half };
    let journal = Journal::begin(journal, limits.journal_half, begun, must_write)
        .map_err(failed("begin the journal"))?;
    assert!(parts.journal.set(journal).is_ok(), "a store gets two journals");
    Ok(RegionStore::new(parts, writeback))
}

fn read_block(device: &dyn BlockDevice, offset: u64) -> io::Result<Vec<u8>> {
    let mut buffer = AlignedBuffer::new(BLOCK);
    device.read_at(&mut buffer, BLOCK, offset)?;
    Ok(buffer.bytes().to_vec())
}

/// Returns the identity of the device. One without a superblock gets it again from its extents; an
/// empty one gets a new one.
fn find_superblock(options: &RegionOptions) -> Result<Superblock, RegionOpenError> {
    let (device, path) = (&*options.device, options.path.clone());
    let len = device.len();
    if len < DEVICE_MIN {
        let (has, least) = (len >> 20, DEVICE_MIN >> 20);
        return Err(RegionOpenError::TooShort { path, has, least });
    }
    let io_failed = |source| {
        let (path, what) = (options.path.clone(), "read it");
        RegionOpenError::Io { path, what, source }
    };
    let places = [0, copy_offset(len)];
    let found = places.map(|offset| read_block(device, offset).map(|b| Superblock::decode(&b)));
    let mut whole = None;
    let (mut blank, mut error) = (0, None);
    for block in found {
        match block {
            Ok(FoundSuperblock::Whole(superblock)) => whole = whole.or(Some(superblock)),
            Ok(FoundSuperblock::OtherVersion(version)) => {
                return Err(RegionOpenError::OtherVersion { path, version });
            }
            Ok(FoundSuperblock::Blank) => blank += 1,
            Ok(FoundSuperblock::Foreign) => {}
            Err(e) => error = Some(e),
        }
    }
    let superblock = match whole.or_else(|| scavenge_superblock(device)) {
        Some(superblock) => superblock,
        None if blank == places.len() => return format_device(options, len),
        None => return Err(error.map_or(RegionOpenError::Foreign { path }, io_failed)),
    };
    if (superblock.volume, superblock.node) != (options.volume, options.node) {
        let Superblock { volume, node, .. } = superblock;
        return Err(RegionOpenError::OtherNode { path, volume, node });
    }
    if options.expected.is_some_and(|id| id != superblock.device) && !options.accept_loss {
        return Err(RegionOpenError::Replaced { path });
    }
    let Geometry { extent_len, extents } = superblock.geometry;
    let end = Geometry { extent_len, extents }.extent_offset(extents);
    if end > len {
        let missing = (end - len).div_ceil(1 << 20);
        return Err(RegionOpenError::Cut { path, missing });
    }
    if whole.is_none() || blank > 0 {
        tracing::warn!(path = %options.path.display(), "a superblock was lost and is written again");
        write_superblock(device, &superblock).map_err(io_failed)?;
    }
    Ok(superblock)
}

/// Searches the heads of extents for the identity of the device.
fn scavenge_superblock(device: &dyn BlockDevice) -> Option<Superblock> {
    for extent_len in EXTENT_LENGTHS {
        let geometry = Geometry::with_extents(device.len(), extent_len);
        for extent in 0..geometry.extents {
            if let Some(head) = read_extent_head(device, &geometry, extent)
                && head.extent == extent
                && head.superblock.geometry.extent_len == extent_len
            {
                return Some(head.superblock);
            }
        }
    }
    None
}

/// Reads the head of an extent, or its copy.
fn read_extent_head(
    device: &dyn BlockDevice,
    geometry: &Geometry,
    extent: u32,
) -> Option<ExtentHead> {
    let mut copies = geometry.extent_heads(extent).into_iter();
    copies.find_map(|offset| ExtentHead::decode(&read_block(device, offset).ok()?))
}

fn format_device(options: &RegionOptions, len: u64) -> Result<Superblock, RegionOpenError> {
    let path = options.path.clone();
    if options.expected.is_some() && !options.accept_loss {
        return Err(RegionOpenError::Emptied { path });
    }
    let io_failed = |what| {
        let path = path.clone();
        move |source| RegionOpenError::Io { path, what, source }
    };
    // Its first megabyte is what a file system or a table of partitions would have written.
    let device = &*options.device;
    let mut front = AlignedBuffer::new(1 << 20);
    device.read_at(&mut front, 1 << 20, 0).map_err(io_failed("read it"))?;
    if front.bytes().iter().any(|b| *b != 0) {
        return Err(RegionOpenError::Foreign { path });
    }
    let mut id = [0; 16];
    getrandom::fill(&mut id).map_err(|e| io_failed("get a random number")(io::Error::other(e)))?;
    let least = DEVICE_MIN >> 20;
    let short = RegionOpenError::TooShort { path: path.clone(), has: len >> 20, least };
    let geometry = Geometry::for_device(len).ok_or(short)?;
    let RegionOptions { volume, node, .. } = *options;
    let superblock = Superblock { device: u128::from_le_bytes(id), volume, node, geometry };
    write_superblock(device, &superblock).map_err(io_failed("write it"))?;
    tracing::info!(path = %path.display(), extents = geometry.extents, "a region device begins");
    Ok(superblock)
}

fn write_superblock(device: &dyn BlockDevice, superblock: &Superblock) -> io::Result<()> {
    let mut writer = device.make_writer(BLOCK)?;
    writer.memory_mut()[..BLOCK].copy_from_slice(&superblock.encode());
    let part = |to| WritePart { from: 0, len: BLOCK, to };
    // One after the other, so that a power cut leaves one of them.
    for to in [copy_offset(device.len()), 0] {
        writer.write_parts(&[part(to)]).into_iter().collect::<io::Result<Vec<()>>>()?;
        device.flush()?;
    }
    Ok(())
}

/// Reads the heads of all regions into the table, and returns the last change that any has.
///
/// A power cut may have left a head without its bytes. Then the journal still has the last change
/// of that head, so the bytes of these heads are checked.
fn find_objects(parts: &StoreParts, journal: &ReadJournal) -> io::Result<u64> {
    let recent: HashSet<u64> = journal.records.iter().map(|record| record.seq).collect();
    let geometry = parts.superblock.geometry;
    let longest = (0..crate::class::CLASSES).filter_map(SizeClass::with_number);
    let longest = longest.map(|class| geometry.heads_len(class)).max().unwrap_or(BLOCK);
    let mut heads = AlignedBuffer::new(longest);
    let (mut last, mut damaged) = (0, 0u64);
    for extent in 0..geometry.extents {
        let head = read_extent_head(&*parts.device, &geometry, extent);
        let Some(head) = head else { continue };
        if head.superblock.device != parts.superblock.device || head.extent != extent {
            continue;
        }
        let (class, generation) = (head.class, head.generation);
        let len = geometry.heads_len(class);
        parts.device.read_at(&mut heads, len, geometry.heads_offset(extent))?;
        let (mut used, mut torn) = (Vec::new(), Vec::new());
        for slot in 0..geometry.slots(class) {
            let region = RegionNumber { extent, slot };
            let at = slot as usize * class.head_len();
            let bytes = &heads.bytes()[at..at + class.head_len()];
            match RegionHead::decode(bytes, class, region) {
                Some(head) if head.generation == generation => {
                    last = last.max(head.seq);
                    used.push(slot);
                    if recent.contains(&head.seq) && !has_its_bytes(parts, class, region, &head) {
                        torn.push(region);
                    } else if head.is_version {
                        add_stored_version(parts, region, head);
                    } else {
                        add_stored(parts, region, head);
                    }
                }
                None if RegionHead::is_damaged(bytes, class, region) => damaged += 1,
                _ => {}
            }
        }
        let claim = ExtentClaim { extent, class, generation };
        parts.allocator.lock().adopt_extent(claim, used.into_iter());
        let torn = torn.into_iter().map(|region| EndedRegion { region, is_bad: false });
        torn.for_each(|region| parts.push_ended(region));
    }
    if damaged > 0 {
        // A torn write leaves such heads as well, and the journal has those objects.
        tracing::warn!(damaged, "some heads on the region device cannot be read");
    }
    let versions = parts.versions.lock().list_all();
    for entry in versions {
        if let Some(object) = parts.table.read().get(&entry.object.key) {
            let (mut content, seq) = (object.content.lock(), entry.object.content.lock().seq);
            content.kept_seq = content.kept_seq.max(seq);
        }
    }
    Ok(last)
}

/// Whether the bytes of a region are those of its head.
fn has_its_bytes(
    parts: &StoreParts,
    class: SizeClass,
    region: RegionNumber,
    head: &RegionHead,
) -> bool {
    let len = (head.size as usize).next_multiple_of(BLOCK);
    let mut buffer = AlignedBuffer::new(len);
    let offset = parts.superblock.geometry.region_offset(class, region);
    parts.device.read_at(&mut buffer, len, offset).is_ok()
        && sum_chunks(&buffer.bytes()[..head.size as usize]) == head.sums
}

/// Adds the region of an object. Of two, the one with the later change counts.
fn add_stored(parts: &StoreParts, region: RegionNumber, head: RegionHead) {
    let mut table = parts.table.write();
    let object = table.entry(head.key).or_insert_with(|| RegionObject::new(head.key));
    let mut content = object.content.lock();
    let ended = |region| EndedRegion { region, is_bad: false };
    let RegionHead { seq, size, sums, mtime, changed, number, .. } = head;
    if content.stored.as_ref().is_some_and(|stored| stored.seq >= seq) {
        parts.push_ended(ended(region));
        return;
    }
    let stored = StoredVersion { region, seq, size, sums: ChunkSums::new(&sums) };
    if let Some(old) = content.stored.replace(stored) {
        parts.push_ended(ended(old.region));
    }
    (content.size, content.seq) = (size, seq);
    (content.mtime, content.changed) = (mtime, changed);
    (content.last_number, content.is_sealed) = (number, true);
}

/// Adds the region of a version. Its object may be missing: it may have become a file.
fn add_stored_version(parts: &StoreParts, region: RegionNumber, head: RegionHead) {
    let RegionHead { key, seq, size, sums, mtime, changed, number, .. } = head;
    let mut versions = parts.versions.lock();
    // A write that failed has left a head, and its bytes. Or the object was removed and made again.
    let known = versions.get(key, number).map(|known| known.object.content.lock().seq);
    if known.is_some_and(|known| known >= seq) {
        parts.push_ended(EndedRegion { region, is_bad: false });
        return;
    }
    if let Some(old) = versions.take(key, number) {
        parts.end_version(&old.object);
    }
    let stored = Some(StoredVersion { region, seq, size, sums: ChunkSums::new(&sums) });
    let content = ObjectContent { size, mtime, changed, seq, stored, ..ObjectContent::default() };
    let state = ObjectVersion { number, size, mtime, replaced: changed };
    versions
        .insert(VersionEntry { object: RegionObject::new_version(key, number, content), state });
}

/// Reserves regions for changed objects that have none, and then for versions. Returns how many
/// objects have none still.
fn reserve_missing(parts: &StoreParts) -> usize {
    let mut missing = 0;
    for object in parts.table.read().values() {
        let mut content = object.content.lock();
        let stored = content.stored.as_ref().map(|stored| stored.seq);
        if content.target.is_some() || content.is_damaged || stored == Some(content.seq) {
            continue;
        }
        content.target = parts.reserve_region(content.size);
        match content.target {
            Some(_) => parts.count_dirty(object, &mut content),
            None => missing += 1,
        }
    }
    let versions = parts.versions.lock().list_all();
    for entry in versions.iter().filter(|_| missing == 0) {
        let mut content = entry.object.content.lock();
        if content.target.is_none() && content.stored.is_none() && !content.is_gone {
            content.target = parts.reserve_region(content.size);
            if content.target.is_some() {
                parts.count_dirty(&entry.object, &mut content);
            }
        }
    }
    missing
}

/// Carries out the changes that no region has.
fn replay_journal(parts: &StoreParts, read: &ReadJournal) {
    let (mut replayed, mut lost) = (0u64, 0u64);
    for record in &read.records {
        let Some(change) = read.change_of(record) else { continue };
        if change == JournalChange::Remove {
            // Also if the object was made again and is in a region: heads of its former versions
            // may not have ended.
            end_versions_before(parts, record.key, record.seq);
        }
        let found = parts.table.read().get(&record.key).cloned();
        let object = match found {
            Some(object) => object,
            None if matches!(change, JournalChange::Remove | JournalChange::Leave) => continue,
            None => {
                let object = RegionObject::new(record.key);
                parts.table.write().insert(record.key, object.clone());
                object
            }
        };
        let mut content = object.content.lock();
        if record.seq <= content.seq {
            continue;
        }
        replayed += 1;
        if matches!(change, JournalChange::Remove | JournalChange::Leave) {
            parts.end_object(&object, &mut content);
            continue;
        }
        content.is_sealed = true;
        if parts.load_image(&object, &mut content).is_err() {
            // What it was cannot be read, so neither can what it would be.
            content.is_damaged = true;
            lost += 1;
            continue;
        }
        if let JournalChange::Keep { number } = change {
            content.last_number = content.last_number.max(number);
            content.kept_seq = record.seq;
            if parts.versions.lock().get(record.key, number).is_none() {
                let target = parts.reserve_region(content.size);
                let at = (record.seq, record.time);
                parts.add_version(&object, &mut content, number, at, target);
            }
            continue;
        }
        let mut image = content.image.take().unwrap_or_default();
        apply_change(Arc::make_mut(&mut image), &change);
        content.size = image.len() as u64;
        content.image = Some(image);
        content.seq = record.seq;
        (content.mtime, content.changed) = (record.time, record.time);
        if let Some(target) = content.target.take() {
            parts.free_region(target);
        }
        content.target = parts.reserve_region(content.size);
        parts.count_dirty(&object, &mut content);
    }
    let now = current_time(Timestamp::default());
    let versioned = parts.versions.lock().list_objects();
    for key in versioned {
        parts.thin_versions(key, now);
    }
    if replayed > 0 {
        tracing::info!(replayed, lost, "changes of regions were taken from the journal");
    }
}

/// Ends the versions that an object had when it was removed.
fn end_versions_before(parts: &StoreParts, key: RegionKey, seq: u64) {
    let all = parts.versions.lock().of_object(key);
    for entry in all.iter().filter(|entry| entry.object.content.lock().seq < seq) {
        parts.versions.lock().take(key, entry.state.number);
        parts.end_version(&entry.object);
    }
}
