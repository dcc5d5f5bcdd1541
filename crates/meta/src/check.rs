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

use crate::check::problem::{CheckProblem, LocalRepair, peek_inode, uncount_entry};
use crate::check::survey::Survey;
use crate::error::MetaOutcome;
use crate::inode::Inode;
use crate::operation::Txn;
use crate::store::Store;
use tatami_wire::Ino;
use tatami_wire::meta::{Finding, MetaReply};

mod judge;
pub(crate) mod parts;
mod pieces;
mod problem;
pub(crate) mod repair;
mod side_records;
mod survey;
pub(crate) mod ties;

/// Most inodes examined in one step.
const INODES_MAX: usize = 64 * 1024;
/// Most findings in one answer: it must fit a frame.
const FINDINGS_MAX: usize = 2000;
/// Examines inodes above `after`; with `repair`, repairs the problems found.
pub(crate) fn check_shard<S: Store>(
    txn: &mut Txn<'_, S>,
    after: Ino,
    limit: u32,
    repair: bool,
) -> MetaOutcome<MetaReply> {
    let mut survey = Survey::gather_records(txn, after, (limit.max(1) as usize).min(INODES_MAX))?;
    pieces::gather_pieces(&mut survey, txn)?;
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
