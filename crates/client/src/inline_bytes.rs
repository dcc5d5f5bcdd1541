//! The bytes of a file that lie beside its inode: requests to the shard that has the inode. When
//! the file outgrows its limit, this client moves the bytes to an object. From then on, and when
//! another client has moved them, the open file uses the object.

use crate::Client;
use crate::data::DataFile;
use crate::file_bytes::FileBytes;
use crate::held_table::HeldFile;
use crate::object_handle::FileAccess;
use crate::unsynced::SyncTargets;
use std::sync::{Arc, OnceLock};
use tatami_wire::inline::{InlineOp, InlineReply};
use tatami_wire::meta::{Bytes, MetaOp, MetaReply};
use tatami_wire::object::{AllocMode, ObjectState, SeekTarget};
use tatami_wire::policy::INLINE_MAX;
use tatami_wire::{Access, Cap, Cred, Errno, Ino, Piece, Timestamp};

/// How often a move is begun again because the bytes have changed meanwhile.
const MOVES_MAX: usize = 1000;

/// What the shard says of an operation.
enum InlineOutcome {
    Done(ObjectState, Bytes),
    TooLarge,
    Moved,
}

/// The bytes beside one inode.
pub(crate) struct InlineBytes {
    access: Arc<FileAccess>,
    /// The create of the file, if it was held back when the file was opened.
    held: Option<Arc<HeldFile>>,
    /// The bytes after they have moved.
    moved: OnceLock<Arc<DataFile>>,
}

impl InlineBytes {
    pub(crate) fn new(access: Arc<FileAccess>, held: Option<Arc<HeldFile>>) -> InlineBytes {
        InlineBytes { access, held, moved: OnceLock::new() }
    }

    /// Makes the file if its create is held back. Returns the state if `first`, its first bytes,
    /// went along.
    fn make_file(&self, first: Option<&Bytes>) -> Result<Option<ObjectState>, Errno> {
        let has_cap = || self.access.current_cap().has_signature();
        let Some(held) = self.held.as_ref().filter(|_| !has_cap()) else { return Ok(None) };
        let made = self.access.client.make_held(held, first)?;
        // Another thread of this handle may have stored it before.
        let mut cap = self.access.cap.lock();
        if !cap.has_signature() {
            *cap = made.cap;
        }
        drop(cap);
        Ok(made.filled.map(|attr| ObjectState {
            exists: true,
            size: attr.size,
            blocks: attr.blocks,
            mtime: attr.mtime,
            changed: Timestamp::default(),
            is_restarted: false,
        }))
    }

    /// Sends an operation; if the capability has expired, once more with a new one.
    fn ask(&self, op: InlineOp) -> Result<InlineOutcome, Errno> {
        let first = match &op {
            InlineOp::Write { offset: 0, bytes } | InlineOp::Append { bytes } => Some(bytes),
            _ => None,
        };
        if let Some(state) = self.make_file(first)? {
            return Ok(InlineOutcome::Done(state, Bytes::new()));
        }
        let FileAccess { client, ino, .. } = &*self.access;
        let cap = self.access.current_cap();
        match client.send_inline(*ino, cap, op.clone()) {
            Err(Errno::EKEYEXPIRED) => {
                let (_, fresh) = client.open(&Cred::ROOT, *ino, cap.access)?;
                *self.access.cap.lock() = fresh;
                client.send_inline(*ino, fresh, op)
            }
            result => result,
        }
    }

    /// Reads from the copy that came with an open, if it is current.
    fn read_copy(&self, buf: &mut [u8], offset: u64) -> Option<usize> {
        let FileAccess { client, ino, .. } = &*self.access;
        // The copy may have come with an open of another user.
        if !self.access.current_cap().access.read {
            return None;
        }
        let attr = client.cached_attr(*ino).filter(|attr| attr.layout.is_inline())?;
        client.inline_cache.read_copy(&attr, buf, offset)
    }

    /// Returns the file where its bytes have moved. It may move again: then that file finds them.
    fn find_moved(&self) -> Result<&Arc<DataFile>, Errno> {
        if let Some(moved) = self.moved.get() {
            return Ok(moved);
        }
        let client = &self.access.client;
        let attr = client.getattr(&Cred::ROOT, self.access.ino)?;
        if attr.layout.is_inline() {
            return Err(Errno::EPROTO);
        }
        let found = Arc::new(client.open_data(&attr, self.access.current_cap())?);
        Ok(self.moved.get_or_init(|| found))
    }

    /// Carries out a change: beside the inode as long as the bytes are and may be there, otherwise
    /// by `elsewhere`.
    fn change<T>(
        &self,
        op: Option<InlineOp>,
        done: impl FnOnce(ObjectState) -> T,
        elsewhere: impl FnOnce(&DataFile) -> Result<T, Errno>,
    ) -> Result<T, Errno> {
        if self.moved.get().is_none() {
            let outcome = match op {
                Some(op) => self.ask(op)?,
                None => {
                    self.make_file(None)?;
                    InlineOutcome::TooLarge
                }
            };
            match outcome {
                InlineOutcome::Done(state, _) => return Ok(done(state)),
                InlineOutcome::TooLarge => self.access.client.move_out_of_inode(self.access.ino)?,
                InlineOutcome::Moved => {}
            }
        }
        elsewhere(self.find_moved()?)
    }

    fn write_op(&self, data: &[u8], op: impl FnOnce(Bytes) -> InlineOp) -> Option<InlineOp> {
        (data.len() <= INLINE_MAX).then(|| op(Bytes::from(data.to_vec())))
    }
}

impl FileBytes for InlineBytes {
    fn read_at(&self, buf: &mut [u8], offset: u64) -> Result<usize, Errno> {
        if self.moved.get().is_none() {
            if let Some(got) = self.read_copy(buf, offset) {
                return Ok(got);
            }
            let len = buf.len().min(INLINE_MAX) as u32;
            if let InlineOutcome::Done(_, bytes) = self.ask(InlineOp::Read { offset, len })? {
                let into = buf.get_mut(..bytes.len()).ok_or(Errno::EPROTO)?;
                into.copy_from_slice(&bytes);
                return Ok(bytes.len());
            }
        }
        self.find_moved()?.read_at(buf, offset)
    }

    fn write_at(&self, data: &[u8], offset: u64) -> Result<usize, Errno> {
        let op = self.write_op(data, |bytes| InlineOp::Write { offset, bytes });
        self.change(op, |_| data.len(), |moved| moved.write_at(data, offset))
    }

    fn append(&self, data: &[u8]) -> Result<usize, Errno> {
        let op = self.write_op(data, |bytes| InlineOp::Append { bytes });
        self.change(op, |_| data.len(), |moved| moved.append(data))
    }

    fn flush(&self) -> Result<(), Errno> {
        // A file without a byte is made with its close, which reports errors.
        self.make_file(None)?;
        self.moved.get().map_or(Ok(()), |moved| moved.flush())
    }

    fn wait_for_writes(&self) {
        if let Some(moved) = self.moved.get() {
            moved.wait_for_writes();
        }
    }

    fn sync(&self, data_only: bool) -> Result<ObjectState, Errno> {
        if self.moved.get().is_none() {
            self.make_file(None)?;
            self.access.client.sync_record(self.access.ino)?;
            if let InlineOutcome::Done(state, _) = self.ask(InlineOp::Stat)? {
                return Ok(state);
            }
        }
        self.find_moved()?.sync(data_only)
    }

    fn truncate(&self, size: u64) -> Result<ObjectState, Errno> {
        let op = Some(InlineOp::SetSize { size });
        self.change(op, |state| state, |moved| moved.truncate_unrecorded(size))
    }

    fn allocate(&self, mode: AllocMode, offset: u64, len: u64) -> Result<ObjectState, Errno> {
        // A program that reserves room expects more bytes.
        self.change(None, |state| state, |moved| moved.allocate(mode, offset, len))
    }

    fn seek(&self, what: SeekTarget, offset: u64) -> Result<u64, Errno> {
        if self.moved.get().is_none()
            && let InlineOutcome::Done(state, _) = self.ask(InlineOp::Stat)?
        {
            // As on a file system without holes.
            return match what {
                _ if offset >= state.size => Err(Errno::ENXIO),
                SeekTarget::Data => Ok(offset),
                SeekTarget::Hole => Ok(state.size),
            };
        }
        self.find_moved()?.seek(what, offset)
    }

    fn stat(&self) -> Result<ObjectState, Errno> {
        if self.moved.get().is_none()
            && let InlineOutcome::Done(state, _) = self.ask(InlineOp::Stat)?
        {
            return Ok(state);
        }
        self.find_moved()?.stat()
    }

    fn records_changes(&self) -> bool {
        self.moved.get().is_none()
    }

    /// A time that a user sets is all that orders two states.
    fn shows_all_writes(&self) -> bool {
        false
    }
}

impl Client {
    fn send_inline(&self, ino: Ino, cap: Cap, op: InlineOp) -> Result<InlineOutcome, Errno> {
        match self.send_meta(&Cred::ROOT, MetaOp::Inline { ino, cap, op })? {
            MetaReply::Inline(InlineReply::Done { state, bytes }) => {
                Ok(InlineOutcome::Done(state, bytes))
            }
            MetaReply::Inline(InlineReply::TooLarge) => Ok(InlineOutcome::TooLarge),
            MetaReply::Inline(InlineReply::Moved) => Ok(InlineOutcome::Moved),
            _ => Err(Errno::EPROTO),
        }
    }

    /// Makes the shard's record of an inode survive a power cut, with the bytes beside it.
    fn sync_record(&self, ino: Ino) -> Result<(), Errno> {
        self.sync_names(|| SyncTargets {
            inos: vec![ino],
            executors: self.owner(ino.owner_shard()).into_iter().collect(),
        })
    }

    /// Moves the bytes of a file that this client has open for writing from beside its inode to an
    /// object. Readers and writers of any client go on there. Nothing is done if the bytes have
    /// moved before.
    ///
    /// # Errors
    /// Those of the shard and of the object's node; `EACCES` for a client that is not trusted, of a
    /// user without permission to read the file.
    pub(crate) fn move_out_of_inode(self: &Arc<Self>, ino: Ino) -> Result<(), Errno> {
        let (_, cap) = self.open(&Cred::ROOT, ino, Access::BOTH)?;
        for _ in 0..MOVES_MAX {
            let node = self.new_layout().node();
            let op = MetaOp::Reserve { ino, nodes: vec![node] };
            let reserved = self.send_meta(&Cred::ROOT, op);
            let whole = InlineOp::Read { offset: 0, len: INLINE_MAX as u32 };
            let InlineOutcome::Done(state, bytes) = self.send_inline(ino, cap, whole)? else {
                return Ok(());
            };
            let number = match reserved? {
                MetaReply::Pieces { first, .. } => first,
                _ => return Err(Errno::EPROTO),
            };
            let copied = match state.size {
                // Nothing is to be kept, so the object begins with its first byte, as that of any
                // new file.
                0 => Ok(state),
                _ => {
                    let object = self.open_object(ino, node, Piece::of_bytes(number), cap)?;
                    object
                        .truncate_unrecorded(state.size)
                        .and_then(|_| object.write_at(&bytes, 0))
                        // The object must be on its disk before the shard refers to it: what was
                        // acknowledged by fsync lies there from now on.
                        .and_then(|_| object.sync(false))
                }
            };
            let copied = match copied {
                // The object was removed during the copy, because another client was quicker.
                Err(Errno::ESTALE) => continue,
                copied => copied?,
            };
            let base = (node, number);
            let op = MetaOp::Relayout { ino, pieces: Vec::new(), base, state: copied.into() };
            match self.send_meta(&Cred::ROOT, op) {
                // Another client has changed the bytes since they were read, or has moved them.
                // Then the object may be removed already.
                Err(Errno::EBUSY | Errno::EINVAL) => {}
                moved => return moved.map(drop),
            }
        }
        Err(Errno::EBUSY)
    }
}
