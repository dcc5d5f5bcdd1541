//! Versions: earlier states of objects, by the rule in the number of the object.
//!
//! A state is *sealed* when its writer has closed or synced the file. The next change of a sealed
//! object keeps that state as a version: a record of the journal says so, and the bytes go to a
//! region of their own. A start thus finds versions by their heads, as it finds objects.

use crate::class::REGION_MAX;
use crate::journal::{Journal, JournalRoom};
use crate::journal_record::{JournalChange, record_len};
use crate::region_head::RegionKey;
use crate::region_store::{ChangeError, RegionChange, RegionStore, current_time};
use crate::stored_object::{ObjectContent, RegionObject};
use std::sync::Arc;
use std::sync::atomic::Ordering;
use tatami_wire::object::{ObjectState, ObjectVersion};
use tatami_wire::version_rule::VersionRule;
use tatami_wire::{ClientId, Errno, Ino, Timestamp};

/// After so many seconds without a change, clients that have not ended their changes do not count:
/// they may be dead.
const QUIET_SEC: i64 = 30;
/// A full device gives up one part in this number of its bytes at a time.
const GIVE_UP_PART: u64 = 64;

impl RegionStore {
    /// Ends the changes of a client: see [`ObjectOp::Seal`](tatami_wire::object::ObjectOp::Seal).
    /// `None` without such an object.
    pub fn seal(&self, key: RegionKey, client: ClientId, all: bool) -> Option<ObjectState> {
        self.with_object(key, |_, content| {
            let is_quiet = content.changed.plus_sec(QUIET_SEC) < current_time(Timestamp::default());
            content.writers.retain(|writer| *writer != client);
            if all || is_quiet || content.writers.is_empty() {
                content.seal();
            }
            self.state_of(content)
        })
    }

    /// Keeps the state of an object that is about to change, if its rule says so.
    ///
    /// # Errors
    /// `NoRoom` while another version can be given up; those of the journal. The object is as it
    /// was.
    pub(crate) fn keep_state(
        &self,
        journal: &Journal,
        room: &JournalRoom<'_>,
        object: &Arc<RegionObject>,
        content: &mut ObjectContent,
    ) -> Result<(), ChangeError> {
        let rule = VersionRule::of_object(object.key.1);
        // An empty state is not worth a version. What cannot be read cannot be kept, and must not
        // hold up a change that replaces it.
        let is_kept = !rule.is_none()
            && content.size > 0
            && content.seq > content.kept_seq
            && self.parts.load_image(object, content).is_ok();
        if is_kept {
            let Some(target) = self.parts.reserve_region(content.size) else {
                if self.parts.versions.lock().count() > 0 {
                    return Err(ChangeError::NoRoom);
                }
                content.is_sealed = false;
                return Ok(());
            };
            let now = current_time(content.changed);
            let known = self.parts.versions.lock().last_number(object.key);
            let number = content.last_number.max(known).saturating_add(1);
            let seq = match journal.append(room, object.key, now, JournalChange::Keep { number }) {
                Ok(seq) => seq,
                Err(errno) => {
                    self.parts.free_region(target);
                    return Err(errno.into());
                }
            };
            self.parts.add_version(object, content, number, (seq, now), Some(target));
            // The next change of the object is later than its version.
            content.changed = now;
            self.parts.thin_versions(object.key, now);
        }
        content.is_sealed = false;
        content.writers.clear();
        Ok(())
    }

    /// Gives up the oldest versions of all objects and waits until their regions are free. False if
    /// there are none.
    pub(crate) fn give_up_versions(&self) -> bool {
        let wanted = (self.space().total / GIVE_UP_PART).max(REGION_MAX);
        let given = self.parts.give_up_oldest(wanted);
        if given > 0 {
            tracing::debug!(bytes = given, "the region device is full: old versions are given up");
            self.wait_for_ended();
        }
        given > 0
    }

    /// Whether regions have ended that are not free yet.
    pub(crate) fn has_ended_regions(&self) -> bool {
        let ended = self.parts.ended.lock();
        ended.done < ended.added
    }

    /// Waits until all regions that have ended are free. The caller holds nothing.
    pub(crate) fn wait_for_ended(&self) {
        if let Some(writeback) = &mut *self.idle.lock() {
            // A failure is reported by the next change.
            let _ = writeback.write_all();
            return;
        }
        let mut ended = self.parts.ended.lock();
        let upto = ended.added;
        // Under the lock: the writer then takes all regions up to here.
        self.parts.must_end.store(true, Ordering::Release);
        self.parts.must_write.raise();
        while ended.done < upto
            && !self.parts.must_stop.load(Ordering::Acquire)
            && !self.parts.journal.get().is_none_or(Journal::has_failed)
        {
            self.parts.ended_signal.wait(&mut ended);
        }
    }

    /// Returns the versions of an object, in the order of their numbers.
    pub fn list_versions(&self, key: RegionKey) -> Vec<ObjectVersion> {
        self.expire_versions();
        self.parts.versions.lock().of_object(key).iter().map(|entry| entry.state).collect()
    }

    fn find_version(&self, key: RegionKey, number: u32) -> Option<Arc<RegionObject>> {
        self.expire_versions();
        self.parts.versions.lock().get(key, number).map(|entry| entry.object.clone())
    }

    /// Reads bytes of a version, up to its end; `None` without such a version.
    ///
    /// # Errors
    /// `EIO` for bytes that cannot be read or are damaged.
    pub fn read_version(
        &self,
        key: RegionKey,
        number: u32,
        buf: &mut [u8],
        offset: u64,
    ) -> Result<Option<usize>, Errno> {
        let Some(version) = self.find_version(key, number) else { return Ok(None) };
        let mut content = version.content.lock();
        if content.is_gone {
            return Ok(None);
        }
        let read = self.parts.read_object(&version, &mut content, buf, offset);
        drop(content);
        self.parts.cache.drop_images(self.parts.limits.cached);
        read.map(Some)
    }

    /// Makes a version the present state of its object, which is kept as a version before. Readers
    /// see the one or the other, and so does a start after a power cut. `None` without such a
    /// version.
    ///
    /// # Errors
    /// Those of [`RegionStore::change`]; `Absent` for an object that has become a file.
    pub fn restore_version(
        &self,
        key: RegionKey,
        number: u32,
    ) -> Result<Option<ObjectState>, ChangeError> {
        let Some(version) = self.find_version(key, number) else { return Ok(None) };
        let mut bytes = Vec::new();
        {
            let mut content = version.content.lock();
            if content.is_gone {
                return Ok(None);
            }
            bytes.resize(content.size as usize, 0);
            self.parts.read_object(&version, &mut content, &mut bytes, 0)?;
        }
        let made = self.change(key, false, RegionChange::Replace { bytes: &bytes })?;
        self.with_object(key, |_, content| content.seal());
        Ok(Some(made.state))
    }

    /// Keeps the present state of an object as this version, for a copy of an object with its
    /// versions. A version that the rule does not keep ends at once.
    ///
    /// # Errors
    /// `EEXIST` unless the number is above those before; `EINVAL` for times and sizes that are
    /// none; those of [`RegionStore::change`].
    pub fn carry_version(
        &self,
        key: RegionKey,
        version: &ObjectVersion,
    ) -> Result<ObjectState, ChangeError> {
        let ObjectVersion { number, size, mtime, replaced } = *version;
        let is_time = |time: Timestamp| time.nsec < 1_000_000_000;
        if !is_time(mtime) || !is_time(replaced) || VersionRule::of_object(key.1).is_none() {
            return Err(Errno::EINVAL.into());
        }
        let journal = self.parts.journal()?;
        let room = journal.reserve_room(2 * record_len(0))?;
        let carried = self.with_object(key, |object, content| {
            if size != content.size || size == 0 {
                return Err(Errno::EINVAL.into());
            }
            if number <= content.last_number {
                return Err(Errno::EEXIST.into());
            }
            self.parts.load_image(object, content)?;
            let target = self.parts.reserve_region(size).ok_or(ChangeError::NoRoom)?;
            // The first record gives the state its time, also for a start after a crash.
            let records = [
                (JournalChange::SetSize { size }, mtime),
                (JournalChange::Keep { number }, replaced),
            ];
            let mut seq = 0;
            for (record, time) in records {
                seq = match journal.append(&room, key, time, record) {
                    Ok(seq) => seq,
                    Err(errno) => {
                        self.parts.free_region(target);
                        return Err(errno.into());
                    }
                };
            }
            content.mtime = mtime;
            self.parts.add_version(object, content, number, (seq, replaced), Some(target));
            content.is_sealed = false;
            self.parts.thin_versions(key, current_time(Timestamp::default()));
            Ok(self.state_of(content))
        });
        drop(room);
        carried.unwrap_or(Err(ChangeError::Absent))
    }

    /// Ends versions that are too old. Returns whether any did.
    pub fn expire_versions(&self) -> bool {
        let now = current_time(Timestamp::default());
        let mut any = false;
        loop {
            let Some(expired) = self.parts.versions.lock().take_expired(now) else { return any };
            self.parts.end_version(&expired.object);
            any = true;
        }
    }

    /// Returns an object of an inode that has versions.
    pub fn find_versioned(&self, ino: Ino) -> Option<RegionKey> {
        self.parts.versions.lock().find_object_of(ino)
    }

    /// Returns the number of versions of all objects.
    pub fn count_versions(&self) -> usize {
        self.parts.versions.lock().count()
    }
}
