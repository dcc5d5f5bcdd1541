//! Records of other executors: how an operation reads them, and how it writes them.

use super::{Done, Share, Txn};
use crate::error::{Failure, Outcome};
use crate::inode::Inode;
use crate::keys::{self, Key};
use crate::record::Entry;
use crate::store::Store;
use std::collections::BTreeMap;
use std::sync::Arc;
use tatami_wire::{Errno, ExecutorId, Ino, Kind, NodeId, ShardId};
use xxhash_rust::xxh3::xxh3_128;

impl<S: Store> Txn<'_, S> {
    /// Returns a fresh inode number. An operation that is run again gets the number of its earlier
    /// run.
    pub fn allocate(&mut self, birth: ShardId, is_dir: bool) -> Outcome<Ino> {
        if !self.state.owns(birth) {
            return Err(Errno::ESTALE.into());
        }
        let again = self.spread.as_mut().and_then(|spread| spread.again.as_mut());
        let Some(again) = again else { return self.state.allocate(birth, is_dir) };
        // All runs must make the same records, or the locked keys would never match the written
        // ones.
        match again.number.filter(|ino| ino.birth() == birth) {
            Some(ino) => Ok(ino),
            None => Ok(*again.number.insert(self.state.allocate(birth, is_dir)?)),
        }
    }

    /// Returns the key of the inode's record.
    fn key_of(&self, ino: Ino) -> Key {
        match self.is_young(ino) {
            true => keys::young(ino),
            false => keys::inode(ino),
        }
    }

    /// Returns whether it is an embedded directory: its record lies beside its entry.
    pub(super) fn is_young(&self, ino: Ino) -> bool {
        self.spread.as_ref().is_some_and(|spread| spread.young.contains(&ino))
    }

    /// Returns whether the inode's record lies on this executor.
    pub fn is_here(&self, ino: Ino) -> bool {
        self.spread.is_none() || self.state.elsewhere(&self.key_of(ino)).is_none()
    }

    /// Relocates an embedded directory to its owner shard, because something is to be made in it.
    pub(super) fn bring_home(&mut self, ino: Ino) {
        let Some(spread) = &mut self.spread else { return };
        let Some(at) = spread.young.iter().position(|young| *young == ino) else { return };
        let young = keys::young(ino);
        spread.young.swap_remove(at);
        // The parent is locked at the owner shard, too: until the record is there, a reader must
        // not conclude that the directory does not exist.
        spread.moved.push(ino);
        self.inode_delta += i64::from(self.state.owns(ino.shard()));
        self.inode_delta -= i64::from(self.state.owns(ino.birth()));
        self.delete(young);
    }

    /// Adds a value of this executor to the read set.
    fn note(&self, key: &[u8], value: u128) {
        if let Some(spread) = &self.spread
            && spread.again.is_some()
        {
            // The digest chains all reads in their order: equal digests mean equal reads.
            let seen = [spread.trace.get(), xxh3_128(key), value].map(u128::to_be_bytes);
            spread.trace.set(xxh3_128(&seen.concat()));
        }
    }

    /// Returns the fetched value of another executor's record, if it was fetched.
    fn known(&self, key: &[u8]) -> Option<&Option<Vec<u8>>> {
        self.spread.as_ref()?.again.as_ref()?.fetched.get(key)
    }

    /// Returns a record of another executor, and adds it to the read set.
    fn fetched(&self, executor: ExecutorId, key: &[u8]) -> Outcome<Option<Vec<u8>>> {
        let missing = || Failure::Missing(vec![(executor, key.to_vec())]);
        let value = self.known(key).ok_or_else(missing)?;
        if let Some(spread) = &self.spread {
            spread.used.borrow_mut().insert(key.to_vec());
        }
        Ok(value.clone())
    }

    pub(super) fn get_spread(&self, key: &[u8]) -> Outcome<Option<Vec<u8>>> {
        if let Some(executor) = self.state.elsewhere(key) {
            return self.fetched(executor, key);
        }
        // A prepared write of another transaction may be decided any moment.
        self.state.may_read(key)?;
        let value = self.state.get(key)?;
        self.note(key, value.as_deref().map_or(0, xxh3_128));
        Ok(value)
    }

    pub(super) fn entry_spread(&mut self, key: &Key, again: bool) -> Outcome<Option<Entry>> {
        if let Some(executor) = self.state.elsewhere(key) {
            return Ok(self
                .fetched(executor, key)?
                .map(|value| Entry::decode(&value))
                .transpose()?);
        }
        self.state.may_read(key)?;
        let entry = self.state.entry(key, again)?;
        self.note(key, entry.map_or(0, |entry| entry.ino.0.into()));
        Ok(entry)
    }

    pub(super) fn find_spread(&mut self, ino: Ino) -> Outcome<Option<Arc<Inode>>> {
        if !self.state.is_shard(ino.shard()) || !self.state.is_shard(ino.birth()) {
            return Err(Errno::ESTALE.into());
        }
        if let Some((_, inode)) = self.inodes.iter().find(|(i, _)| *i == ino) {
            return Ok(inode.clone().map(Arc::new));
        }
        let (home, young) = (keys::inode(ino), keys::young(ino));
        let may_be_young = self.may_be_young(ino);
        let Some(executor) = self.state.elsewhere(&home) else {
            self.state.may_read(&home)?;
            let inode = self.state.inode(ino)?;
            self.note(&home, inode.as_ref().map_or(0, |inode| inode.version.into()));
            if inode.is_some() || !may_be_young {
                self.state.seen.push(ino);
                return Ok(inode);
            }
            return self.find_young(ino, &young);
        };
        // A directory's record is at one place at a time, and moves to its owner shard only. A
        // record here needs no message to others.
        let young_here = may_be_young && self.state.elsewhere(&young).is_none();
        if young_here && let Some(inode) = self.find_young(ino, &young)? {
            return Ok(Some(inode));
        }
        // A record at the owner shard excludes an embedded one.
        let record = self.fetched(executor, &home)?;
        if record.is_none()
            && may_be_young
            && !young_here
            && let Some(inode) = self.find_young(ino, &young)?
        {
            return Ok(Some(inode));
        }
        Ok(record.map(|record| Inode::decode(&record)).transpose()?.map(Arc::new))
    }

    /// Returns whether the inode could be an embedded directory, whose record is not at its owner
    /// shard.
    fn may_be_young(&self, ino: Ino) -> bool {
        ino.shard() != ino.birth() && self.state.map().directory_of(ino) == ino
    }

    /// Fails unless all of these records are known. Some of them are on other executors.
    pub(super) fn need(&self, keys: &[&Key]) -> Outcome<()> {
        let unknown = keys.iter().filter(|key| self.known(key).is_none());
        let missing: Vec<_> =
            unknown.filter_map(|key| Some((self.state.elsewhere(key)?, (*key).clone()))).collect();
        if missing.is_empty() { Ok(()) } else { Err(Failure::Missing(missing)) }
    }

    /// Requests all of these inodes, which are no embedded directories, in one message.
    pub fn need_inodes(&self, inos: &[Ino]) -> Outcome<()> {
        let keys: Vec<Key> = inos.iter().map(|ino| keys::inode(*ino)).collect();
        self.need(&keys.iter().collect::<Vec<_>>())
    }

    /// Sets the directory's parent.
    pub fn move_to(&mut self, dir: Ino, parent: Ino) -> Outcome<()> {
        self.edit(dir)?.parent = parent;
        if let Some(spread) = &mut self.spread {
            spread.moved.push(dir);
        }
        Ok(())
    }

    /// Removes the embedded record of a directory that has one at its owner shard, too.
    pub fn drop_young(&mut self, ino: Ino) {
        self.changed.push(ino);
        self.inode_delta -= i64::from(self.state.owns(ino.birth()));
        self.delete(keys::young(ino));
    }

    fn find_young(&mut self, ino: Ino, key: &Key) -> Outcome<Option<Arc<Inode>>> {
        let Some(record) = self.get_spread(key)? else { return Ok(None) };
        if self.state.elsewhere(key).is_none() {
            self.state.seen.push(ino);
        }
        if let Some(spread) = &mut self.spread
            && !spread.young.contains(&ino)
        {
            spread.young.push(ino);
        }
        Ok(Some(Arc::new(Inode::decode(&record)?)))
    }

    /// Returns whether records that are not here can be on other executors.
    pub fn may_be_elsewhere(&self) -> bool {
        self.spread.is_some()
    }

    /// Returns the inode, if it is on this executor and no transaction changes it.
    pub fn find_here(&mut self, ino: Ino) -> Outcome<Option<Arc<Inode>>> {
        match self.find(ino) {
            Err(Failure::Missing(_) | Failure::Locked(_)) => Ok(None),
            found => found,
        }
    }

    /// Returns the directory above `dir`, and reads nothing else of `dir`: others may make entries
    /// in it meanwhile. `None` where `dir` does not exist.
    pub fn above(&mut self, dir: Ino) -> Outcome<Option<Ino>> {
        let known = self.inodes.iter().any(|(ino, _)| *ino == dir);
        if self.spread.is_none() || known {
            return Ok(self.find(dir)?.map(|inode| inode.parent));
        }
        let (ancestor, young) = (keys::ancestor(dir), keys::young(dir));
        let may_be_young = self.may_be_young(dir);
        let Some(executor) = self.state.elsewhere(&ancestor) else {
            self.state.may_read(&ancestor)?;
            if let Some(inode) = self.state.inode(dir)? {
                self.note(&ancestor, inode.parent.0.into());
                return Ok(Some(inode.parent));
            }
            return Ok(self.find(dir)?.map(|inode| inode.parent));
        };
        let young_here = may_be_young && self.state.elsewhere(&young).is_none();
        if young_here && let Some(inode) = self.find_young(dir, &young)? {
            return Ok(Some(inode.parent));
        }
        let parent = self.fetched(executor, &ancestor)?;
        if parent.is_none()
            && may_be_young
            && !young_here
            && let Some(inode) = self.find_young(dir, &young)?
        {
            return Ok(Some(inode.parent));
        }
        Ok(parent.and_then(|parent| Some(Ino(u64::from_be_bytes(*parent.first_chunk()?)))))
    }

    /// Requests all records that a rename of the entry `name` of `dir` surely needs, in one
    /// message.
    pub fn foresee(&mut self, dir: Ino, name: &[u8], to: Ino, new_name: &[u8]) -> Outcome<()> {
        if self.spread.is_none() {
            return Ok(());
        }
        let mut wanted = Vec::new();
        let home = keys::inode(to);
        if self.state.elsewhere(&home).is_some() {
            wanted.extend([home, self.entry_key(to, new_name)]);
        }
        let key = self.entry_key(dir, name);
        if self.state.elsewhere(&key).is_none()
            && let Some(Entry { ino, kind }) = self.entry_spread(&key, false)?
            && self.find_young_here(ino)?.is_none()
        {
            wanted.push(keys::inode(ino));
            if kind == Kind::Dir && dir != to {
                wanted.push(keys::ancestor(ino));
            }
        }
        self.need(&wanted.iter().collect::<Vec<_>>())
    }

    /// Returns an embedded directory whose record is on this executor.
    fn find_young_here(&mut self, ino: Ino) -> Outcome<Option<Arc<Inode>>> {
        let young = keys::young(ino);
        if !self.may_be_young(ino) || self.state.elsewhere(&young).is_some() {
            return Ok(None);
        }
        self.find_young(ino, &young)
    }

    /// Fails where a transaction keeps others from reading the entries of `dir` from one key to
    /// another.
    pub fn may_list(&self, from: &[u8], to: &[u8]) -> Outcome<()> {
        if self.state.locks.is_empty() {
            return Ok(());
        }
        let on = self.state.locks.within(from, to);
        if on.is_empty() { Ok(()) } else { Err(Failure::Locked(on)) }
    }

    /// Hands the writes to the state, unless some are of other executors. Then the operation must
    /// run as a transaction of several executors.
    pub(super) fn finish_spread(mut self) -> Outcome<Vec<NodeId>> {
        let done = self.take_done()?;
        if !done.parts.is_empty() {
            // An embedded directory moves to its owner shard.
            return Err(Failure::Missing(Vec::new()));
        }
        Ok(done.apply(self.state))
    }

    pub(super) fn done_spread(mut self) -> Outcome<Done> {
        self.take_done()
    }

    fn take_done(&mut self) -> Outcome<Done> {
        let mut parts: BTreeMap<ExecutorId, Share> = BTreeMap::new();
        // All records of others that were read are part of the decision: participants keep them
        // unchanged until then.
        let (used, _) = self.seen();
        for key in used {
            if let Some(executor) = self.state.elsewhere(&key) {
                let value = self.fetched(executor, &key)?;
                parts.entry(executor).or_default().reads.insert(key, value);
            }
        }
        let (mut inodes, mut writes) = (Vec::new(), Vec::new());
        for (ino, inode) in std::mem::take(&mut self.inodes) {
            let key = self.key_of(ino);
            match self.state.elsewhere(&key) {
                Some(executor) => {
                    let value = inode.map(|inode| inode.encode());
                    parts.entry(executor).or_default().writes.insert(key, value);
                }
                // `put_inode` would write it under the key of its owner shard.
                None if self.is_young(ino) => {
                    writes.push((key, inode.map(|inode| inode.encode())));
                }
                None => {
                    self.may_write(&key)?;
                    inodes.push((ino, inode));
                }
            }
        }
        let moved = self.spread.as_mut().map(|spread| std::mem::take(&mut spread.moved));
        for ino in moved.unwrap_or_default() {
            // The lock key `ancestor` excludes readers that check the path above a moving
            // directory.
            let key = keys::ancestor(ino);
            match self.state.elsewhere(&key) {
                Some(executor) => {
                    parts.entry(executor).or_default().writes.insert(key, None);
                }
                None => self.may_write(&key)?,
            }
        }
        for (key, value) in std::mem::take(&mut self.writes) {
            match self.state.elsewhere(&key) {
                Some(executor) => {
                    parts.entry(executor).or_default().writes.insert(key, value);
                }
                None => writes.push((key, value)),
            }
        }
        // All local keys are checked before any is written.
        writes.iter().try_for_each(|(key, _)| self.may_write(key))?;
        let (changed, garbage) =
            (std::mem::take(&mut self.changed), std::mem::take(&mut self.garbage));
        let (new, inode_delta) = (self.new, self.inode_delta);
        let grown = self.grown.filter(|part| self.state.owns(part.shard()));
        Ok(Done { inodes, new, changed, writes, inode_delta, garbage, grown, parts })
    }

    fn may_write(&self, key: &[u8]) -> Outcome<()> {
        if self.state.locks.is_empty() {
            return Ok(());
        }
        let on = self.state.locks.against_writing(key);
        if on.is_empty() { Ok(()) } else { Err(Failure::Locked(on)) }
    }
}
