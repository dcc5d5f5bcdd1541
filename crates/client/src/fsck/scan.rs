//! Lists of all inodes and all objects in number order, some at a time.

use super::{Fsck, FsckError};
use std::cmp::Ordering;
use std::collections::VecDeque;
use tatami_wire::admin::{AdminCall, AdminReply};
use tatami_wire::meta::{MetaOp, MetaReply};
use tatami_wire::{Attr, Cred, Errno, ExecutorId, Ino, NodeId, Piece, READDIR_MAX};

/// Objects in one request.
const OBJECTS_STEP: u32 = 8 * 1024;

/// All inodes of the shards of an executor in number order, some at a time.
pub(super) struct InodeScan {
    executor: ExecutorId,
    queue: VecDeque<Attr>,
    /// The last inode that has come.
    after: Ino,
    end: bool,
}

impl InodeScan {
    pub(super) fn for_executor(executor: ExecutorId) -> InodeScan {
        InodeScan { executor, queue: VecDeque::new(), after: Ino(0), end: false }
    }

    pub(super) fn peek_inode(&mut self, fsck: &Fsck) -> Result<Option<&Attr>, FsckError> {
        const WHAT: &str = "list its inodes";
        while self.queue.is_empty() && !self.end {
            let after = self.after;
            let failed = |errno| FsckError::Executor { executor: self.executor, what: WHAT, errno };
            let op = MetaOp::ScanInodes { after, limit: READDIR_MAX };
            let reply =
                fsck.client.request_executor(self.executor, &Cred::ROOT, op).map_err(failed)?;
            let MetaReply::Inodes { attrs, end } = reply else {
                return Err(failed(Errno::EPROTO));
            };
            // The numbers must advance: otherwise a broken shard would be asked for ever.
            let forward = attrs.iter().map(|a| a.ino).is_sorted_by(|a, b| a < b)
                && attrs.first().is_none_or(|a| a.ino > after);
            if !forward || (attrs.is_empty() && !end) {
                return Err(failed(Errno::EPROTO));
            }
            self.after = attrs.last().map_or(after, |a| a.ino);
            self.queue.extend(attrs);
            self.end = end;
        }
        Ok(self.queue.front())
    }

    /// Takes the next inode, if it has this number.
    pub(super) fn take_inode(&mut self, ino: Ino) -> Option<Attr> {
        match self.queue.front()?.ino.cmp(&ino) {
            Ordering::Equal => self.queue.pop_front(),
            _ => None,
        }
    }
}

/// All objects of a node in number order, some at a time.
pub(super) struct ObjectScan {
    pub(super) node: NodeId,
    queue: VecDeque<(Ino, Piece, u64)>,
    after: Option<(Ino, Piece)>,
    end: bool,
}

impl ObjectScan {
    pub(super) fn for_node(node: NodeId) -> ObjectScan {
        ObjectScan { node, queue: VecDeque::new(), after: None, end: false }
    }

    pub(super) fn peek_object(
        &mut self,
        fsck: &Fsck,
    ) -> Result<Option<(Ino, Piece, u64)>, FsckError> {
        const WHAT: &str = "list its objects";
        while self.queue.is_empty() && !self.end {
            let call = AdminCall::ListObjects { after: self.after, limit: OBJECTS_STEP };
            let AdminReply::Objects { objects, end } = fsck.request_node(self.node, WHAT, call)?
            else {
                return Err(FsckError::Node { node: self.node, what: WHAT, errno: Errno::EPROTO });
            };
            let mut keys = objects.iter().map(|o| (o.0, o.1));
            let forward = keys.clone().is_sorted_by(|a, b| a < b)
                && keys.clone().next().is_none_or(|first| Some(first) > self.after);
            if !forward || (objects.is_empty() && !end) {
                return Err(FsckError::Node { node: self.node, what: WHAT, errno: Errno::EPROTO });
            }
            self.after = keys.next_back().or(self.after);
            self.queue.extend(objects.into_iter().map(|(ino, piece, size, _)| (ino, piece, size)));
            self.end = end;
        }
        Ok(self.queue.front().copied())
    }

    /// Passes the next object.
    pub(super) fn skip_object(&mut self) {
        self.queue.pop_front();
    }
}
