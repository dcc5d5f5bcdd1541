//! Lists of all objects of the nodes in number order, some at a time.

use super::{Fsck, FsckError};
use std::collections::VecDeque;
use tatami_wire::admin::{AdminCall, AdminReply};
use tatami_wire::{Errno, Ino, NodeId, Piece};

/// Objects in one request.
const OBJECTS_STEP: u32 = 8 * 1024;

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
