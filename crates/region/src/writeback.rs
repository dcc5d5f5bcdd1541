//! Writes objects to regions, many at a time.
//!
//! A changed object is written as a whole, to a region that nothing refers to. Its head and its
//! bytes are under way together: a head counts only if the checksums of its bytes are right, and a
//! power cut before the flush leaves the older region and the journal. The steps of each batch:
//!
//! 1. The journal is synced. So no region ever has a change that the journal could lose.
//! 2. Bytes, heads and the heads of new extents are written. Some batches also write zeros in
//!    place of heads that ended before: those of removed objects, and of the older regions of
//!    objects that earlier batches wrote. Ended heads lie anywhere on the device. So they wait for
//!    each other, to share blocks, until their journal or their regions are needed, or many wait.
//! 3. The device is flushed. From here on the new regions count, and ended ones are free.
//!
//! A half of the journal is free when all objects that had changed are written, and all heads that
//! had ended are gone.

use crate::allocator::ExtentClaim;
use crate::block_device::{DeviceWriter, WritePart};
use crate::class::{BLOCK, REGION_MAX, RegionNumber, SizeClass};
use crate::journal::Journal;
use crate::region_head::{ExtentHead, RegionHead, sum_chunks};
use crate::store_parts::{EndedRegion, StoreParts};
use crate::stored_object::{ChunkSums, RegionObject, StoredVersion};
use std::collections::{BTreeMap, BTreeSet};
use std::io;
use std::ops::Range;
use std::sync::Arc;
use std::sync::atomic::Ordering;

/// Room for bytes of objects in one batch.
const BYTES_ROOM: usize = 3 * REGION_MAX as usize;
/// Most objects that one batch writes.
const JOBS_MAX: usize = 2048;
/// Most blocks with heads that one batch writes for its objects, and as many for ended heads.
const HEAD_BLOCKS_MAX: usize = 512;
/// So many ended heads wait for each other, unless their journal or their regions are needed.
/// Heads of one block then end by one write.
const ENDED_MAX: usize = 16 * 1024;
/// Most extents that one batch begins.
const CLAIMS_MAX: usize = 64;
/// After so many batches in a row with a failed write, the device counts as broken.
const FAILURES_MAX: u32 = 8;

/// An object that is written.
struct WriteJob {
    object: Arc<RegionObject>,
    class: SizeClass,
    head: RegionHead,
    region: RegionNumber,
}

/// A block of heads that is written, in the writer's memory.
struct HeadBlock {
    at: usize,
    is_readable: bool,
}

/// How many objects a batch took from each queue.
#[derive(Clone, Copy, Debug, Default)]
struct TakenJobs {
    objects: usize,
    versions: usize,
}

/// The device refuses to be written. The cause is logged.
#[derive(Debug)]
pub(crate) struct DeviceFailed;

/// Makes one part of blocks that are neighbours on the device and in the memory.
fn join_blocks(blocks: impl Iterator<Item = (u64, usize)>) -> Vec<WritePart> {
    let mut parts: Vec<WritePart> = Vec::new();
    for (to, from) in blocks {
        match parts.last_mut() {
            Some(p) if p.to + p.len as u64 == to && p.from + p.len == from => p.len += BLOCK,
            _ => parts.push(WritePart { from, len: BLOCK, to }),
        }
    }
    parts
}

/// Returns the blocks of a part.
fn split_blocks(part: WritePart) -> Vec<WritePart> {
    let block = |at| WritePart { from: part.from + at, len: BLOCK, to: part.to + at as u64 };
    (0..part.len).step_by(BLOCK).map(block).collect()
}

/// See the module.
pub(crate) struct Writeback {
    parts: Arc<StoreParts>,
    writer: Box<dyn DeviceWriter>,
    failures: u32,
}

impl Writeback {
    pub(crate) fn new(parts: Arc<StoreParts>) -> io::Result<Writeback> {
        let len = BYTES_ROOM + (2 * HEAD_BLOCKS_MAX + CLAIMS_MAX) * BLOCK;
        let writer = parts.device.make_writer(len)?;
        Ok(Writeback { parts, writer, failures: 0 })
    }

    /// Writes whenever that is needed, until the store ends. Then writes all.
    pub(crate) fn run(mut self) {
        loop {
            self.parts.must_write.wait();
            let stops = self.parts.must_stop.load(Ordering::Acquire);
            if self.write_what_must_be().is_err() || stops && self.write_all().is_err() {
                // Writers that wait learn it now.
                self.parts.dirty_room.notify_all();
                return;
            }
            if stops {
                return;
            }
        }
    }

    /// Frees the half of the journal that is full, and memory above its bound.
    pub(crate) fn write_what_must_be(&mut self) -> Result<(), DeviceFailed> {
        while let Some(half) = self.parts.journal.get().and_then(Journal::find_closing) {
            self.write_all()?;
            if let Some(journal) = self.parts.journal.get() {
                journal.free_half(half);
            }
        }
        if self.parts.must_end.swap(false, Ordering::AcqRel) {
            self.end_regions()?;
        }
        while self.parts.dirty.lock().bytes > self.parts.limits.dirty / 2 {
            self.write_batch(Vec::new())?;
        }
        if self.parts.ended.lock().regions.len() > ENDED_MAX {
            self.end_regions()?;
        }
        Ok(())
    }

    /// Writes all objects that have changed before the call, and ends all heads that have ended.
    pub(crate) fn write_all(&mut self) -> Result<(), DeviceFailed> {
        let (mut objects, mut versions) = {
            let dirty = self.parts.dirty.lock();
            (dirty.objects.len(), dirty.versions.len())
        };
        while objects > 0 || versions > 0 {
            let taken = self.write_batch(Vec::new())?;
            objects = objects.saturating_sub(taken.objects);
            versions = versions.saturating_sub(taken.versions);
        }
        self.end_regions()
    }

    /// Ends all heads that have ended before the call, in the order of their blocks.
    fn end_regions(&mut self) -> Result<(), DeviceFailed> {
        let mut ended: Vec<(u64, EndedRegion)> = {
            let mut queue = self.parts.ended.lock();
            let regions: Vec<EndedRegion> = queue.regions.drain(..).collect();
            drop(queue);
            regions.into_iter().map(|ended| (self.find_head_block(ended.region), ended)).collect()
        };
        ended.sort_by_key(|(block, _)| *block);
        let blocks: Vec<&[(u64, EndedRegion)]> = ended.chunk_by(|a, b| a.0 == b.0).collect();
        for some in blocks.chunks(HEAD_BLOCKS_MAX) {
            let batch = some.iter().flat_map(|block| block.iter().map(|(_, ended)| *ended));
            self.write_batch(batch.collect())?;
        }
        Ok(())
    }

    /// Returns where the block with the head of a region is; 0 for an extent without a class.
    fn find_head_block(&self, region: RegionNumber) -> u64 {
        let class = self.parts.allocator.lock().class_of(region.extent);
        class.map_or(0, |(class, _)| self.parts.superblock.geometry.head_place(class, region).0)
    }

    /// Writes one batch of objects, and ends these heads: of at most [`HEAD_BLOCKS_MAX`] blocks.
    /// Returns what it took from the queue of objects.
    fn write_batch(&mut self, ended: Vec<EndedRegion>) -> Result<TakenJobs, DeviceFailed> {
        // What a failed batch had taken never comes back, and later objects would wait for it.
        if self.parts.journal.get().is_some_and(Journal::has_failed) {
            return Err(DeviceFailed);
        }
        self.discard_emptied();
        let (jobs, mut parts, taken) = self.collect_jobs();
        if jobs.is_empty() && ended.is_empty() {
            return Ok(taken);
        }
        if let Some(journal) = self.parts.journal.get()
            && journal.sync().is_err()
        {
            return Err(self.give_up("the journal cannot be synced"));
        }
        let mut claims = self.parts.allocator.lock().take_claims();
        let later = claims.split_off(claims.len().min(CLAIMS_MAX));
        self.parts.allocator.lock().put_back_claims(later);
        let blocks = self.prepare_heads(&jobs, &ended);
        let of_bytes = parts.len();
        let readable = blocks.iter().filter(|(_, block)| block.is_readable);
        parts.extend(join_blocks(readable.map(|(to, block)| (*to, block.at))));
        let of_heads = of_bytes..parts.len();
        parts.extend(self.prepare_claims(&claims));
        let failed = self.write_parts(&parts, of_heads);
        if self.parts.device.flush().is_err() {
            return Err(self.give_up("the region device cannot be flushed"));
        }
        self.finish_ended(ended, &blocks, &failed);
        self.finish_jobs(jobs, &blocks, &failed, &claims)?;
        self.parts.cache.drop_images(self.parts.limits.cached);
        Ok(taken)
    }

    /// Writes all parts. Returns those that failed: of the parts `of_heads`, the single blocks. A
    /// block that cannot be written is no reason to give up the heads beside it.
    fn write_parts(&mut self, parts: &[WritePart], of_heads: Range<usize>) -> Vec<WritePart> {
        let written = self.writer.write_parts(parts);
        let Some(error) = written.iter().find_map(|w| w.as_ref().err()) else { return Vec::new() };
        tracing::error!(%error, "the region device could not be written");
        let mut failed = Vec::new();
        for (number, _) in written.iter().enumerate().filter(|(_, w)| w.is_err()) {
            if of_heads.contains(&number) {
                let blocks = split_blocks(parts[number]);
                let again = self.writer.write_parts(&blocks);
                failed
                    .extend(blocks.iter().zip(again).filter(|(_, w)| w.is_err()).map(|(b, _)| *b));
            } else {
                failed.push(parts[number]);
            }
        }
        failed
    }

    fn give_up(&self, cause: &str) -> DeviceFailed {
        tracing::error!("regions take no more changes: {cause}; check the device");
        if let Some(journal) = self.parts.journal.get() {
            journal.refuse_changes();
        }
        // Under the lock, so that a change that has just looked hears of it.
        let _ended = self.parts.ended.lock();
        self.parts.ended_signal.notify_all();
        DeviceFailed
    }

    /// Discards extents without a region in use. Only this thread writes, so nothing of a new class
    /// can be there yet.
    fn discard_emptied(&self) {
        let geometry = self.parts.superblock.geometry;
        for extent in std::mem::take(&mut *self.parts.emptied.lock()) {
            if self.parts.allocator.lock().is_unclaimed(extent) {
                self.parts
                    .device
                    .discard_range(geometry.extent_offset(extent), geometry.extent_len);
            }
        }
    }

    /// Takes objects from the queue, as many as fit, and puts their bytes into the memory. Returns
    /// them, the parts to write, and how many the queue has lost.
    ///
    /// An object waits until all its versions are in regions for good. Once a region has a newer
    /// state, the journal cannot bring back the state of a version.
    fn collect_jobs(&mut self) -> (Vec<WriteJob>, Vec<WritePart>, TakenJobs) {
        let (mut jobs, mut parts, mut at) = (Vec::new(), Vec::<WritePart>::new(), 0);
        let mut taken = TakenJobs::default();
        let mut blocks = BTreeSet::new();
        while jobs.len() < JOBS_MAX
            && blocks.len() < HEAD_BLOCKS_MAX
            && at + REGION_MAX as usize <= BYTES_ROOM
        {
            let next = {
                let mut dirty = self.parts.dirty.lock();
                let version = dirty.versions.pop_front();
                version.or_else(|| dirty.objects.pop_front())
            };
            let Some(object) = next else { break };
            let mut content = object.content.lock();
            if object.number == 0 && self.parts.has_unstored_version(object.key) {
                self.parts.dirty.lock().objects.push_front(object.clone());
                break;
            }
            *if object.number == 0 { &mut taken.objects } else { &mut taken.versions } += 1;
            content.is_queued = false;
            self.parts.uncount_dirty(&mut content);
            let (Some(region), Some(image)) = (content.target, content.image.clone()) else {
                continue;
            };
            let class = self.parts.allocator.lock().class_of(region.extent);
            let Some((class, generation)) = class.filter(|_| !content.is_gone) else { continue };
            content.target = None;
            content.is_in_flight = true;
            let head = RegionHead {
                generation,
                key: object.key,
                seq: content.seq,
                size: content.size,
                mtime: content.mtime,
                changed: content.changed,
                number: if object.number == 0 { content.last_number } else { object.number },
                is_version: object.number > 0,
                sums: sum_chunks(&image),
            };
            drop(content);
            let len = image.len().next_multiple_of(BLOCK);
            let room = &mut self.writer.memory_mut()[at..at + len];
            room[..image.len()].copy_from_slice(&image);
            room[image.len()..].fill(0);
            let to = self.parts.superblock.geometry.region_offset(class, region);
            match parts.last_mut() {
                Some(last) if last.to + last.len as u64 == to => last.len += len,
                _ if len > 0 => parts.push(WritePart { from: at, len, to }),
                _ => {}
            }
            at += len;
            blocks.insert(self.parts.superblock.geometry.head_place(class, region).0);
            jobs.push(WriteJob { object, class, head, region });
        }
        (jobs, parts, taken)
    }

    /// Brings all blocks with heads that change to the memory, and changes them.
    fn prepare_heads(
        &mut self,
        jobs: &[WriteJob],
        ended: &[EndedRegion],
    ) -> BTreeMap<u64, HeadBlock> {
        let geometry = self.parts.superblock.geometry;
        let old = ended.iter().filter_map(|ended| {
            let (class, _) = self.parts.allocator.lock().class_of(ended.region.extent)?;
            Some((class, ended.region, None))
        });
        let new = jobs.iter().map(|job| (job.class, job.region, Some(&job.head)));
        let heads: Vec<_> = old.chain(new).collect();
        // In their order on the device, so that neighbours share a read and a write.
        let places: BTreeSet<u64> =
            heads.iter().map(|(class, region, _)| geometry.head_place(*class, *region).0).collect();
        let at = |number: usize| BYTES_ROOM + number * BLOCK;
        let mut blocks: BTreeMap<u64, HeadBlock> = places
            .into_iter()
            .enumerate()
            .map(|(number, to)| (to, HeadBlock { at: at(number), is_readable: true }))
            .collect();
        let reads = join_blocks(blocks.iter().map(|(to, block)| (*to, block.at)));
        let results = self.writer.read_parts(&reads);
        for (part, _) in reads.into_iter().zip(results).filter(|(_, read)| read.is_err()) {
            let single = split_blocks(part);
            for (part, read) in single.iter().zip(self.writer.read_parts(&single)) {
                if let Some(block) = blocks.get_mut(&part.to) {
                    block.is_readable = read.is_ok();
                }
            }
        }
        for (class, region, head) in heads {
            let (to, place) = geometry.head_place(class, region);
            let Some(block) = blocks.get(&to) else { continue };
            let bytes = head.map_or(vec![0; class.head_len()], |head| head.encode(class, region));
            let at = block.at + place;
            self.writer.memory_mut()[at..at + bytes.len()].copy_from_slice(&bytes);
        }
        blocks
    }

    fn prepare_claims(&mut self, claims: &[ExtentClaim]) -> Vec<WritePart> {
        let superblock = self.parts.superblock;
        let mut parts = Vec::with_capacity(claims.len());
        for (number, claim) in claims.iter().enumerate() {
            let ExtentClaim { extent, class, generation } = *claim;
            let block = ExtentHead { superblock, extent, class, generation }.encode();
            let from = BYTES_ROOM + (2 * HEAD_BLOCKS_MAX + number) * BLOCK;
            self.writer.memory_mut()[from..from + BLOCK].copy_from_slice(&block);
            let copies = superblock.geometry.extent_heads(extent);
            parts.extend(copies.map(|to| WritePart { from, len: BLOCK, to }));
        }
        parts
    }

    /// Frees regions whose heads are gone.
    fn finish_ended(
        &self,
        ended: Vec<EndedRegion>,
        blocks: &BTreeMap<u64, HeadBlock>,
        failed: &[WritePart],
    ) {
        let geometry = self.parts.superblock.geometry;
        let count = ended.len() as u64;
        for EndedRegion { region, is_bad } in ended {
            let class = self.parts.allocator.lock().class_of(region.extent);
            let Some((class, _)) = class else { continue };
            let (to, _) = geometry.head_place(class, region);
            let is_gone = blocks.get(&to).is_some_and(|block| block.is_readable)
                && !failed.iter().any(|part| part.to == to);
            if is_gone && !is_bad {
                self.parts.free_region(region);
            } else {
                self.parts.allocator.lock().note_bad();
            }
        }
        self.parts.ended.lock().done += count;
        self.parts.ended_signal.notify_all();
    }

    /// Makes what was written the objects' version. What failed goes to another region.
    fn finish_jobs(
        &mut self,
        jobs: Vec<WriteJob>,
        blocks: &BTreeMap<u64, HeadBlock>,
        failed: &[WritePart],
        claims: &[ExtentClaim],
    ) -> Result<(), DeviceFailed> {
        let geometry = self.parts.superblock.geometry;
        let lost_claims: Vec<ExtentClaim> = claims
            .iter()
            .filter(|c| {
                let copies = geometry.extent_heads(c.extent);
                failed.iter().any(|part| copies.contains(&part.to))
            })
            .copied()
            .collect();
        let mut has_failed = false;
        for job in jobs {
            let (block, _) = geometry.head_place(job.class, job.region);
            let from = geometry.region_offset(job.class, job.region);
            let end = from + job.head.size;
            let is_written = blocks.get(&block).is_some_and(|block| block.is_readable)
                && !lost_claims.iter().any(|claim| claim.extent == job.region.extent)
                && !failed.iter().any(|part| {
                    part.to == block || part.to < end && from < part.to + part.len as u64
                });
            has_failed |= !is_written;
            match is_written {
                true => self.note_written(job),
                false => self.write_elsewhere(job)?,
            }
        }
        self.parts.allocator.lock().put_back_claims(lost_claims);
        self.failures = if has_failed { self.failures + 1 } else { 0 };
        if self.failures > FAILURES_MAX {
            return Err(self.give_up("writes to the region device fail"));
        }
        Ok(())
    }

    fn note_written(&self, job: WriteJob) {
        let mut content = job.object.content.lock();
        content.is_in_flight = false;
        let ended = |region| EndedRegion { region, is_bad: false };
        if content.is_gone {
            self.parts.push_ended(ended(job.region));
            return;
        }
        let RegionHead { seq, size, sums, .. } = job.head;
        let stored = StoredVersion { region: job.region, seq, size, sums: ChunkSums::new(&sums) };
        if let Some(old) = content.stored.replace(stored) {
            self.parts.push_ended(ended(old.region));
        }
        if job.object.number > 0 {
            // Few versions are ever read.
            content.image = None;
        } else if content.target.is_none() {
            self.parts.cache.count_image(&job.object, &mut content, Some(size as usize));
        }
    }

    /// Gives an object another region. The one that failed may have a head that is valid, without
    /// its bytes: that must end, and the region is not used again.
    fn write_elsewhere(&self, job: WriteJob) -> Result<(), DeviceFailed> {
        self.parts.push_ended(EndedRegion { region: job.region, is_bad: true });
        let mut content = job.object.content.lock();
        content.is_in_flight = false;
        if content.is_gone || content.target.is_some() {
            return Ok(());
        }
        let region = self.parts.reserve_region(content.size);
        content.target = Some(region.ok_or_else(|| self.give_up("no region is left"))?);
        self.parts.count_dirty(&job.object, &mut content);
        Ok(())
    }
}
