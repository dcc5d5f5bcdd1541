//! The inodes that the kernel knows: their numbers, their names, and what is known of their bytes.
//!
//! The kernel gets the inode number of the other site where it can. A second file system below the
//! root, or an inode number that was used again, gets a number of its own.

use crate::write_state::WriteState;
use parking_lot::Mutex;
use rustix::io::Errno;
use std::collections::HashMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use tatami_fuse::abi::ROOT_ID;
use tatami_remote::{SiteAttr, SiteDir, SiteNode};

/// Names that are kept of one inode.
const NAMES_MAX: usize = 8;
/// Deepest directory.
const DEPTH_MAX: usize = 2048;
/// The first of the numbers that are no inode numbers of the other site.
const OWN_NUMBERS: u64 = 1 << 63;
/// The bits of the type in `st_mode`.
const KIND_BITS: u32 = 0o170_000;
const DIRECTORY: u32 = 0o040_000;

/// What shows that bytes are as they were: times of the last changes, and size.
pub(crate) type Fingerprint = ((i64, u32), (i64, u32), u64);

/// Returns the fingerprint of attributes.
pub(crate) fn fingerprint_of(attr: &SiteAttr) -> Fingerprint {
    (attr.modified, attr.changed, attr.size)
}

/// An inode that the kernel knows, or that is open.
#[derive(Debug)]
pub(crate) struct KnownNode {
    pub(crate) number: u64,
    /// Device and inode number there.
    pub(crate) id: (u64, u64),
    kind: u32,
    pub(crate) writes: WriteState,
    /// Counts the changes of the bytes by this mount.
    pub(crate) version: AtomicU64,
    /// The last known size.
    pub(crate) size: AtomicU64,
    /// The bytes that the kernel may have kept.
    pub(crate) kept: Mutex<Option<Fingerprint>>,
    /// The numbers of its open files.
    pub(crate) open: Mutex<Vec<u64>>,
}

impl KnownNode {
    fn new(number: u64, id: (u64, u64), attr: &SiteAttr) -> KnownNode {
        KnownNode {
            number,
            id,
            kind: attr.mode & KIND_BITS,
            writes: WriteState::default(),
            version: AtomicU64::new(0),
            size: AtomicU64::new(attr.size),
            kept: Mutex::default(),
            open: Mutex::default(),
        }
    }

    /// Whether it is a directory.
    pub(crate) fn is_dir(&self) -> bool {
        self.kind == DIRECTORY
    }

    /// Takes note of a change of its bytes that was sent.
    pub(crate) fn note_change(&self) {
        self.version.fetch_add(1, Ordering::SeqCst);
    }

    /// Returns an open file of it.
    pub(crate) fn any_file(&self) -> Option<u64> {
        self.open.lock().last().copied()
    }
}

struct KnownEntry {
    node: Arc<KnownNode>,
    /// Lookups that the kernel has not forgotten.
    lookups: u64,
    /// Directory and name; the last one was used last.
    names: Vec<(u64, Vec<u8>)>,
}

#[derive(Default)]
struct NodeMaps {
    by_number: HashMap<u64, KnownEntry>,
    by_id: HashMap<(u64, u64), u64>,
    by_name: HashMap<(u64, Vec<u8>), u64>,
    next: u64,
}

/// The inodes of a mount.
pub(crate) struct NodeTable {
    root: (u64, u64),
    maps: Mutex<NodeMaps>,
}

impl NodeTable {
    /// Returns a table with the root.
    pub(crate) fn new(root: &SiteAttr) -> NodeTable {
        let id = (root.dev, root.ino);
        let node = Arc::new(KnownNode::new(ROOT_ID, id, root));
        let mut maps = NodeMaps { next: OWN_NUMBERS, ..NodeMaps::default() };
        maps.by_number.insert(ROOT_ID, KnownEntry { node, lookups: 1, names: Vec::new() });
        maps.by_id.insert(id, ROOT_ID);
        NodeTable { root: id, maps: Mutex::new(maps) }
    }

    /// Returns an inode.
    ///
    /// # Errors
    /// `ESTALE`: the kernel has forgotten it.
    pub(crate) fn find_node(&self, number: u64) -> Result<Arc<KnownNode>, Errno> {
        let maps = self.maps.lock();
        maps.by_number.get(&number).map(|entry| entry.node.clone()).ok_or(Errno::STALE)
    }

    /// Keeps an inode that was found by a name, with one more lookup of the kernel.
    pub(crate) fn note_lookup(&self, dir: u64, name: &[u8], attr: &SiteAttr) -> Arc<KnownNode> {
        let mut maps = self.maps.lock();
        let id = (attr.dev, attr.ino);
        let known = maps.by_id.get(&id).copied().filter(|number| {
            let entry = maps.by_number.get(number);
            entry.is_some_and(|entry| entry.node.kind == attr.mode & KIND_BITS)
        });
        let number = known.unwrap_or_else(|| self.add_node(&mut maps, id, attr));
        maps.set_name(dir, name, number);
        let Some(entry) = maps.by_number.get_mut(&number) else {
            // Not reached: the number was found or added under this lock.
            return Arc::new(KnownNode::new(number, id, attr));
        };
        entry.lookups += 1;
        entry.node.size.store(attr.size, Ordering::Relaxed);
        entry.node.clone()
    }

    fn add_node(&self, maps: &mut NodeMaps, id: (u64, u64), attr: &SiteAttr) -> u64 {
        let is_free = |maps: &NodeMaps, n: u64| n > ROOT_ID && !maps.by_number.contains_key(&n);
        let same = id.0 == self.root.0 && id.1 < OWN_NUMBERS && is_free(maps, id.1);
        let number = match same {
            true => id.1,
            false => {
                maps.next += 1;
                maps.next
            }
        };
        let node = Arc::new(KnownNode::new(number, id, attr));
        maps.by_number.insert(number, KnownEntry { node, lookups: 0, names: Vec::new() });
        maps.by_id.insert(id, number);
        number
    }

    /// Takes note of lookups that the kernel has forgotten.
    pub(crate) fn forget_lookups(&self, number: u64, lookups: u64) {
        let mut maps = self.maps.lock();
        let Some(entry) = maps.by_number.get_mut(&number).filter(|_| number != ROOT_ID) else {
            return;
        };
        entry.lookups = entry.lookups.saturating_sub(lookups);
        if entry.lookups > 0 {
            return;
        }
        if let Some(entry) = maps.by_number.remove(&number) {
            if maps.by_id.get(&entry.node.id) == Some(&number) {
                maps.by_id.remove(&entry.node.id);
            }
            for name in entry.names {
                if maps.by_name.get(&name) == Some(&number) {
                    maps.by_name.remove(&name);
                }
            }
        }
    }

    /// Takes note that a name leads nowhere any more.
    pub(crate) fn drop_name(&self, dir: u64, name: &[u8]) {
        self.maps.lock().drop_name(dir, name);
    }

    /// Takes note of a rename, which replaces what had the new name.
    pub(crate) fn move_name(&self, (dir, name): (u64, &[u8]), (to, to_name): (u64, &[u8])) {
        let mut maps = self.maps.lock();
        let moved = maps.drop_name(dir, name);
        maps.drop_name(to, to_name);
        if let Some(number) = moved {
            maps.set_name(to, to_name, number);
        }
    }

    /// Returns a directory for a call.
    ///
    /// # Errors
    /// `ENOTDIR`; `ESTALE`: it has no name any more.
    pub(crate) fn locate_dir(&self, number: u64) -> Result<SiteDir, Errno> {
        self.maps.lock().locate_dir(number)
    }

    /// Returns an inode for a call.
    ///
    /// # Errors
    /// `ESTALE`: it has no name any more.
    pub(crate) fn locate_node(&self, node: &KnownNode) -> Result<SiteNode, Errno> {
        let maps = self.maps.lock();
        if node.is_dir() {
            let dir = maps.locate_dir(node.number)?;
            return Ok(SiteNode { dir, name: Vec::new().into(), id: node.id });
        }
        let entry = maps.by_number.get(&node.number).ok_or(Errno::STALE)?;
        let (dir, name) = entry.names.last().ok_or(Errno::STALE)?;
        Ok(SiteNode { dir: maps.locate_dir(*dir)?, name: name.clone().into(), id: node.id })
    }

    /// Returns the number of the directory above, for a listing.
    pub(crate) fn parent_of(&self, number: u64) -> u64 {
        let maps = self.maps.lock();
        let names = maps.by_number.get(&number).map(|entry| entry.names.as_slice());
        names.and_then(|names| names.last()).map_or(ROOT_ID, |(dir, _)| *dir)
    }
}

impl NodeMaps {
    fn set_name(&mut self, dir: u64, name: &[u8], number: u64) {
        let key = (dir, name.to_vec());
        if let Some(before) = self.by_name.insert(key.clone(), number).filter(|old| *old != number)
            && let Some(entry) = self.by_number.get_mut(&before)
        {
            entry.names.retain(|known| *known != key);
        }
        if let Some(entry) = self.by_number.get_mut(&number) {
            entry.names.retain(|known| *known != key);
            // A directory has one name. An older one is that of a directory that was moved there.
            let most = if entry.node.is_dir() { 1 } else { NAMES_MAX };
            while entry.names.len() >= most {
                let old = entry.names.remove(0);
                if self.by_name.get(&old) == Some(&number) {
                    self.by_name.remove(&old);
                }
            }
            entry.names.push(key);
        }
    }

    fn drop_name(&mut self, dir: u64, name: &[u8]) -> Option<u64> {
        let key = (dir, name.to_vec());
        let number = self.by_name.remove(&key)?;
        if let Some(entry) = self.by_number.get_mut(&number) {
            entry.names.retain(|known| *known != key);
        }
        Some(number)
    }

    fn locate_dir(&self, number: u64) -> Result<SiteDir, Errno> {
        let top = self.by_number.get(&number).ok_or(Errno::STALE)?;
        if !top.node.is_dir() {
            return Err(Errno::NOTDIR);
        }
        let (mut parts, mut at) = (Vec::new(), number);
        while at != ROOT_ID && parts.len() < DEPTH_MAX {
            // A directory without a path may still be open there, and is found by its numbers.
            let Some((dir, name)) = self.by_number.get(&at).and_then(|e| e.names.last()) else {
                parts.clear();
                break;
            };
            parts.push(name.as_slice());
            at = *dir;
        }
        parts.reverse();
        Ok(SiteDir { path: parts.join(&b'/').into(), id: top.node.id })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn attr(ino: u64, mode: u32) -> SiteAttr {
        SiteAttr { dev: 5, ino, mode, ..SiteAttr::default() }
    }

    fn path(table: &NodeTable, number: u64) -> String {
        let node = table.find_node(number).expect("known");
        let found = table.locate_node(&node).expect("it has a name");
        let path = String::from_utf8_lossy(&found.dir.path).into_owned();
        format!("{path}|{}", String::from_utf8_lossy(&found.name))
    }

    #[test]
    fn a_path_follows_renames_and_ends_with_the_last_name() {
        let table = NodeTable::new(&attr(2, DIRECTORY));
        let dir = table.note_lookup(ROOT_ID, b"d", &attr(10, DIRECTORY)).number;
        let below = table.note_lookup(dir, b"e", &attr(11, DIRECTORY)).number;
        let file = table.note_lookup(below, b"f", &attr(12, 0o100_644)).number;
        assert_eq!((dir, below, file), (10, 11, 12));
        assert_eq!(path(&table, file), "d/e|f");
        table.move_name((ROOT_ID, b"d"), (ROOT_ID, b"moved"));
        assert_eq!(path(&table, file), "moved/e|f");
        table.note_lookup(dir, b"g", &attr(12, 0o100_644));
        assert_eq!(path(&table, file), "moved|g");
        table.drop_name(dir, b"g");
        assert_eq!(path(&table, file), "moved/e|f");
        table.drop_name(below, b"f");
        let node = table.find_node(file).expect("known");
        assert_eq!(table.locate_node(&node), Err(Errno::STALE));
        table.forget_lookups(file, 2);
        assert!(table.find_node(file).is_err());
        table.forget_lookups(ROOT_ID, 9);
        assert_eq!(path(&table, ROOT_ID), "|");
    }

    #[test]
    fn a_replaced_file_loses_its_name() {
        let table = NodeTable::new(&attr(2, DIRECTORY));
        let one = table.note_lookup(ROOT_ID, b"a", &attr(10, 0o100_644));
        let other = table.note_lookup(ROOT_ID, b"b", &attr(11, 0o100_644));
        table.move_name((ROOT_ID, b"a"), (ROOT_ID, b"b"));
        assert_eq!(path(&table, 10), "|b");
        assert!(table.locate_node(&one).is_ok());
        assert_eq!(table.locate_node(&other), Err(Errno::STALE));
    }

    #[test]
    fn numbers_are_unique() {
        let table = NodeTable::new(&attr(2, DIRECTORY));
        let odd = table.note_lookup(ROOT_ID, b"one", &attr(1, 0o100_644)).number;
        let far = SiteAttr { dev: 6, ..attr(10, 0o100_644) };
        let far = table.note_lookup(ROOT_ID, b"far", &far).number;
        let near = table.note_lookup(ROOT_ID, b"near", &attr(10, 0o100_644)).number;
        let again = table.note_lookup(ROOT_ID, b"near", &attr(10, DIRECTORY)).number;
        assert_eq!(near, 10);
        assert!(odd > OWN_NUMBERS && far > OWN_NUMBERS && again > OWN_NUMBERS);
        assert!(odd != far && far != again);
    }
}
