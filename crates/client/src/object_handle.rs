//! Requests for the objects of one open file, with the capability of the open.

use crate::Client;
use crate::cause::record_cause;
use crate::connection::Connection;
use crate::descriptors::is_reserved_descriptor;
use crate::node::NodeClient;
use parking_lot::Mutex;
use std::os::fd::{AsRawFd, OwnedFd};
use std::sync::Arc;
use tatami_wire::frame::{FrameClass, FrameError};
use tatami_wire::object::{ObjectCall, ObjectOp, ObjectReply, ObjectResult, ObjectState};
use tatami_wire::{Cap, Cred, Errno, Ino, Layout, NodeId, Piece};

/// The capability of one open file, which all its objects use.
pub(crate) struct FileAccess {
    pub(crate) client: Arc<Client>,
    pub(crate) ino: Ino,
    pub(crate) cap: Mutex<Cap>,
    /// The file's layout and size, in bytes, when it was opened. `None` if the inode does not tell
    /// how long the object is.
    pub(crate) opened: Option<(Layout, u64)>,
}

impl FileAccess {
    /// Returns the capability, as it was renewed last.
    pub(crate) fn current_cap(&self) -> Cap {
        *self.cap.lock()
    }
}

/// Returns whether two layouts have the same object as their base.
pub(crate) fn is_same_base(a: Layout, b: Layout) -> bool {
    (a.node(), a.base()) == (b.node(), b.base())
}

/// One object of an open file.
pub(crate) struct ObjectHandle {
    pub(crate) access: Arc<FileAccess>,
    pub(crate) peer: Arc<NodeClient>,
    pub(crate) piece: Piece,
}

impl ObjectHandle {
    /// Returns the node that has the object.
    pub(crate) fn node(&self) -> NodeId {
        self.peer.node
    }

    /// Makes a request for this object.
    pub(crate) fn object_call(&self, cap: Cap, op: &ObjectOp) -> ObjectCall {
        ObjectCall { cap, piece: self.piece, op: op.clone() }
    }

    /// Runs `request`; if the capability has expired, once more with a new one. Permission was
    /// checked when the file was opened, and an open file stays open.
    pub(crate) fn with_valid_cap<R>(
        &self,
        mut request: impl FnMut(Cap) -> Result<R, Errno>,
    ) -> Result<R, Errno> {
        let access = &self.access;
        let cap = access.current_cap();
        match request(cap) {
            Err(Errno::EKEYEXPIRED) => {
                let (attr, fresh) = access.client.open(&Cred::ROOT, access.ino, cap.access)?;
                let moved = |(layout, _)| !is_same_base(attr.layout, layout);
                if cap.access.write && access.opened.is_some_and(moved) {
                    // This client was away for longer than its lease and lost its open for writing:
                    // another client may have re-laid out the file meanwhile.
                    return Err(Errno::ESTALE);
                }
                *access.cap.lock() = fresh;
                request(fresh)
            }
            result => result,
        }
        .inspect_err(|errno| {
            let (node, piece) = (self.node().0, self.piece.0);
            record_cause(*errno, || format!("node {node}, object {piece}: {errno}"));
        })
    }

    /// Sends one request to the daemon and returns its reply. Only for operations that may take
    /// effect twice.
    pub(crate) fn send_object_op(
        &self,
        op: &ObjectOp,
        into: &mut [u8],
    ) -> Result<(ObjectReply, usize), Errno> {
        self.with_valid_cap(|cap| {
            let call = self.object_call(cap, op);
            let (result, got): (ObjectResult, _) =
                self.peer.with_data_connection(|connection| {
                    connection.send(FrameClass::Object, 0, &call, &[])?;
                    connection.receive(FrameClass::Object, 0, into)
                })?;
            Ok((result?, got))
        })
    }

    /// Sends a request that the node answers with the state of the object.
    pub(crate) fn request_state(&self, op: &ObjectOp) -> Result<ObjectState, Errno> {
        match self.send_object_op(op, &mut [])?.0 {
            ObjectReply::State(state) => Ok(state),
            _ => Err(Errno::EPROTO),
        }
    }

    /// Requests a descriptor from the daemon of this node.
    pub(crate) fn request_descriptor(
        &self,
        connection: &mut Connection,
        cap: Cap,
        op: &ObjectOp,
    ) -> Result<Result<OwnedFd, Errno>, FrameError> {
        connection.send(FrameClass::Object, 0, &self.object_call(cap, op), &[])?;
        let (result, fd): (ObjectResult, _) = connection.receive_with_fd(FrameClass::Object, 0)?;
        // The kernel drops the descriptor if this process has no room for it.
        let fd = result.and_then(|_| fd.ok_or(Errno::ENFILE));
        Ok(fd.and_then(|fd| if is_reserved_descriptor(&fd) { Err(Errno::ENFILE) } else { Ok(fd) }))
    }

    /// Makes the backing files of this object and of `more` of the same file, and requests their
    /// descriptors. See [`crate::DataFile::make_local_files`].
    pub(crate) fn request_descriptors(&self, more: &[Piece]) -> Result<Vec<OwnedFd>, Errno> {
        let op = ObjectOp::OpenSeveral { more: more.to_vec() };
        let fds = self.with_valid_cap(|cap| {
            self.peer.with_data_connection(|connection| {
                connection.send(FrameClass::Object, 0, &self.object_call(cap, &op), &[])?;
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
}
