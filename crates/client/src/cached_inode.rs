//! What the cache knows of one inode that is delegated to this client.

use crate::operation_effects::{CachedEntry, is_inline_write};
use std::collections::HashMap;
use std::sync::Arc;
use tatami_wire::delegation::PartitionAttr;
use tatami_wire::meta::MetaOp;
use tatami_wire::object::ObjectState;
use tatami_wire::{Attr, Ino, hash};

/// The cached facts of an inode that is delegated to this client.
#[derive(Default)]
pub(crate) struct CachedInode {
    /// Since this moment the client has held some delegation of the inode without a break. A name
    /// that led to the inode then still does, because a rename or a removal recalls all of them.
    pub(crate) since: u64,
    pub(crate) attr: Option<Attr>,
    /// The attributes before the one write of bytes beside the inode that is in flight.
    pub(crate) before_write: Option<Attr>,
    /// The path delegation of a directory. Mode, owner and ACL in it are current. Size and times
    /// may be old, because other clients change entries without a recall of it.
    pub(crate) path: Option<Box<Attr>>,
    /// The shard delegated the path alone when this client last asked: others change the entries.
    pub(crate) is_busy: bool,
    pub(crate) dir: Option<Box<CachedDir>>,
    /// Set if the inode is a partition of a split directory.
    pub(crate) part: Option<Arc<PartitionAttr>>,
}

/// The inode that a name leads to, in a directory that is not delegated because several clients
/// change it. The delegation of the inode covers the name while [`CachedInode::since`] is the same.
#[derive(Clone, Copy)]
pub(crate) struct LooseName {
    pub(crate) leads_to: Ino,
    pub(crate) since: u64,
}

pub(crate) type NameMap<T> = HashMap<Box<[u8]>, T, hash::HashBuilder>;

#[derive(Default)]
pub(crate) struct CachedDir {
    pub(crate) names: NameMap<CachedEntry>,
    /// Names that are not in `names` are not in the directory.
    pub(crate) complete: bool,
    /// Requests for names that were not there.
    pub(crate) absent_lookups: u32,
}

impl CachedInode {
    /// Forgets the attributes, because this client is about to send the change `op`.
    pub(crate) fn begin_attr_change(&mut self, op: &MetaOp) {
        // With a second write in flight there are no attributes, and so nothing is kept: which of
        // both writes the shard carries out first is not known.
        self.before_write = self.attr.take().filter(|_| is_inline_write(op));
        self.part = None;
    }

    /// Forgets the attributes, because the change `op` has returned.
    pub(crate) fn end_attr_change(&mut self, op: &MetaOp) {
        if !is_inline_write(op) {
            self.before_write = None;
        }
        (self.attr, self.part) = (None, None);
    }

    /// Returns the attributes after a write of bytes beside the inode, if they were cached before
    /// it and no other change of this client has begun since. The shard returned `state`. It
    /// records one time as that of the bytes and that of the inode.
    pub(crate) fn take_attr_after_write(&mut self, state: &ObjectState) -> Option<Attr> {
        let before = self.before_write.take()?;
        Some(Attr {
            size: state.size,
            blocks: state.blocks,
            mtime: state.mtime,
            ctime: state.mtime,
            version: before.version.wrapping_add(1),
            ..before
        })
    }

    /// Returns the path of a directory that others are changing.
    pub(crate) fn busy_path(&self) -> Option<&Attr> {
        self.path.as_deref().filter(|_| self.is_busy)
    }

    /// Returns the number of entries of a directory or a partition, if it is cached.
    pub(crate) fn entry_count(&self) -> Option<u64> {
        let whole = self.attr.as_ref().map(|attr| attr.size);
        whole.or_else(|| self.part.as_ref().map(|part| part.attr.size))
    }

    /// Returns how much of the cache it takes.
    pub(crate) fn count_records(&self) -> usize {
        1 + self.dir.as_ref().map_or(0, |dir| dir.names.len())
    }
}
