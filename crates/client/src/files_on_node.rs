//! The files with an object on a node, found by their inodes: also those without a byte, and those
//! without a name.

use crate::Client;
use crate::inode_scan::InodeScan;
use tatami_wire::{Errno, InodeKind, NodeId};

/// The files that have an object on a node.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct FilesOnNode {
    /// Their number.
    pub files: u64,
    /// Their bytes, also those on other nodes.
    pub bytes: u64,
    /// Those of them that were removed while a program has them open.
    pub unnamed: u64,
}

impl Client {
    /// Counts the files that have an object on `node`. Needs a trusted connection to every node.
    ///
    /// # Errors
    /// Those of the executors: a partial count would prove nothing.
    pub fn count_files_on(&self, node: NodeId) -> Result<FilesOnNode, Errno> {
        let mut found = FilesOnNode::default();
        for (_, executor) in self.map().first_shards() {
            let mut inodes = InodeScan::for_executor(executor);
            while let Some(ino) = inodes.peek_inode(self)?.map(|attr| attr.ino) {
                let Some(attr) = inodes.take_inode(ino) else { continue };
                let is_there = match attr.kind {
                    InodeKind::File => self.has_object_on(&attr, &[node]),
                    _ => Ok(false),
                };
                // The file may have gone since.
                if is_there.or_else(|e| if e == Errno::ENOENT { Ok(false) } else { Err(e) })? {
                    found.files += 1;
                    found.bytes += attr.size;
                    found.unnamed += u64::from(attr.nlink == 0);
                }
            }
        }
        Ok(found)
    }
}
