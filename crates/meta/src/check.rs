//! Verifies the records of a shard against each other, and repairs them (the local part of fsck).
//!
//! No crash leaves anything that this finds: batches are atomic. It is for the results of broken
//! disks, broken memory and our own mistakes. All findings follow from these rules:
//!
//! - every entry lies under the hash of its name, in a directory that exists, and leads to an
//!   existing inode of the kind that the entry states;
//! - an inode has as many names as its link count states; one without names is kept by a client;
//! - a directory has one name, knows its parent directory, counts its entries and subdirectories,
//!   and the root is among its ancestors;
//! - side records (attributes, writers, keepers, pending size recovery, garbage, pieces) agree with
//!   their inode;
//! - tiles can be decoded, and with its tiles a file has the size that its inode states.
//!
//! Where several nodes have shards, only rules about records of one node are checked here. The
//! client that runs fsck compares the names of inodes and the parents of directories, from the
//! answers of [`ties()`], and repairs them with [`mend()`].
//!
//! A check goes over the inodes in number order, some at a time. Each step reads all entries once,
//! so it is better to take many inodes in one step.

use crate::error::{MetaOutcome, OperationFailure};
use crate::inode::Inode;
use crate::keys::{self, RecordKey};
use crate::operation::Txn;
use crate::store::{Change, Store};
use std::sync::Arc;
use tatami_wire::meta::{Finding, MetaReply};
use tatami_wire::{Errno, Ino};

mod judge;
mod parts;
mod pieces;
mod repair;
mod survey;
mod ties;

pub(crate) use parts::list_partitioned;
pub(crate) use repair::{list_names_of, repair_records};
pub(crate) use ties::list_ties;

/// Most inodes examined in one step.
const INODES_MAX: usize = 64 * 1024;
/// Most findings in one answer: it must fit a frame.
const FINDINGS_MAX: usize = 2000;
/// Bytes of a name that a finding shows.
const SHOWN: usize = 64;

/// A problem, and its repair.
struct CheckProblem {
    ino: Ino,
    what: String,
    mend: LocalRepair,
}

/// A kind of repair.
enum LocalRepair {
    /// Write these records.
    Write(Vec<Change>),
    /// Set the inode's counts and links to those that the survey found.
    Correct(Box<dyn FnOnce(&mut Inode)>),
    /// Remove the entry that is one name too many for a directory.
    RemoveName { dir: Ino, key: RecordKey },
    /// Remove the inode: nothing refers to it.
    RemoveInode,
    /// Give the inode, which cannot be reached, a name in `lost+found`; a directory loses the entry
    /// under this key first.
    Rescue { entry: Option<(Ino, RecordKey)> },
    /// Correct the number of inodes.
    Count(i64),
}

/// Examines inodes above `after`; with `repair`, repairs the problems found.
pub(crate) fn check_shard<S: Store>(
    txn: &mut Txn<'_, S>,
    after: Ino,
    limit: u32,
    repair: bool,
) -> MetaOutcome<MetaReply> {
    let survey =
        survey::Survey::gather_records(txn, after, (limit.max(1) as usize).min(INODES_MAX))?;
    let examined = survey.inodes.len() as u64;
    let next = survey.next_ino();
    let mut problems = judge::judge_survey(txn, survey)?;
    let more = problems.len().saturating_sub(FINDINGS_MAX);
    problems.truncate(FINDINGS_MAX);
    let mut findings = Vec::with_capacity(problems.len());
    for CheckProblem { ino, what, mend } in problems {
        let repaired = repair && apply_repair(txn, ino, mend)?;
        findings.push(Finding { ino, what, repaired });
    }
    if more > 0 {
        let what = format!("{more} more findings among these inodes: repair, then check again");
        findings.push(Finding { ino: after, what, repaired: false });
    }
    Ok(MetaReply::Checked { findings, examined, next })
}

/// Makes one repair. Returns whether that was possible.
fn apply_repair<S: Store>(txn: &mut Txn<'_, S>, ino: Ino, mend: LocalRepair) -> MetaOutcome<bool> {
    match mend {
        LocalRepair::Write(changes) => {
            for (key, value) in changes {
                match value {
                    Some(value) => txn.put_record(key, value),
                    None => txn.delete_record(key),
                }
            }
        }
        LocalRepair::Correct(set) => {
            if peek_inode(txn, ino)?.is_some() {
                set(txn.edit_inode(ino)?);
            }
        }
        LocalRepair::RemoveName { dir, key } => {
            txn.delete_record(key);
            uncount_entry(txn, dir, true)?;
        }
        LocalRepair::RemoveInode => {
            if peek_inode(txn, ino)?.is_some() {
                txn.remove_inode(ino)?;
            } else {
                // A record that cannot be decoded names no objects to remove.
                txn.drop_damaged(ino);
            }
        }
        LocalRepair::Rescue { entry } => {
            if let Some((dir, key)) = entry {
                txn.delete_record(key);
                uncount_entry(txn, dir, true)?;
            }
            return rescue_inode(txn, ino);
        }
        LocalRepair::Count(delta) => txn.correct_count(delta),
    }
    Ok(true)
}

/// Corrects the counts of `dir` after the removal of an entry, maybe that of a directory.
fn uncount_entry<S: Store>(txn: &mut Txn<'_, S>, dir: Ino, was_dir: bool) -> MetaOutcome<()> {
    if peek_inode(txn, dir)?.is_some() {
        let dir = txn.edit_inode(dir)?;
        dir.size = dir.size.saturating_sub(1);
        dir.nlink = dir.nlink.saturating_sub(u32::from(was_dir));
    }
    Ok(())
}

/// Names the inode by its number in `/lost+found`, which is made if needed.
fn rescue_inode<S: Store>(txn: &mut Txn<'_, S>, ino: Ino) -> MetaOutcome<bool> {
    const LOST: &[u8] = b"lost+found";
    let root = peek_inode(txn, Ino::ROOT)?.is_some();
    if !root || peek_inode(txn, ino)?.is_none() {
        return Ok(false);
    }
    let lost = match txn.load_entry(Ino::ROOT, LOST)? {
        Some(entry) => entry.ino,
        None => {
            let lost = txn.allocate_ino(Ino::ROOT.owner_shard(), true)?;
            let inode = Inode::new(tatami_wire::InodeKind::Dir, 0o700, 0, 0, txn.now());
            txn.add_inode(lost, inode);
            txn.attach_entry(Ino::ROOT, LOST, lost)?;
            lost
        }
    };
    let name = tatami_wire::repair::Repair::lost_name(ino).into_bytes();
    if !peek_inode(txn, lost)?.is_some_and(|d| d.is_dir()) || txn.load_entry(lost, &name)?.is_some()
    {
        return Ok(false);
    }
    let inode = txn.edit_inode(ino)?;
    if !inode.is_dir() {
        // Its old names are gone; `attach` counts the new one.
        inode.nlink = 0;
    }
    txn.attach_entry(lost, &name, ino)?;
    Ok(true)
}

/// Returns whether the inode lies on this node if it exists anywhere.
fn is_local_if_any<S: Store>(txn: &Txn<'_, S>, ino: Ino) -> bool {
    txn.state.owns_shard(ino.owner_shard()) && txn.state.owns_shard(ino.allocating_shard())
}

/// Returns the inode, or `None` where there is none that can be decoded. Where several nodes have
/// shards: the current record on this node, without the pending changes of transactions.
fn peek_inode<S: Store>(txn: &mut Txn<'_, S>, ino: Ino) -> MetaOutcome<Option<Arc<Inode>>> {
    if txn.state.is_spread() {
        return peek_local_inode(txn, ino);
    }
    match txn.find_inode(ino) {
        Err(OperationFailure::Damaged(_)) | Err(OperationFailure::Errno(Errno::ESTALE)) => Ok(None),
        found => found,
    }
}

fn peek_local_inode<S: Store>(txn: &mut Txn<'_, S>, ino: Ino) -> MetaOutcome<Option<Arc<Inode>>> {
    let found = match txn.state.owns_shard(ino.owner_shard()) {
        true => txn.state.load_inode(ino),
        false => Ok(None),
    };
    match found {
        Ok(None) if txn.state.owns_shard(ino.allocating_shard()) => {
            let young = txn.state.get(&keys::embedded_dir(ino))?;
            Ok(young.and_then(|young| Inode::decode(&young).ok()).map(Arc::new))
        }
        Err(OperationFailure::Damaged(_)) => Ok(None),
        found => found,
    }
}

/// Returns a name as a finding shows it.
fn format_name(name: &[u8]) -> String {
    let shown = &name[..name.len().min(SHOWN)];
    let dots = if shown.len() < name.len() { "…" } else { "" };
    format!("\"{}{dots}\"", shown.escape_ascii())
}

/// Returns the number of the inode record under `key`.
fn parse_inode_key(key: &[u8]) -> Option<Ino> {
    match keys::parse(key) {
        Some(keys::ParsedKey::Inode(ino)) => Some(ino),
        _ => None,
    }
}
