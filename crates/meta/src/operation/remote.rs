//! Records of other executors: how an operation reads them, and how it writes them.

use crate::error::{MetaOutcome, OperationFailure};
use crate::inode::Inode;
use crate::keys::{self, RecordKey};
use crate::operation::{ExecutorShare, OperationWrites, Txn};
use crate::record::EntryRecord;
use crate::store::Store;
use std::collections::BTreeMap;
use std::sync::Arc;
use tatami_wire::{Errno, ExecutorId, Ino, InodeKind, NodeId, ShardId};
use xxhash_rust::xxh3::xxh3_128;

impl<S: Store> Txn<'_, S> {
    /// Returns a fresh inode number. An operation that is run again gets the number of its earlier
    /// run.
    pub fn allocate_ino(&mut self, birth: ShardId, is_dir: bool) -> MetaOutcome<Ino> {
        if !self.state.owns_shard(birth) {
            return Err(Errno::ESTALE.into());
        }
        let again = self.spread.as_mut().and_then(|spread| spread.again.as_mut());
        let Some(again) = again else { return self.state.allocate_ino(birth, is_dir) };
        // All runs must make the same records, or the locked keys would never match the written
        // ones.
        match again.allocated_ino.filter(|ino| ino.allocating_shard() == birth) {
            Some(ino) => Ok(ino),
            None => Ok(*again.allocated_ino.insert(self.state.allocate_ino(birth, is_dir)?)),
        }
    }

    /// Returns the key of the inode's record.
    fn inode_key(&self, ino: Ino) -> RecordKey {
        match self.is_embedded(ino) {
            true => keys::embedded_dir(ino),
            false => keys::inode(ino),
        }
    }

    /// Returns whether it is an embedded directory: its record lies beside its entry.
    pub(super) fn is_embedded(&self, ino: Ino) -> bool {
        self.spread.as_ref().is_some_and(|spread| spread.young.contains(&ino))
    }

    /// Returns whether the inode's record lies on this executor.
    pub fn is_here(&self, ino: Ino) -> bool {
        self.spread.is_none() || self.state.remote_owner(&self.inode_key(ino)).is_none()
    }

    /// Relocates an embedded directory to its owner shard, because something is to be made in it.
    pub(super) fn relocate_to_owner(&mut self, ino: Ino) {
        let Some(spread) = &mut self.spread else { return };
        let Some(at) = spread.young.iter().position(|young| *young == ino) else { return };
        let young = keys::embedded_dir(ino);
        spread.young.swap_remove(at);
        // The parent is locked at the owner shard, too: until the record is there, a reader must
        // not conclude that the directory does not exist.
        spread.moved.push(ino);
        self.inode_delta += i64::from(self.state.owns_shard(ino.owner_shard()));
        self.inode_delta -= i64::from(self.state.owns_shard(ino.allocating_shard()));
        self.delete_record(young);
    }

    /// Adds a value of this executor to the read set.
    fn record_read(&self, key: &[u8], value: u128) {
        if let Some(spread) = &self.spread
            && spread.again.is_some()
        {
            // The digest chains all reads in their order: equal digests mean equal reads.
            let seen = [spread.trace.get(), xxh3_128(key), value].map(u128::to_be_bytes);
            spread.trace.set(xxh3_128(&seen.concat()));
        }
    }

    /// Returns the fetched value of another executor's record, if it was fetched.
    fn fetched_value(&self, key: &[u8]) -> Option<&Option<Vec<u8>>> {
        self.spread.as_ref()?.again.as_ref()?.fetched.get(key)
    }

    /// Returns a record of another executor, and adds it to the read set.
    fn read_remote(&self, executor: ExecutorId, key: &[u8]) -> MetaOutcome<Option<Vec<u8>>> {
        let missing = || OperationFailure::Missing(vec![(executor, key.to_vec())]);
        let value = self.fetched_value(key).ok_or_else(missing)?;
        if let Some(spread) = &self.spread {
            spread.used.borrow_mut().insert(key.to_vec());
        }
        Ok(value.clone())
    }

    pub(super) fn get_spread(&self, key: &[u8]) -> MetaOutcome<Option<Vec<u8>>> {
        if let Some(executor) = self.state.remote_owner(key) {
            return self.read_remote(executor, key);
        }
        // A prepared write of another transaction may be decided any moment.
        self.state.check_readable(key)?;
        let value = self.state.get(key)?;
        self.record_read(key, value.as_deref().map_or(0, xxh3_128));
        Ok(value)
    }

    pub(super) fn entry_spread(
        &mut self,
        key: &RecordKey,
        again: bool,
    ) -> MetaOutcome<Option<EntryRecord>> {
        if let Some(executor) = self.state.remote_owner(key) {
            return Ok(self
                .read_remote(executor, key)?
                .map(|value| EntryRecord::decode(&value))
                .transpose()?);
        }
        self.state.check_readable(key)?;
        let entry = self.state.load_entry(key, again)?;
        self.record_read(key, entry.map_or(0, |entry| entry.ino.0.into()));
        Ok(entry)
    }

    pub(super) fn find_spread(&mut self, ino: Ino) -> MetaOutcome<Option<Arc<Inode>>> {
        if !self.state.is_shard(ino.owner_shard()) || !self.state.is_shard(ino.allocating_shard()) {
            return Err(Errno::ESTALE.into());
        }
        if let Some((_, inode)) = self.inodes.iter().find(|(i, _)| *i == ino) {
            return Ok(inode.clone().map(Arc::new));
        }
        let (home, young) = (keys::inode(ino), keys::embedded_dir(ino));
        let may_be_young = self.may_be_embedded(ino);
        let Some(executor) = self.state.remote_owner(&home) else {
            self.state.check_readable(&home)?;
            self.state.check_exclusive(ino, self.ctx.client)?;
            let inode = self.state.load_inode(ino)?;
            self.record_read(&home, inode.as_ref().map_or(0, |inode| inode.version.into()));
            if inode.is_some() || !may_be_young {
                self.state.seen.push(ino);
                return Ok(inode);
            }
            return self.find_embedded(ino, &young);
        };
        // A directory's record is at one place at a time, and moves to its owner shard only. A
        // record here needs no message to others.
        let young_here = may_be_young && self.state.remote_owner(&young).is_none();
        if young_here && let Some(inode) = self.find_embedded(ino, &young)? {
            return Ok(Some(inode));
        }
        // A record at the owner shard excludes an embedded one.
        let record = self.read_remote(executor, &home)?;
        if record.is_none()
            && may_be_young
            && !young_here
            && let Some(inode) = self.find_embedded(ino, &young)?
        {
            return Ok(Some(inode));
        }
        Ok(record.map(|record| Inode::decode(&record)).transpose()?.map(Arc::new))
    }

    /// Returns whether the inode could be an embedded directory, whose record is not at its owner
    /// shard.
    fn may_be_embedded(&self, ino: Ino) -> bool {
        ino.owner_shard() != ino.allocating_shard() && self.state.map().directory_of(ino) == ino
    }

    /// Fails unless all of these records are known. Some of them are on other executors.
    pub(super) fn require_records(&self, keys: &[&RecordKey]) -> MetaOutcome<()> {
        let unknown = keys.iter().filter(|key| self.fetched_value(key).is_none());
        let missing: Vec<_> = unknown
            .filter_map(|key| Some((self.state.remote_owner(key)?, (*key).clone())))
            .collect();
        if missing.is_empty() { Ok(()) } else { Err(OperationFailure::Missing(missing)) }
    }

    /// Requests all of these inodes, which are no embedded directories, in one message.
    pub fn require_inodes(&self, inos: &[Ino]) -> MetaOutcome<()> {
        let keys: Vec<RecordKey> = inos.iter().map(|ino| keys::inode(*ino)).collect();
        self.require_records(&keys.iter().collect::<Vec<_>>())
    }

    /// Sets the directory's parent.
    pub fn move_to(&mut self, dir: Ino, parent: Ino) -> MetaOutcome<()> {
        self.edit_inode(dir)?.parent = parent;
        if let Some(spread) = &mut self.spread {
            spread.moved.push(dir);
        }
        Ok(())
    }

    /// Removes the embedded record of a directory that has one at its owner shard, too.
    pub fn drop_embedded(&mut self, ino: Ino) {
        self.changed.push(ino);
        self.inode_delta -= i64::from(self.state.owns_shard(ino.allocating_shard()));
        self.delete_record(keys::embedded_dir(ino));
    }

    fn find_embedded(&mut self, ino: Ino, key: &RecordKey) -> MetaOutcome<Option<Arc<Inode>>> {
        let Some(record) = self.get_spread(key)? else { return Ok(None) };
        if self.state.remote_owner(key).is_none() {
            self.state.seen.push(ino);
        }
        if let Some(spread) = &mut self.spread
            && !spread.young.contains(&ino)
        {
            spread.young.push(ino);
        }
        Ok(Some(Arc::new(Inode::decode(&record)?)))
    }

    /// Returns whether the operation was run before: it needs records of other executors.
    pub fn is_rerun(&self) -> bool {
        self.spread.as_ref().is_some_and(|spread| spread.again.is_some())
    }

    /// Returns whether records that are not here can be on other executors.
    pub fn may_be_elsewhere(&self) -> bool {
        self.spread.is_some()
    }

    /// Returns the inode, if it is on this executor and no transaction changes it.
    pub fn find_local_inode(&mut self, ino: Ino) -> MetaOutcome<Option<Arc<Inode>>> {
        match self.find_inode(ino) {
            Err(OperationFailure::Missing(_) | OperationFailure::Locked(_)) => Ok(None),
            found => found,
        }
    }

    /// Returns the directory above `dir`, and reads nothing else of `dir`: others may make entries
    /// in it meanwhile. `None` where `dir` does not exist.
    pub fn parent_of(&mut self, dir: Ino) -> MetaOutcome<Option<Ino>> {
        let known = self.inodes.iter().any(|(ino, _)| *ino == dir);
        if self.spread.is_none() || known {
            return Ok(self.find_inode(dir)?.map(|inode| inode.parent));
        }
        let (ancestor, young) = (keys::ancestor(dir), keys::embedded_dir(dir));
        let may_be_young = self.may_be_embedded(dir);
        let Some(executor) = self.state.remote_owner(&ancestor) else {
            self.state.check_readable(&ancestor)?;
            if let Some(inode) = self.state.load_inode(dir)? {
                self.record_read(&ancestor, inode.parent.0.into());
                return Ok(Some(inode.parent));
            }
            return Ok(self.find_inode(dir)?.map(|inode| inode.parent));
        };
        let young_here = may_be_young && self.state.remote_owner(&young).is_none();
        if young_here && let Some(inode) = self.find_embedded(dir, &young)? {
            return Ok(Some(inode.parent));
        }
        let parent = self.read_remote(executor, &ancestor)?;
        if parent.is_none()
            && may_be_young
            && !young_here
            && let Some(inode) = self.find_embedded(dir, &young)?
        {
            return Ok(Some(inode.parent));
        }
        Ok(parent.and_then(|parent| Some(Ino(u64::from_be_bytes(*parent.first_chunk()?)))))
    }

    /// Requests all records that a rename of the entry `name` of `dir` surely needs, in one
    /// message.
    pub fn prefetch_rename(
        &mut self,
        dir: Ino,
        name: &[u8],
        to: Ino,
        new_name: &[u8],
    ) -> MetaOutcome<()> {
        if self.spread.is_none() {
            return Ok(());
        }
        let mut wanted = Vec::new();
        let home = keys::inode(to);
        if self.state.remote_owner(&home).is_some() {
            wanted.extend([home, self.entry_key(to, new_name)]);
        }
        let key = self.entry_key(dir, name);
        if self.state.remote_owner(&key).is_none()
            && let Some(EntryRecord { ino, kind }) = self.entry_spread(&key, false)?
            && self.find_local_embedded(ino)?.is_none()
        {
            wanted.push(keys::inode(ino));
            if kind == InodeKind::Dir && dir != to {
                wanted.push(keys::ancestor(ino));
            }
        }
        self.require_records(&wanted.iter().collect::<Vec<_>>())
    }

    /// Returns an embedded directory whose record is on this executor.
    fn find_local_embedded(&mut self, ino: Ino) -> MetaOutcome<Option<Arc<Inode>>> {
        let young = keys::embedded_dir(ino);
        if !self.may_be_embedded(ino) || self.state.remote_owner(&young).is_some() {
            return Ok(None);
        }
        self.find_embedded(ino, &young)
    }

    /// Fails where a transaction keeps others from reading the entries of `dir` from one key to
    /// another.
    pub fn check_listable(&self, from: &[u8], to: &[u8]) -> MetaOutcome<()> {
        if self.state.locks.is_empty() {
            return Ok(());
        }
        let on = self.state.locks.blockers_in_range(from, to);
        if on.is_empty() { Ok(()) } else { Err(OperationFailure::Locked(on)) }
    }

    /// Hands the writes to the state, unless some are of other executors. Then the operation must
    /// run as a transaction of several executors.
    pub(super) fn apply_spread(mut self) -> MetaOutcome<Vec<NodeId>> {
        let done = self.collect_writes()?;
        if !done.shares.is_empty() {
            // An embedded directory moves to its owner shard.
            return Err(OperationFailure::Missing(Vec::new()));
        }
        Ok(done.apply_writes(self.state))
    }

    pub(super) fn into_spread_writes(mut self) -> MetaOutcome<OperationWrites> {
        self.collect_writes()
    }

    fn collect_writes(&mut self) -> MetaOutcome<OperationWrites> {
        let mut parts: BTreeMap<ExecutorId, ExecutorShare> = BTreeMap::new();
        // All records of others that were read are part of the decision: participants keep them
        // unchanged until then.
        let (used, _) = self.read_set();
        for key in used {
            if let Some(executor) = self.state.remote_owner(&key) {
                let value = self.read_remote(executor, &key)?;
                parts.entry(executor).or_default().reads.insert(key, value);
            }
        }
        let (mut inodes, mut writes, mut left) = (Vec::new(), Vec::new(), Vec::new());
        for (ino, inode) in std::mem::take(&mut self.inodes) {
            let key = self.inode_key(ino);
            match self.state.remote_owner(&key) {
                Some(executor) => {
                    left.push(ino);
                    let value = inode.map(|inode| inode.encode());
                    parts.entry(executor).or_default().writes.insert(key, value);
                }
                // `put_inode` would write it under the key of its owner shard.
                None if self.is_embedded(ino) => {
                    writes.push((key, inode.map(|inode| inode.encode())));
                }
                None => {
                    self.check_writable(&key)?;
                    inodes.push((ino, inode));
                }
            }
        }
        let moved = self.spread.as_mut().map(|spread| std::mem::take(&mut spread.moved));
        for ino in moved.unwrap_or_default() {
            // The lock key `ancestor` excludes readers that check the path above a moving
            // directory.
            let key = keys::ancestor(ino);
            match self.state.remote_owner(&key) {
                Some(executor) => {
                    parts.entry(executor).or_default().writes.insert(key, None);
                }
                None => self.check_writable(&key)?,
            }
        }
        for (key, value) in std::mem::take(&mut self.writes) {
            match self.state.remote_owner(&key) {
                Some(executor) => {
                    parts.entry(executor).or_default().writes.insert(key, value);
                }
                None => writes.push((key, value)),
            }
        }
        // All local keys are checked before any is written.
        writes.iter().try_for_each(|(key, _)| self.check_writable(key))?;
        let (changed, garbage) =
            (std::mem::take(&mut self.changed), std::mem::take(&mut self.garbage));
        let (new, inode_delta) = (self.new, self.inode_delta);
        // Its owner plans the split, with the next change that it makes alone.
        let large = self.large.filter(|large| self.state.owns_shard(large.part.owner_shard()));
        Ok(OperationWrites {
            inodes,
            new,
            changed,
            writes,
            inode_delta,
            garbage,
            large,
            left,
            shares: parts,
        })
    }

    fn check_writable(&self, key: &[u8]) -> MetaOutcome<()> {
        if self.state.locks.is_empty() {
            return Ok(());
        }
        let on = self.state.locks.write_blockers(key);
        if on.is_empty() { Ok(()) } else { Err(OperationFailure::Locked(on)) }
    }
}
