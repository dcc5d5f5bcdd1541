//! Where the states of files that keep versions end.
//!
//! The node keeps the state of an object as a version before the first change that follows a
//! *seal*. A client seals a file
//!
//! - before the first change through a handle, unless another handle of the client is in the middle
//!   of changes: what others have written and closed is a state. A cut to nothing always begins a
//!   state: a program opens the file with `O_TRUNC`;
//! - at the close of its last handle with changes.
//!
//! At an `fsync` the node seals by itself. After a flush, which the kernel sends at each close(2),
//! a handle does not count as one in the middle of changes. The kernel reports the last close
//! later.

use crate::changing_handles::HandleChanges;
use crate::data::DataFile;
use crate::object_handle::ObjectHandle;
use tatami_wire::Errno;
use tatami_wire::object::{ObjectOp, ObjectReply, ObjectState, ObjectVersion};

/// The methods fail with those errors of [`DataFile`].
#[allow(clippy::missing_errors_doc)] // said once, above
impl DataFile {
    /// Begins a change through this handle. `cuts`: the file is cut to nothing.
    pub(crate) fn begin_change(&self, cuts: bool) -> Result<(), Errno> {
        if !self.keeps_versions {
            return Ok(());
        }
        let mut changes = self.changes.lock();
        let before = *changes;
        if before == HandleChanges::UnderWay {
            return Ok(());
        }
        let had_bytes = self.access.opened.is_none_or(|(_, size)| size > 0);
        self.access.client.changing_handles.add_handle(self.ino(), |is_only| {
            // The shard may not know of the bytes of a client that has died.
            match before == HandleChanges::None && (cuts || had_bytes && is_only) {
                true => self.seal(cuts),
                false => Ok(()),
            }
        })?;
        *changes = HandleChanges::UnderWay;
        Ok(())
    }

    /// Records that all changes are flushed.
    pub(crate) fn note_flush(&self) {
        if self.keeps_versions {
            self.leave_change(HandleChanges::Flushed);
        }
    }

    /// Returns whether the handle had changes.
    fn leave_change(&self, next: HandleChanges) -> bool {
        let mut changes = self.changes.lock();
        if *changes == HandleChanges::UnderWay {
            self.access.client.changing_handles.remove_handle(self.ino());
        }
        let had_changes = *changes != HandleChanges::None;
        if had_changes {
            *changes = next;
        }
        had_changes
    }

    /// Ends the changes through this handle, before the close: a file that keeps versions has a
    /// state now that the next writer does not replace without a version. Call
    /// [`DataFile::flush`] before.
    pub fn end_changes(&self) {
        if !self.keeps_versions || !self.leave_change(HandleChanges::None) {
            return;
        }
        let handles = &self.access.client.changing_handles;
        if let Err(error) = handles.seal_idle(self.ino(), || self.seal(false)) {
            // The node does so itself when the file is quiet for a while.
            tracing::debug!(ino = %self.ino(), %error, "the end of changes was not told");
        }
    }

    /// Ends the changes without a request: the handle goes away.
    pub(crate) fn forget_changes(&self) {
        if self.keeps_versions {
            self.leave_change(HandleChanges::None);
        }
    }

    fn seal(&self, all: bool) -> Result<(), Errno> {
        self.versioned_object()?.request_state(&ObjectOp::Seal { all }).map(drop)
    }

    /// Returns the object, if it keeps versions; `EOPNOTSUPP` otherwise.
    fn versioned_object(&self) -> Result<&ObjectHandle, Errno> {
        let object = self.bytes.object();
        object.filter(|object| object.piece.version_rule() > 0).ok_or(Errno::EOPNOTSUPP)
    }

    /// Returns the earlier states of the file that are kept, in the order of their numbers.
    /// `EOPNOTSUPP` for a file that keeps none.
    pub fn list_versions(&self) -> Result<Vec<ObjectVersion>, Errno> {
        match self.versioned_object()?.send_object_op(&ObjectOp::ListVersions, &mut [])?.0 {
            ObjectReply::Versions(versions) => Ok(versions),
            _ => Err(Errno::EPROTO),
        }
    }

    /// Reads bytes of an earlier state into `buf`; fewer only at its end. `ENOENT` if it is not
    /// there.
    pub fn read_version(&self, number: u32, buf: &mut [u8], offset: u64) -> Result<usize, Errno> {
        let object = self.versioned_object()?;
        let mut done = 0;
        for chunk in buf.chunks_mut(tatami_wire::frame::PAYLOAD_MAX) {
            let (offset, len) = (offset + done as u64, chunk.len() as u32);
            let op = ObjectOp::ReadVersion { number, offset, len };
            let got = object.send_object_op(&op, chunk)?.1;
            done += got;
            if got < chunk.len() {
                break;
            }
        }
        Ok(done)
    }

    /// Copies all earlier states of `source` to this file, which has none and is cut to nothing
    /// afterwards.
    pub(crate) fn carry_versions(&self, source: &DataFile) -> Result<(), Errno> {
        let mut bytes = Vec::new();
        for version in source.list_versions()? {
            bytes.resize(version.size as usize, 0);
            if source.read_version(version.number, &mut bytes, 0)? < bytes.len() {
                return Err(Errno::EIO);
            }
            self.truncate_unrecorded(0)?;
            self.bytes.write_at(&bytes, 0)?;
            self.flush()?;
            let op = ObjectOp::CarryVersion { version };
            match self.versioned_object()?.request_state(&op) {
                // A node without room, or without a device, keeps fewer versions.
                Err(Errno::ENOSPC | Errno::ENOENT) => {}
                carried => carried.map(drop)?,
            }
        }
        self.truncate_unrecorded(0).map(drop)
    }

    /// Makes an earlier state the present one. The caller must then report the size to the shard,
    /// as after [`DataFile::truncate`]. `ENOENT` if there is no such state, `EFBIG` where the
    /// object has become a file of the disk, which keeps its earlier states and gets no new ones.
    pub fn restore_version(&self, number: u32) -> Result<ObjectState, Errno> {
        let object = self.versioned_object()?;
        self.flush()?;
        // As a cut: until the shard hears of it, the length of the object proves nothing.
        let cuts = &self.access.client.loss_tracker;
        cuts.begin_cut(self.ino());
        object
            .request_state(&ObjectOp::RestoreVersion { number })
            .inspect_err(|_| cuts.end_cut(self.ino()))
    }
}
