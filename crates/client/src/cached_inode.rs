//! What the cache knows of one inode that is delegated to this client.

use crate::operation_effects::CachedEntry;
use std::collections::HashMap;
use std::sync::Arc;
use tatami_wire::delegation::PartitionAttr;
use tatami_wire::{Attr, Ino, hash};

/// The cached facts of an inode that is delegated to this client.
#[derive(Default)]
pub(crate) struct CachedInode {
    /// Since this moment the client has held some delegation of the inode without a break. A name
    /// that led to the inode then still does, because a rename or a removal recalls all of them.
    pub(crate) since: u64,
    pub(crate) attr: Option<Attr>,
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
