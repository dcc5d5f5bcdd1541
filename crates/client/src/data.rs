//! One open file: what holds wherever its bytes are. `open_data` chooses the implementation of
//! [`FileBytes`] that reads and writes the bytes themselves.

use crate::changing_handles::HandleChanges;
use crate::connection::PayloadSink;
use crate::file_bytes::FileBytes;
use crate::local_object::{disk_error, write_fully};
use crate::lost::ShortObject;
use crate::object_handle::{FileAccess, ObjectHandle, is_same_base};
use parking_lot::Mutex;
use rustix::fs::MemfdFlags;
use std::os::fd::{AsFd, OwnedFd};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, OnceLock};
use tatami_wire::frame::PAYLOAD_MAX;
use tatami_wire::object::{AllocMode, ObjectOp, ObjectReply, ObjectState, SeekTarget};
use tatami_wire::{Cred, Errno, FILE_SIZE_MAX, Ino, Piece};

/// One open file. Its methods take explicit offsets, so that threads may share it. A drop closes
/// the file. Call [`DataFile::flush`] before to learn of failed writes.
pub struct DataFile {
    pub(crate) access: Arc<FileAccess>,
    pub(crate) bytes: Arc<dyn FileBytes>,
    /// The file had all bytes of its inode when it was checked, before the first change.
    is_whole: AtomicBool,
    /// The same file, after it was re-laid out.
    relocated: OnceLock<Arc<DataFile>>,
    /// It may be changed, and keeps earlier states.
    pub(crate) keeps_versions: bool,
    pub(crate) changes: Mutex<HandleChanges>,
}

impl Drop for DataFile {
    fn drop(&mut self) {
        self.forget_changes();
    }
}

/// The methods fail with the error of the same system call, with `EHOSTDOWN` when the object's
/// daemon stays away, and with `EACCES` or `EBADF` where the capability does not cover the
/// operation.
#[allow(clippy::missing_errors_doc)] // said once, above
impl DataFile {
    pub(crate) fn new(access: Arc<FileAccess>, bytes: Arc<dyn FileBytes>) -> DataFile {
        let versioned = bytes.object().is_some_and(|object| object.piece.version_rule() > 0);
        DataFile {
            keeps_versions: versioned && access.current_cap().access.write,
            access,
            bytes,
            is_whole: AtomicBool::new(false),
            relocated: OnceLock::new(),
            changes: Mutex::default(),
        }
    }

    /// Returns the file's inode.
    pub fn ino(&self) -> Ino {
        self.access.ino
    }

    /// Returns whether all bytes are in one file of this node's disk, which the kernel can read and
    /// write past the mount: see [`DataFile::local_file`].
    pub fn has_local_file(&self) -> bool {
        self.bytes.has_local_file()
    }

    /// Returns whether [`DataFile::read_into`] can move the bytes from the socket of their node.
    pub fn can_splice(&self) -> bool {
        self.bytes.can_splice() && self.relocated.get().is_none()
    }

    /// Returns whether each write of another client changes what [`DataFile::stat`] returns. If
    /// not, an equal state does not show that cached pages are still valid.
    pub fn shows_all_writes(&self) -> bool {
        self.bytes.shows_all_writes()
    }

    /// Returns whether the shard has recorded size and times of each change that has returned, so
    /// that the client need not commit them. From the moment at which the bytes leave their inode
    /// this is false: ask after the change.
    pub fn records_changes(&self) -> bool {
        self.bytes.records_changes()
    }

    /// Returns the same file in its present layout, if it was re-laid out since it was opened and
    /// its bytes at `offset` can be missing for that reason: its old objects are removed, and a
    /// removed object reads as empty.
    ///
    /// # Errors
    /// `EIO` where the bytes at `offset` are missing for no such reason: they are lost.
    fn find_relocated(&self, offset: u64) -> Result<Option<&Arc<DataFile>>, Errno> {
        let Some((layout, size)) = self.access.opened else { return Ok(None) };
        // Bytes beyond the size at the open were never in the old object, so their absence proves
        // nothing.
        if offset >= size || self.relocated.get().is_some() {
            return Ok(self.relocated.get());
        }
        let client = &self.access.client;
        let attr = client.getattr(&Cred::ROOT, self.ino())?;
        if is_same_base(attr.layout, layout) {
            return if self.is_lost(offset)? { Err(Errno::EIO) } else { Ok(None) };
        }
        let new = Arc::new(client.open_data(&attr, self.access.current_cap())?);
        Ok(Some(self.relocated.get_or_init(|| new)))
    }

    /// Returns whether the byte at `offset` of a whole file, which the shard knows of, is lost; see
    /// [`crate::lost`].
    pub fn is_lost(&self, offset: u64) -> Result<bool, Errno> {
        let Some((layout, _)) = self.access.opened else { return Ok(false) };
        self.access.client.is_lost(self.ino(), |attr| {
            if attr.size <= offset || !is_same_base(attr.layout, layout) {
                return Ok(None);
            }
            let now = self.stat()?;
            let has = now.exists.then_some(now.size);
            let (node, piece, least) = (layout.node(), layout.base(), attr.size);
            Ok((now.size <= offset).then_some(ShortObject { node, piece, least, has }))
        })
    }

    /// Refuses to change a file if some of its first `len` bytes are lost: the change would make a
    /// damaged file look whole. Checks once for each handle.
    fn check_not_lost(&self, len: u64) -> Result<(), Errno> {
        if len == 0 || self.is_whole.load(Ordering::Relaxed) {
            return Ok(());
        }
        let size = self.access.opened.map_or(0, |(_, size)| size);
        let least = size.min(len);
        let now = if least > 0 { self.stat()?.size } else { 0 };
        let is_lost = now < least && self.is_lost(now)? || self.bytes.has_lost_bytes()?;
        if is_lost {
            return Err(Errno::EIO);
        }
        // Relaxed: the flag only saves a check, and a thread that misses it checks once more.
        self.is_whole.fetch_or(least == size, Ordering::Relaxed);
        Ok(())
    }

    /// Fails with `EIO` if the client refuses changes because bytes of the file are lost. The user
    /// must first cut the file to the part that is left, or write it from the start. Before the
    /// first change this sends one request for the object's state.
    pub fn check_changeable(&self) -> Result<(), Errno> {
        self.check_not_lost(u64::MAX)
    }

    /// Returns the backing file, open for the access that the capability allows. Requests it from
    /// the daemon once. `None` when there is no such file on this node, or the file has no byte yet
    /// and `create` is not set.
    pub fn local_file(&self, create: bool) -> Result<Option<Arc<OwnedFd>>, Errno> {
        self.bytes.local_file(create)
    }

    /// Returns the backing files of this object and of `more` of the same file on this node, which
    /// are made where they do not exist. Sends one request for all of them, at most
    /// [`OPEN_MAX`](tatami_wire::object::OPEN_DESCRIPTORS_MAX).
    ///
    /// # Errors
    /// Those of the disk; `EINVAL` for an object of another node; `ENFILE` where this process has
    /// no room for them.
    pub fn make_local_files(&self, more: &[Piece]) -> Result<Vec<OwnedFd>, Errno> {
        self.local_object()?.request_descriptors(more)
    }

    /// Returns the one object that has all bytes, on any node.
    pub(crate) fn only_object(&self) -> Option<&ObjectHandle> {
        self.bytes.object()
    }

    /// Returns the object of this node that has all bytes; `EINVAL` where they are elsewhere.
    pub(crate) fn local_object(&self) -> Result<&ObjectHandle, Errno> {
        self.bytes.object().filter(|_| self.bytes.has_local_file()).ok_or(Errno::EINVAL)
    }

    /// Reads up to `buf.len()` bytes from `offset`; fewer only at the end.
    pub fn read_at(&self, buf: &mut [u8], offset: u64) -> Result<usize, Errno> {
        if let Some(new) = self.relocated.get() {
            return new.read_at(buf, offset);
        }
        let got = self.bytes.read_at(buf, offset)?;
        // A short read is the end of the file, or the old object of a file that was re-laid out.
        if got < buf.len()
            && let Some(new) = self.find_relocated(offset.saturating_add(got as u64))?
        {
            return new.read_at(buf, offset);
        }
        Ok(got)
    }

    /// Reads up to `len` bytes, at most [`PAYLOAD_MAX`], from `offset` into `sink`; fewer only at
    /// the end. Only where [`DataFile::can_splice`]. If the daemon dies half-way, the sink starts
    /// from the beginning.
    ///
    /// # Errors
    /// `EINVAL` for any other file, and for longer reads.
    pub fn read_into(
        &self,
        sink: &mut dyn PayloadSink,
        offset: u64,
        len: usize,
    ) -> Result<usize, Errno> {
        if len > PAYLOAD_MAX {
            return Err(Errno::EINVAL);
        }
        if let Some(new) = self.relocated.get() {
            return new.read_from_memory(sink, offset, len);
        }
        let got = self.bytes.read_into(sink, offset, len)?;
        if got < len
            && let Some(new) = self.find_relocated(offset.saturating_add(got as u64))?
        {
            return new.read_from_memory(sink, offset, len);
        }
        Ok(got)
    }

    /// As [`DataFile::read_into`], for bytes on any node.
    fn read_from_memory(
        &self,
        sink: &mut dyn PayloadSink,
        offset: u64,
        len: usize,
    ) -> Result<usize, Errno> {
        let mut bytes = vec![0; len];
        let got = self.read_at(&mut bytes, offset)?;
        let memory = rustix::fs::memfd_create("read", MemfdFlags::CLOEXEC).map_err(disk_error)?;
        if write_fully(&memory, &bytes[..got], 0)? < got {
            return Err(Errno::EIO);
        }
        sink.begin_payload(got);
        let mut taken = 0;
        while taken < got {
            match sink.take_payload(memory.as_fd(), got - taken)? {
                0 => return Err(Errno::EIO),
                n => taken += n,
            }
        }
        Ok(got)
    }

    /// Writes all of `data` to `offset`. To another node the bytes are in flight when this returns,
    /// not yet written: see [`DataFile::flush`].
    pub fn write_at(&self, data: &[u8], offset: u64) -> Result<usize, Errno> {
        let end = offset.checked_add(data.len() as u64).ok_or(Errno::EFBIG)?;
        if end > FILE_SIZE_MAX {
            return Err(Errno::EFBIG);
        }
        if data.is_empty() {
            return Ok(0);
        }
        self.check_changeable()?;
        self.begin_change(false)?;
        self.bytes.write_at(data, offset)
    }

    /// Writes `data` to the end of the file, atomically with regard to other appends. Data longer
    /// than [`PAYLOAD_MAX`] is cut; the result is the number of written bytes.
    ///
    /// If the daemon of another node dies before it replies, the bytes may or may not have been
    /// written, and the result is `EIO`.
    pub fn append(&self, data: &[u8]) -> Result<usize, Errno> {
        self.check_changeable()?;
        self.begin_change(false)?;
        self.bytes.append(&data[..data.len().min(PAYLOAD_MAX)])
    }

    /// Waits until all writes have reached the object's node.
    pub fn flush(&self) -> Result<(), Errno> {
        self.bytes.flush()?;
        self.note_flush();
        Ok(())
    }

    /// As [`DataFile::flush`], but leaves failures for the writers to learn later.
    pub fn wait_for_writes(&self) {
        self.bytes.wait_for_writes();
    }

    /// Makes everything written so far survive a power cut, names of new objects included.
    pub fn sync(&self, data_only: bool) -> Result<ObjectState, Errno> {
        self.bytes.sync(data_only)
    }

    /// Cuts or extends the file. The caller must then report the size to the shard
    /// ([`Client::setattr`](crate::Client::setattr) with a size).
    pub fn truncate(&self, size: u64) -> Result<ObjectState, Errno> {
        self.check_not_lost(size)?;
        // Count the cut before the object changes, because from then on its length proves nothing.
        // No check of lost bytes may see the shorter object without the truncation.
        let cuts = &self.access.client.loss_tracker;
        cuts.begin_cut(self.ino());
        self.truncate_unrecorded(size).inspect_err(|_| cuts.end_cut(self.ino()))
    }

    /// Cuts or extends an object that the shard does not know, or knows only as one to be removed.
    pub(crate) fn truncate_unrecorded(&self, size: u64) -> Result<ObjectState, Errno> {
        if size > FILE_SIZE_MAX {
            return Err(Errno::EFBIG);
        }
        self.begin_change(size == 0)?;
        let cut = self.bytes.truncate(size)?;
        // From now on the object has all bytes of its inode.
        self.is_whole.store(true, Ordering::Relaxed);
        Ok(cut)
    }

    /// Reserves, frees or zeroes a range.
    pub fn allocate(&self, mode: AllocMode, offset: u64, len: u64) -> Result<ObjectState, Errno> {
        self.check_changeable()?;
        self.begin_change(false)?;
        self.bytes.allocate(mode, offset, len)
    }

    /// Returns the next data, or hole, at or after `offset`.
    pub fn seek(&self, what: SeekTarget, offset: u64) -> Result<u64, Errno> {
        match self.bytes.seek(what, offset) {
            // A removed object has no data: the file may have been re-laid out.
            Err(Errno::ENXIO) => match self.find_relocated(offset)? {
                Some(new) => new.seek(what, offset),
                None => Err(Errno::ENXIO),
            },
            found => found,
        }
    }

    /// Returns size and storage, with everything that was written through this client.
    pub fn stat(&self) -> Result<ObjectState, Errno> {
        self.bytes.stat()
    }

    /// Copies within one node, sharing blocks where the disk can.
    ///
    /// # Errors
    /// `EXDEV` when the two files are on different nodes, or one is tiled: the caller must then
    /// read and write.
    pub fn copy_from(
        &self,
        source: &DataFile,
        source_offset: u64,
        offset: u64,
        len: u64,
    ) -> Result<u64, Errno> {
        let (Some(to), Some(from)) = (self.bytes.object(), source.bytes.object()) else {
            return Err(Errno::EXDEV);
        };
        if to.node() != from.node() {
            return Err(Errno::EXDEV);
        }
        self.flush()?;
        self.check_changeable()?;
        self.begin_change(false)?;
        source.flush()?;
        let (cap, source_piece) = (from.access.current_cap(), from.piece);
        let op = ObjectOp::CopyFrom { source: cap, source_piece, source_offset, offset, len };
        match to.send_object_op(&op, &mut [])?.0 {
            // An empty copy may come from an object that was removed by a relayout of the source.
            ObjectReply::Written { len: 0, .. }
                if source.find_relocated(source_offset)?.is_some() =>
            {
                Err(Errno::EXDEV)
            }
            ObjectReply::Written { len, .. } => Ok(len),
            _ => Err(Errno::EPROTO),
        }
    }

    /// Makes an object of the file's bytes, also if the bytes are in a spare file.
    pub fn make_object(&self) -> Result<(), Errno> {
        // Any request for the object makes one of the spare file that stands for it.
        self.local_object()?.request_state(&ObjectOp::Stat).map(drop)
    }

    /// Uses `file`, a spare file that stands for this inode, as the backing file from now on; with
    /// `None`, closes the backing file until it is needed again.
    pub fn set_local_file(&self, file: Option<Arc<OwnedFd>>) {
        self.bytes.set_local_file(file);
    }
}
