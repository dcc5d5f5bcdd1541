//! A list of all inodes of an executor in number order, some at a time.

use crate::Client;
use std::cmp::Ordering;
use std::collections::VecDeque;
use tatami_wire::meta::{MetaOp, MetaReply};
use tatami_wire::{Attr, Cred, Errno, ExecutorId, Ino, READDIR_MAX};

/// All inodes of the shards of an executor in number order, some at a time.
pub(crate) struct InodeScan {
    /// The executor.
    pub(crate) executor: ExecutorId,
    queue: VecDeque<Attr>,
    /// The last inode that has come.
    after: Ino,
    end: bool,
}

impl InodeScan {
    pub(crate) fn for_executor(executor: ExecutorId) -> InodeScan {
        InodeScan { executor, queue: VecDeque::new(), after: Ino(0), end: false }
    }

    /// Returns the next inode and keeps it; `None` at the end.
    ///
    /// # Errors
    /// The executor's; `EPROTO` for a list without an order.
    pub(crate) fn peek_inode(&mut self, client: &Client) -> Result<Option<&Attr>, Errno> {
        while self.queue.is_empty() && !self.end {
            let after = self.after;
            let op = MetaOp::ScanInodes { after, limit: READDIR_MAX };
            let reply = client.request_executor(self.executor, &Cred::ROOT, op)?;
            let MetaReply::Inodes { attrs, end } = reply else {
                return Err(Errno::EPROTO);
            };
            // The numbers must advance: otherwise a broken shard would be asked for ever.
            let forward = attrs.iter().map(|a| a.ino).is_sorted_by(|a, b| a < b)
                && attrs.first().is_none_or(|a| a.ino > after);
            if !forward || (attrs.is_empty() && !end) {
                return Err(Errno::EPROTO);
            }
            self.after = attrs.last().map_or(after, |a| a.ino);
            self.queue.extend(attrs);
            self.end = end;
        }
        Ok(self.queue.front())
    }

    /// Takes the next inode, if it has this number.
    pub(crate) fn take_inode(&mut self, ino: Ino) -> Option<Attr> {
        match self.queue.front()?.ino.cmp(&ino) {
            Ordering::Equal => self.queue.pop_front(),
            _ => None,
        }
    }
}
