//! All objects of a node, with both engines: files of its disk, and regions of its device.
//!
//! The number of an object says which engine it belongs to ([`Piece::is_in_region`]). It is a file
//! all the same where the node has no device, when the device is full, when the object outgrows
//! the largest region, and when a client asks for the file itself. It stays a file then. The
//! callers notice nothing: both engines have the same calls.

use crate::data_ranges::find_data_ranges;
use crate::name::ObjectKey;
use crate::object::{Object, check_range, to_errno};
use crate::store::{ObjectListing, ObjectOpenError, ObjectStore};
use parking_lot::{Mutex, RwLock};
use rustix::fs::{Timespec, Timestamps};
use std::collections::BTreeSet;
use std::os::fd::OwnedFd;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;
use tatami_region::{
    ChangeError, MadeChange, NodeRegions, RegionChange, RegionOpenError, RegionStore,
    had_region_device, open_node_regions,
};
use tatami_wire::admin::DiskSpace;
use tatami_wire::object::{
    AllocMode, ObjectEngine, ObjectState, ObjectVersion, RegionRoom, SeekTarget,
};
use tatami_wire::{Access, ClientId, Errno, Ino, Piece};

/// Locks that order the moves of objects between the engines.
const PLACING_LOCKS: usize = 64;
/// Milliseconds to wait for the kernel's clock for files, which is at most 10 behind.
const CLOCK_TRIES: u32 = 100;
/// `status` complains when less than one part in this number of the device is free.
const NEARLY_FULL: u64 = 20;

/// Why the objects of a node do not open.
#[derive(Debug, thiserror::Error)]
#[allow(missing_docs)] // the messages say it
pub enum NodeObjectsError {
    #[error("{0}")]
    Files(#[from] ObjectOpenError),
    #[error("{0}")]
    Regions(#[from] RegionOpenError),
}

/// The region device of a node.
enum RegionState {
    /// The node never had one.
    None,
    Open(Arc<RegionStore>),
    /// It cannot be used. Its objects cannot be told from those that were never made.
    Unusable(String),
}

/// See the module. Errors are those of [`ObjectStore`]; besides, `EIO` for an object in a region
/// while the device cannot be used, and for bytes that are damaged there.
pub struct NodeObjects {
    files: ObjectStore,
    regions: RwLock<RegionState>,
    /// What the region device is opened from.
    options: Option<NodeRegions>,
    dir: PathBuf,
    /// Held while an object is made in an engine, moves to the other, or is removed.
    placing: [Mutex<()>; PLACING_LOCKS],
}

/// Gives a file the times of the object that it was: a shard takes no report of a state that is not
/// later than the one that it knows. The kernel's clock for files is some milliseconds behind that
/// of regions.
fn follow_state(object: &Object, state: &ObjectState) -> Result<(), Errno> {
    let mtime = Timespec { tv_sec: state.mtime.sec, tv_nsec: state.mtime.nsec.into() };
    let times = Timestamps { last_access: mtime, last_modification: mtime };
    for _ in 0..CLOCK_TRIES {
        // This call sets the time of any change to now.
        rustix::fs::futimens(object, &times).map_err(to_errno)?;
        if object.state()?.changed > state.changed {
            return Ok(());
        }
        #[expect(clippy::disallowed_methods, reason = "no event shows that a clock goes on")]
        std::thread::sleep(Duration::from_millis(1));
    }
    // The clock of the machine was set back. Files without regions have wrong times then as well.
    Ok(())
}

/// Where an object is.
enum ObjectPlace {
    /// A file, or nowhere yet and to become a file.
    File,
    Region(Arc<RegionStore>),
}

#[allow(clippy::missing_errors_doc)] // said once, at the type
impl NodeObjects {
    /// Opens the objects below a data directory, and the region device, if the node has one.
    ///
    /// # Errors
    /// Those of the disk. A device that the node had before and that does not open is no error: the
    /// rest is served, and [`NodeObjects::describe_trouble`] says what is wrong.
    pub fn open(dir: &Path, regions: Option<NodeRegions>) -> Result<NodeObjects, NodeObjectsError> {
        let files = ObjectStore::open(dir)?;
        let state = match &regions {
            Some(options) => match open_node_regions(dir, options) {
                Ok(store) => RegionState::Open(Arc::new(store)),
                Err(error) if had_region_device(dir) => {
                    tracing::error!("{error}");
                    RegionState::Unusable(error.to_string())
                }
                Err(error) => return Err(error.into()),
            },
            None if had_region_device(dir) => RegionState::Unusable(
                "it is not known where the region device of this node is: start the node with \
                 --node-region-device PATH"
                    .to_owned(),
            ),
            None => RegionState::None,
        };
        Ok(NodeObjects {
            files,
            regions: RwLock::new(state),
            options: regions,
            dir: dir.to_owned(),
            placing: std::array::from_fn(|_| Mutex::default()),
        })
    }

    /// Opens a region device that did not open, without what is lost. Returns a sentence for what
    /// was done.
    pub fn accept_region_loss(&self) -> Option<String> {
        let mut state = self.regions.write();
        let (RegionState::Unusable(_), Some(options)) = (&*state, &self.options) else {
            return None;
        };
        let accepting = NodeRegions { accept_loss: true, ..options.clone() };
        let (new, report) = match open_node_regions(&self.dir, &accepting) {
            Ok(store) => {
                let path = options.device.display();
                let done = format!("region device {path}: in use again, without what is lost");
                (RegionState::Open(Arc::new(store)), done)
            }
            Err(error) => (RegionState::Unusable(error.to_string()), error.to_string()),
        };
        *state = new;
        Some(report)
    }

    /// The files of the disk, for spare files.
    pub fn files(&self) -> &ObjectStore {
        &self.files
    }

    /// Returns the device for an object that belongs there.
    fn region_store(&self, piece: Piece) -> Result<Option<Arc<RegionStore>>, Errno> {
        if !piece.is_in_region() {
            return Ok(None);
        }
        match &*self.regions.read() {
            RegionState::None => Ok(None),
            RegionState::Open(store) => Ok(Some(store.clone())),
            RegionState::Unusable(_) => Err(Errno::EIO),
        }
    }

    /// Returns where an object is now.
    fn find_place(&self, key: ObjectKey) -> Result<ObjectPlace, Errno> {
        match self.region_store(key.1) {
            Ok(Some(store)) if store.has_object(key) => Ok(ObjectPlace::Region(store)),
            Ok(_) => Ok(ObjectPlace::File),
            // Without the device, a file is known to be one, and nothing else is known.
            Err(e) => match self.files.stat(key.0, key.1)?.exists {
                true => Ok(ObjectPlace::File),
                false => Err(e),
            },
        }
    }

    fn lock_placing(&self, (ino, piece): ObjectKey) -> parking_lot::MutexGuard<'_, ()> {
        let number = ino.0.wrapping_add(u64::from(piece.0)) as usize;
        self.placing[number % PLACING_LOCKS].lock()
    }

    /// Changes an object in its region, and makes it there if it does not exist. `None`: it is a
    /// file, and the caller changes that.
    fn change_region(
        &self,
        key: ObjectKey,
        writer: ClientId,
        change: RegionChange<'_>,
    ) -> Result<Option<MadeChange>, Errno> {
        let Some(store) = self.region_store(key.1).or_else(|e| self.excuse_file(key, e))? else {
            return Ok(None);
        };
        let writer = (key.1.version_rule() > 0).then_some(writer);
        match store.change_for(writer, key, false, change) {
            Ok(made) => return Ok(Some(made)),
            Err(ChangeError::Failed(errno)) => return Err(errno),
            Err(ChangeError::Absent | ChangeError::NoRoom) => {}
        }
        let _placing = self.lock_placing(key);
        // Another thread may have made or moved the object meanwhile.
        let is_new = !store.has_object(key) && !self.files.stat(key.0, key.1)?.exists;
        if is_new {
            self.files.refuse_removed(key)?;
        }
        match store.change_for(writer, key, is_new, change) {
            Ok(made) => Ok(Some(made)),
            Err(ChangeError::Failed(errno)) => Err(errno),
            Err(ChangeError::Absent) => Ok(None),
            Err(ChangeError::NoRoom) => self.move_to_file(&store, key).map(|()| None),
        }
    }

    /// Without the device, an object that is a file is served.
    fn excuse_file(&self, key: ObjectKey, e: Errno) -> Result<Option<Arc<RegionStore>>, Errno> {
        if self.files.stat(key.0, key.1)?.exists { Ok(None) } else { Err(e) }
    }

    /// Makes a file of an object in a region, if it is in one. The caller holds its lock.
    fn move_to_file(&self, store: &RegionStore, key: ObjectKey) -> Result<(), Errno> {
        let (ino, piece) = key;
        let moved = store.move_out(key, |bytes, state| {
            // A file that an interrupted move left is no object: the region counts until its end.
            self.files.truncate(ino, piece, 0)?;
            for range in find_data_ranges(bytes) {
                self.files.write_at(ino, piece, &bytes[range.clone()], range.start as u64)?;
            }
            self.files.truncate(ino, piece, bytes.len() as u64)?;
            let object = self.files.open_object(ino, piece)?.ok_or(Errno::EIO)?;
            follow_state(&object, state)?;
            self.files.sync(ino, piece, false).map(drop)
        });
        if moved.is_err() {
            self.files.remove_object(ino, piece)?;
        }
        moved.map(drop)
    }

    /// As [`ObjectStore::read_at`].
    pub fn read_at(
        &self,
        ino: Ino,
        piece: Piece,
        buf: &mut [u8],
        offset: u64,
    ) -> Result<usize, Errno> {
        check_range(offset, 0)?;
        if let ObjectPlace::Region(store) = self.find_place((ino, piece))?
            && let Some(got) = store.read_at((ino, piece), buf, offset)?
        {
            return Ok(got);
        }
        self.files.read_at(ino, piece, buf, offset)
    }

    /// As [`ObjectStore::open_object`]; `None` also for an object in a region, which has no
    /// descriptor.
    pub fn open_object(&self, ino: Ino, piece: Piece) -> Result<Option<Arc<Object>>, Errno> {
        match self.find_place((ino, piece))? {
            ObjectPlace::Region(_) => Ok(None),
            ObjectPlace::File => self.files.open_object(ino, piece),
        }
    }

    /// As [`ObjectStore::write_at`].
    pub fn write_at(
        &self,
        writer: ClientId,
        (ino, piece): ObjectKey,
        data: &[u8],
        offset: u64,
    ) -> Result<(), Errno> {
        check_range(offset, data.len() as u64)?;
        let change = RegionChange::Write { offset, bytes: data };
        match self.change_region((ino, piece), writer, change)? {
            Some(_) => Ok(()),
            None => self.files.write_at(ino, piece, data, offset),
        }
    }

    /// As [`ObjectStore::append`].
    pub fn append(
        &self,
        writer: ClientId,
        (ino, piece): ObjectKey,
        data: &[u8],
    ) -> Result<u64, Errno> {
        match self.change_region((ino, piece), writer, RegionChange::Append { bytes: data })? {
            Some(made) => Ok(made.offset),
            None => self.files.append(ino, piece, data),
        }
    }

    /// As [`ObjectStore::truncate`].
    pub fn truncate(
        &self,
        writer: ClientId,
        (ino, piece): ObjectKey,
        size: u64,
    ) -> Result<ObjectState, Errno> {
        check_range(0, size)?;
        match self.change_region((ino, piece), writer, RegionChange::SetSize { size })? {
            Some(made) => Ok(made.state),
            None => self.files.truncate(ino, piece, size),
        }
    }

    /// As [`ObjectStore::allocate`].
    pub fn allocate(
        &self,
        writer: ClientId,
        (ino, piece): ObjectKey,
        mode: AllocMode,
        offset: u64,
        len: u64,
    ) -> Result<ObjectState, Errno> {
        check_range(offset, len)?;
        if len == 0 {
            return Err(Errno::EINVAL);
        }
        let change = RegionChange::Allocate { mode, offset, len };
        match self.change_region((ino, piece), writer, change)? {
            Some(made) => Ok(made.state),
            None => self.files.allocate(ino, piece, mode, offset, len),
        }
    }

    /// As [`ObjectStore::seek`]. An object in a region has no holes.
    pub fn seek(
        &self,
        ino: Ino,
        piece: Piece,
        what: SeekTarget,
        offset: u64,
    ) -> Result<u64, Errno> {
        if let ObjectPlace::Region(store) = self.find_place((ino, piece))?
            && let Some(found) = store.seek((ino, piece), what, offset)?
        {
            return Ok(found);
        }
        self.files.seek(ino, piece, what, offset)
    }

    /// As [`ObjectStore::sync`].
    pub fn sync(
        &self,
        writer: ClientId,
        (ino, piece): ObjectKey,
        data_only: bool,
    ) -> Result<ObjectState, Errno> {
        if let ObjectPlace::Region(store) = self.find_place((ino, piece))?
            && let Some(state) = store.sync((ino, piece))?
        {
            if piece.version_rule() > 0 {
                store.seal((ino, piece), writer, true);
            }
            return Ok(state);
        }
        self.files.sync(ino, piece, data_only)
    }

    /// As [`ObjectStore::stat`].
    pub fn stat(&self, ino: Ino, piece: Piece) -> Result<ObjectState, Errno> {
        if let ObjectPlace::Region(store) = self.find_place((ino, piece))?
            && let Some(state) = store.state((ino, piece))
        {
            return Ok(state);
        }
        self.files.stat(ino, piece)
    }

    /// As [`ObjectStore::open_fd`]. An object in a region becomes a file.
    pub fn open_fd(
        &self,
        ino: Ino,
        piece: Piece,
        access: Access,
        create: bool,
    ) -> Result<OwnedFd, Errno> {
        let key = (ino, piece);
        let _placing = piece.is_in_region().then(|| self.lock_placing(key));
        if let ObjectPlace::Region(store) = self.find_place(key)? {
            self.move_to_file(&store, key)?;
        }
        self.files.open_fd(ino, piece, access, create)
    }

    /// As [`ObjectStore::copy_range`], between any two objects.
    pub fn copy_range(
        &self,
        writer: ClientId,
        source: (Ino, Piece),
        source_offset: u64,
        target: (Ino, Piece),
        offset: u64,
        len: u64,
    ) -> Result<u64, Errno> {
        if !source.1.is_in_region() && !target.1.is_in_region() {
            return self.files.copy_range(source, source_offset, target, offset, len);
        }
        check_range(source_offset, 0)?;
        let len = len.min(self.stat(source.0, source.1)?.size.saturating_sub(source_offset));
        check_range(offset, len)?;
        if source == target && source_offset < offset + len && offset < source_offset + len {
            return Err(Errno::EINVAL);
        }
        let mut buffer = vec![0; len.min(1 << 20) as usize];
        let mut done = 0;
        while done < len {
            let part = buffer.len().min((len - done) as usize);
            let got =
                self.read_at(source.0, source.1, &mut buffer[..part], source_offset + done)?;
            if got == 0 {
                break;
            }
            self.write_at(writer, target, &buffer[..got], offset + done)?;
            done += got as u64;
        }
        Ok(done)
    }

    /// Ends the changes of a client to an object: see
    /// [`ObjectOp::Seal`](tatami_wire::object::ObjectOp::Seal).
    pub fn seal(
        &self,
        writer: ClientId,
        (ino, piece): ObjectKey,
        all: bool,
    ) -> Result<ObjectState, Errno> {
        if let ObjectPlace::Region(store) = self.find_place((ino, piece))?
            && let Some(state) = store.seal((ino, piece), writer, all)
        {
            return Ok(state);
        }
        self.files.stat(ino, piece)
    }

    /// Returns the device for the versions of an object, which may be a file by now.
    fn version_store(&self, piece: Piece) -> Result<Option<Arc<RegionStore>>, Errno> {
        if piece.version_rule() == 0 { Ok(None) } else { self.region_store(piece) }
    }

    /// Returns the versions of an object, in the order of their numbers.
    pub fn list_versions(&self, ino: Ino, piece: Piece) -> Result<Vec<ObjectVersion>, Errno> {
        let store = self.version_store(piece)?;
        Ok(store.map_or_else(Vec::new, |store| store.list_versions((ino, piece))))
    }

    /// Reads bytes of a version. `ENOENT` without such a version.
    pub fn read_version(
        &self,
        (ino, piece): ObjectKey,
        number: u32,
        buf: &mut [u8],
        offset: u64,
    ) -> Result<usize, Errno> {
        check_range(offset, 0)?;
        let store = self.version_store(piece)?.ok_or(Errno::ENOENT)?;
        store.read_version((ino, piece), number, buf, offset)?.ok_or(Errno::ENOENT)
    }

    /// Makes a version the present state of its object. `ENOENT` without such a version, `EFBIG`
    /// for an object that has become a file, `ENOSPC` without room for both.
    pub fn restore_version(
        &self,
        ino: Ino,
        piece: Piece,
        number: u32,
    ) -> Result<ObjectState, Errno> {
        let store = self.version_store(piece)?.ok_or(Errno::ENOENT)?;
        match store.restore_version((ino, piece), number) {
            Ok(state) => state.ok_or(Errno::ENOENT),
            Err(ChangeError::Absent) => Err(Errno::EFBIG),
            Err(ChangeError::NoRoom) => Err(Errno::ENOSPC),
            Err(ChangeError::Failed(errno)) => Err(errno),
        }
    }

    /// Keeps the present state of an object as this version. `ENOENT` for an object that is in no
    /// region, `ENOSPC` without room, `EEXIST` for a number that is not new.
    pub fn carry_version(
        &self,
        ino: Ino,
        piece: Piece,
        version: &ObjectVersion,
    ) -> Result<ObjectState, Errno> {
        let store = self.version_store(piece)?.ok_or(Errno::ENOENT)?;
        match store.carry_version((ino, piece), version) {
            Ok(state) => Ok(state),
            Err(ChangeError::Absent) => Err(Errno::ENOENT),
            Err(ChangeError::NoRoom) => Err(Errno::ENOSPC),
            Err(ChangeError::Failed(errno)) => Err(errno),
        }
    }

    /// Ends versions that are too old.
    pub fn expire_versions(&self) {
        if let RegionState::Open(store) = &*self.regions.read() {
            store.expire_versions();
        }
    }

    /// As [`ObjectStore::remove_base`]. An object in a region is removed by its number
    /// ([`NodeObjects::remove_object`]).
    pub fn remove_base(&self, ino: Ino) -> Result<(), Errno> {
        self.files.remove_base(ino)
    }

    /// As [`ObjectStore::remove_object`].
    pub fn remove_object(&self, ino: Ino, piece: Piece) -> Result<(), Errno> {
        let key = (ino, piece);
        if piece.is_in_region() {
            let _placing = self.lock_placing(key);
            if let Some(store) = self.region_store(piece)? {
                store.remove(key)?;
            }
        }
        self.files.remove_object(ino, piece)
    }

    /// As [`ObjectStore::remove_all`].
    pub fn remove_all(&self, ino: Ino) -> Result<(), Errno> {
        self.files.remove_base(ino)?;
        if let RegionState::Open(store) = &*self.regions.read() {
            let from = Some((ino, Piece(Piece::FIRST_REGION.0 - 1)));
            while let Some(key) = store.list_objects(from, 1).first().filter(|key| key.0 == ino) {
                let _placing = self.lock_placing(*key);
                store.remove(*key)?;
            }
            // Those of objects that have become files.
            while let Some(key) = store.find_versioned(ino) {
                let _placing = self.lock_placing(key);
                store.remove(key)?;
            }
        }
        self.files.remove_all(ino)
    }

    /// As [`ObjectStore::list_objects`], of both engines.
    pub fn list_objects(
        &self,
        after: Option<(Ino, Piece)>,
        limit: usize,
    ) -> Result<ObjectListing, Errno> {
        let files = self.files.list_objects(after, limit)?;
        let store = match &*self.regions.read() {
            RegionState::Open(store) => store.clone(),
            RegionState::None => return Ok(files),
            // A list without them would make their files look empty.
            RegionState::Unusable(_) => return Err(Errno::EIO),
        };
        let last = files.objects.last().map(|(ino, piece, _)| (*ino, *piece));
        let mut keys: BTreeSet<ObjectKey> =
            files.objects.iter().map(|(ino, piece, _)| (*ino, *piece)).collect();
        let in_regions = store.list_objects(after, limit);
        let all_regions = in_regions.len() < limit;
        // Behind the last file of this part, there may be files before the next region.
        let upto = last.filter(|_| !files.end);
        let regions_left = in_regions.iter().any(|key| upto.is_some_and(|upto| *key > upto));
        keys.extend(in_regions.into_iter().filter(|key| upto.is_none_or(|upto| *key <= upto)));
        let end = files.end && all_regions && !regions_left && keys.len() <= limit;
        let mut objects = Vec::with_capacity(keys.len());
        for (ino, piece) in keys.into_iter().take(limit) {
            objects.push((ino, piece, self.stat(ino, piece)?));
        }
        Ok(ObjectListing { objects, end })
    }

    /// Returns what keeps an object, and the room of the device.
    ///
    /// # Errors
    /// `EIO` for an object on a device that cannot be used.
    pub fn find_engine(&self, ino: Ino, piece: Piece) -> Result<ObjectEngine, Errno> {
        let in_region = matches!(self.find_place((ino, piece))?, ObjectPlace::Region(_));
        Ok(ObjectEngine { in_region, device: self.region_room() })
    }

    /// Returns the room of the region device.
    pub fn region_room(&self) -> RegionRoom {
        match &*self.regions.read() {
            RegionState::Open(store) => {
                let space = store.space();
                RegionRoom { total: space.total, free: space.total.saturating_sub(space.used) }
            }
            RegionState::None | RegionState::Unusable(_) => RegionRoom::default(),
        }
    }

    /// As [`ObjectStore::disk_space`]: the disk, without the device.
    pub fn disk_space(&self) -> Result<DiskSpace, Errno> {
        self.files.disk_space()
    }

    /// Returns a sentence for each problem; empty when all is well.
    pub fn describe_trouble(&self) -> Vec<String> {
        let mut trouble = self.files.describe_trouble();
        match &*self.regions.read() {
            RegionState::None => {}
            RegionState::Unusable(cause) => trouble.push(cause.clone()),
            RegionState::Open(store) => {
                trouble.extend(store.describe_trouble());
                let space = store.space();
                // Versions make room for new files.
                if space.total - space.used.saturating_sub(space.versions)
                    < space.total / NEARLY_FULL
                {
                    trouble.push(format!(
                        "the region device is nearly full, with {} of {} MiB in use: new small \
                         files go to the disk",
                        space.used.saturating_sub(space.versions) >> 20,
                        space.total >> 20
                    ));
                }
            }
        }
        trouble
    }

    /// Writes all objects to the device, so that the next start need not. Changes of objects in
    /// regions are refused afterwards.
    pub fn close(&self) {
        if let RegionState::Open(store) = &*self.regions.read() {
            store.close();
        }
    }

    /// As [`ObjectStore::sync_all`].
    pub fn sync_all(&self) -> Result<(), Errno> {
        let regions = match &*self.regions.read() {
            RegionState::Open(store) => store.sync_all(),
            RegionState::None | RegionState::Unusable(_) => Ok(()),
        };
        self.files.sync_all().and(regions)
    }
}
