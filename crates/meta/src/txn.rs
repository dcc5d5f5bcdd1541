//! One operation on the records: all of its writes or none.
//!
//! An operation reads through its own writes, and hands them to the state when it has succeeded.
//! All changes to more than one inode go through the functions at the end of this file. The
//! differences where other nodes have shards, too, are in `spread`.

mod parts;
mod spread;

pub(crate) use parts::Part;

use crate::Context;
use crate::error::Outcome;
use crate::inode::{Inode, LINK_MAX};
use crate::keys::{self, Key, tag};
use crate::orphan;
use crate::record::Entry;
use crate::state::{State, Visit};
use crate::store::{Change, Store, StoreError};
use std::cell::{Cell, RefCell};
use std::collections::{BTreeMap, BTreeSet};
use std::ops::ControlFlow;
use std::sync::Arc;
use tatami_wire::{ClientId, Cred, Errno, ExecutorId, Ino, NodeId, Piece, Timestamp};
use xxhash_rust::xxh3::xxh3_128;

/// An operation in progress; see the module.
pub(crate) struct Txn<'a, S> {
    pub state: &'a mut State<S>,
    pub ctx: &'a Context,
    pub cred: &'a Cred,
    inodes: Vec<(Ino, Option<Inode>)>,
    /// The one of `inodes` that this operation has made.
    new: Option<Ino>,
    /// Those of `inodes` whose change clients can see.
    changed: Vec<Ino>,
    writes: Vec<Change>,
    inode_delta: i64,
    garbage: Vec<NodeId>,
    /// A partition of this node that is to be split.
    grown: Option<Ino>,
    /// `None` where one node has all shards.
    spread: Option<Box<Spread<'a>>>,
}

/// The additional state of an operation where other nodes have shards, too.
#[derive(Default)]
struct Spread<'a> {
    /// The known records of others, where the operation is run again.
    again: Option<&'a mut Again>,
    /// Records of others that were read: the remote part of the read set.
    used: RefCell<BTreeSet<Key>>,
    /// Digest of the values that were read of this node's records: the local part of the read set.
    trace: Cell<u128>,
    /// Embedded directories: their records lie beside their entries.
    young: Vec<Ino>,
    /// Directories that lie in another directory from now on.
    moved: Vec<Ino>,
}

/// The knowledge that one run of an operation leaves to the next.
#[derive(Default)]
pub(crate) struct Again {
    /// Records of other nodes.
    pub fetched: BTreeMap<Key, Option<Vec<u8>>>,
    /// The incarnation of each node that sent them.
    pub lives: BTreeMap<ExecutorId, u64>,
    /// The inode number that an earlier run has allocated.
    number: Option<Ino>,
}

impl Again {
    /// Returns a digest of the read set: equal digests mean that two runs read the same values.
    pub fn digest(&self, used: &BTreeSet<Key>, trace: u128) -> u128 {
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
pub(crate) struct Share {
    /// Values that it has read.
    pub reads: BTreeMap<Key, Option<Vec<u8>>>,
    /// Values that it writes.
    pub writes: BTreeMap<Key, Option<Vec<u8>>>,
}

/// All writes of an operation.
#[derive(Default)]
pub(crate) struct Done {
    inodes: Vec<(Ino, Option<Inode>)>,
    new: Option<Ino>,
    changed: Vec<Ino>,
    writes: Vec<Change>,
    inode_delta: i64,
    garbage: Vec<NodeId>,
    grown: Option<Ino>,
    /// By other node; also those whose records it has only read.
    pub parts: BTreeMap<ExecutorId, Share>,
}

impl Done {
    /// Returns whether nothing is to be written anywhere.
    pub fn is_nothing(&self) -> bool {
        self.inodes.is_empty()
            && self.writes.is_empty()
            && self.inode_delta == 0
            && self.parts.values().all(|part| part.writes.is_empty())
    }

    /// Hands the writes of this node to the state. Returns the nodes on which objects have become
    /// garbage.
    pub fn apply<S: Store>(self, state: &mut State<S>) -> Vec<NodeId> {
        hand_over(state, self.changed, self.inodes, self.new, self.writes);
        state.grown.extend(self.grown);
        state.count_inodes(self.inode_delta);
        self.garbage
    }
}

fn hand_over<S: Store>(
    state: &mut State<S>,
    changed: Vec<Ino>,
    inodes: Vec<(Ino, Option<Inode>)>,
    new: Option<Ino>,
    writes: Vec<Change>,
) {
    state.changed.extend(changed);
    for (ino, inode) in inodes {
        match inode {
            Some(inode) if new == Some(ino) => state.put_new_inode(ino, &inode),
            Some(inode) => state.put_inode(ino, inode),
            None => state.delete_inode(ino),
        }
    }
    for (key, value) in writes {
        state.put(key, value);
    }
}

impl<'a, S: Store> Txn<'a, S> {
    pub fn new(state: &'a mut State<S>, ctx: &'a Context, cred: &'a Cred) -> Txn<'a, S> {
        let spread = state.is_spread().then(Box::default);
        Txn {
            state,
            ctx,
            cred,
            inodes: Vec::new(),
            new: None,
            changed: Vec::new(),
            writes: Vec::new(),
            inode_delta: 0,
            garbage: Vec::new(),
            grown: None,
            spread,
        }
    }

    /// As [`Txn::new`], for an operation that was run before.
    pub fn again(
        state: &'a mut State<S>,
        ctx: &'a Context,
        cred: &'a Cred,
        again: &'a mut Again,
    ) -> Txn<'a, S> {
        let mut txn = Txn::new(state, ctx, cred);
        if let Some(spread) = &mut txn.spread {
            spread.again = Some(again);
        }
        txn
    }

    /// Returns whether anything is to be written.
    pub fn wrote(&self) -> bool {
        !(self.inodes.is_empty() && self.writes.is_empty() && self.inode_delta == 0)
    }

    /// Returns the read set: the keys of others' records, and a digest of the values of this
    /// node's.
    pub fn seen(&self) -> (BTreeSet<Key>, u128) {
        let seen = |spread: &Spread<'_>| (spread.used.borrow().clone(), spread.trace.get());
        self.spread.as_deref().map(seen).unwrap_or_default()
    }

    /// Returns all writes.
    ///
    /// # Errors
    /// [`Failure::Locked`]
    pub fn done(self) -> Outcome<Done> {
        if self.spread.is_some() {
            return self.done_spread();
        }
        let Txn { inodes, new, changed, writes, inode_delta, garbage, .. } = self;
        let parts = BTreeMap::new();
        Ok(Done { inodes, new, changed, writes, inode_delta, garbage, grown: None, parts })
    }

    /// Hands the writes to the state. Returns the nodes on which objects have become garbage.
    ///
    /// # Errors
    /// [`Failure::Locked`]
    pub fn finish(self) -> Outcome<Vec<NodeId>> {
        if self.spread.is_some() {
            return self.finish_spread();
        }
        let Txn { state, inodes, new, changed, writes, inode_delta, garbage, .. } = self;
        hand_over(state, changed, inodes, new, writes);
        state.count_inodes(inode_delta);
        Ok(garbage)
    }

    /// Returns the moment of the operation.
    pub fn now(&self) -> Timestamp {
        self.ctx.now
    }

    /// Returns the inode; `None` where there is none of this number.
    ///
    /// # Errors
    /// `ESTALE` for a number of a shard that is not here
    pub fn find(&mut self, ino: Ino) -> Outcome<Option<Arc<Inode>>> {
        if self.spread.is_some() {
            return self.find_spread(ino);
        }
        if !self.state.owns(ino.shard()) {
            return Err(Errno::ESTALE.into());
        }
        self.state.seen.push(ino);
        match self.inodes.iter().find(|(i, _)| *i == ino) {
            Some((_, inode)) => Ok(inode.clone().map(Arc::new)),
            None => self.state.inode(ino),
        }
    }

    /// Returns the inode.
    ///
    /// # Errors
    /// `ESTALE` where there is none: it was removed while the caller knew its number
    pub fn inode(&mut self, ino: Ino) -> Outcome<Arc<Inode>> {
        self.find(ino)?.ok_or_else(|| Errno::ESTALE.into())
    }

    /// Returns the result of `look` on the inode.
    ///
    /// # Errors
    /// As [`Txn::inode`]
    pub fn peek<T>(&mut self, ino: Ino, look: impl FnOnce(&Inode) -> T) -> Outcome<T> {
        match self.inodes.iter().find(|(i, _)| *i == ino) {
            Some((_, Some(inode))) => Ok(look(inode)),
            Some((_, None)) => Err(Errno::ESTALE.into()),
            None => Ok(look(&*self.inode(ino)?)),
        }
    }

    /// Returns the inode for a change.
    ///
    /// # Errors
    /// As [`Txn::inode`]
    pub fn edit(&mut self, ino: Ino) -> Outcome<&mut Inode> {
        // The version rises once an operation: read validation only needs to see that it differs.
        let first = !self.changed.contains(&ino);
        let at = self.enter(ino)?;
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
    /// As [`Txn::inode`]
    pub fn edit_hidden(&mut self, ino: Ino) -> Outcome<&mut Inode> {
        let at = self.enter(ino)?;
        // The version does not rise, so cached attributes and read validations stay valid.
        self.inodes[at].1.as_mut().ok_or_else(|| Errno::ESTALE.into())
    }

    fn enter(&mut self, ino: Ino) -> Outcome<usize> {
        if let Some(at) = self.inodes.iter().position(|(i, _)| *i == ino) {
            return Ok(at);
        }
        let inode = Arc::unwrap_or_clone(self.inode(ino)?);
        self.inodes.push((ino, Some(inode)));
        // An embedded directory that is changed on its owner shard moves there, so that its record
        // is found at one place.
        if self.is_young(ino) && self.state.owns(ino.shard()) {
            self.bring_home(ino);
        }
        Ok(self.inodes.len() - 1)
    }

    /// Takes an inode that is about to be edited, as [`Txn::inode`] has just returned it: this
    /// saves a second lookup.
    pub fn adopt(&mut self, ino: Ino, inode: Arc<Inode>) {
        if !self.inodes.iter().any(|(i, _)| *i == ino) {
            self.inodes.push((ino, Some(Arc::unwrap_or_clone(inode))));
        }
    }

    /// Adds a new inode, of a number that was allocated for it.
    pub fn add_inode(&mut self, ino: Ino, inode: Inode) {
        self.inode_delta += 1;
        self.new = Some(ino);
        if let Some(spread) = &mut self.spread
            && !self.state.owns(ino.shard())
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
    pub fn get(&self, key: &[u8]) -> Outcome<Option<Vec<u8>>> {
        match self.written(key) {
            Some(value) => Ok(value.clone()),
            None if self.spread.is_some() => self.get_spread(key),
            None => Ok(self.state.get(key)?),
        }
    }

    /// Returns the value that this operation has written at `key`, if it has.
    fn written(&self, key: &[u8]) -> Option<&Option<Vec<u8>>> {
        // The last write of a key wins.
        self.writes.iter().rev().find(|(k, _)| k == key).map(|(_, value)| value)
    }

    pub fn put(&mut self, key: Key, value: Vec<u8>) {
        self.writes.push((key, Some(value)));
    }

    pub fn delete(&mut self, key: Key) {
        self.writes.push((key, None));
    }

    /// Visits the pairs from `from` under `prefix`, without this operation's own writes. Leaves out
    /// those of shards that this node does not serve.
    pub fn scan(&self, from: &[u8], prefix: &[u8], visit: &mut Visit<'_>) -> Outcome<()> {
        // Only a move puts records of other executors' shards here; else every key is ours.
        if !self.state.mixed {
            return self.state.scan(from, prefix, visit);
        }
        let strange = |key: &[u8]| keys::shard_of(key).is_some_and(|shard| !self.state.owns(shard));
        self.state.scan(from, prefix, &mut |key, value| match strange(key) {
            true => Ok(ControlFlow::Continue(())),
            false => visit(key, value),
        })
    }

    /// Returns the keys under `prefix`, at most `limit`, without this operation's own writes.
    pub fn keys(&self, prefix: &[u8], limit: usize) -> Outcome<Vec<Key>> {
        let mut found = Vec::new();
        self.scan(prefix, prefix, &mut |key, _| {
            if found.len() >= limit {
                return Ok(ControlFlow::Break(()));
            }
            found.push(key.to_vec());
            Ok(ControlFlow::Continue(()))
        })?;
        Ok(found)
    }

    /// Returns the key of entry `name` of `dir`.
    pub fn entry_key(&self, dir: Ino, name: &[u8]) -> Key {
        keys::entry(dir, keys::name_hash(self.state.seed(), name), name)
    }

    /// Returns the entry `name` of `dir`, for a change.
    pub fn entry(&mut self, dir: Ino, name: &[u8]) -> Outcome<Option<Entry>> {
        let key = self.entry_key(dir, name);
        match self.written(&key) {
            Some(Some(value)) => Ok(Some(Entry::decode(value)?)),
            Some(None) => Ok(None),
            None if self.spread.is_some() => self.entry_spread(&key, false),
            None => self.state.entry(&key, false),
        }
    }

    /// Returns the entry `name` of `dir`, for an operation that writes nothing.
    pub fn look_up(&mut self, dir: Ino, name: &[u8]) -> Outcome<Option<Entry>> {
        let key = self.entry_key(dir, name);
        if self.spread.is_some() {
            return self.entry_spread(&key, true);
        }
        self.state.entry(&key, true)
    }

    /// Fails with `ENOSPC` where the disk has no room for more records.
    pub fn need_room(&mut self) -> Outcome<()> {
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
    pub fn attach(&mut self, dir: Ino, name: &[u8], ino: Ino) -> Outcome<()> {
        let now = self.now();
        // A child's parent is the directory itself, not the partition that has its entry.
        let whole = match self.spread {
            Some(_) => self.directory_of(dir)?,
            None => dir,
        };
        let child = self.edit(ino)?;
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
        child.ctime = child.ctime.moved_to(now);
        let parent = self.edit(dir)?;
        if is_dir {
            if parent.nlink >= LINK_MAX {
                return Err(Errno::EMLINK.into());
            }
            parent.nlink += 1;
        }
        parent.size += 1;
        parent.ctime = parent.ctime.moved_to(now);
        parent.mtime = parent.ctime;
        if self.spread.is_some() {
            self.attached(dir, ino, moves)?;
        }
        let key = self.entry_key(dir, name);
        self.put(key, Entry { ino, kind }.encode());
        Ok(())
    }

    /// Removes the entry `name` of `dir`, which leads to `ino`: the inverse of [`Txn::attach`]. The
    /// inode may be left without a name.
    pub fn detach(&mut self, dir: Ino, name: &[u8], ino: Ino) -> Outcome<()> {
        let now = self.now();
        let child = self.edit(ino)?;
        let is_dir = child.is_dir();
        if !is_dir {
            child.nlink = child.nlink.saturating_sub(1);
        }
        child.ctime = child.ctime.moved_to(now);
        let parent = self.edit(dir)?;
        if is_dir {
            parent.nlink = parent.nlink.saturating_sub(1);
        }
        parent.size = parent.size.saturating_sub(1);
        parent.ctime = parent.ctime.moved_to(now);
        parent.mtime = parent.ctime;
        let key = self.entry_key(dir, name);
        self.delete(key);
        Ok(())
    }

    /// Decides on an inode that may have lost its last name (for a directory: that was removed). It
    /// stays if this client wants to keep it or others have it open; else it is removed. Returns
    /// whether it has no name left.
    pub fn settle(&mut self, ino: Ino, keep: bool) -> Outcome<bool> {
        let client = self.ctx.client;
        let (named, dead) = self.peek(ino, |inode| (inode.nlink > 0, inode.is_dead()))?;
        if named {
            return Ok(false);
        }
        // The requesting client has it open, and releases it later.
        if keep {
            self.keep(ino, client)?;
        } else if dead {
            self.kill(ino)?;
        }
        Ok(true)
    }

    /// Records that `client` has handles on an inode that may lose, or has no, name.
    pub fn keep(&mut self, ino: Ino, client: ClientId) -> Outcome<()> {
        self.keep_as(ino, client, orphan::KEPT)
    }

    fn keep_as(&mut self, ino: Ino, client: ClientId, why: &[u8]) -> Outcome<()> {
        let key = keys::orphan(client, ino);
        let keepers = self.peek(ino, |inode| inode.keepers)?;
        let before = if keepers == 0 { None } else { self.get(&key)? };
        if before.is_none() {
            self.edit_hidden(ino)?.keepers += 1;
            // The keeper's record lies at the owner shard: the inode must lie there, too.
            self.bring_home(ino);
        }
        if before.is_none() || why == orphan::KEPT && before.as_deref() != Some(why) {
            self.put(key, why.to_vec());
        }
        Ok(())
    }

    /// Records that this client has a file open without writing. The table is bounded, so clients
    /// that are not trusted are left out: they must not take the room of others.
    pub fn note_open(&mut self, ino: Ino) {
        if self.ctx.trusted {
            self.state.opens.add(ino, self.ctx.client);
        }
    }

    /// Removes an inode that nothing holds, and all records that belong to it; its objects become
    /// garbage. If other clients have it open, it is kept for them instead.
    pub fn kill(&mut self, ino: Ino) -> Outcome<()> {
        let here = self.is_here(ino);
        if !here && !self.is_young(ino) {
            // Its owner shard removes it when the transaction is applied there.
            return Ok(());
        }
        let (attributes, writers) = self.peek(ino, |i| (i.xattr_list > 0, i.writers > 0))?;
        if writers || !self.state.opens.is_empty() {
            // POSIX: a file lives until its last close. The close or the expiry of these clients
            // removes it.
            let others = orphan::others_with(self, ino, writers)?;
            for client in &others {
                self.keep_as(ino, *client, orphan::KEPT_WHILE_OPEN)?;
            }
            if !others.is_empty() {
                return Ok(());
            }
        }
        let (unsettled, touched) = self.peek(ino, |i| (i.unsettled, i.touched))?;
        if attributes {
            self.delete_under(&keys::of_ino(tag::XATTR, ino))?;
        }
        if writers {
            self.delete_under(&keys::of_ino(tag::WRITER, ino))?;
        }
        crate::tiled::release(self, ino, None)?;
        if unsettled {
            self.delete(keys::unsettled(ino));
        }
        if self.peek(ino, |i| i.pieces)? {
            for node in crate::tiled::forget(self, ino)? {
                self.add_garbage(node, keys::garbage(node, ino));
            }
        }
        // An inode without any writer never had an object.
        if touched {
            let layout = self.peek(ino, |inode| inode.layout)?;
            for (node, piece) in layout.pieces() {
                self.add_garbage(node, keys::garbage(node, ino));
                if piece != Piece::BASE {
                    self.add_garbage(node, keys::dropped(node, ino, piece));
                }
            }
        }
        self.changed.push(ino);
        match self.inodes.iter_mut().find(|(i, _)| *i == ino) {
            Some((_, changed)) => *changed = None,
            None => self.inodes.push((ino, None)),
        }
        self.inode_delta -= i64::from(here);
        Ok(())
    }

    /// Records that something on `node` can be removed.
    pub fn add_garbage(&mut self, node: NodeId, key: Key) {
        self.put(key, vec![1]);
        if self.garbage.last() != Some(&node) {
            self.garbage.push(node);
        }
    }

    fn delete_under(&mut self, prefix: &[u8]) -> Outcome<()> {
        // Bounded: attribute names of an inode fit a listing, and writers are clients.
        let old = self.keys(prefix, usize::MAX)?;
        self.writes.retain(|(key, _)| !key.starts_with(prefix));
        old.into_iter().for_each(|key| self.delete(key));
        Ok(())
    }
}
