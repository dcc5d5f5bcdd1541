//! The objects of one device.

use crate::class::REGION_MAX;
use crate::journal::Journal;
use crate::journal_record::{JournalChange, record_len};
use crate::region_head::RegionKey;
use crate::store_parts::StoreParts;
use crate::stored_object::{ObjectContent, RegionObject};
use crate::writeback::Writeback;
use parking_lot::{Mutex, MutexGuard};
use std::io;
use std::ops::Bound;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::thread::JoinHandle;
use std::time::{SystemTime, UNIX_EPOCH};
use tatami_wire::object::{AllocMode, ObjectState, SeekTarget};
use tatami_wire::{ClientId, Errno, Timestamp};

/// A change of an object.
#[derive(Clone, Copy, Debug)]
#[allow(missing_docs)] // as the operations of `ObjectOp`
pub enum RegionChange<'a> {
    Write {
        offset: u64,
        bytes: &'a [u8],
    },
    Append {
        bytes: &'a [u8],
    },
    SetSize {
        size: u64,
    },
    Allocate {
        mode: AllocMode,
        offset: u64,
        len: u64,
    },
    /// The object has these bytes from now on, and no others.
    Replace {
        bytes: &'a [u8],
    },
}

/// Why a change is not made.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ChangeError {
    /// There is no such object.
    Absent,
    /// No region has room for the object: it is too large, or the device is full. The object is as
    /// it was.
    NoRoom,
    /// The device or the journal failed, or the object is damaged.
    Failed(Errno),
}

impl From<Errno> for ChangeError {
    fn from(errno: Errno) -> ChangeError {
        ChangeError::Failed(errno)
    }
}

/// A change that was made.
#[derive(Clone, Copy, Debug)]
pub struct MadeChange {
    /// Where the bytes were written.
    pub offset: u64,
    /// The object after it.
    pub state: ObjectState,
}

/// The space of a device, in bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct RegionSpace {
    /// Of all regions.
    pub total: u64,
    /// Of regions in use.
    pub used: u64,
    /// Of these, those of versions. A full device gives them up.
    pub versions: u64,
}

/// See the module. Each object is in memory or in one region, as a whole. Any thread may call.
pub struct RegionStore {
    pub(crate) parts: Arc<StoreParts>,
    thread: Mutex<Option<JoinHandle<()>>>,
    /// For tests without a thread.
    pub(crate) idle: Mutex<Option<Writeback>>,
}

impl Drop for RegionStore {
    fn drop(&mut self) {
        self.close();
    }
}

impl RegionStore {
    pub(crate) fn new(parts: Arc<StoreParts>, writeback: Writeback) -> RegionStore {
        RegionStore { parts, thread: Mutex::default(), idle: Mutex::new(Some(writeback)) }
    }

    /// Starts the thread that writes regions.
    ///
    /// # Errors
    /// Those of the system.
    pub fn start_thread(&self) -> io::Result<()> {
        if let Some(writeback) = self.idle.lock().take() {
            let builder = std::thread::Builder::new().name("regions".into());
            *self.thread.lock() = Some(builder.spawn(move || writeback.run())?);
        }
        Ok(())
    }

    /// Writes what must be written now, or all. For tests, before [`RegionStore::start_thread`].
    pub fn write_pending(&self, all: bool) {
        if let Some(writeback) = &mut *self.idle.lock() {
            let mut done = writeback.write_what_must_be();
            if all && done.is_ok() {
                done = writeback.write_all();
            }
            if done.is_err() {
                tracing::debug!("a device that fails is reported by the next change");
            }
        }
    }

    /// Writes all objects to their regions and ends the thread. Changes are refused afterwards.
    pub fn close(&self) {
        let Some(thread) = self.thread.lock().take() else { return };
        self.parts.must_stop.store(true, Ordering::Release);
        self.parts.must_write.raise();
        if thread.join().is_err() {
            tracing::error!("the thread that writes regions died; the journal has what it had not");
        }
        if let Some(journal) = self.parts.journal.get() {
            journal.refuse_changes();
        }
    }

    /// Returns the random number of the device.
    pub fn device_id(&self) -> u128 {
        self.parts.superblock.device
    }

    fn find_object(&self, key: RegionKey) -> Option<Arc<RegionObject>> {
        self.parts.table.read().get(&key).cloned()
    }

    /// Runs `act` on an object that is there.
    pub(crate) fn with_object<T>(
        &self,
        key: RegionKey,
        act: impl FnOnce(&Arc<RegionObject>, &mut ObjectContent) -> T,
    ) -> Option<T> {
        let object = self.find_object(key)?;
        let mut content = object.content.lock();
        (!content.is_gone).then(|| act(&object, &mut content))
    }

    /// Whether there is such an object.
    pub fn has_object(&self, key: RegionKey) -> bool {
        self.with_object(key, |_, _| ()).is_some()
    }

    /// Reads from `offset` into `buf`, up to the end; `None` without such an object.
    ///
    /// # Errors
    /// `EIO` for bytes that cannot be read or are damaged.
    pub fn read_at(
        &self,
        key: RegionKey,
        buf: &mut [u8],
        offset: u64,
    ) -> Result<Option<usize>, Errno> {
        let read = self.with_object(key, |object, content| {
            self.parts.read_object(object, content, buf, offset)
        });
        self.parts.cache.drop_images(self.parts.limits.cached);
        read.transpose()
    }

    /// Returns size, storage and times; `None` without such an object.
    pub fn state(&self, key: RegionKey) -> Option<ObjectState> {
        self.with_object(key, |_, content| self.state_of(content))
    }

    pub(crate) fn state_of(&self, content: &ObjectContent) -> ObjectState {
        let region = content.target.or(content.stored.as_ref().map(|stored| stored.region));
        let class = region.and_then(|r| self.parts.allocator.lock().class_of(r.extent));
        content.state(class.map_or(content.size, |(class, _)| class.capacity()))
    }

    /// Returns the next data or hole; `None` without such an object. There are no holes: the object
    /// is data up to its end.
    ///
    /// # Errors
    /// `ENXIO` behind the end.
    pub fn seek(
        &self,
        key: RegionKey,
        what: SeekTarget,
        offset: u64,
    ) -> Result<Option<u64>, Errno> {
        match (self.state(key), what) {
            (None, _) => Ok(None),
            (Some(state), _) if offset >= state.size => Err(Errno::ENXIO),
            (Some(_), SeekTarget::Data) => Ok(Some(offset)),
            (Some(state), SeekTarget::Hole) => Ok(Some(state.size)),
        }
    }

    /// Changes an object. With `create` it is made if there is none.
    ///
    /// # Errors
    /// See [`ChangeError`].
    pub fn change(
        &self,
        key: RegionKey,
        create: bool,
        change: RegionChange<'_>,
    ) -> Result<MadeChange, ChangeError> {
        self.change_for(None, key, create, change)
    }

    /// As [`RegionStore::change`], for a client that says when it is done
    /// ([`RegionStore::seal`]).
    ///
    /// # Errors
    /// See [`ChangeError`].
    pub fn change_for(
        &self,
        writer: Option<ClientId>,
        key: RegionKey,
        create: bool,
        change: RegionChange<'_>,
    ) -> Result<MadeChange, ChangeError> {
        let payload = match change {
            RegionChange::Write { bytes, .. }
            | RegionChange::Append { bytes }
            | RegionChange::Replace { bytes } => bytes.len(),
            RegionChange::SetSize { .. } | RegionChange::Allocate { .. } => 8,
        };
        if payload as u64 > REGION_MAX {
            return Err(ChangeError::NoRoom);
        }
        let mut has_waited = false;
        loop {
            match self.try_change(key, writer, create, change, payload) {
                Err(ChangeError::Failed(Errno::EFBIG)) => return Err(ChangeError::NoRoom),
                // Regions of former changes may be about to be free.
                Err(ChangeError::NoRoom) if !has_waited && self.has_ended_regions() => {
                    has_waited = true;
                    self.wait_for_ended();
                }
                // New bytes need the room more than old ones.
                Err(ChangeError::NoRoom) if self.give_up_versions() => {}
                made => return made,
            }
        }
    }

    fn try_change(
        &self,
        key: RegionKey,
        writer: Option<ClientId>,
        create: bool,
        change: RegionChange<'_>,
        payload: usize,
    ) -> Result<MadeChange, ChangeError> {
        self.parts.wait_for_dirty_room();
        let journal = self.parts.journal()?;
        // A change has at most two records, and one for a version before it.
        let room = journal.reserve_room(record_len(payload) + 2 * record_len(0))?;
        let made = loop {
            let (object, is_new) = match self.find_object(key) {
                Some(object) => (object, false),
                None if create => self.insert_object(key),
                None => return Err(ChangeError::Absent),
            };
            let mut content = object.content.lock();
            if content.is_gone {
                drop(content);
                self.parts.drop_from_table(&object);
                continue;
            }
            let made = self.change_locked(journal, &room, &object, &mut content, change);
            if made.is_ok() {
                content.note_writer(writer);
            }
            if made.is_err() && is_new && content.seq == 0 {
                self.parts.end_object(&object, &mut content);
            }
            break made;
        };
        // Only now: until here the half that has the record must wait for the object.
        drop(room);
        made
    }

    fn insert_object(&self, key: RegionKey) -> (Arc<RegionObject>, bool) {
        let mut table = self.parts.table.write();
        let mut is_new = false;
        let object = table.entry(key).or_insert_with(|| {
            is_new = true;
            RegionObject::new(key)
        });
        (object.clone(), is_new)
    }

    fn change_locked(
        &self,
        journal: &Journal,
        room: &crate::journal::JournalRoom<'_>,
        object: &Arc<RegionObject>,
        content: &mut MutexGuard<'_, ObjectContent>,
        change: RegionChange<'_>,
    ) -> Result<MadeChange, ChangeError> {
        let size = content.size;
        let (mut records, offset) = resolve_change(change, size);
        if records.is_empty() {
            if content.seq > 0 {
                return Ok(MadeChange { offset, state: self.state_of(content) });
            }
            // What makes an object must be in the journal.
            records.push(JournalChange::SetSize { size: 0 });
        }
        let new_size = records.iter().fold(size, |size, record| size_after(record, size));
        // No version makes room for an object that no region can hold.
        if new_size > REGION_MAX {
            return Err(ChangeError::Failed(Errno::EFBIG));
        }
        if content.is_sealed || matches!(change, RegionChange::Replace { .. }) {
            self.keep_state(journal, room, object, content)?;
        }
        let is_replaced = replaces_all(&records, size);
        if !is_replaced {
            self.parts.load_image(object, content)?;
        }
        self.reserve_target(content, new_size)?;
        // From here on the image is the object. If all of it is replaced, what it was may be
        // unreadable.
        content.is_damaged &= !is_replaced;
        let now = current_time(content.changed);
        let mut image = content.image.take().unwrap_or_default();
        let mut failed = None;
        for record in &records {
            match journal.append(room, object.key, now, *record) {
                Ok(seq) => {
                    apply_change(Arc::make_mut(&mut image), record);
                    content.seq = seq;
                    (content.mtime, content.changed) = (now, now);
                }
                Err(errno) => {
                    failed = Some(errno);
                    break;
                }
            }
        }
        content.size = image.len() as u64;
        content.image = Some(image);
        self.parts.count_dirty(object, content);
        match failed {
            Some(errno) => Err(errno.into()),
            None => Ok(MadeChange { offset, state: self.state_of(content) }),
        }
    }

    /// Reserves a region for the next version of an object.
    fn reserve_target(&self, content: &mut ObjectContent, size: u64) -> Result<(), ChangeError> {
        if let Some(target) = content.target {
            let class = self.parts.allocator.lock().class_of(target.extent);
            if class.is_some_and(|(class, _)| size <= class.capacity()) {
                return Ok(());
            }
        }
        let target = self.parts.reserve_region(size).ok_or(ChangeError::NoRoom)?;
        if let Some(small) = content.target.replace(target) {
            self.parts.free_region(small);
        }
        Ok(())
    }

    /// Makes all earlier changes of an object survive a power cut; `None` without such an object.
    ///
    /// # Errors
    /// Those of the journal's file. From the first failure on, nothing can be changed.
    pub fn sync(&self, key: RegionKey) -> Result<Option<ObjectState>, Errno> {
        match self.state(key) {
            None => Ok(None),
            Some(state) => self.sync_all().map(|()| Some(state)),
        }
    }

    /// Makes all earlier changes survive a power cut.
    ///
    /// # Errors
    /// As [`RegionStore::sync`].
    pub fn sync_all(&self) -> Result<(), Errno> {
        self.parts.journal()?.sync()
    }

    /// Removes an object; false if there was none.
    ///
    /// # Errors
    /// `EIO` when the journal cannot be written.
    pub fn remove(&self, key: RegionKey) -> Result<bool, Errno> {
        self.take_out(key, JournalChange::Remove, |_, _| Ok(()))
    }

    /// Ends an object after `keep` has kept its bytes elsewhere, where they survive a power cut.
    /// Nobody changes or reads the object meanwhile. False if there was none. Its versions stay,
    /// and a state that was sealed becomes one, if there is room.
    ///
    /// # Errors
    /// Those of `keep`, with the object as it was; `EIO` for a damaged object.
    pub fn move_out(
        &self,
        key: RegionKey,
        keep: impl FnOnce(&[u8], &ObjectState) -> Result<(), Errno>,
    ) -> Result<bool, Errno> {
        let journal = self.parts.journal()?;
        let room = journal.reserve_room(record_len(0))?;
        self.with_object(key, |object, content| match content.is_sealed {
            true => self.keep_state(journal, &room, object, content),
            false => Ok(()),
        })
        // What has no room for one more version is full.
        .map_or(Ok(()), |kept| match kept {
            Err(ChangeError::Failed(errno)) => Err(errno),
            _ => Ok(()),
        })?;
        drop(room);
        self.take_out(key, JournalChange::Leave, |object, content| {
            self.parts.load_image(object, content)?;
            let image = content.image.clone().unwrap_or_default();
            keep(&image, &self.state_of(content))
        })
    }

    fn take_out(
        &self,
        key: RegionKey,
        how: JournalChange<'_>,
        before: impl FnOnce(&Arc<RegionObject>, &mut ObjectContent) -> Result<(), Errno>,
    ) -> Result<bool, Errno> {
        let journal = self.parts.journal()?;
        let room = journal.reserve_room(record_len(0))?;
        let removed = self.with_object(key, |object, content| {
            before(object, content)?;
            let now = current_time(content.changed);
            journal.append(&room, key, now, how)?;
            self.parts.end_object(object, content);
            Ok::<(), Errno>(())
        });
        let removed = removed.transpose()?.is_some();
        if how == JournalChange::Remove && self.parts.versions.lock().has_object(key) {
            if !removed {
                journal.append(&room, key, current_time(Timestamp::default()), how)?;
            }
            self.parts.end_versions(key);
        }
        drop(room);
        Ok(removed)
    }

    /// Returns at most `limit` objects after `after`, in order.
    pub fn list_objects(&self, after: Option<RegionKey>, limit: usize) -> Vec<RegionKey> {
        let from = after.map_or(Bound::Unbounded, Bound::Excluded);
        let table = self.parts.table.read();
        table.range((from, Bound::Unbounded)).take(limit).map(|(key, _)| *key).collect()
    }

    /// Returns the number of objects.
    pub fn count_objects(&self) -> usize {
        self.parts.table.read().len()
    }

    /// Returns the space of the device.
    pub fn space(&self) -> RegionSpace {
        let allocator = self.parts.allocator.lock();
        let (total, used) = (allocator.total_bytes(), allocator.used_bytes());
        drop(allocator);
        RegionSpace { total, used, versions: self.parts.versions.lock().bytes() }
    }

    /// Returns a sentence for each problem; empty when all is well.
    pub fn describe_trouble(&self) -> Vec<String> {
        let mut trouble = Vec::new();
        if self.parts.journal.get().is_some_and(Journal::has_failed) {
            trouble.push(
                "the region device or its journal failed: its objects take no more changes; check \
                 the device and the disk, and start the node again"
                    .to_owned(),
            );
        }
        let damaged = self.parts.damaged_reads.load(Ordering::Relaxed);
        if damaged > 0 {
            let ino = self.parts.damaged_ino.load(Ordering::Relaxed);
            trouble.push(format!(
                "{damaged} read(s) from the region device failed, the last of inode {ino:016x}: \
                 check the device, and remove the files that cannot be read"
            ));
        }
        let bad = self.parts.allocator.lock().bad_regions();
        if bad > 0 {
            trouble.push(format!("{bad} region(s) cannot be written: replace the device soon"));
        }
        trouble
    }
}

/// Returns the records of a change of an object of `size` bytes, at most two, and where its bytes
/// go.
fn resolve_change(change: RegionChange<'_>, size: u64) -> (Vec<JournalChange<'_>>, u64) {
    let zero = |offset: u64, len: u64| {
        let end = offset.saturating_add(len).min(size);
        (offset < end).then(|| JournalChange::Zero { offset, len: end - offset })
    };
    let extend = |end: u64| (end > size).then_some(JournalChange::SetSize { size: end });
    match change {
        RegionChange::Write { offset, bytes: [] } => (Vec::new(), offset),
        RegionChange::Write { offset, bytes } => {
            (vec![JournalChange::Write { offset, bytes }], offset)
        }
        RegionChange::Append { bytes: [] } => (Vec::new(), size),
        RegionChange::Append { bytes } => {
            (vec![JournalChange::Write { offset: size, bytes }], size)
        }
        RegionChange::SetSize { size: to } => (vec![JournalChange::SetSize { size: to }], 0),
        RegionChange::Replace { bytes: [] } => (vec![JournalChange::SetSize { size: 0 }], 0),
        RegionChange::Replace { bytes } => (vec![JournalChange::Replace { bytes }], 0),
        RegionChange::Allocate { mode, offset, len } => {
            let end = offset.saturating_add(len);
            let records = match mode {
                AllocMode::Extend => [None, extend(end)],
                AllocMode::Keep => [None, None],
                AllocMode::Punch | AllocMode::ZeroKeep => [zero(offset, len), None],
                AllocMode::Zero => [zero(offset, len), extend(end)],
            };
            (records.into_iter().flatten().collect(), offset)
        }
    }
}

/// Returns the size of an object of `size` bytes after a change.
fn size_after(change: &JournalChange<'_>, size: u64) -> u64 {
    match change {
        JournalChange::Write { offset, bytes } => {
            size.max(offset.saturating_add(bytes.len() as u64))
        }
        JournalChange::SetSize { size } => *size,
        JournalChange::Replace { bytes } => bytes.len() as u64,
        JournalChange::Zero { .. } | JournalChange::Keep { .. } => size,
        JournalChange::Remove | JournalChange::Leave => 0,
    }
}

/// Whether nothing of an object of `size` bytes is left after these changes.
fn replaces_all(changes: &[JournalChange<'_>], size: u64) -> bool {
    matches!(changes, [JournalChange::Write { offset: 0, bytes }] if bytes.len() as u64 >= size)
        || matches!(changes, [JournalChange::SetSize { size: 0 } | JournalChange::Replace { .. }])
}

/// Carries out a change of the bytes of an object.
pub(crate) fn apply_change(image: &mut Vec<u8>, change: &JournalChange<'_>) {
    match change {
        JournalChange::Write { offset, bytes } => {
            let (from, end) = (*offset as usize, *offset as usize + bytes.len());
            if image.len() < end {
                image.resize(end, 0);
            }
            image[from..end].copy_from_slice(bytes);
        }
        JournalChange::SetSize { size } => image.resize(*size as usize, 0),
        JournalChange::Zero { offset, len } => {
            let end = (offset.saturating_add(*len) as usize).min(image.len());
            let from = (*offset as usize).min(end);
            image[from..end].fill(0);
        }
        JournalChange::Replace { bytes } => {
            image.clear();
            image.extend_from_slice(bytes);
        }
        JournalChange::Keep { .. } => {}
        JournalChange::Remove | JournalChange::Leave => image.clear(),
    }
}

/// Returns the time, or the moment after `last` if the clock is behind it: times of one object
/// order its states.
pub(crate) fn current_time(last: Timestamp) -> Timestamp {
    let now = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
    let now = Timestamp { sec: now.as_secs() as i64, nsec: now.subsec_nanos() };
    if now > last {
        return now;
    }
    match last.nsec {
        999_999_999 => Timestamp { sec: last.sec + 1, nsec: 0 },
        nsec => Timestamp { sec: last.sec, nsec: nsec + 1 },
    }
}
