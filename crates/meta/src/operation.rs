//! One operation on the records: all of its writes or none.
//!
//! An operation reads through its own writes, and hands them to the state when it has succeeded.
//! All changes to more than one inode go through the functions at the end of this file. The
//! differences where other nodes have shards, too, are in `spread`.

pub(crate) mod partitions;
mod remote;
mod removal;

use crate::context::OperationContext;
use crate::error::MetaOutcome;
use crate::inode::{Inode, LINK_MAX};
use crate::keys::{self, RecordKey};
use crate::record::EntryRecord;
use crate::split_rule::LargePartitionChange;
use crate::state::{MetaState, RecordVisitor};
use crate::store::{Change, Store, StoreError};
use crate::transaction::messages::ChangedInode;
use std::cell::{Cell, RefCell};
use std::collections::{BTreeMap, BTreeSet};
use std::ops::ControlFlow;
use std::sync::Arc;
use tatami_wire::{Cred, Errno, ExecutorId, Ino, NodeId, Timestamp};
use xxhash_rust::xxh3::xxh3_128;

/// An operation in progress; see the module.
pub(crate) struct Txn<'a, S> {
    pub state: &'a mut MetaState<S>,
    pub ctx: &'a OperationContext,
    pub cred: &'a Cred,
    /// The moment at which its changes happen.
    moment: Timestamp,
    inodes: Vec<(Ino, Option<Inode>)>,
    /// The one of `inodes` that this operation has made.
    new: Option<Ino>,
    /// Those of `inodes` whose change clients can see.
    changed: Vec<Ino>,
    writes: Vec<Change>,
    inode_delta: i64,
    garbage: Vec<NodeId>,
    /// A change of a partition that may have to split.
    large: Option<LargePartitionChange>,
    /// `None` where one node has all shards.
    spread: Option<Box<RemoteAccess<'a>>>,
}

/// The additional state of an operation where other nodes have shards, too.
#[derive(Default)]
struct RemoteAccess<'a> {
    /// The known records of others, where the operation is run again.
    again: Option<&'a mut RerunContext>,
    /// Records of others that were read: the remote part of the read set.
    used: RefCell<BTreeSet<RecordKey>>,
    /// Digest of the values that were read of this node's records: the local part of the read set.
    trace: Cell<u128>,
    /// Embedded directories: their records lie beside their entries.
    young: Vec<Ino>,
    /// Directories that lie in another directory from now on.
    moved: Vec<Ino>,
}

/// The knowledge that one run of an operation leaves to the next.
#[derive(Default)]
pub(crate) struct RerunContext {
    /// Records of other nodes.
    pub fetched: BTreeMap<RecordKey, Option<Vec<u8>>>,
    /// The incarnation of each node that sent them.
    pub incarnations: BTreeMap<ExecutorId, u64>,
    /// The inode number that an earlier run has allocated.
    allocated_ino: Option<Ino>,
}

impl RerunContext {
    /// Returns a digest of the read set: equal digests mean that two runs read the same values.
    pub fn digest_reads(&self, used: &BTreeSet<RecordKey>, trace: u128) -> u128 {
        let mut all = trace.to_be_bytes().to_vec();
        for key in used {
            let value = self.fetched.get(key).cloned().flatten();
            all.extend_from_slice(&xxh3_128(key).to_be_bytes());
            all.push(u8::from(value.is_some()));
            all.extend_from_slice(&xxh3_128(&value.unwrap_or_default()).to_be_bytes());
        }
        xxh3_128(&all)
    }
}

/// The reads and writes of an operation on another node.
#[derive(Debug, Default, PartialEq, Eq)]
pub(crate) struct ExecutorShare {
    /// Values that it has read.
    pub reads: BTreeMap<RecordKey, Option<Vec<u8>>>,
    /// Values that it writes.
    pub writes: BTreeMap<RecordKey, Option<Vec<u8>>>,
}

/// All writes of an operation.
#[derive(Default)]
pub(crate) struct OperationWrites {
    inodes: Vec<(Ino, Option<Inode>)>,
    new: Option<Ino>,
    changed: Vec<Ino>,
    writes: Vec<Change>,
    inode_delta: i64,
    garbage: Vec<NodeId>,
    large: Option<LargePartitionChange>,
    /// Inodes that are written on other executors. Some may have been here before.
    left: Vec<Ino>,
    /// By other node; also those whose records it has only read.
    pub shares: BTreeMap<ExecutorId, ExecutorShare>,
}

impl OperationWrites {
    /// Returns whether nothing is to be written anywhere.
    pub fn is_empty(&self) -> bool {
        self.inodes.is_empty()
            && self.writes.is_empty()
            && self.inode_delta == 0
            && self.shares.values().all(|part| part.writes.is_empty())
    }

    /// Returns whether a transaction of another operation has locked a record that is to be written
    /// on this node.
    pub fn meets_lock<S: Store>(&self, state: &MetaState<S>) -> bool {
        let is_locked = |key: &[u8]| !state.locks.write_blockers(key).is_empty();
        !state.locks.is_empty()
            && (self.inodes.iter().any(|(ino, _)| is_locked(&keys::inode(*ino)))
                || self.writes.iter().any(|(key, _)| is_locked(key)))
    }

    /// Hands the writes of this node to the state. Returns the nodes on which objects have become
    /// garbage.
    pub fn apply_writes<S: Store>(self, state: &mut MetaState<S>) -> Vec<NodeId> {
        write_to_state(state, self.changed, self.inodes, self.new, self.writes, &self.left);
        state.large_changes.extend(self.large);
        state.count_inodes(self.inode_delta);
        self.garbage
    }
}

fn write_to_state<S: Store>(
    state: &mut MetaState<S>,
    changed: Vec<Ino>,
    inodes: Vec<(Ino, Option<Inode>)>,
    new: Option<Ino>,
    writes: Vec<Change>,
    left: &[Ino],
) {
    for ino in changed {
        let after = inodes.iter().find(|(changed, _)| *changed == ino);
        let after = after.and_then(|(_, inode)| inode.as_ref()).filter(|inode| inode.is_dir());
        // A record that cannot be read is no reason to fail here.
        let before = after.and_then(|_| state.load_inode(ino).ok().flatten());
        let keeps_path = after
            .zip(before)
            .is_some_and(|(after, before)| new != Some(ino) && after.differs_in_entries(&before));
        state.changed.push(ChangedInode { ino, keeps_path, recalls_own: left.contains(&ino) });
    }
    for (ino, inode) in inodes {
        match inode {
            Some(inode) if new == Some(ino) => state.put_new_inode(ino, &inode),
            Some(inode) => state.put_inode(ino, inode),
            None => state.delete_inode(ino),
        }
    }
    for (key, value) in writes {
        state.put_record(key, value);
    }
}

impl<'a, S: Store> Txn<'a, S> {
    pub fn new(
        state: &'a mut MetaState<S>,
        ctx: &'a OperationContext,
        cred: &'a Cred,
    ) -> Txn<'a, S> {
        let spread = state.is_spread().then(Box::default);
        Txn {
            state,
            ctx,
            cred,
            moment: ctx.now,
            inodes: Vec::new(),
            new: None,
            changed: Vec::new(),
            writes: Vec::new(),
            inode_delta: 0,
            garbage: Vec::new(),
            large: None,
            spread,
        }
    }

    /// As [`Txn::new`], for an operation that was run before.
    pub fn for_rerun(
        state: &'a mut MetaState<S>,
        ctx: &'a OperationContext,
        cred: &'a Cred,
        again: &'a mut RerunContext,
    ) -> Txn<'a, S> {
        let mut txn = Txn::new(state, ctx, cred);
        if let Some(spread) = &mut txn.spread {
            spread.again = Some(again);
        }
        txn
    }

    /// Returns whether anything is to be written.
    pub fn has_writes(&self) -> bool {
        !(self.inodes.is_empty() && self.writes.is_empty() && self.inode_delta == 0)
    }

    /// Returns the read set: the keys of others' records, and a digest of the values of this
    /// node's.
    pub fn read_set(&self) -> (BTreeSet<RecordKey>, u128) {
        let seen = |spread: &RemoteAccess<'_>| (spread.used.borrow().clone(), spread.trace.get());
        self.spread.as_deref().map(seen).unwrap_or_default()
    }

    /// Returns all writes.
    ///
    /// # Errors
    /// [`Failure::Locked`]
    pub fn into_writes(self) -> MetaOutcome<OperationWrites> {
        if self.spread.is_some() {
            return self.into_spread_writes();
        }
        let Txn { inodes, new, changed, writes, inode_delta, garbage, .. } = self;
        let parts = BTreeMap::new();
        Ok(OperationWrites {
            inodes,
            new,
            changed,
            writes,
            inode_delta,
            garbage,
            large: None,
            left: Vec::new(),
            shares: parts,
        })
    }

    /// Hands the writes to the state. Returns the nodes on which objects have become garbage.
    ///
    /// # Errors
    /// [`Failure::Locked`]
    pub fn apply_locally(self) -> MetaOutcome<Vec<NodeId>> {
        if self.spread.is_some() {
            return self.apply_spread();
        }
        let Txn { state, inodes, new, changed, writes, inode_delta, garbage, .. } = self;
        write_to_state(state, changed, inodes, new, writes, &[]);
        state.count_inodes(inode_delta);
        Ok(garbage)
    }

    /// Returns the moment of the operation.
    pub fn now(&self) -> Timestamp {
        self.moment
    }

    /// Lets the next changes happen at another moment.
    pub fn set_moment(&mut self, moment: Timestamp) {
        self.moment = moment;
    }

    /// Returns the inode; `None` where there is none of this number.
    ///
    /// # Errors
    /// `ESTALE` for a number of a shard that is not here
    pub fn find_inode(&mut self, ino: Ino) -> MetaOutcome<Option<Arc<Inode>>> {
        if self.spread.is_some() {
            return self.find_spread(ino);
        }
        if !self.state.owns_shard(ino.owner_shard()) {
            return Err(Errno::ESTALE.into());
        }
        self.state.seen.push(ino);
        match self.inodes.iter().find(|(i, _)| *i == ino) {
            Some((_, inode)) => Ok(inode.clone().map(Arc::new)),
            None => self.state.load_inode(ino),
        }
    }

    /// Returns the inode.
    ///
    /// # Errors
    /// `ESTALE` where there is none: it was removed while the caller knew its number
    pub fn load_inode(&mut self, ino: Ino) -> MetaOutcome<Arc<Inode>> {
        self.find_inode(ino)?.ok_or_else(|| Errno::ESTALE.into())
    }

    /// Returns the result of `look` on the inode.
    ///
    /// # Errors
    /// As [`Txn::load_inode`]
    pub fn inspect_inode<T>(&mut self, ino: Ino, look: impl FnOnce(&Inode) -> T) -> MetaOutcome<T> {
        match self.inodes.iter().find(|(i, _)| *i == ino) {
            Some((_, Some(inode))) => Ok(look(inode)),
            Some((_, None)) => Err(Errno::ESTALE.into()),
            None => Ok(look(&*self.load_inode(ino)?)),
        }
    }

    /// Returns the inode for a change.
    ///
    /// # Errors
    /// As [`Txn::load_inode`]
    pub fn edit_inode(&mut self, ino: Ino) -> MetaOutcome<&mut Inode> {
        // The version rises once an operation: read validation only needs to see that it differs.
        let first = !self.changed.contains(&ino);
        let at = self.load_for_edit(ino)?;
        if first {
            self.changed.push(ino);
        }
        let inode = self.inodes[at].1.as_mut().ok_or(Errno::ESTALE)?;
        inode.version += u64::from(first);
        Ok(inode)
    }

    /// Returns the inode for a change that no attribute shows.
    ///
    /// # Errors
    /// As [`Txn::load_inode`]
    pub fn edit_hidden(&mut self, ino: Ino) -> MetaOutcome<&mut Inode> {
        let at = self.load_for_edit(ino)?;
        // The version does not rise, so cached attributes and read validations stay valid.
        self.inodes[at].1.as_mut().ok_or_else(|| Errno::ESTALE.into())
    }

    fn load_for_edit(&mut self, ino: Ino) -> MetaOutcome<usize> {
        if let Some(at) = self.inodes.iter().position(|(i, _)| *i == ino) {
            return Ok(at);
        }
        let inode = Arc::unwrap_or_clone(self.load_inode(ino)?);
        self.inodes.push((ino, Some(inode)));
        // An embedded directory that is changed on its owner shard moves there, so that its record
        // is found at one place.
        if self.is_embedded(ino) && self.state.owns_shard(ino.owner_shard()) {
            self.relocate_to_owner(ino);
        }
        Ok(self.inodes.len() - 1)
    }

    /// Takes an inode that is about to be edited, as [`Txn::load_inode`] has just returned it: this
    /// saves a second lookup.
    pub fn reuse_inode(&mut self, ino: Ino, inode: Arc<Inode>) {
        if !self.inodes.iter().any(|(i, _)| *i == ino) {
            self.inodes.push((ino, Some(Arc::unwrap_or_clone(inode))));
        }
    }

    /// Adds a new inode, of a number that was allocated for it.
    pub fn add_inode(&mut self, ino: Ino, inode: Inode) {
        self.inode_delta += 1;
        self.new = Some(ino);
        if let Some(spread) = &mut self.spread
            && !self.state.owns_shard(ino.owner_shard())
        {
            spread.young.push(ino);
        }
        self.changed.push(ino);
        self.inodes.push((ino, Some(inode)));
    }

    /// Deletes an inode record that cannot be decoded. The next check finds the records that belong
    /// to it.
    pub fn drop_damaged(&mut self, ino: Ino) {
        self.changed.push(ino);
        self.inodes.push((ino, None));
        self.inode_delta -= 1;
    }

    /// Corrects the shard's number of inodes.
    pub fn correct_count(&mut self, delta: i64) {
        self.inode_delta += delta;
    }

    /// Returns the value at `key`.
    pub fn get(&self, key: &[u8]) -> MetaOutcome<Option<Vec<u8>>> {
        match self.pending_write(key) {
            Some(value) => Ok(value.clone()),
            None if self.spread.is_some() => self.get_spread(key),
            None => Ok(self.state.get(key)?),
        }
    }

    /// Returns the value that this operation has written at `key`, if it has.
    fn pending_write(&self, key: &[u8]) -> Option<&Option<Vec<u8>>> {
        // The last write of a key wins.
        self.writes.iter().rev().find(|(k, _)| k == key).map(|(_, value)| value)
    }

    pub fn put_record(&mut self, key: RecordKey, value: Vec<u8>) {
        self.writes.push((key, Some(value)));
    }

    pub fn delete_record(&mut self, key: RecordKey) {
        self.writes.push((key, None));
    }

    /// Visits the pairs from `from` under `prefix`, without this operation's own writes. Leaves out
    /// those of shards that this node does not serve.
    pub fn scan_records(
        &self,
        from: &[u8],
        prefix: &[u8],
        visit: &mut RecordVisitor<'_>,
    ) -> MetaOutcome<()> {
        // Only a move puts records of other executors' shards here; else every key is ours.
        if !self.state.mixed {
            return self.state.scan_records(from, prefix, visit);
        }
        let strange =
            |key: &[u8]| keys::shard_of(key).is_some_and(|shard| !self.state.owns_shard(shard));
        self.state.scan_records(from, prefix, &mut |key, value| match strange(key) {
            true => Ok(ControlFlow::Continue(())),
            false => visit(key, value),
        })
    }

    /// Returns the keys under `prefix`, at most `limit`, without this operation's own writes.
    pub fn list_keys(&self, prefix: &[u8], limit: usize) -> MetaOutcome<Vec<RecordKey>> {
        let mut found = Vec::new();
        self.scan_records(prefix, prefix, &mut |key, _| {
            if found.len() >= limit {
                return Ok(ControlFlow::Break(()));
            }
            found.push(key.to_vec());
            Ok(ControlFlow::Continue(()))
        })?;
        Ok(found)
    }

    /// Returns the key of entry `name` of `dir`.
    pub fn entry_key(&self, dir: Ino, name: &[u8]) -> RecordKey {
        keys::entry(dir, keys::name_hash(self.state.seed(), name), name)
    }

    /// Returns the entry `name` of `dir`, for a change.
    pub fn load_entry(&mut self, dir: Ino, name: &[u8]) -> MetaOutcome<Option<EntryRecord>> {
        let key = self.entry_key(dir, name);
        match self.pending_write(&key) {
            Some(Some(value)) => Ok(Some(EntryRecord::decode(value)?)),
            Some(None) => Ok(None),
            None if self.spread.is_some() => self.entry_spread(&key, false),
            None => self.state.load_entry(&key, false),
        }
    }

    /// Returns the entry `name` of `dir`, for an operation that writes nothing.
    pub fn lookup_entry(&mut self, dir: Ino, name: &[u8]) -> MetaOutcome<Option<EntryRecord>> {
        let key = self.entry_key(dir, name);
        if self.spread.is_some() {
            return self.entry_spread(&key, true);
        }
        self.state.load_entry(&key, true)
    }

    /// Fails with `ENOSPC` where the disk has no room for more records.
    pub fn require_room(&mut self) -> MetaOutcome<()> {
        if self.state.has_room() {
            return Ok(());
        }
        Err(StoreError::Full { path: "metadata".into() }.into())
    }

    // Changes to more than one inode.

    /// Adds the entry `name` of `dir`, which leads to `child`: the entry, the directory's counts
    /// and times, the link count and parent of the child. `dir` is the partition that has the name.
    /// There must be no such entry yet.
    ///
    /// # Errors
    /// `EMLINK`
    pub fn attach_entry(&mut self, dir: Ino, name: &[u8], ino: Ino) -> MetaOutcome<()> {
        let now = self.now();
        // A child's parent is the directory itself, not the partition that has its entry.
        let whole = match self.spread {
            Some(_) => self.directory_of(dir)?,
            None => dir,
        };
        let child = self.edit_inode(ino)?;
        let is_dir = child.is_dir();
        let kind = child.kind;
        let moves = is_dir && child.parent != whole;
        if is_dir {
            child.nlink = 2 + child.nlink.saturating_sub(2);
            child.parent = whole;
        } else {
            if child.nlink >= LINK_MAX {
                return Err(Errno::EMLINK.into());
            }
            child.nlink += 1;
        }
        child.ctime = child.ctime.advanced_to(now);
        let parent = self.edit_inode(dir)?;
        if is_dir {
            if parent.nlink >= LINK_MAX {
                return Err(Errno::EMLINK.into());
            }
            parent.nlink += 1;
        }
        parent.size += 1;
        parent.ctime = parent.ctime.advanced_to(now);
        parent.mtime = parent.ctime;
        if self.spread.is_some() {
            self.complete_attach(dir, ino, moves)?;
        }
        let key = self.entry_key(dir, name);
        self.put_record(key, EntryRecord { ino, kind }.encode());
        Ok(())
    }

    /// Removes the entry `name` of `dir`, which leads to `ino`: the inverse of
    /// [`Txn::attach_entry`]. The inode may be left without a name.
    pub fn detach_entry(&mut self, dir: Ino, name: &[u8], ino: Ino) -> MetaOutcome<()> {
        let now = self.now();
        let child = self.edit_inode(ino)?;
        let is_dir = child.is_dir();
        if !is_dir {
            child.nlink = child.nlink.saturating_sub(1);
        }
        child.ctime = child.ctime.advanced_to(now);
        let parent = self.edit_inode(dir)?;
        if is_dir {
            parent.nlink = parent.nlink.saturating_sub(1);
        }
        parent.size = parent.size.saturating_sub(1);
        parent.ctime = parent.ctime.advanced_to(now);
        parent.mtime = parent.ctime;
        if self.spread.is_some() && self.large.is_none() {
            self.record_large_change(dir, false)?;
        }
        let key = self.entry_key(dir, name);
        self.delete_record(key);
        Ok(())
    }

    /// Records that this client has a file open without writing. The table is bounded, so clients
    /// that are not trusted are left out: they must not take the room of others.
    pub fn record_open(&mut self, ino: Ino) {
        if self.ctx.trusted {
            self.state.opens.record_open(ino, self.ctx.client);
        }
    }

    /// Records that something on `node` can be removed.
    pub fn add_garbage(&mut self, node: NodeId, key: RecordKey) {
        self.put_record(key, vec![1]);
        if self.garbage.last() != Some(&node) {
            self.garbage.push(node);
        }
    }
}
