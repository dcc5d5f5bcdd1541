//! Creates that a client holds back until the first byte of the file: create and write are one
//! request then.
//!
//! Such a client has the directory *exclusively*. An operation of any other client that reads the
//! directory's record waits, as for a lock of a transaction, and the caller recalls the delegation.
//! So no other client sees the directory without the creates that are held back. The caller ends
//! the delegation when the client has returned it, or when its term is over.

use crate::error::MetaOutcome;
use crate::namespace::Meta;
use crate::operation::Txn;
use crate::permission;
use crate::store::Store;
use crate::transaction::locks::ShardBlock;
use crate::transaction::messages::ChangedInode;
use crate::{entry, inline};
use tatami_wire::inline::FirstBytes;
use tatami_wire::meta::{HELD_NUMBERS_MAX, MetaReply};
use tatami_wire::transaction::Txid;
use tatami_wire::{Access, ClientId, Errno, Ino, Timestamp, VolumeKey};

/// Most directories that clients have exclusively at a time.
const EXCLUSIVE_MAX: usize = 1 << 16;
/// An incarnation that no executor reaches: so the names of delegations differ from those of
/// transactions.
const DELEGATIONS: u64 = u64::MAX;
/// Set-group-id on a directory: its files get its group.
const SETGID: u16 = 0o2000;

/// Delegates a directory exclusively to the client, and allocates numbers for its files.
///
/// # Errors
/// `EOPNOTSUPP` where new files do not have their bytes beside their inodes, and for a directory
/// that has an ACL or is split; `EBUSY` while a transaction changes it, and while another client
/// has it; those of permissions.
pub(crate) fn hold_directory<S: Store>(
    txn: &mut Txn<'_, S>,
    dir: Ino,
    count: u32,
) -> MetaOutcome<MetaReply> {
    let record = txn.load_inode(dir)?;
    permission::check_insert(&record, txn.cred)?;
    if !(1..=HELD_NUMBERS_MAX).contains(&count) {
        return Err(Errno::EINVAL.into());
    }
    // Without other executors nothing waits for a lock.
    let is_plain = txn.may_be_elsewhere()
        && txn.is_here(dir)
        && txn.state.owns_shard(dir.owner_shard())
        && !record.is_partitioned()
        && record.acl.is_none()
        && record.default_acl.is_none()
        && record.mode & SETGID == 0;
    let inline_limit = record.policies.inline_limit();
    if !is_plain || inline_limit == 0 {
        return Err(Errno::EOPNOTSUPP.into());
    }
    let client = txn.ctx.client;
    let is_own = txn.state.locks.exclusive.holder(dir) == Some(client);
    // A second run has waited for others, and they may wait for it.
    if !is_own && (txn.is_rerun() || txn.state.locks.is_changing(dir))
        || txn.state.locks.exclusive.len() >= EXCLUSIVE_MAX
    {
        return Err(Errno::EBUSY.into());
    }
    let first = txn.state.allocate_counters(count)?;
    let executor = txn.state.executor();
    let name = Txid { executor, incarnation: DELEGATIONS, number: first };
    txn.state.locks.exclusive.insert(dir, client, name);
    // The answer leaves when no other client has a delegation of the entries any more.
    txn.state.changed.push(ChangedInode { ino: dir, keeps_path: true, recalls_own: false });
    let (mode, uid, gid) = (record.mode, record.uid, record.gid);
    Ok(MetaReply::DirectoryHeld { first, count, inline_limit, mode, uid, gid })
}

/// A create that a client has held back, as its program has seen it.
#[derive(Debug)]
pub(crate) struct HeldCreate {
    /// The number of the file.
    pub ino: Ino,
    pub open: Access,
    /// The time of its birth.
    pub time: Timestamp,
}

/// Creates a file by a number from [`hold_directory`], with its first bytes, and opens it.
///
/// # Errors
/// Those of [`entry::create`]; `EINVAL` for a number that was never allocated, `ESTALE` for one
/// that is in use or of another shard; `EXDEV` where files of the directory do not have so many
/// bytes beside their inodes.
pub(crate) fn create_numbered<S: Store>(
    txn: &mut Txn<'_, S>,
    key: &VolumeKey,
    parent: Ino,
    new: &entry::NewInode<'_>,
    held: &HeldCreate,
    first: &FirstBytes,
) -> MetaOutcome<MetaReply> {
    let &HeldCreate { ino, open, time } = held;
    if !txn.state.is_allocated(ino.counter()) || !time.is_valid() {
        return Err(Errno::EINVAL.into());
    }
    let shards = [ino.owner_shard(), ino.allocating_shard()];
    if shards != [parent.owner_shard(); 2] || txn.find_inode(ino)?.is_some() {
        return Err(Errno::ESTALE.into());
    }
    // Programs of the client have seen this time. No client moves a directory back in time, or
    // ahead.
    let (now, floor) = (txn.now(), txn.inspect_inode(parent, |dir| dir.ctime)?);
    txn.set_moment(time.min(now).max(floor));
    let made = entry::create_as(txn, key, parent, new, true, Some(open), Some(ino))?;
    txn.set_moment(now);
    let MetaReply::Created { attr, cap, created } = made else {
        return Err(Errno::EPROTO.into());
    };
    match first {
        FirstBytes::Beside(bytes) => inline::fill_new_file(txn, attr.ino, bytes)?,
        FirstBytes::TooMany if attr.layout.is_inline() => inline::leave_for_policy(txn, attr.ino)?,
        FirstBytes::None | FirstBytes::TooMany => {}
    }
    let attr = txn.inspect_inode(attr.ino, |inode| inode.to_attr(attr.ino))?;
    Ok(MetaReply::Created { attr, cap, created })
}

impl<S: Store> Meta<S> {
    /// Returns the client that has the directory exclusively.
    pub fn exclusive_holder(&self, dir: Ino) -> Option<ClientId> {
        self.state.locks.exclusive.holder(dir)
    }

    /// Takes the directories that clients have exclusively and for which operations wait, with
    /// their holders. The caller recalls them, and then calls [`Meta::end_exclusive`].
    pub fn take_wanted_directories(&mut self) -> Vec<(Ino, ClientId)> {
        self.state.locks.exclusive.take_wanted()
    }

    /// Returns the directories of `count` shards from `first` on that clients have exclusively,
    /// with their holders. The record of a young directory lies in the shard of its first parent.
    pub fn list_exclusive(&self, first: u16, count: u16) -> Vec<(Ino, ClientId)> {
        let block = ShardBlock { first, count };
        let here = |(dir, _): &(Ino, ClientId)| {
            block.contains_shard(dir.owner_shard()) || block.contains_shard(dir.allocating_shard())
        };
        self.state.locks.exclusive.iter().filter(here).collect()
    }

    /// Records that the client has returned a directory, if it had it exclusively. The operations
    /// that wait go on with the next [`Meta::tick`].
    pub fn end_exclusive(&mut self, dir: Ino, client: ClientId) {
        self.tx.released.extend(self.state.locks.exclusive.remove(dir, client));
    }

    /// As [`Meta::end_exclusive`], for all directories of a client.
    pub fn end_exclusive_of(&mut self, client: ClientId) {
        let all = self.state.locks.exclusive.iter().filter(|(_, holder)| *holder == client);
        for (dir, _) in all.collect::<Vec<_>>() {
            self.end_exclusive(dir, client);
        }
    }
}
