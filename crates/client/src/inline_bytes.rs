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
use tatami_wire::inline::{FirstBytes, InlineOp, InlineReply};
use tatami_wire::meta::{Bytes, MetaOp, MetaReply};
use tatami_wire::object::{AllocMode, ObjectState, SeekTarget};
use tatami_wire::policy::INLINE_MAX;
use tatami_wire::{Access, Cap, Cred, Errno, Ino, Layout, Piece, Timestamp};

/// How often a move is begun again because the bytes have changed meanwhile.
const MOVES_MAX: usize = 1000;

/// What has become of an operation.
enum InlineOutcome {
    Done(ObjectState, Bytes),
    TooLarge,
    /// Nothing was done: the bytes are in the file that `moved` has.
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

    /// Makes the file if its create is held back. Returns the outcome of `op` if it went along.
    fn make_file(&self, op: Option<&InlineOp>) -> Result<Option<InlineOutcome>, Errno> {
        let has_cap = || self.access.current_cap().has_signature();
        let Some(held) = self.held.as_ref().filter(|_| !has_cap()) else { return Ok(None) };
        let first = op.map_or(FirstBytes::None, |op| first_bytes(op, held.inline_limit));
        let made = self.access.client.make_held(held, first)?;
        // Another thread of this handle may have stored it before.
        let mut cap = self.access.cap.lock();
        if !cap.has_signature() {
            *cap = made.cap;
        }
        drop(cap);
        let Some(attr) = made.as_wanted else { return Ok(None) };
        if !attr.layout.is_inline() {
            self.open_moved(attr.layout, attr.size)?;
            return Ok(Some(InlineOutcome::Moved));
        }
        let (size, blocks, mtime) = (attr.size, attr.blocks, attr.mtime);
        let changed = Timestamp::default();
        let state = ObjectState { exists: true, size, blocks, mtime, changed, is_restarted: false };
        Ok(Some(InlineOutcome::Done(state, Bytes::new())))
    }

    /// Sends an operation; if the capability has expired, once more with a new one.
    fn ask(&self, op: InlineOp) -> Result<InlineOutcome, Errno> {
        if let Some(outcome) = self.make_file(Some(&op))? {
            return Ok(outcome);
        }
        let FileAccess { client, ino, .. } = &*self.access;
        let cap = self.access.current_cap();
        let reply = match client.send_inline(*ino, cap, op.clone()) {
            Err(Errno::EKEYEXPIRED) => {
                let (_, fresh) = client.open(&Cred::ROOT, *ino, cap.access)?;
                *self.access.cap.lock() = fresh;
                client.send_inline(*ino, fresh, op)
            }
            result => result,
        };
        Ok(match reply? {
            InlineReply::Done { state, bytes } => InlineOutcome::Done(state, bytes),
            InlineReply::TooLarge => InlineOutcome::TooLarge,
            InlineReply::Moved { layout, size } => {
                self.open_moved(layout, size)?;
                InlineOutcome::Moved
            }
        })
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

    /// Opens the bytes where they are now. They may move again: then that file finds them.
    fn open_moved(&self, layout: Layout, size: u64) -> Result<&Arc<DataFile>, Errno> {
        if let Some(moved) = self.moved.get() {
            return Ok(moved);
        }
        if layout.is_inline() {
            return Err(Errno::EPROTO);
        }
        let FileAccess { client, ino, .. } = &*self.access;
        let found = client.open_layout(*ino, layout, size, self.access.current_cap())?;
        Ok(self.moved.get_or_init(|| Arc::new(found)))
    }

    /// Returns the file where its bytes have moved.
    fn find_moved(&self) -> Result<&Arc<DataFile>, Errno> {
        if let Some(moved) = self.moved.get() {
            return Ok(moved);
        }
        let attr = self.access.client.getattr(&Cred::ROOT, self.access.ino)?;
        self.open_moved(attr.layout, attr.size)
    }

    /// Carries out a change: beside the inode as long as the bytes are and may be there, otherwise
    /// by `elsewhere`.
    fn change<T>(
        &self,
        op: InlineOp,
        done: impl FnOnce(ObjectState) -> T,
        elsewhere: impl FnOnce(&DataFile) -> Result<T, Errno>,
    ) -> Result<T, Errno> {
        if self.moved.get().is_none() {
            match self.ask(op)? {
                InlineOutcome::Done(state, _) => return Ok(done(state)),
                InlineOutcome::TooLarge => self.access.client.move_out_of_inode(self.access.ino)?,
                InlineOutcome::Moved => {}
            }
        }
        elsewhere(self.find_moved()?)
    }
}

/// Returns the operation that writes `data`.
fn write_op(data: &[u8], op: impl FnOnce(Bytes) -> InlineOp) -> InlineOp {
    match data.len() <= INLINE_MAX {
        true => op(Bytes::from(data.to_vec())),
        false => InlineOp::Leave,
    }
}

/// Returns what of `op`, the first operation on a file, can go along with its create.
fn first_bytes(op: &InlineOp, limit: u32) -> FirstBytes {
    let (offset, bytes) = match op {
        InlineOp::Write { offset, bytes } => (*offset, bytes),
        InlineOp::Append { bytes } => (0, bytes),
        InlineOp::SetSize { size } if *size > limit.into() => return FirstBytes::TooMany,
        InlineOp::Leave => return FirstBytes::TooMany,
        InlineOp::Stat | InlineOp::Read { .. } | InlineOp::SetSize { .. } => {
            return FirstBytes::None;
        }
    };
    match offset.saturating_add(bytes.len() as u64) {
        end if end > limit.into() => FirstBytes::TooMany,
        1.. if offset == 0 => FirstBytes::Beside(bytes.clone()),
        _ => FirstBytes::None,
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
        let op = write_op(data, |bytes| InlineOp::Write { offset, bytes });
        self.change(op, |_| data.len(), |moved| moved.write_at(data, offset))
    }

    fn append(&self, data: &[u8]) -> Result<usize, Errno> {
        let op = write_op(data, |bytes| InlineOp::Append { bytes });
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
        self.change(
            InlineOp::SetSize { size },
            |state| state,
            |moved| moved.truncate_unrecorded(size),
        )
    }

    fn allocate(&self, mode: AllocMode, offset: u64, len: u64) -> Result<ObjectState, Errno> {
        // A program that reserves room expects more bytes.
        self.change(InlineOp::Leave, |state| state, |moved| moved.allocate(mode, offset, len))
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
    fn send_inline(&self, ino: Ino, cap: Cap, op: InlineOp) -> Result<InlineReply, Errno> {
        match self.send_meta(&Cred::ROOT, MetaOp::Inline { ino, cap, op })? {
            MetaReply::Inline(reply) => Ok(reply),
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
            let InlineReply::Done { state, bytes } = self.send_inline(ino, cap, whole)? else {
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
