//! The records of the shards of one node: the store, under the changes since the last commit.
//!
//! Operations write into an overlay. A commit turns the overlay into one atomic batch, so that many
//! operations share one log write (group commit). When the store refuses the batch, overlay and
//! cache are dropped, and the state is that of the last good commit.

use crate::cache::RecordCache;
use crate::error::{MetaOpenError, MetaOutcome, OperationFailure};
use crate::inode::Inode;
use crate::keys::{self, RecordKey};
use crate::opens::ClientOpens;
use crate::overlay::ChangeOverlay;
use crate::record::{EntryRecord, Shard};
use crate::split_rule::{LargePartitionChange, SplitRule};
use crate::store::{Store, StoreError, SyncWork};
use crate::transaction::locks::TransactionLocks;
use crate::transaction::messages::ChangedInode;
use crate::transaction::record;
use std::ops::ControlFlow;
use std::sync::Arc;
use tatami_wire::admin::ClusterMap;
use tatami_wire::{ClientId, Errno, ExecutorId, Ino, ShardId, ShardMap, VolumeId};

/// Inode numbers reserved at a time. A number is allocated only after the reservation has been
/// synced, so that no power cut leads to a second use: objects of the lost file may still lie on
/// some node.
const INO_STRIDE: u64 = 1 << 16;

/// A function that a scan calls; it may fail, and that ends the scan.
pub(crate) type RecordVisitor<'a> = dyn FnMut(&[u8], &[u8]) -> MetaOutcome<ControlFlow<()>> + 'a;

/// The records of a node; see the module.
pub(crate) struct MetaState<S> {
    pub store: S,
    overlay: ChangeOverlay,
    inode_cache: RecordCache<Ino, Arc<Inode>>,
    /// Entries that were read from the store's tables, and keys without an entry.
    entry_cache: RecordCache<RecordKey, Option<EntryRecord>>,
    shard: Shard,
    map: ShardMap,
    /// The same, with the nodes as far as they are known.
    cluster: ClusterMap,
    /// The cluster map of the last commit, if it is not the same.
    cluster_before: Option<ClusterMap>,
    /// This node serves all shards.
    alone: bool,
    /// Other nodes serve shards, too, or did.
    pub spread: bool,
    /// Records of shards lie here that this node does not serve.
    pub mixed: bool,
    /// The record of the store is to be written with the next commit.
    put_shard: bool,
    /// Records that transactions of other nodes have locked.
    pub locks: TransactionLocks,
    /// Files that clients have open without writing.
    pub opens: ClientOpens,
    /// `shard.inodes` as of the last commit.
    committed_inodes: u64,
    next: u64,
    /// The store has reported room since the last commit.
    room: bool,
    poisoned: bool,
    /// Inodes that the running operation has read, maybe more than once.
    pub seen: Vec<Ino>,
    /// Inodes that the last operation has changed.
    pub changed: Vec<ChangedInode>,
    /// Decides which partitions split.
    pub split_rule: SplitRule,
    /// Changes of large partitions that the rule has not seen.
    pub large_changes: Vec<LargePartitionChange>,
}

impl<S: Store> MetaState<S> {
    /// Reads the shard record, or makes it in an empty store.
    pub fn open(
        store: S,
        volume: VolumeId,
        wanted: ExecutorId,
        map: ShardMap,
    ) -> Result<MetaState<S>, MetaOpenError> {
        let shard = match store.get(&keys::shard())? {
            Some(bytes) => Shard::decode(&bytes)?,
            None => {
                let mut used = false;
                store.scan(&[], &[], &mut |_, _| {
                    used = true;
                    ControlFlow::Break(())
                })?;
                if used {
                    // A store with records but without its own record has lost it.
                    return Err(MetaOpenError::Damaged("shard record"));
                }
                let seed = tatami_wire::partition::name_seed(volume);
                // Number 1 of shard 0 is the root.
                Shard { volume, executor: wanted, seed, reserved: Ino::ROOT.0 + 1, inodes: 0 }
            }
        };
        // A wrong directory would mix two namespaces: refuse it before anything is written.
        if shard.volume != volume {
            return Err(MetaOpenError::Volume { found: shard.volume, wanted: volume });
        }
        if shard.executor != wanted {
            return Err(MetaOpenError::Executor { found: shard.executor, wanted });
        }
        let (shards, moves) = map.owners_and_moves();
        let mut cluster = ClusterMap {
            volume,
            name: String::new(),
            epoch: map.epoch(),
            nodes: Vec::new(),
            shards: shards.to_vec(),
            moves: moves.to_vec(),
        };
        let moved = store.get(&keys::shard_map())?;
        if let Some(bytes) = &moved {
            let known =
                record::decode_value(bytes).map_err(|_| MetaOpenError::Damaged("map record"))?;
            merge_cluster_map(&mut cluster, &known);
        }
        let map = cluster.shard_map().ok_or(MetaOpenError::Damaged("map record"))?;
        let alone = map.has_one_executor() && map.owner(ShardId(0)) == Some(wanted);
        Ok(MetaState {
            store,
            cluster,
            cluster_before: None,
            alone,
            // Directories that were on several nodes stay in partitions, wherever these are now.
            spread: !alone || moved.is_some(),
            mixed: false,
            put_shard: false,
            overlay: ChangeOverlay::default(),
            inode_cache: RecordCache::default(),
            entry_cache: RecordCache::default(),
            next: shard.reserved,
            committed_inodes: shard.inodes,
            shard,
            map,
            locks: TransactionLocks::default(),
            opens: ClientOpens::default(),
            room: false,
            poisoned: false,
            seen: Vec::new(),
            changed: Vec::new(),
            split_rule: SplitRule::default(),
            large_changes: Vec::new(),
        })
    }

    pub fn epoch(&self) -> u64 {
        self.map.epoch()
    }

    pub fn map(&self) -> &ShardMap {
        &self.map
    }

    pub fn executor(&self) -> ExecutorId {
        self.shard.executor
    }

    /// Returns whether other nodes have shards, too, or may get some.
    pub fn is_spread(&self) -> bool {
        self.spread
    }

    /// Returns the map, with the nodes as far as they are known.
    pub fn cluster(&self) -> &ClusterMap {
        &self.cluster
    }

    /// Replaces the map; with `record`, durably.
    pub fn replace_map(&mut self, cluster: ClusterMap, record: Option<Vec<u8>>) {
        let before = self.install_map(cluster);
        if record.is_some() {
            // Kept for an undo: a failed commit must not leave the new map in force.
            self.cluster_before.get_or_insert(before);
            self.put_record(keys::shard_map(), record);
            self.request_shard_write();
        }
    }

    fn install_map(&mut self, cluster: ClusterMap) -> ClusterMap {
        // Only maps with the same number of shards are merged.
        if let Some(map) = cluster.shard_map() {
            self.alone =
                map.has_one_executor() && map.owner(ShardId(0)) == Some(self.shard.executor);
            self.map = map;
        }
        std::mem::replace(&mut self.cluster, cluster)
    }

    /// Drops all cached records, which may have changed.
    pub fn forget_cached(&mut self) {
        self.inode_cache.clear();
        self.entry_cache.clear();
    }

    /// Marks inode numbers up to `reserved` as allocated elsewhere.
    pub fn raise_reserved(&mut self, reserved: u64) {
        self.shard.reserved = self.shard.reserved.max(reserved);
        self.next = self.next.max(reserved);
        self.request_shard_write();
    }

    /// See [`Store::lost_bound`].
    pub fn lost_bound(&self) -> u64 {
        self.store.lost_bound()
    }

    /// Returns the bound of the inode numbers that may have been allocated.
    pub fn reserved(&self) -> u64 {
        self.shard.reserved
    }

    /// Returns the number of shards that this node serves.
    pub fn count_served(&self) -> usize {
        self.map.shards_of(self.shard.executor).count()
    }

    /// Returns whether there is such a shard.
    pub fn is_shard(&self, shard: ShardId) -> bool {
        self.map.owner(shard).is_some()
    }

    /// Returns the other node that has the record; `None` where it belongs to this node, or to no
    /// shard.
    pub fn remote_owner(&self, key: &[u8]) -> Option<ExecutorId> {
        if self.alone {
            return None;
        }
        let node = self.map.owner(keys::shard_of(key)?)?;
        (node != self.shard.executor).then_some(node)
    }

    /// Returns whether the record belongs to a shard of this node.
    pub fn has_local_key(&self, key: &[u8]) -> bool {
        keys::shard_of(key).is_some_and(|shard| self.owns_shard(shard))
    }

    /// Fails where a transaction writes the record.
    pub fn check_readable(&self, key: &[u8]) -> MetaOutcome<()> {
        match self.locks.read_blocker(key) {
            Some(txid) => Err(OperationFailure::Locked(vec![txid])),
            None => Ok(()),
        }
    }

    /// Fails where another client than `client` has the directory exclusively.
    pub fn check_exclusive(&self, dir: Ino, client: ClientId) -> MetaOutcome<()> {
        match self.locks.exclusive.inode_blocker(dir, Some(client)) {
            Some(txid) => Err(OperationFailure::Locked(vec![txid])),
            None => Ok(()),
        }
    }

    /// Clears the lists of inodes that the last operation has read and changed.
    pub fn clear_touched_inodes(&mut self) {
        self.seen.clear();
        self.changed.clear();
    }

    /// Returns whether the records of `shard` lie here.
    pub fn owns_shard(&self, shard: ShardId) -> bool {
        self.map.owner(shard) == Some(self.shard.executor)
    }

    pub fn seed(&self) -> u64 {
        self.shard.seed
    }

    pub fn inode_count(&self) -> u64 {
        self.shard.inodes
    }

    /// Corrects the number of inodes by `delta`.
    pub fn count_inodes(&mut self, delta: i64) {
        self.shard.inodes = self.shard.inodes.saturating_add_signed(delta);
    }

    pub fn is_poisoned(&self) -> bool {
        self.poisoned
    }

    /// Returns whether there is room for more. A yes of the store counts for a batch, a no is
    /// checked again.
    pub fn has_room(&mut self) -> bool {
        self.room = self.room || self.store.has_room();
        self.room
    }

    /// Returns whether the store has reported room since the last commit.
    pub fn has_known_room(&self) -> bool {
        self.room
    }

    /// Returns a fresh inode number, allocated by shard `birth`; a directory may get any owner
    /// shard.
    pub fn allocate_ino(&mut self, birth: ShardId, is_dir: bool) -> MetaOutcome<Ino> {
        debug_assert!(self.owns_shard(birth));
        let counter = self.allocate_counters(1)?;
        Ok(match is_dir {
            true => self.map.directory_number(birth, counter),
            false => Ino::new(birth, birth, counter),
        })
    }

    /// Returns the first of `count` fresh [`Ino::counter`]s.
    pub fn allocate_counters(&mut self, count: u32) -> MetaOutcome<u64> {
        let end = self.next + u64::from(count);
        if end > self.shard.reserved {
            let reserved = end + INO_STRIDE;
            if reserved > Ino::COUNTER_MAX {
                return Err(Errno::ENOSPC.into());
            }
            // With the committed number of inodes: the changes of the overlay are not in this
            // batch.
            let record = Shard { reserved, inodes: self.committed_inodes, ..self.shard }.encode();
            // Not through the overlay: the reservation must be on disk before the number is used,
            // or a power cut would lead to a second use.
            self.write_store(|store| store.commit(&[(keys::shard(), Some(record))]))?;
            self.write_store(S::sync)?;
            self.shard.reserved = reserved;
        }
        Ok(std::mem::replace(&mut self.next, end))
    }

    /// Checks whether a number was allocated, in this run or before.
    pub fn is_allocated(&self, counter: u64) -> bool {
        counter < self.next
    }

    pub fn get(&self, key: &[u8]) -> Result<Option<Vec<u8>>, StoreError> {
        match self.overlay.get(key) {
            Some(value) => Ok(value.map(<[u8]>::to_vec)),
            None => self.store.get(key),
        }
    }

    /// Returns the value at `key`, if it is in memory.
    fn cached_value(&self, key: &[u8]) -> Option<Option<&[u8]>> {
        match self.overlay.get(key) {
            Some(value) => Some(value),
            None => self.store.cached_value(key),
        }
    }

    pub fn put_record(&mut self, key: RecordKey, value: Option<Vec<u8>>) {
        // The cache must not answer for a key whose value has changed.
        if key.first() == Some(&keys::tag::ENTRY) {
            self.entry_cache.remove(&key);
        }
        self.overlay.insert(key, value);
    }

    /// Returns the entry at `key`, from memory or the tables. With `again`, an entry from the
    /// tables is cached, because it may be read again: not so before a change.
    pub fn load_entry(&mut self, key: &RecordKey, again: bool) -> MetaOutcome<Option<EntryRecord>> {
        if let Some(known) = self.cached_value(key) {
            return Ok(known.map(EntryRecord::decode).transpose()?);
        }
        if let Some(entry) = self.entry_cache.get(key) {
            return Ok(entry);
        }
        let entry =
            self.store.fetch(key)?.map(|record| EntryRecord::decode(&record)).transpose()?;
        if again {
            self.entry_cache.insert(key.clone(), entry);
        }
        Ok(entry)
    }

    /// Returns the inode, from the cache or the records.
    pub fn load_inode(&mut self, ino: Ino) -> MetaOutcome<Option<Arc<Inode>>> {
        if let Some(inode) = self.inode_cache.get(&ino) {
            return Ok(Some(inode));
        }
        let key = keys::inode(ino);
        let known = self.cached_value(&key);
        let in_memory = known.is_some();
        let inode = match known {
            Some(record) => record.map(Inode::decode).transpose()?,
            None => self.store.fetch(&key)?.map(|record| Inode::decode(&record)).transpose()?,
        };
        let Some(inode) = inode.map(Arc::new) else { return Ok(None) };
        // Records in memory are read nearly as fast without the cache; a directory is read again
        // and again.
        if !in_memory || inode.is_dir() {
            self.inode_cache.insert(ino, inode.clone());
        }
        Ok(Some(inode))
    }

    pub fn put_inode(&mut self, ino: Ino, inode: Inode) {
        self.put_record(keys::inode(ino), Some(inode.encode()));
        // Updated only where it is cached: a write alone is no sign that the inode is read again.
        self.inode_cache.update(&ino, |known| match Arc::get_mut(known) {
            Some(known) => *known = inode,
            None => *known = Arc::new(inode),
        });
    }

    /// As [`MetaState::put_inode`], of a number that was never used. It does not go to the cache:
    /// many clients that make files do not read them.
    pub fn put_new_inode(&mut self, ino: Ino, inode: &Inode) {
        self.put_record(keys::inode(ino), Some(inode.encode()));
    }

    pub fn delete_inode(&mut self, ino: Ino) {
        self.put_record(keys::inode(ino), None);
        self.inode_cache.remove(&ino);
    }

    /// Shows `visit` the pairs with key ≥ `from` that start with `prefix`, in order.
    pub fn scan_records(
        &self,
        from: &[u8],
        prefix: &[u8],
        visit: &mut RecordVisitor<'_>,
    ) -> MetaOutcome<()> {
        let start = from.max(prefix);
        // Merges two sorted sequences. Where both have a key, the overlay's change is the newer
        // one.
        let mut over = self.overlay.sorted_changes(start, prefix).into_iter().peekable();
        let mut result = Ok(ControlFlow::Continue(()));
        self.store.scan(start, prefix, &mut |key, value| {
            while let Some((k, v)) = over.next_if(|(k, _)| k.as_slice() < key) {
                if let Some(v) = v {
                    result = visit(k, v);
                    if !matches!(result, Ok(ControlFlow::Continue(()))) {
                        return ControlFlow::Break(());
                    }
                }
            }
            result = match over.next_if(|(k, _)| k.as_slice() == key) {
                Some((_, Some(v))) => visit(key, v),
                Some((_, None)) => return ControlFlow::Continue(()),
                None => visit(key, value),
            };
            match result {
                Ok(ControlFlow::Continue(())) => ControlFlow::Continue(()),
                _ => ControlFlow::Break(()),
            }
        })?;
        if result?.is_break() {
            return Ok(());
        }
        for (k, v) in over {
            if let Some(v) = v
                && visit(k, v)?.is_break()
            {
                break;
            }
        }
        Ok(())
    }

    /// Writes the record of the store itself, without which no other may be there.
    pub fn request_shard_write(&mut self) {
        self.put_shard = true;
    }

    /// Returns whether there is something to commit.
    pub fn is_dirty(&self) -> bool {
        !self.overlay.is_empty() || self.put_shard || self.shard.inodes != self.committed_inodes
    }

    /// Writes the overlay as one batch.
    pub fn commit(&mut self) -> Result<(), StoreError> {
        // The batch takes space, so the next operation checks again.
        self.room = false;
        if !self.is_dirty() {
            return Ok(());
        }
        // With its current values: numbers may have been reserved since the request.
        if self.put_shard || self.shard.inodes != self.committed_inodes {
            self.put_shard = false;
            self.overlay.insert(keys::shard(), Some(self.shard.encode()));
        }
        let result = self.overlay.drain_changes(|batch| self.store.commit(batch));
        match self.poison_on_error(result) {
            Ok(()) => {
                self.committed_inodes = self.shard.inodes;
                self.cluster_before = None;
                Ok(())
            }
            Err(e) => {
                // The overlay is gone: the caches and the map must not show changes that never
                // happened.
                self.forget_cached();
                if let Some(before) = self.cluster_before.take() {
                    self.install_map(before);
                }
                self.shard.inodes = self.committed_inodes;
                Err(e)
            }
        }
    }

    /// Makes all commits survive a power cut.
    pub fn sync(&mut self) -> Result<(), StoreError> {
        self.write_store(S::sync)
    }

    /// See [`Store::begin_sync`].
    pub fn begin_sync(&mut self) -> Result<Option<SyncWork>, StoreError> {
        let begun = self.store.begin_sync();
        begun.inspect_err(|_| self.poisoned = true)
    }

    /// See [`Store::end_sync`].
    pub fn end_sync(&mut self, result: std::io::Result<()>) -> Result<(), StoreError> {
        self.write_store(|store| store.end_sync(result))
    }

    fn write_store(
        &mut self,
        write: impl FnOnce(&mut S) -> Result<(), StoreError>,
    ) -> Result<(), StoreError> {
        let result = write(&mut self.store);
        self.poison_on_error(result)
    }

    /// Marks the state as poisoned by any error but a full disk.
    fn poison_on_error(&mut self, result: Result<(), StoreError>) -> Result<(), StoreError> {
        result.inspect_err(|e| self.poisoned |= !matches!(e, StoreError::Full { .. }))
    }
}

/// Merges newer entries of another map. Returns whether there were any. A first list of nodes is no
/// news: the author of the map that this executor began with knew them, and all equal maps have one
/// epoch.
pub(crate) fn merge_cluster_map(cluster: &mut ClusterMap, other: &ClusterMap) -> bool {
    let moves = |map: &ClusterMap| map.moves.iter().map(|moves| u64::from(*moves)).sum::<u64>();
    if cluster.nodes.is_empty() && cluster.volume == other.volume {
        cluster.nodes.clone_from(&other.nodes);
        let as_old = (other.epoch + moves(cluster)).saturating_sub(moves(other));
        cluster.epoch = cluster.epoch.max(as_old);
    }
    cluster.merge_newer(other)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::store::{FaultyStore, MemoryStore};
    use proptest::prelude::*;
    use std::collections::BTreeMap;
    use tatami_wire::NodeId;

    const VOLUME: VolumeId = VolumeId([1; 16]);
    const HERE: ExecutorId = ExecutorId { node: NodeId(0), index: 0 };

    fn scan(
        state: &MetaState<MemoryStore>,
        from: &[u8],
        prefix: &[u8],
        limit: usize,
    ) -> Vec<Vec<u8>> {
        let mut found = Vec::new();
        state
            .scan_records(from, prefix, &mut |k, v| {
                found.push([k, v].concat());
                Ok(if found.len() >= limit {
                    ControlFlow::Break(())
                } else {
                    ControlFlow::Continue(())
                })
            })
            .expect("memory does not fail");
        found
    }

    proptest! {
        /// Overlay over store reads as one map with both.
        #[test]
        fn a_scan_sees_one_map(
            below in proptest::collection::btree_map(proptest::collection::vec(0u8..4, 1..4), any::<u8>(), 0..20),
            above in proptest::collection::btree_map(proptest::collection::vec(0u8..4, 1..4), any::<Option<u8>>(), 0..20),
            from in proptest::collection::vec(0u8..4, 0..3),
            prefix in proptest::collection::vec(0u8..4, 0..2),
            limit in 1usize..6,
        ) {
            let mut state = MetaState::open(MemoryStore::new(), VOLUME, HERE, ShardMap::with_one_shard(HERE)).expect("opens");
            let mut both: BTreeMap<Vec<u8>, Vec<u8>> = BTreeMap::new();
            for (k, v) in &below {
                state.store.apply_change(&(k.clone(), Some(vec![*v])));
                both.insert(k.clone(), vec![*v]);
            }
            for (k, v) in &above {
                state.put_record(k.clone(), v.map(|v| vec![v]));
                match v {
                    Some(v) => both.insert(k.clone(), vec![*v]),
                    None => both.remove(k),
                };
            }
            let expected: Vec<_> = both.iter()
                .filter(|(k, _)| k.starts_with(&prefix) && **k >= from)
                .map(|(k, v)| [k.as_slice(), v].concat())
                .take(limit)
                .collect();
            prop_assert_eq!(scan(&state, &from, &prefix, limit), expected);
            for k in below.keys().chain(above.keys()) {
                prop_assert_eq!(state.get(k).expect("get"), both.get(k).cloned());
            }
        }
    }

    #[test]
    fn numbers_are_not_given_out_twice_after_a_power_cut() {
        let mut state =
            MetaState::open(FaultyStore::new(), VOLUME, HERE, ShardMap::with_one_shard(HERE))
                .expect("opens");
        let first: Vec<_> =
            (0..10).map(|_| state.allocate_ino(ShardId(0), false).expect("number")).collect();
        state.store.power_cut(0);
        let mut state = MetaState::open(state.store, VOLUME, HERE, ShardMap::with_one_shard(HERE))
            .expect("opens");
        let next = state.allocate_ino(ShardId(0), false).expect("number");
        assert!(!first.contains(&next));
        assert_eq!(first[0], Ino(2));
    }

    #[test]
    fn a_full_store_takes_back_what_was_not_committed() {
        let mut state =
            MetaState::open(FaultyStore::new(), VOLUME, HERE, ShardMap::with_one_shard(HERE))
                .expect("opens");
        state.put_record(b"k1".to_vec(), Some(vec![1]));
        state.count_inodes(1);
        state.commit().expect("commit");
        state.put_record(b"k2".to_vec(), Some(vec![2]));
        state.count_inodes(1);
        state.store.fail_commit(0, crate::store::faulty::StoreFault::Full);
        assert!(matches!(state.commit(), Err(StoreError::Full { .. })));
        assert_eq!((state.get(b"k2").expect("get"), state.inode_count()), (None, 1));
        assert!(!state.is_poisoned());
        state.store.fail_commit(0, crate::store::faulty::StoreFault::Io);
        state.put_record(b"k3".to_vec(), Some(vec![3]));
        assert!(state.commit().is_err());
        assert!(state.is_poisoned());
    }

    #[test]
    fn a_store_of_another_volume_or_node_is_refused() {
        let open = |volume, node, store| {
            MetaState::open(store, volume, node, ShardMap::with_one_shard(node))
        };
        let mut state = open(VOLUME, HERE, MemoryStore::new()).expect("opens");
        state.allocate_ino(ShardId(0), false).expect("writes the shard record");
        let store = state.store;
        assert!(matches!(
            open(VolumeId([2; 16]), HERE, store.clone()),
            Err(MetaOpenError::Volume { .. })
        ));
        assert!(matches!(
            open(VOLUME, ExecutorId { index: 1, ..HERE }, store.clone()),
            Err(MetaOpenError::Executor { .. })
        ));
        let mut newer = store.clone();
        let mut record = newer.get(b"S").expect("get").expect("there");
        record[8] = 2;
        newer.apply_change(&(b"S".to_vec(), Some(record)));
        assert!(matches!(
            open(VOLUME, HERE, newer),
            Err(MetaOpenError::Newer { found: 2, known: 1 })
        ));
        let mut headless = store;
        headless.apply_change(&(b"S".to_vec(), None));
        headless.apply_change(&(b"I00000000".to_vec(), Some(vec![1])));
        assert!(matches!(open(VOLUME, HERE, headless), Err(MetaOpenError::Damaged(_))));
    }
}
