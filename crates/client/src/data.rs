//! The bytes of one open file.
//!
//! On the node that stores the object, the daemon hands over the open backing file, and all
//! operations below use the disk directly. For other nodes the client sends requests to the node's
//! daemon: reads one by one, writes as write-behind (see `remote`). A tiled file has objects on
//! many nodes (see `tiled`).

use crate::Client;
use crate::cause::record_cause;
use crate::connection::{Connection, PayloadSink};
use crate::descriptors::is_reserved_descriptor;
use crate::lost::ShortObject;
use crate::node::NodeClient;
use crate::remote::{SeenFailures, WriteStream};
use crate::tiled_files::SharedTiles;
use crate::waiting::lock_interruptibly;
use parking_lot::Mutex;
use rustix::fs::{FallocateFlags, MemfdFlags, SeekFrom};
use std::collections::HashMap;
use std::os::fd::{AsFd, AsRawFd, OwnedFd};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, OnceLock};
use tatami_wire::frame::{FrameClass, FrameError, PAYLOAD_MAX};
use tatami_wire::object::{
    AllocMode, ObjectCall, ObjectOp, ObjectReply, ObjectResult, ObjectState, SeekTarget,
};
use tatami_wire::{Attr, Cap, Cred, Errno, Ino, Layout, NodeId, Piece, Timestamp};

/// One open file. Its methods take explicit offsets, so that threads may share it. A drop closes
/// the file. Call [`DataFile::flush`] before to learn of failed writes.
pub struct DataFile {
    client: Arc<Client>,
    ino: Ino,
    piece: Piece,
    cap: Mutex<Cap>,
    location: DataLocation,
    /// Of a whole file: its layout and size, in bytes, when it was opened.
    opened: Option<(Layout, u64)>,
    /// The object had all bytes of its inode when it was checked, before the first change.
    is_whole: AtomicBool,
    /// The same file, after it was re-laid out.
    relocated: OnceLock<Arc<DataFile>>,
}

enum DataLocation {
    /// The object is on this node.
    Local { peer: Arc<NodeClient>, file: Mutex<Option<Arc<OwnedFd>>> },
    /// The object is on another node.
    Remote { peer: Arc<NodeClient>, stream: Arc<WriteStream>, told: Mutex<SeenFailures> },
    /// The file is tiled: its objects are on many nodes.
    Tiled(Box<TiledFile>),
}

/// One open tiled file: a file of files. Its pieces and its base are [`DataFile`]s of their own, so
/// both types are here; its operations are in `tiled_file`.
pub(crate) struct TiledFile {
    pub(crate) client: Arc<Client>,
    pub(crate) ino: Ino,
    pub(crate) cap: Cap,
    /// The node of the base when the file was opened.
    pub(crate) peer: Arc<NodeClient>,
    pub(crate) base: Mutex<OpenBase>,
    pub(crate) shared: Arc<SharedTiles>,
    pub(crate) pieces: Mutex<HashMap<Piece, OpenPiece>>,
    /// The base had all its bytes when it was checked, before the first change.
    pub(crate) is_whole: AtomicBool,
}

/// The base, as the last request knew it.
pub(crate) struct OpenBase {
    pub(crate) at: (NodeId, Piece),
    pub(crate) data: Arc<DataFile>,
}

/// One open piece.
pub(crate) struct OpenPiece {
    pub(crate) data: Arc<DataFile>,
    pub(crate) written: bool,
    pub(crate) used: u64,
}

impl Client {
    /// Opens the bytes of a file, as far as `cap` allows. Sends no request.
    ///
    /// # Errors
    /// `ENXIO` when the file's node is not in the cluster map.
    pub fn open_data(self: &Arc<Self>, attr: &Attr, cap: Cap) -> Result<DataFile, Errno> {
        if attr.layout.is_tiled() {
            let place = DataLocation::Tiled(Box::new(TiledFile::new(self, attr, cap)?));
            let (client, ino, piece) = (self.clone(), attr.ino, attr.layout.base());
            let (cap, moved) = (Mutex::new(cap), OnceLock::new());
            let is_whole = AtomicBool::new(true);
            return Ok(DataFile {
                client,
                ino,
                piece,
                cap,
                location: place,
                opened: None,
                is_whole,
                relocated: moved,
            });
        }
        let file = self.open_object(attr.ino, attr.layout.node(), attr.layout.base(), cap)?;
        let (opened, is_whole) = (Some((attr.layout, attr.size)), AtomicBool::new(attr.size == 0));
        Ok(DataFile { opened, is_whole, ..file })
    }

    /// Opens the bytes of one object of a file. Sends no request.
    ///
    /// # Errors
    /// `ENXIO` when `node` is not in the cluster map.
    pub fn open_object(
        self: &Arc<Self>,
        ino: Ino,
        node: NodeId,
        piece: Piece,
        cap: Cap,
    ) -> Result<DataFile, Errno> {
        let peer = self.node_client(node)?.clone();
        let place = if self.home() == Some(node) {
            DataLocation::Local { peer, file: Mutex::new(None) }
        } else {
            let stream = self.streams.get_stream(ino, piece, &peer);
            let told = Mutex::new(stream.current_failures());
            DataLocation::Remote { peer, stream, told }
        };
        let (client, cap, moved) = (self.clone(), Mutex::new(cap), OnceLock::new());
        let is_whole = AtomicBool::new(true);
        Ok(DataFile {
            client,
            ino,
            piece,
            cap,
            location: place,
            opened: None,
            is_whole,
            relocated: moved,
        })
    }
}

/// The methods fail with the error of the same system call, with `EHOSTDOWN` when the object's
/// daemon stays away, and with `EACCES` or `EBADF` where the capability does not cover the
/// operation.
#[allow(clippy::missing_errors_doc)] // said once, above
impl DataFile {
    /// Returns the file's inode.
    pub fn ino(&self) -> Ino {
        self.ino
    }

    /// Returns whether the bytes are on this node, all in one object.
    pub fn is_local(&self) -> bool {
        matches!(self.location, DataLocation::Local { .. })
    }

    /// Returns whether the bytes are on one other node, all in one object.
    pub fn is_remote(&self) -> bool {
        matches!(self.location, DataLocation::Remote { .. }) && self.relocated.get().is_none()
    }

    /// Returns the same file in its present layout, if it was re-laid out since it was opened and
    /// its bytes at `offset` can be missing for that reason: its old objects are removed, and a
    /// removed object reads as empty.
    ///
    /// # Errors
    /// `EIO` where the bytes at `offset` are missing for no such reason: they are lost.
    fn find_relocated(&self, offset: u64) -> Result<Option<&Arc<DataFile>>, Errno> {
        let Some((layout, size)) = self.opened else { return Ok(None) };
        // Bytes beyond the size at the open were never in the old object, so their absence proves
        // nothing.
        if offset >= size || self.relocated.get().is_some() {
            return Ok(self.relocated.get());
        }
        let attr = self.client.getattr(&Cred::ROOT, self.ino)?;
        if is_same_base(attr.layout, layout) {
            return if self.is_lost(offset)? { Err(Errno::EIO) } else { Ok(None) };
        }
        let new = Arc::new(self.client.open_data(&attr, *self.cap.lock())?);
        Ok(Some(self.relocated.get_or_init(|| new)))
    }

    /// Returns whether the byte at `offset` of a whole file, which the shard knows of, is lost; see
    /// [`crate::lost`].
    ///
    /// # Errors
    /// Those of the shard and of the object's node.
    pub fn is_lost(&self, offset: u64) -> Result<bool, Errno> {
        let Some((layout, _)) = self.opened else { return Ok(false) };
        self.client.is_lost(self.ino, |attr| {
            if attr.size <= offset || !is_same_base(attr.layout, layout) {
                return Ok(None);
            }
            let now = self.stat()?;
            let has = now.exists.then_some(now.size);
            let (node, piece, least) = (self.node_client().node, self.piece, attr.size);
            Ok((now.size <= offset).then_some(ShortObject { node, piece, least, has }))
        })
    }

    /// Refuses to change a file if some of its first `len` bytes are lost: the change would make a
    /// damaged file look whole. Checks once for each handle.
    ///
    /// # Errors
    /// `EIO`; those of the shard and of the object's node.
    fn check_not_lost(&self, len: u64) -> Result<(), Errno> {
        let Some((_, size)) = self.opened else { return Ok(()) };
        let least = size.min(len);
        if least == 0 || self.is_whole.load(Ordering::Relaxed) {
            return Ok(());
        }
        let now = self.stat()?;
        if now.size < least && self.is_lost(now.size)? {
            return Err(Errno::EIO);
        }
        // Relaxed: the flag only saves a check, and a thread that misses it checks once more.
        self.is_whole.fetch_or(least == size, Ordering::Relaxed);
        Ok(())
    }

    /// Fails if the client refuses changes because bytes of the file are lost. The user must first
    /// cut the file to the part that is left, or write it from the start. Before the first change
    /// this sends one request for the object's state.
    ///
    /// # Errors
    /// `EIO`; those of the shard and of the object's node.
    pub fn check_changeable(&self) -> Result<(), Errno> {
        match &self.location {
            DataLocation::Tiled(file) => file.check_not_lost(),
            DataLocation::Local { .. } | DataLocation::Remote { .. } => {
                self.check_not_lost(u64::MAX)
            }
        }
    }

    /// Returns whether the file is tiled, or was when it was opened.
    pub fn is_tiled(&self) -> bool {
        matches!(self.location, DataLocation::Tiled(_))
    }

    /// Returns the backing file, open for the access that the capability allows. Requests it from
    /// the daemon once. `None` when the file is on another node, or has no byte yet and `create` is
    /// not set.
    pub fn local_file(&self, create: bool) -> Result<Option<Arc<OwnedFd>>, Errno> {
        let DataLocation::Local { peer, file } = &self.location else {
            return Ok(None);
        };
        let mut file = lock_interruptibly(file)?;
        if file.is_none() {
            let op = ObjectOp::OpenFd { create };
            match self.with_valid_cap(|cap| {
                peer.with_data_connection(|connection| {
                    self.request_descriptor(connection, cap, &op)
                })?
            }) {
                Ok(fd) => *file = Some(Arc::new(fd)),
                Err(Errno::ENOENT) => return Ok(None),
                Err(e) => return Err(e),
            }
        }
        Ok(file.clone())
    }

    /// Returns the backing files of this object and of `more` of the same file on this node, which
    /// are made where they do not exist. Sends one request for all of them, at most
    /// [`OPEN_MAX`](tatami_wire::object::OPEN_DESCRIPTORS_MAX).
    ///
    /// # Errors
    /// Those of the disk; `EINVAL` for an object of another node; `ENFILE` where this process has
    /// no room for them.
    pub fn make_local_files(&self, more: &[Piece]) -> Result<Vec<OwnedFd>, Errno> {
        let DataLocation::Local { peer, .. } = &self.location else { return Err(Errno::EINVAL) };
        let op = ObjectOp::OpenSeveral { more: more.to_vec() };
        let fds = self.with_valid_cap(|cap| {
            peer.with_data_connection(|connection| {
                let call = ObjectCall { cap, piece: self.piece, op: op.clone() };
                connection.send(FrameClass::Object, 0, &call, &[])?;
                let (result, fds): (ObjectResult, _) =
                    connection.receive_with_fds(FrameClass::Object, 0)?;
                Ok(result.map(|_| fds))
            })?
        })?;
        // The kernel drops descriptors for which this process has no room. The last numbers are
        // left for connections.
        let last = fds.iter().max_by_key(|fd| fd.as_raw_fd());
        let is_whole = fds.len() == 1 + more.len() && !last.is_none_or(is_reserved_descriptor);
        if is_whole { Ok(fds) } else { Err(Errno::ENFILE) }
    }

    /// Requests a descriptor from the daemon.
    pub(crate) fn request_descriptor(
        &self,
        connection: &mut Connection,
        cap: Cap,
        op: &ObjectOp,
    ) -> Result<Result<OwnedFd, Errno>, FrameError> {
        let call = ObjectCall { cap, piece: self.piece, op: op.clone() };
        connection.send(FrameClass::Object, 0, &call, &[])?;
        let (result, fd): (ObjectResult, _) = connection.receive_with_fd(FrameClass::Object, 0)?;
        // The kernel drops the descriptor if this process has no room for it.
        let fd = result.and_then(|_| fd.ok_or(Errno::ENFILE));
        Ok(fd.and_then(|fd| if is_reserved_descriptor(&fd) { Err(Errno::ENFILE) } else { Ok(fd) }))
    }

    /// Reads up to `buf.len()` bytes from `offset`; fewer only at the end.
    pub fn read_at(&self, buf: &mut [u8], offset: u64) -> Result<usize, Errno> {
        if let Some(new) = self.relocated.get() {
            return new.read_at(buf, offset);
        }
        let got = self.read_as_opened(buf, offset)?;
        // A short read is the end of the file, or the old object of a file that was re-laid out.
        if got < buf.len()
            && let Some(new) = self.find_relocated(offset.saturating_add(got as u64))?
        {
            return new.read_at(buf, offset);
        }
        Ok(got)
    }

    fn read_as_opened(&self, buf: &mut [u8], offset: u64) -> Result<usize, Errno> {
        match &self.location {
            DataLocation::Local { .. } => match self.local_file(false)? {
                Some(file) => read_fully(&file, buf, offset),
                None => Ok(0),
            },
            DataLocation::Remote { stream, .. } => {
                stream.wait_for_writes()?;
                let mut done = 0;
                for chunk in buf.chunks_mut(PAYLOAD_MAX) {
                    let at = offset + done as u64;
                    let op = ObjectOp::Read { offset: at, len: chunk.len() as u32 };
                    let (_, got) = self.send_object_op(&op, &[], chunk)?;
                    done += got;
                    if got < chunk.len() {
                        break;
                    }
                }
                Ok(done)
            }
            DataLocation::Tiled(file) => file.read_at(buf, offset),
        }
    }

    /// Reads up to `len` bytes, at most [`PAYLOAD_MAX`], from `offset` into `sink`; fewer only at
    /// the end. Only where [`DataFile::is_remote`]. If the daemon dies half-way, the sink starts
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
        let DataLocation::Remote { stream, .. } = &self.location else {
            return Err(Errno::EINVAL);
        };
        if len > PAYLOAD_MAX {
            return Err(Errno::EINVAL);
        }
        // The daemon serves connections in any order, so this read could overtake writes in flight
        // on the stream's connection.
        stream.wait_for_writes()?;
        if let Some(new) = self.relocated.get() {
            return new.read_from_memory(sink, offset, len);
        }
        let op = ObjectOp::Read { offset, len: len as u32 };
        let got = self.with_valid_cap(|cap| {
            let call = ObjectCall { cap, piece: self.piece, op: op.clone() };
            let (result, got) = self.node_client().with_data_connection(|connection| {
                connection.send(FrameClass::Object, 0, &call, &[])?;
                connection.receive_into(0, len, sink)
            })?;
            result.map(|_| got)
        })?;
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
        if end > tatami_wire::FILE_SIZE_MAX {
            return Err(Errno::EFBIG);
        }
        if data.is_empty() {
            return Ok(0);
        }
        self.check_not_lost(u64::MAX)?;
        match &self.location {
            DataLocation::Local { .. } => write_fully(&*self.create_local_file()?, data, offset),
            DataLocation::Remote { stream, told, .. } => {
                let mut told = lock_interruptibly(told)?;
                for (i, chunk) in data.chunks(PAYLOAD_MAX).enumerate() {
                    let at = offset + (i * PAYLOAD_MAX) as u64;
                    let call = self.object_call(ObjectOp::Write { offset: at });
                    stream.write(call, chunk, &mut told)?;
                }
                Ok(data.len())
            }
            DataLocation::Tiled(file) => file.write_at(data, offset),
        }
    }

    /// Writes `data` to the end of the file, atomically with regard to other appends. Data longer
    /// than [`PAYLOAD_MAX`] is cut; the result is the number of written bytes.
    ///
    /// If the daemon of another node dies before it replies, the bytes may or may not have been
    /// written, and the result is `EIO`.
    pub fn append(&self, data: &[u8]) -> Result<usize, Errno> {
        let data = &data[..data.len().min(PAYLOAD_MAX)];
        self.check_not_lost(u64::MAX)?;
        match &self.location {
            DataLocation::Local { .. } => return append_locally(&*self.create_local_file()?, data),
            DataLocation::Remote { .. } => self.flush()?,
            DataLocation::Tiled(file) => return file.append(data),
        }
        let reply = self.with_valid_cap(|cap| {
            let call = ObjectCall { cap, piece: self.piece, op: ObjectOp::Append };
            let mut sent = false;
            let result: ObjectResult = self.node_client().with_data_connection(|connection| {
                // Once the request was sent, a repetition could append twice. So the second attempt
                // gives up.
                if sent {
                    return Ok(Err(Errno::EIO));
                }
                // A restarted daemon has closed its idle connections. The check before the send
                // saves an `EIO`.
                if connection.is_stale() {
                    return Err(FrameError::Closed);
                }
                sent = true;
                connection.send(FrameClass::Object, 0, &call, data)?;
                Ok(connection.receive(FrameClass::Object, 0, &mut [])?.0)
            })?;
            result
        })?;
        match reply {
            ObjectReply::Written { len, .. } => Ok(len as usize),
            _ => Err(Errno::EPROTO),
        }
    }

    /// Waits until all writes have reached the object's node.
    pub fn flush(&self) -> Result<(), Errno> {
        match &self.location {
            DataLocation::Local { .. } => Ok(()),
            DataLocation::Remote { stream, told, .. } => {
                stream.flush(&mut *lock_interruptibly(told)?)
            }
            DataLocation::Tiled(file) => file.flush(),
        }
    }

    /// As [`DataFile::flush`], but leaves failures for the writers to learn later.
    pub fn wait_for_writes(&self) {
        match &self.location {
            DataLocation::Local { .. } => {}
            // Only a program that is being killed does not wait, and it does not read the bytes
            // either.
            DataLocation::Remote { stream, .. } => _ = stream.wait_for_writes(),
            DataLocation::Tiled(file) => file.wait_for_writes(),
        }
    }

    /// Makes everything written so far survive a power cut, names of new objects included.
    pub fn sync(&self, data_only: bool) -> Result<ObjectState, Errno> {
        if let DataLocation::Tiled(file) = &self.location {
            return file.sync(data_only);
        }
        self.flush()?;
        self.request_state(&ObjectOp::Sync { data_only })
    }

    /// Cuts or extends the file. The caller must then report the size to the shard
    /// ([`Client::setattr`] with a size).
    pub fn truncate(&self, size: u64) -> Result<ObjectState, Errno> {
        // Mark this before the truncation begins: from then on the object's length proves nothing.
        match &self.location {
            DataLocation::Tiled(file) if size > 0 => file.check_not_lost()?,
            DataLocation::Tiled(_) => {}
            DataLocation::Local { .. } | DataLocation::Remote { .. } => {
                self.check_not_lost(size)?
            }
        }
        // Count the cut before the object changes. No check of lost bytes may see the shorter
        // object without the truncation.
        self.client.loss_tracker.begin_cut(self.ino);
        self.resize_object(size).inspect_err(|_| self.client.loss_tracker.end_cut(self.ino))
    }

    /// Cuts or extends an object that the shard does not know, or knows only as one to be removed.
    pub(crate) fn truncate_unrecorded(&self, size: u64) -> Result<ObjectState, Errno> {
        self.resize_object(size)
    }

    fn resize_object(&self, size: u64) -> Result<ObjectState, Errno> {
        if size > tatami_wire::FILE_SIZE_MAX {
            return Err(Errno::EFBIG);
        }
        if let DataLocation::Tiled(file) = &self.location {
            return file.truncate(size);
        }
        self.flush()?;
        let cut = self.request_state(&ObjectOp::Truncate { size })?;
        // From now on the object has all bytes of its inode.
        self.is_whole.store(true, Ordering::Relaxed);
        Ok(cut)
    }

    /// Reserves, frees or zeroes a range.
    pub fn allocate(&self, mode: AllocMode, offset: u64, len: u64) -> Result<ObjectState, Errno> {
        if let DataLocation::Tiled(file) = &self.location {
            return file.allocate(mode, offset, len);
        }
        self.flush()?;
        self.check_not_lost(u64::MAX)?;
        if let DataLocation::Local { .. } = &self.location {
            let file = self.create_local_file()?;
            return match rustix::fs::fallocate(&file, fallocate_flags(mode), offset, len) {
                Ok(()) => stat_file(&file),
                // The daemon writes zeros itself where the disk cannot.
                Err(rustix::io::Errno::OPNOTSUPP) => {
                    self.request_state(&ObjectOp::Allocate { mode, offset, len })
                }
                Err(e) => Err(Errno(e.raw_os_error())),
            };
        }
        self.request_state(&ObjectOp::Allocate { mode, offset, len })
    }

    /// Returns the next data, or hole, at or after `offset`.
    pub fn seek(&self, what: SeekTarget, offset: u64) -> Result<u64, Errno> {
        if let DataLocation::Tiled(file) = &self.location {
            return file.seek(what, offset);
        }
        self.flush()?;
        match self.seek_as_opened(what, offset) {
            // A removed object has no data: the file may have been re-laid out.
            Err(Errno::ENXIO) => match self.find_relocated(offset)? {
                Some(new) => new.seek(what, offset),
                None => Err(Errno::ENXIO),
            },
            found => found,
        }
    }

    fn seek_as_opened(&self, what: SeekTarget, offset: u64) -> Result<u64, Errno> {
        if let DataLocation::Local { .. } = &self.location {
            let file = self.local_file(false)?.ok_or(Errno::ENXIO)?;
            let from = match what {
                SeekTarget::Data => SeekFrom::Data(offset),
                SeekTarget::Hole => SeekFrom::Hole(offset),
            };
            return rustix::fs::seek(&file, from).map_err(disk_error);
        }
        match self.send_object_op(&ObjectOp::Seek { what, offset }, &[], &mut [])?.0 {
            ObjectReply::Offset(found) => Ok(found),
            _ => Err(Errno::EPROTO),
        }
    }

    /// Returns size and storage, with everything that was written through this client.
    pub fn stat(&self) -> Result<ObjectState, Errno> {
        match &self.location {
            DataLocation::Local { .. } => match self.local_file(false)? {
                Some(file) => stat_file(&file),
                None => Ok(ObjectState::default()),
            },
            DataLocation::Remote { stream, .. } => {
                stream.wait_for_writes()?;
                self.request_state(&ObjectOp::Stat)
            }
            DataLocation::Tiled(file) => file.stat(),
        }
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
        if self.is_tiled()
            || source.is_tiled()
            || self.node_client().node != source.node_client().node
        {
            return Err(Errno::EXDEV);
        }
        self.flush()?;
        self.check_not_lost(u64::MAX)?;
        source.flush()?;
        let op = ObjectOp::CopyFrom {
            source: *source.cap.lock(),
            source_piece: source.piece,
            source_offset,
            offset,
            len,
        };
        match self.send_object_op(&op, &[], &mut [])?.0 {
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
        self.request_state(&ObjectOp::Stat).map(drop)
    }

    /// Uses `lent`, a spare file that stands for this inode, as the backing file from now on.
    pub fn set_local_file(&self, lent: Arc<OwnedFd>) {
        if let DataLocation::Local { file, .. } = &self.location {
            *file.lock() = Some(lent);
        }
    }

    /// Closes the backing file, until it is needed again.
    pub fn close_local_file(&self) {
        if let DataLocation::Local { file, .. } = &self.location {
            *file.lock() = None;
        }
    }

    fn create_local_file(&self) -> Result<Arc<OwnedFd>, Errno> {
        self.local_file(true)?.ok_or_else(|| {
            record_cause(Errno::EIO, || {
                format!("node {}: the place of its objects is gone", self.node_client().node.0)
            });
            Errno::EIO
        })
    }

    pub(crate) fn node_client(&self) -> &Arc<NodeClient> {
        match &self.location {
            DataLocation::Local { peer, .. } | DataLocation::Remote { peer, .. } => peer,
            DataLocation::Tiled(file) => file.base_peer(),
        }
    }

    fn object_call(&self, op: ObjectOp) -> ObjectCall {
        ObjectCall { cap: *self.cap.lock(), piece: self.piece, op }
    }

    fn request_state(&self, op: &ObjectOp) -> Result<ObjectState, Errno> {
        match self.send_object_op(op, &[], &mut [])?.0 {
            ObjectReply::State(state) => Ok(state),
            _ => Err(Errno::EPROTO),
        }
    }

    /// Sends one request to the daemon and returns its reply. Only for operations that may take
    /// effect twice.
    fn send_object_op(
        &self,
        op: &ObjectOp,
        payload: &[u8],
        into: &mut [u8],
    ) -> Result<(ObjectReply, usize), Errno> {
        self.with_valid_cap(|cap| {
            let call = ObjectCall { cap, piece: self.piece, op: op.clone() };
            let (result, got) = self.node_client().with_data_connection(|connection| {
                send_and_receive(connection, &call, payload, into)
            })?;
            Ok((result?, got))
        })
    }

    /// Runs `request`; if the capability has expired, once more with a new one. Permission was
    /// checked when the file was opened, and an open file stays open.
    pub(crate) fn with_valid_cap<R>(
        &self,
        mut request: impl FnMut(Cap) -> Result<R, Errno>,
    ) -> Result<R, Errno> {
        let cap = *self.cap.lock();
        match request(cap) {
            Err(Errno::EKEYEXPIRED) => {
                let (attr, fresh) = self.client.open(&Cred::ROOT, self.ino, cap.access)?;
                let moved = |(layout, _)| !is_same_base(attr.layout, layout);
                if cap.access.write && self.opened.is_some_and(moved) {
                    // This client was away for longer than its lease and lost its open for writing:
                    // another client may have re-laid out the file meanwhile.
                    return Err(Errno::ESTALE);
                }
                *self.cap.lock() = fresh;
                request(fresh)
            }
            result => result,
        }
        .inspect_err(|errno| {
            let (node, piece) = (self.node_client().node, self.piece.0);
            record_cause(*errno, || format!("node {}, object {piece}: {errno}", node.0));
        })
    }
}

fn is_same_base(a: Layout, b: Layout) -> bool {
    (a.node(), a.base()) == (b.node(), b.base())
}

fn send_and_receive(
    connection: &mut Connection,
    call: &ObjectCall,
    payload: &[u8],
    into: &mut [u8],
) -> Result<(ObjectResult, usize), FrameError> {
    connection.send(FrameClass::Object, 0, call, payload)?;
    connection.receive(FrameClass::Object, 0, into)
}

fn disk_error(e: rustix::io::Errno) -> Errno {
    let errno = Errno(e.raw_os_error());
    record_cause(errno, || format!("the disk of this node: {errno}"));
    errno
}

fn read_fully(file: &OwnedFd, buf: &mut [u8], offset: u64) -> Result<usize, Errno> {
    let mut done = 0;
    while done < buf.len() {
        match rustix::io::pread(file, &mut buf[done..], offset + done as u64) {
            Ok(0) => break,
            Ok(n) => done += n,
            Err(rustix::io::Errno::INTR) => {}
            Err(e) => return Err(disk_error(e)),
        }
    }
    Ok(done)
}

/// Writes until all is written or an error stops it: then the number of written bytes counts, as in
/// write(2).
fn write_fully(file: &OwnedFd, data: &[u8], offset: u64) -> Result<usize, Errno> {
    let mut done = 0;
    while done < data.len() {
        match rustix::io::pwrite(file, &data[done..], offset + done as u64) {
            Ok(n) => done += n,
            Err(rustix::io::Errno::INTR) => {}
            Err(e) if done == 0 => return Err(disk_error(e)),
            Err(_) => break,
        }
    }
    Ok(done)
}

fn append_locally(file: &OwnedFd, data: &[u8]) -> Result<usize, Errno> {
    let iov = libc::iovec { iov_base: data.as_ptr() as *mut _, iov_len: data.len() };
    // SAFETY: one iovec that covers `data`, which outlives the call and is only read.
    let n = unsafe { libc::pwritev2(file.as_raw_fd(), &iov, 1, 0, libc::RWF_APPEND) };
    if n < 0 {
        return Err(std::io::Error::last_os_error().into());
    }
    Ok(n as usize)
}

fn fallocate_flags(mode: AllocMode) -> FallocateFlags {
    match mode {
        AllocMode::Extend => FallocateFlags::empty(),
        AllocMode::Keep => FallocateFlags::KEEP_SIZE,
        AllocMode::Punch => FallocateFlags::PUNCH_HOLE | FallocateFlags::KEEP_SIZE,
        AllocMode::Zero => FallocateFlags::ZERO_RANGE,
        AllocMode::ZeroKeep => FallocateFlags::ZERO_RANGE | FallocateFlags::KEEP_SIZE,
    }
}

/// Returns size, storage and times of a backing file.
///
/// # Errors
/// Those of fstat(2).
pub fn stat_file(file: &OwnedFd) -> Result<ObjectState, Errno> {
    let stat = rustix::fs::fstat(file).map_err(disk_error)?;
    Ok(ObjectState {
        exists: true,
        size: stat.st_size as u64,
        blocks: stat.st_blocks as u64,
        mtime: Timestamp { sec: stat.st_mtime, nsec: stat.st_mtime_nsec as u32 },
        changed: Timestamp { sec: stat.st_ctime, nsec: stat.st_ctime_nsec as u32 },
        is_restarted: stat.st_mtime < tatami_lend::boot::started(),
    })
}
