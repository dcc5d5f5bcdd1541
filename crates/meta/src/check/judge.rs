//! Compares the inodes of a survey with the sums of their records.

use crate::check::pieces::judge_pieces;
use crate::check::problem::{CheckProblem, LocalRepair, peek_inode};
use crate::check::survey::Survey;
use crate::error::MetaOutcome;
use crate::inode::Inode;
use crate::keys::{self, RecordKey, tag};
use crate::operation::Txn;
use crate::store::Store;
use std::collections::BTreeSet;
use std::ops::ControlFlow;
use tatami_wire::{Ino, InodeKind};

/// Returns all problems, in the order in which they are to be repaired.
pub(super) fn judge_survey<S: Store>(
    txn: &mut Txn<'_, S>,
    mut survey: Survey,
) -> MetaOutcome<Vec<CheckProblem>> {
    let mut judge = Judge { problems: std::mem::take(&mut survey.problems), ..Judge::default() };
    let inodes = std::mem::take(&mut survey.inodes);
    for (ino, inode) in inodes {
        match inode {
            None => {
                let what = "the inode's record does not read".to_owned();
                judge.add_problem(ino, what, LocalRepair::RemoveInode);
            }
            Some(inode) => {
                judge.check_side_records(&survey, ino, &inode);
                judge_pieces(&survey, ino, &inode, &mut judge.problems);
                if inode.is_dir() {
                    judge.check_directory(txn, &mut survey, ino, &inode)?;
                } else {
                    judge.check_other_inode(txn, &survey, ino, &inode);
                }
            }
        }
    }
    if survey.next_ino().is_none() {
        judge.check_count(txn)?;
    }
    // Counts are set first: later repairs change them by one.
    let mut problems = judge.problems;
    problems.append(&mut judge.later);
    Ok(problems)
}

#[derive(Default)]
struct Judge {
    problems: Vec<CheckProblem>,
    /// Repairs that follow after all counts are right.
    later: Vec<CheckProblem>,
    /// Directories that have the root among their ancestors.
    rooted: BTreeSet<Ino>,
}

impl Judge {
    fn add_problem(&mut self, ino: Ino, what: String, mend: LocalRepair) {
        self.problems.push(CheckProblem { ino, what, mend });
    }

    fn add_correction(&mut self, ino: Ino, what: String, set: impl FnOnce(&mut Inode) + 'static) {
        self.add_problem(ino, what, LocalRepair::Correct(Box::new(set)));
    }

    fn add_later_repair(&mut self, ino: Ino, what: &str, mend: LocalRepair) {
        self.later.push(CheckProblem { ino, what: what.to_owned(), mend });
    }

    fn check_side_records(&mut self, survey: &Survey, ino: Ino, inode: &Inode) {
        let (list, bytes) = survey.xattrs.get(&ino).copied().unwrap_or_default();
        if (inode.xattr_list, inode.xattr_bytes) != (list, bytes) {
            let what = format!(
                "its attributes take {list} + {bytes} bytes, it says {} + {}",
                inode.xattr_list, inode.xattr_bytes
            );
            self.add_correction(ino, what, move |inode| {
                (inode.xattr_list, inode.xattr_bytes) = (list, bytes)
            });
        }
        self.check_inline(survey, ino, inode);
        let writers = survey.writers.get(&ino).copied().unwrap_or_default();
        if inode.writers != writers {
            let what = format!("it has {writers} writers, it says {}", inode.writers);
            self.add_correction(ino, what, move |inode| inode.writers = writers);
        }
        let keepers = survey.keepers.get(&ino).copied().unwrap_or_default();
        if inode.keepers != keepers {
            let what = format!("{keepers} clients keep it, it says {}", inode.keepers);
            self.add_correction(ino, what, move |inode| inode.keepers = keepers);
        }
        let unsettled = survey.unsettled.contains(&ino);
        if inode.pending_recovery != unsettled {
            let what = "it and its record of a lost writer do not agree".to_owned();
            let record = (keys::pending_recovery(ino), Some(vec![1]));
            if unsettled {
                self.add_correction(ino, what, |inode| inode.pending_recovery = true);
            } else {
                self.add_problem(ino, what, LocalRepair::Write(vec![record]));
            }
        }
    }

    /// Checks the bytes beside an inode.
    fn check_inline(&mut self, survey: &Survey, ino: Ino, inode: &Inode) {
        let Some(len) = survey.inline.get(&ino) else { return };
        let key = keys::inline_bytes(ino);
        match len {
            _ if !inode.layout.is_inline() => {
                let what = "bytes lie beside it, and its bytes are in objects".to_owned();
                self.add_problem(ino, what, LocalRepair::Write(vec![(key, None)]));
            }
            // What is left of the file is a hole of its length, as for a lost object.
            None => {
                let what = "the bytes beside it do not read: they are lost".to_owned();
                self.add_problem(ino, what, LocalRepair::Write(vec![(key, None)]));
            }
            Some(len) if *len as u64 > inode.size => {
                let (len, size) = (*len as u64, inode.size);
                let what = format!("{len} bytes lie beside it, it says {size}");
                self.add_correction(ino, what, move |inode| inode.size = len);
            }
            Some(_) => {}
        }
    }

    /// Checks an inode other than a directory.
    fn check_other_inode<S: Store>(
        &mut self,
        txn: &Txn<'_, S>,
        survey: &Survey,
        ino: Ino,
        inode: &Inode,
    ) {
        let names = survey.names.get(&ino).copied().unwrap_or_default();
        let kept = survey.keepers.contains_key(&ino);
        if inode.kind == InodeKind::Symlink && inode.size != inode.target.len() as u64 {
            let what = "its size is not the length of its target".to_owned();
            self.add_correction(ino, what, |inode| inode.size = inode.target.len() as u64);
        }
        // Its names may lie on other nodes: the client that runs fsck compares them.
        if txn.state.is_spread() {
            return;
        }
        match (names, inode.nlink) {
            (0, 0) if kept => {}
            (0, 0) => self.add_later_repair(
                ino,
                "it has no name and nobody keeps it",
                LocalRepair::RemoveInode,
            ),
            (0, _) if kept => {
                let what = format!("it has no name, it says {}", inode.nlink);
                self.add_correction(ino, what, |inode| inode.nlink = 0);
            }
            (0, _) => {
                self.add_later_repair(
                    ino,
                    "no entry leads to it",
                    LocalRepair::Rescue { entry: None },
                );
            }
            (names, nlink) if names != nlink => {
                let what = format!("it has {names} names, it says {nlink}");
                self.add_correction(ino, what, move |inode| inode.nlink = names);
            }
            _ => {}
        }
    }

    fn check_directory<S: Store>(
        &mut self,
        txn: &mut Txn<'_, S>,
        survey: &mut Survey,
        ino: Ino,
        inode: &Inode,
    ) -> MetaOutcome<()> {
        let counts = survey.dirs.get(&ino).copied().unwrap_or_default();
        let mut places = survey.places.remove(&ino).unwrap_or_default();
        let root = ino == Ino::ROOT;
        let gone = inode.nlink == 0 && places.is_empty() && counts.entries == 0 && !root;
        if gone {
            if !survey.keepers.contains_key(&ino) && !txn.state.is_spread() {
                self.add_later_repair(
                    ino,
                    "it was removed and nobody keeps it",
                    LocalRepair::RemoveInode,
                );
            }
            return Ok(());
        }
        if inode.size != counts.entries {
            let what = format!("it has {} entries, it says {}", counts.entries, inode.size);
            self.add_correction(ino, what, move |inode| inode.size = counts.entries);
        }
        let nlink = counts.subdirs.saturating_add(2);
        if inode.nlink != nlink {
            let what = format!("its link count should be {nlink}, it is {}", inode.nlink);
            self.add_correction(ino, what, move |inode| inode.nlink = nlink);
        }
        // Its parent may lie on another node: the client that runs fsck compares it.
        if txn.state.is_spread() {
            return Ok(());
        }
        if root {
            if inode.parent != ino {
                self.add_correction(ino, "the root lies in another directory".into(), move |i| {
                    i.parent = ino
                });
            }
            self.report_extra_names(ino, places);
            return Ok(());
        }
        if places.is_empty() {
            self.add_later_repair(ino, "no entry leads to it", LocalRepair::Rescue { entry: None });
            return Ok(());
        }
        // It stays in the directory that it names as its parent, if an entry there leads to it.
        let at = places.iter().position(|(dir, _)| *dir == inode.parent);
        let (dir, key) = places.swap_remove(at.unwrap_or(0));
        self.report_extra_names(ino, places);
        if at.is_none() {
            let what = format!("it lies in directory {dir}, it says {}", inode.parent);
            self.add_correction(ino, what, move |inode| inode.parent = dir);
        }
        if !self.is_rooted(txn, ino, dir)? {
            // Once rescued, it roots all others below it.
            self.rooted.insert(ino);
            let what = "it cannot be reached from the root";
            self.add_later_repair(ino, what, LocalRepair::Rescue { entry: Some((dir, key)) });
        }
        Ok(())
    }

    fn report_extra_names(&mut self, ino: Ino, places: Vec<(Ino, RecordKey)>) {
        for (dir, key) in places {
            let what = "a directory can have one name only, this is one more";
            self.add_later_repair(ino, what, LocalRepair::RemoveName { dir, key });
        }
    }

    /// Returns whether the root is above `dir`, in which `ino` lies.
    fn is_rooted<S: Store>(
        &mut self,
        txn: &mut Txn<'_, S>,
        ino: Ino,
        mut dir: Ino,
    ) -> MetaOutcome<bool> {
        let mut path = BTreeSet::from([ino]);
        let rooted = loop {
            if dir == Ino::ROOT || self.rooted.contains(&dir) {
                break true;
            }
            if !path.insert(dir) {
                break false;
            }
            match peek_inode(txn, dir)? {
                Some(inode) if inode.is_dir() && inode.parent.0 != 0 => dir = inode.parent,
                // That directory is lost itself, and is found as such.
                _ => break true,
            }
        };
        if rooted {
            self.rooted.extend(path);
        }
        Ok(rooted)
    }

    fn check_count<S: Store>(&mut self, txn: &mut Txn<'_, S>) -> MetaOutcome<()> {
        let mut found = 0u64;
        let spread = txn.state.is_spread();
        let is_part =
            |value: &[u8]| Inode::decode(value).is_ok_and(|inode| inode.is_later_partition());
        for tag in [tag::INODE, tag::EMBEDDED_DIR] {
            txn.scan_records(&[], &[tag], &mut |_, value| {
                found += u64::from(!(spread && is_part(value)));
                Ok(ControlFlow::Continue(()))
            })?;
        }
        let said = txn.state.inode_count();
        if found != said {
            let what = format!("the shard has {found} inodes, it says {said}");
            self.add_problem(Ino::ROOT, what, LocalRepair::Count(found.wrapping_sub(said) as i64));
        }
        Ok(())
    }
}
