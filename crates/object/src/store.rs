//! All objects of one node.

use crate::cache::{CacheLookup, ObjectCache};
use crate::disk::{Disk, KernelDisk};
use crate::listing::{self, ListingWindow};
use crate::name::{self, OBJECTS_DIR, ObjectKey};
use crate::object::{Object, check_range, state_from_stat, to_errno};
use crate::spares::SpareStore;
use parking_lot::Mutex;
use rustix::fs::{AtFlags, Mode, OFlags};
use std::collections::BTreeSet;
use std::hash::{DefaultHasher, Hash, Hasher};
use std::io;
use std::os::fd::{AsFd, OwnedFd};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use tatami_wire::admin::DiskSpace;
use tatami_wire::object::{AllocMode, ObjectState, SeekTarget};
use tatami_wire::{Access, Errno, Ino, Piece};

/// Most backing files that are kept open.
const OPEN_MAX: usize = 1024;
/// One in `DESCRIPTOR_SHARE` of the process's descriptors is for objects.
const DESCRIPTOR_SHARE: u64 = 4;
/// Most objects whose failed sync is remembered one by one; with more, the whole store refuses
/// writes.
const FAILED_MAX: usize = 4096;
/// Most objects in one listing.
const LIST_MAX: usize = 4096;

/// Why an object store does not open.
#[derive(Debug, thiserror::Error)]
#[error("objects in {}: cannot {what}: {source}", path.display())]
pub struct ObjectOpenError {
    /// The directory.
    pub path: PathBuf,
    /// The step that failed.
    pub what: &'static str,
    /// The cause.
    pub source: io::Error,
}

/// A part of the list of all objects.
#[derive(Clone, Debug, PartialEq)]
pub struct ObjectListing {
    /// In (inode, piece) order, with size and storage.
    pub objects: Vec<(Ino, Piece, ObjectState)>,
    /// Whether this is the last part.
    pub end: bool,
}

/// The objects below one data directory. See the crate.
///
/// Errors of its calls are those of the system calls of the same name, and besides: `EINVAL` and
/// `EFBIG` for offsets that no file can have, `ESTALE` for an inode whose objects were removed,
/// `EIO` for changes of an object whose sync failed.
pub struct ObjectStore {
    objects: OwnedFd,
    /// See [`DiskSpace::disk`].
    disk_id: u64,
    disk: Arc<dyn Disk>,
    cache: ObjectCache,
    spares: SpareStore,
    window: Mutex<ListingWindow>,
    /// Objects whose sync failed. The kernel may have dropped the written bytes, and reports that
    /// only once, so later writes cannot be trusted either.
    failed: Mutex<BTreeSet<ObjectKey>>,
    any_failed: AtomicBool,
}

impl ObjectStore {
    /// Opens the objects of data directory `dir`, and makes their directory if there is none yet.
    ///
    /// # Errors
    /// [`ObjectOpenError`].
    pub fn open(dir: &Path) -> Result<ObjectStore, ObjectOpenError> {
        Self::open_on(dir, Arc::new(KernelDisk))
    }

    /// As [`ObjectStore::open`], on a given disk. For tests.
    ///
    /// # Errors
    /// [`ObjectOpenError`].
    pub fn open_on(dir: &Path, disk: Arc<dyn Disk>) -> Result<ObjectStore, ObjectOpenError> {
        let path = dir.join(OBJECTS_DIR);
        let failed = |what| {
            let path = path.clone();
            move |e: rustix::io::Errno| ObjectOpenError { path, what, source: e.into() }
        };
        match rustix::fs::mkdir(&path, Mode::RWXU) {
            Ok(()) | Err(rustix::io::Errno::EXIST) => {}
            Err(e) => return Err(failed("make the directory")(e)),
        }
        let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::CLOEXEC;
        let objects =
            rustix::fs::open(&path, flags, Mode::empty()).map_err(failed("open the directory"))?;
        let parent =
            rustix::fs::open(dir, flags, Mode::empty()).map_err(failed("open what it is in"))?;
        // A bucket that was made just before the last daemon died may not be durable yet.
        rustix::fs::fsync(&objects).map_err(failed("sync the directory"))?;
        rustix::fs::fsync(&parent).map_err(failed("sync what it is in"))?;
        // Before the store serves anything: spare files of the last daemon become objects under
        // their names.
        let spares =
            SpareStore::open(parent.as_fd()).map_err(failed("make the place of spares"))?;
        spares.take_over_tables(objects.as_fd()).map_err(failed("take over what was lent"))?;
        let device = rustix::fs::fstat(&objects).map_err(failed("stat the directory"))?.st_dev;
        Ok(ObjectStore {
            objects,
            disk_id: disk_id(device),
            disk,
            cache: ObjectCache::new(cache_capacity()),
            spares,
            window: Mutex::default(),
            failed: Mutex::default(),
            any_failed: AtomicBool::new(false),
        })
    }

    /// Reads from `offset` into `buf`: as much as there is, 0 at and behind the end and where there
    /// is no object.
    ///
    /// # Errors
    /// See [`ObjectStore`].
    pub fn read_at(
        &self,
        ino: Ino,
        piece: Piece,
        buf: &mut [u8],
        offset: u64,
    ) -> Result<usize, Errno> {
        check_range(offset, 0)?;
        match self.find_object((ino, piece))? {
            Some(object) => object.read_at(&*self.disk, buf, offset),
            None => Ok(0),
        }
    }

    /// Returns the open object, for calls that take a descriptor; `None` where there is none.
    ///
    /// # Errors
    /// See [`ObjectStore`].
    pub fn open_object(&self, ino: Ino, piece: Piece) -> Result<Option<Arc<Object>>, Errno> {
        self.find_object((ino, piece))
    }

    /// Writes all of `data` at `offset`. After an error a part may have been written, and the older
    /// bytes elsewhere stay readable.
    ///
    /// # Errors
    /// See [`ObjectStore`].
    pub fn write_at(&self, ino: Ino, piece: Piece, data: &[u8], offset: u64) -> Result<(), Errno> {
        check_range(offset, data.len() as u64)?;
        self.find_or_create((ino, piece))?.write_at(&*self.disk, data, offset)
    }

    /// Writes all of `data` at the end and returns the offset of its first byte. No other append
    /// comes in between.
    ///
    /// # Errors
    /// See [`ObjectStore`]. After `ENOSPC` a part may have been written.
    pub fn append(&self, ino: Ino, piece: Piece, data: &[u8]) -> Result<u64, Errno> {
        self.find_or_create((ino, piece))?.append(&*self.disk, data)
    }

    /// Cuts or extends to `size` bytes.
    ///
    /// # Errors
    /// See [`ObjectStore`].
    pub fn truncate(&self, ino: Ino, piece: Piece, size: u64) -> Result<ObjectState, Errno> {
        check_range(0, size)?;
        let object = self.find_or_create((ino, piece))?;
        object.truncate(&*self.disk, size)?;
        object.state()
    }

    /// Reserves, frees or zeroes a range. Zeroing works on every file system; the others fail with
    /// `EOPNOTSUPP` where the file system cannot.
    ///
    /// # Errors
    /// See [`ObjectStore`]; `EINVAL` for `len` 0.
    pub fn allocate(
        &self,
        ino: Ino,
        piece: Piece,
        mode: AllocMode,
        offset: u64,
        len: u64,
    ) -> Result<ObjectState, Errno> {
        check_range(offset, len)?;
        if len == 0 {
            return Err(Errno::EINVAL);
        }
        let object = self.find_or_create((ino, piece))?;
        object.allocate(&*self.disk, mode, offset, len)?;
        object.state()
    }

    /// Returns the next data or hole from `offset` on.
    ///
    /// # Errors
    /// `ENXIO` behind the end, and where there is no object; see [`ObjectStore`].
    pub fn seek(
        &self,
        ino: Ino,
        piece: Piece,
        what: SeekTarget,
        offset: u64,
    ) -> Result<u64, Errno> {
        if check_range(offset, 0).is_err() {
            return Err(Errno::ENXIO);
        }
        self.find_object((ino, piece))?.ok_or(Errno::ENXIO)?.seek(what, offset)
    }

    /// Makes everything written so far survive a power cut: with `data_only` the bytes and the
    /// metadata needed to find them, else the times as well.
    ///
    /// # Errors
    /// See [`ObjectStore`]. After a failure the object refuses further changes: written bytes may
    /// be lost, and a later sync would not report that.
    pub fn sync(&self, ino: Ino, piece: Piece, data_only: bool) -> Result<ObjectState, Errno> {
        let key = (ino, piece);
        self.refuse_failed(key)?;
        let Some(object) = self.find_object(key)? else { return Ok(ObjectState::default()) };
        let synced = self.disk.sync(object.as_fd(), data_only).and_then(|()| {
            // The first sync of an object also syncs the directory that has its name: bytes without
            // a name would be lost.
            if object.has_durable_name() {
                return Ok(());
            }
            let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::CLOEXEC;
            let bucket = name::bucket_name(name::bucket_of(ino));
            let bucket = rustix::fs::openat(&self.objects, bucket, flags, Mode::empty())?;
            self.disk.sync(bucket.as_fd(), false)?;
            // Release: a thread that sees the flag relies on the sync before it.
            object.name_durable.store(true, Ordering::Release);
            Ok(())
        });
        if let Err(e) = synced {
            let mut failed = self.failed.lock();
            if failed.len() <= FAILED_MAX {
                // The set first: a thread that sees the flag must find the object in it.
                failed.insert(key);
            }
            self.any_failed.store(true, Ordering::Release);
            return Err(e.into());
        }
        object.state()
    }

    /// Returns size and storage; the default where there is no object, or none any more.
    ///
    /// # Errors
    /// See [`ObjectStore`].
    pub fn stat(&self, ino: Ino, piece: Piece) -> Result<ObjectState, Errno> {
        let key = (ino, piece);
        if let CacheLookup::Open(object) = self.cache.get(key) {
            return object.state();
        }
        let stat =
            || rustix::fs::statat(&self.objects, name::object_path(key), AtFlags::SYMLINK_NOFOLLOW);
        let found = match stat() {
            // A spare file may have the bytes. The look by name comes again after it has become the
            // object, or another thread has made it one.
            Err(rustix::io::Errno::NOENT) if self.spares.has_tables() => {
                self.materialize_spare(key, false).and_then(|()| stat())
            }
            other => other,
        };
        match found {
            Ok(stat) => Ok(state_from_stat(&stat)),
            Err(rustix::io::Errno::NOENT) => Ok(ObjectState::default()),
            Err(e) => Err(to_errno(e)),
        }
    }

    /// Opens the backing file once more, for `access` only, to be handed to a client on this node.
    ///
    /// # Errors
    /// `ENOENT` without `create` where there is no object, `EACCES` for an access that allows
    /// nothing; see [`ObjectStore`].
    pub fn open_fd(
        &self,
        ino: Ino,
        piece: Piece,
        access: Access,
        create: bool,
    ) -> Result<OwnedFd, Errno> {
        let key = (ino, piece);
        let flags = match access {
            Access { read: true, write: true } => OFlags::RDWR,
            Access { read: false, write: true } => OFlags::WRONLY,
            Access { read: true, write: false } => OFlags::RDONLY,
            Access { read: false, write: false } => return Err(Errno::EACCES),
        };
        if access.write {
            self.refuse_failed(key)?;
        }
        if create {
            // A removed object must not be made again.
            self.check_not_removed(key)?;
            return self.create_file(key, flags);
        }
        match self.open_file(key, flags) {
            Err(rustix::io::Errno::NOENT) => self.check_not_removed(key).and(Err(Errno::ENOENT)),
            other => other.map_err(to_errno),
        }
    }

    /// Makes a new table by which spare files are lent; see `tatami_tables::SpareTable`. The caller
    /// chooses its number.
    ///
    /// # Errors
    /// `EOPNOTSUPP` on a disk that does not suit, `EBUSY` for a number in use; see [`ObjectStore`].
    pub fn create_spare_table(&self, table: u64) -> Result<OwnedFd, Errno> {
        self.spares.create_table(table)
    }

    /// Makes an empty file for a slot of a table. The file that the slot had before is an object
    /// afterwards, unless its inode was removed.
    ///
    /// # Errors
    /// `ENOENT` without such a table; see [`ObjectStore`].
    pub fn renew_spare(&self, table: u64, slot: usize) -> Result<OwnedFd, Errno> {
        if let Some(ino) = self.spares.inode_of_slot(table, slot)? {
            self.materialize_spare((ino, Piece(0)), false).map_err(to_errno)?;
        }
        self.spares.renew_slot(table, slot)
    }

    /// Ends a table: all its files that stand for an inode are objects afterwards.
    ///
    /// # Errors
    /// See [`ObjectStore`]; files that could not become objects are still lent.
    pub fn end_spare_table(&self, table: u64) -> Result<(), Errno> {
        self.spares.end_table(self.objects.as_fd(), table)
    }

    /// Copies up to `len` bytes within this node, as far as the source reaches, and returns the
    /// number of bytes.
    ///
    /// # Errors
    /// `EINVAL` for overlapping ranges of one object; see [`ObjectStore`].
    pub fn copy_range(
        &self,
        source: (Ino, Piece),
        source_offset: u64,
        target: (Ino, Piece),
        offset: u64,
        len: u64,
    ) -> Result<u64, Errno> {
        check_range(source_offset, 0)?;
        let Some(from) = self.find_object(source)? else { return Ok(0) };
        let len = len.min(from.state()?.size.saturating_sub(source_offset));
        check_range(offset, len)?;
        if len == 0 {
            return Ok(0);
        }
        if source == target && source_offset < offset + len && offset < source_offset + len {
            return Err(Errno::EINVAL);
        }
        self.find_or_create(target)?.copy_from(&*self.disk, &from, source_offset, offset, len)
    }

    /// Removes the base of an inode, which is all that a whole file has. The inode's number must
    /// never be used again: late requests for any of its objects are refused. Descriptors that were
    /// handed out stay usable.
    ///
    /// # Errors
    /// See [`ObjectStore`].
    pub fn remove_base(&self, ino: Ino) -> Result<(), Errno> {
        // Before the file is removed: an open that runs at the same time must not enter the cache
        // after the removal.
        self.cache.remove_inode(ino);
        self.failed.lock().retain(|key| key.0 != ino);
        if self.spares.has_tables() {
            self.spares.discard_spare(ino);
        }
        self.unlink_file((ino, Piece::BASE))
    }

    /// Removes one object of an inode that may live on. Descriptors that were handed out stay
    /// usable.
    ///
    /// # Errors
    /// See [`ObjectStore`].
    pub fn remove_object(&self, ino: Ino, piece: Piece) -> Result<(), Errno> {
        let key = (ino, piece);
        // Before the file is removed, as in `remove_base`.
        self.cache.forget_object(key);
        self.failed.lock().remove(&key);
        self.unlink_file(key)
    }

    /// As [`ObjectStore::remove_base`], for all objects of an inode, with any number: reads a whole
    /// bucket.
    ///
    /// # Errors
    /// See [`ObjectStore`]; the next call removes the rest.
    pub fn remove_all(&self, ino: Ino) -> Result<(), Errno> {
        self.remove_base(ino)?;
        let pieces = listing::list_inode(self.objects.as_fd(), ino).map_err(to_errno)?;
        pieces.into_iter().try_for_each(|key| self.unlink_file(key))
    }

    /// Returns at most `limit` objects after `after` in (inode, piece) order. An object that is
    /// made or removed during a listing may be in it or not.
    ///
    /// # Errors
    /// See [`ObjectStore`].
    pub fn list_objects(
        &self,
        after: Option<(Ino, Piece)>,
        limit: usize,
    ) -> Result<ObjectListing, Errno> {
        let limit = limit.clamp(1, LIST_MAX);
        if after.is_none() {
            self.materialize_written_spares()?;
        }
        let (keys, end) =
            self.window.lock().next(self.objects.as_fd(), after, limit).map_err(to_errno)?;
        let mut objects = Vec::with_capacity(keys.len());
        for (ino, piece) in keys {
            objects.push((ino, piece, self.stat(ino, piece)?));
        }
        Ok(ObjectListing { objects, end })
    }

    /// Returns the space on the disk, as the kernel reports it.
    ///
    /// # Errors
    /// Those of statvfs(2).
    pub fn disk_space(&self) -> Result<DiskSpace, Errno> {
        let s = rustix::fs::fstatvfs(&self.objects).map_err(to_errno)?;
        let bytes = |blocks: u64| blocks.saturating_mul(s.f_frsize);
        Ok(DiskSpace {
            total: bytes(s.f_blocks),
            free: bytes(s.f_bfree),
            available: bytes(s.f_bavail),
            disk: self.disk_id,
            inodes: 0,
        })
    }

    /// Returns a sentence for each problem; empty when all is well.
    pub fn describe_trouble(&self) -> Vec<String> {
        if !self.any_failed.load(Ordering::Acquire) {
            return Vec::new();
        }
        let failed = self.failed.lock();
        let Some((ino, _)) = failed.first() else { return Vec::new() };
        vec![format!(
            "syncing {} object(s) failed, the first of inode {ino}: they take no more changes; \
             check the disk, copy the files elsewhere and remove them",
            failed.len()
        )]
    }

    /// Syncs the whole file system of the objects.
    ///
    /// # Errors
    /// Those of syncfs(2), and of the renames of spare files with bytes.
    pub fn sync_all(&self) -> Result<(), Errno> {
        // A power cut voids the tables, so the names of objects must go to the disk with the bytes.
        let made = self.materialize_written_spares();
        rustix::fs::syncfs(&self.objects).map_err(to_errno)?;
        made
    }

    fn refuse_failed(&self, key: ObjectKey) -> Result<(), Errno> {
        // Acquire: pairs with the release in `sync`. Without failures, no write takes the lock.
        if self.any_failed.load(Ordering::Acquire) {
            let failed = self.failed.lock();
            if failed.contains(&key) || failed.len() > FAILED_MAX {
                return Err(Errno::EIO);
            }
        }
        Ok(())
    }

    /// Removes a backing file, if there is one.
    fn unlink_file(&self, key: ObjectKey) -> Result<(), Errno> {
        match rustix::fs::unlinkat(&self.objects, name::object_path(key), AtFlags::empty()) {
            Ok(()) | Err(rustix::io::Errno::NOENT) => Ok(()),
            Err(e) => Err(to_errno(e)),
        }
    }

    /// Returns the open object, if there is one.
    fn find_object(&self, key: ObjectKey) -> Result<Option<Arc<Object>>, Errno> {
        match self.cache.get(key) {
            CacheLookup::Open(object) => Ok(Some(object)),
            CacheLookup::Removed => Err(Errno::ESTALE),
            CacheLookup::Absent(removals) => match self.open_file(key, OFlags::RDWR) {
                Ok(fd) => Ok(Some(self.cache.insert(Arc::new(Object::new(key, fd)), removals))),
                Err(rustix::io::Errno::NOENT) => self.check_not_removed(key).map(|()| None),
                Err(e) => Err(to_errno(e)),
            },
        }
    }

    /// Distinguishes an object without bytes from one that was removed a moment ago: a reader of
    /// the removed one must not take it for an empty file.
    fn check_not_removed(&self, key: ObjectKey) -> Result<(), Errno> {
        match self.cache.get(key) {
            CacheLookup::Removed => Err(Errno::ESTALE),
            CacheLookup::Open(_) | CacheLookup::Absent(_) => Ok(()),
        }
    }

    /// Fails with `ESTALE` for an object whose inode was removed.
    pub(crate) fn refuse_removed(&self, key: ObjectKey) -> Result<(), Errno> {
        self.check_not_removed(key)
    }

    /// Returns the open object for a change; makes it if there is none.
    fn find_or_create(&self, key: ObjectKey) -> Result<Arc<Object>, Errno> {
        self.refuse_failed(key)?;
        let removals = match self.cache.get(key) {
            CacheLookup::Open(object) => return Ok(object),
            CacheLookup::Removed => return Err(Errno::ESTALE),
            CacheLookup::Absent(removals) => removals,
        };
        let fd = self.create_file(key, OFlags::RDWR)?;
        Ok(self.cache.insert(Arc::new(Object::new(key, fd)), removals))
    }

    fn open_file(&self, key: ObjectKey, flags: OFlags) -> rustix::io::Result<OwnedFd> {
        match self.open_named(key, flags) {
            Err(rustix::io::Errno::NOENT) if self.spares.has_tables() => {
                self.materialize_spare(key, false)?;
                self.open_named(key, flags)
            }
            other => other,
        }
    }

    fn open_named(&self, key: ObjectKey, flags: OFlags) -> rustix::io::Result<OwnedFd> {
        let flags = flags | OFlags::CLOEXEC | OFlags::NOFOLLOW;
        rustix::fs::openat(&self.objects, name::object_path(key), flags, Mode::RUSR | Mode::WUSR)
    }

    /// Makes an object of the spare file that stands for it, if there is one.
    fn materialize_spare(&self, key: ObjectKey, make: bool) -> rustix::io::Result<()> {
        if self.check_not_removed(key).is_err() {
            // Its inode was removed before the file was lent.
            self.spares.discard_spare(key.0);
            return Ok(());
        }
        self.spares.materialize_spare(self.objects.as_fd(), key, make)
    }

    /// Makes objects of all spare files that have bytes.
    fn materialize_written_spares(&self) -> Result<(), Errno> {
        if !self.spares.has_tables() {
            return Ok(());
        }
        for ino in self.spares.list_written() {
            self.materialize_spare((ino, Piece::BASE), false).map_err(to_errno)?;
        }
        Ok(())
    }

    /// Opens a backing file that may not exist yet, nor its bucket: usually one call.
    fn create_file(&self, key: ObjectKey, flags: OFlags) -> Result<OwnedFd, Errno> {
        // A spare file may stand for the object. It must get the object's name before a new file
        // could take that name.
        if self.spares.has_tables() {
            match self.open_named(key, flags) {
                Err(rustix::io::Errno::NOENT) => {
                    self.materialize_spare(key, true).map_err(to_errno)?
                }
                other => return other.map_err(to_errno),
            }
        }
        match self.open_named(key, flags | OFlags::CREATE) {
            Err(rustix::io::Errno::NOENT) => {
                self.make_bucket(key)?;
                self.open_named(key, flags | OFlags::CREATE)
            }
            other => other,
        }
        .map_err(to_errno)
    }

    fn make_bucket(&self, key: ObjectKey) -> Result<(), Errno> {
        let bucket = name::bucket_name(name::bucket_of(key.0));
        match rustix::fs::mkdirat(&self.objects, bucket, Mode::RWXU) {
            // The bucket must be durable before an object in it can be.
            Ok(()) => Ok(self.disk.sync(self.objects.as_fd(), false)?),
            Err(rustix::io::Errno::EXIST) => Ok(()),
            Err(e) => Err(to_errno(e)),
        }
    }
}

/// Returns a number for a disk that two nodes on one machine compute alike. The boot id
/// distinguishes machines; containers of one machine have the same.
fn disk_id(device: u64) -> u64 {
    let boot = std::fs::read("/proc/sys/kernel/random/boot_id").unwrap_or_default();
    let mut hasher = DefaultHasher::new();
    (boot, device).hash(&mut hasher);
    hasher.finish()
}

/// Returns how many backing files may be open, by the limit of the process.
fn cache_capacity() -> usize {
    let limit = rustix::process::getrlimit(rustix::process::Resource::Nofile).current;
    let share = limit.map_or(OPEN_MAX as u64, |n| n / DESCRIPTOR_SHARE);
    usize::try_from(share).unwrap_or(OPEN_MAX).clamp(8, OPEN_MAX)
}
