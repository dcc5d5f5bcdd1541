//! Comparison of the names and inodes of all executors.
//!
//! The reports of the executors are not from one moment. So each mismatch is checked again: an
//! inode, and all entries that lead to it, are read three times. If the results are the same, and
//! no transaction is about to write any of these records, the inode had these names, and no others,
//! at one moment.

use super::name_fault::{InodeFacts, LeadShards, NameFault, Suspicion, Suspicions, UNREACHABLE};
use super::{FindingKind, Fsck, FsckError, FsckFinding};
use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::time::Duration;
use tatami_wire::meta::{BACK_POINTERS_MAX, BackPointer, MetaOp, MetaReply};
use tatami_wire::{Cred, Errno, Ino, InodeKind, ShardId};

const WHAT: &str = "tell names and inodes";
/// Most looks at an inode that does not stop changing.
const LOOKS: u32 = 100;
/// Time between two looks.
const REST: Duration = Duration::from_millis(10);
/// Deepest directory from which the walk upwards goes to the root.
const DEPTH_MAX: usize = 1 << 20;

type FactsByInode = BTreeMap<Ino, InodeFacts>;

impl Fsck<'_> {
    /// Compares names and inodes of all executors; does nothing where one always had all of them.
    pub(super) fn check_names(&mut self) -> Result<(), FsckError> {
        if !self.has_several_executors() {
            return Ok(());
        }
        let leads = self.client.map().first_shards();
        let mut above: HashMap<Ino, Ino> = HashMap::new();
        let mut after = Ino(0);
        // The shards of an executor are contiguous, so the executor that has the inodes is asked
        // first.
        let blocks = self.list_shard_blocks();
        for (lead, last) in blocks {
            while after < last {
                let (facts_by_inode, upto) = self.collect_facts(&leads, lead, after, last)?;
                self.judge_facts(&leads, facts_by_inode, &mut above)?;
                after = upto;
            }
        }
        self.check_rings(&leads, &above)
    }

    /// Returns, for each run of shards of one executor, the first shard of that executor and the
    /// last inode number of the run.
    fn list_shard_blocks(&self) -> Vec<(ShardId, Ino)> {
        let map = self.client.map();
        let mut blocks: Vec<(ShardId, Ino)> = Vec::new();
        for (number, executor) in map.shards.iter().enumerate() {
            // No shard follows the last one.
            let last = match number + 1 < map.shards.len() {
                true => Ino::first_in_shard(ShardId(number as u16 + 1)).0 - 1,
                false => u64::MAX,
            };
            let lead = map.first_shards().into_iter().find(|(_, id)| id == executor);
            let lead = lead.map_or(ShardId(0), |(shard, _)| shard);
            match blocks.last_mut() {
                Some((known, end)) if *known == lead => *end = Ino(last),
                _ => blocks.push((lead, Ino(last))),
            }
        }
        blocks
    }

    /// Collects the records of all executors about inodes above `after`. Returns also the last
    /// inode that is covered.
    fn collect_facts(
        &mut self,
        leads: &LeadShards,
        first: ShardId,
        after: Ino,
        mut last: Ino,
    ) -> Result<(FactsByInode, Ino), FsckError> {
        let mut all = FactsByInode::new();
        let mut leads = leads.to_vec();
        leads.sort_by_key(|(shard, _)| *shard != first);
        for (shard, executor) in leads {
            let failed = |errno| FsckError::Executor { executor, what: WHAT, errno };
            let op = MetaOp::ScanBackPointers { shard, after, last, limit: BACK_POINTERS_MAX };
            let reply = self.client.request_executor(executor, &Cred::ROOT, op).map_err(failed)?;
            let MetaReply::BackPointers { inodes, names, upto } = reply else {
                return Err(failed(Errno::EPROTO));
            };
            last = last.min(upto.unwrap_or(last));
            if last <= after {
                // Without progress, the executor would be asked for ever.
                return Err(failed(Errno::EPROTO));
            }
            for tied in inodes {
                all.entry(tied.ino).or_default().inodes.push(tied);
            }
            for naming in names {
                all.entry(naming.ino).or_default().names.push(naming);
            }
        }
        all.retain(|ino, _| *ino <= last);
        Ok((all, last))
    }

    /// Checks mismatches again, and reports or repairs them.
    fn judge_facts(
        &mut self,
        leads: &LeadShards,
        facts_by_inode: FactsByInode,
        above: &mut HashMap<Ino, Ino>,
    ) -> Result<(), FsckError> {
        let mut doubts = Suspicions::default();
        for (ino, facts) in facts_by_inode {
            match facts.find_fault(ino) {
                Some(_) => drop(doubts.open.insert(ino, Suspicion::default())),
                None => facts.record_parent(ino, above),
            }
        }
        for look in 0..LOOKS {
            if doubts.open.is_empty() {
                return Ok(());
            }
            if look > 0 && !std::mem::take(&mut doubts.went_on) {
                #[allow(clippy::disallowed_methods)] // the end of a transaction sends no event
                std::thread::sleep(REST);
            }
            let wanted = doubts.open.keys().copied().collect();
            let mut faults = Vec::new();
            for (ino, facts) in self.observe_stable(leads, &wanted)? {
                match facts.find_fault(ino) {
                    Some(fault) => faults.push((ino, facts, fault)),
                    None => {
                        facts.record_parent(ino, above);
                        let doubt = doubts.open.remove(&ino);
                        let was_mended = doubt.is_some_and(|doubt| doubt.mended);
                        self.report.dispelled += u64::from(!was_mended);
                    }
                }
            }
            if self.repair {
                self.repair_names(leads, faults, &mut doubts)?;
            } else {
                for (ino, _, fault) in faults {
                    doubts.open.remove(&ino);
                    self.record_name_finding(ino, fault.to_string(), false);
                }
            }
        }
        // These do not stop changing.
        for (ino, doubt) in doubts.open {
            match doubt.last {
                Some(what) => self.record_name_finding(ino, what, false),
                None => self.report.dispelled += u64::from(!doubt.mended),
            }
        }
        Ok(())
    }

    pub(super) fn record_name_finding(&mut self, ino: Ino, what: String, repaired: bool) {
        let (wrong, node) = (FindingKind::Names, None);
        self.record_finding(FsckFinding {
            wrong,
            ino,
            path: None,
            node,
            lost: None,
            journal: None,
            what,
            repaired,
        });
    }

    /// Returns the records of those of these inodes that did not change, as they were at one
    /// moment.
    pub(super) fn observe_stable(
        &mut self,
        leads: &LeadShards,
        wanted: &BTreeSet<Ino>,
    ) -> Result<Vec<(Ino, InodeFacts)>, FsckError> {
        let (Some(first), Some(last)) = (wanted.first(), wanted.last()) else {
            return Ok(Vec::new());
        };
        let mut views = [FactsByInode::new(), FactsByInode::new(), FactsByInode::new()];
        for view in &mut views {
            let mut after = Ino(first.0 - 1);
            while after < *last {
                let (mut facts_by_inode, upto) =
                    self.collect_facts(leads, leads[0].0, after, *last)?;
                facts_by_inode.retain(|ino, _| wanted.contains(ino));
                view.append(&mut facts_by_inode);
                after = upto;
            }
        }
        let mut seen = Vec::new();
        for ino in wanted {
            let [first, second, third] =
                views.each_mut().map(|view| view.remove(ino).unwrap_or_default());
            // An entry that a split or a migration moves from one executor to another is missed
            // once at most.
            if first.is_stable() && first == second && second == third {
                seen.push((*ino, third));
            }
        }
        Ok(seen)
    }

    /// Finds directories that cannot be reached from the root, though each lies in another one.
    fn check_rings(
        &mut self,
        leads: &LeadShards,
        above: &HashMap<Ino, Ino>,
    ) -> Result<(), FsckError> {
        let mut rooted: HashMap<Ino, bool> = HashMap::from([(Ino::ROOT, true)]);
        for start in above.keys() {
            let (mut path, mut at) = (Vec::new(), *start);
            let is_rooted = loop {
                if let Some(known) = rooted.get(&at) {
                    break *known;
                }
                // Until more is known: a walk that comes here again goes round in a ring.
                rooted.insert(at, false);
                path.push(at);
                match above.get(&at) {
                    Some(parent) => at = *parent,
                    // It is lost itself, and reported as that.
                    None => break true,
                }
            };
            rooted.extend(path.into_iter().map(|dir| (dir, is_rooted)));
        }
        let mut lost: Vec<_> = rooted.into_iter().filter(|(_, r)| !r).map(|(ino, _)| ino).collect();
        lost.sort_unstable();
        for ino in lost {
            let Some(ring) = self.trace_ring(leads, ino)? else {
                self.report.dispelled += 1;
                continue;
            };
            if self.repair {
                self.break_ring(leads, ino, ring)?;
            } else {
                self.record_name_finding(ino, UNREACHABLE.into(), false);
            }
        }
        Ok(())
    }

    /// Returns the ring that the walk upwards from a directory enters, if two walks find the same
    /// one.
    pub(super) fn trace_ring(
        &mut self,
        leads: &LeadShards,
        ino: Ino,
    ) -> Result<Option<Vec<Ino>>, FsckError> {
        let mut ways = [Vec::new(), Vec::new()];
        let mut at = ino;
        for way in &mut ways {
            at = ino;
            while at != Ino::ROOT && !way.contains(&at) && way.len() < DEPTH_MAX {
                way.push(at);
                let (facts_by_inode, _) =
                    self.collect_facts(leads, leads[0].0, Ino(at.0 - 1), at)?;
                match facts_by_inode.get(&at).and_then(|facts| facts.inodes.first()) {
                    Some(tied) if !tied.changing => at = tied.parent,
                    _ => return Ok(None),
                }
            }
            if at == Ino::ROOT {
                return Ok(None);
            }
        }
        let [mut way, again] = ways;
        let begin = way.iter().position(|dir| *dir == at).filter(|_| way == again);
        Ok(begin.map(|begin| way.split_off(begin)))
    }
}

impl InodeFacts {
    /// Returns whether no transaction is about to change a record.
    fn is_stable(&self) -> bool {
        !self.inodes.iter().any(|tied| tied.changing) && !self.names.iter().any(|n| n.changing)
    }

    /// Records the parent of a directory.
    fn record_parent(&self, ino: Ino, above: &mut HashMap<Ino, Ino>) {
        if let [BackPointer { kind: Some(InodeKind::Dir), nlink: 1.., parent, .. }] =
            self.inodes[..]
        {
            above.insert(ino, parent);
        }
    }

    /// Returns the fault, if there is one.
    fn find_fault(&self, ino: Ino) -> Option<NameFault> {
        let count: u32 = self.names.iter().map(|naming| naming.count).sum();
        let place = self.names.iter().find(|naming| naming.count > 0);
        let tied = match (&self.inodes[..], place) {
            ([], None) => return None,
            ([], Some(place)) => return Some(NameFault::NoInode { count, dir: place.dir }),
            ([tied], _) => tied,
            _ => return Some(NameFault::DuplicateRecord),
        };
        // A record that cannot be decoded is reported by its executor.
        let kind = tied.kind?;
        if let Some(other) = self.names.iter().find(|n| n.count > 0 && n.kind != kind) {
            return Some(NameFault::OtherKind { dir: other.dir, kind });
        }
        let (nlink, version) = (tied.nlink, tied.version);
        match (kind, place) {
            (InodeKind::Dir, _) if ino == Ino::ROOT => match (count, tied.parent) {
                (0, Ino::ROOT) => None,
                (0, _) => Some(NameFault::RootMisplaced),
                _ => Some(NameFault::RootNamed { count }),
            },
            (_, None) if nlink == 0 && tied.kept => None,
            (_, None) if nlink == 0 => Some(NameFault::Unreferenced { version }),
            (_, None) => {
                let kept = tied.kept && kind != InodeKind::Dir;
                Some(NameFault::Nameless { version, kept })
            }
            (InodeKind::Dir, Some(_)) if count > 1 => {
                Some(NameFault::SeveralNames { count, parent: tied.parent })
            }
            (InodeKind::Dir, Some(place)) if place.dir != tied.parent => {
                Some(NameFault::WrongParent { dir: place.dir, says: tied.parent })
            }
            (InodeKind::Dir, Some(place)) if nlink == 0 => {
                Some(NameFault::Removed { dir: place.dir, version })
            }
            (InodeKind::Dir, Some(_)) => None,
            _ if count != nlink => Some(NameFault::Links { count, nlink, version }),
            _ => None,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use tatami_wire::meta::InodeEntries;

    const INO: Ino = Ino(77);

    fn inode(kind: InodeKind, nlink: u32) -> BackPointer {
        let parent = if kind == InodeKind::Dir { Ino(5) } else { Ino(0) };
        let kind = Some(kind);
        BackPointer { ino: INO, kind, nlink, kept: false, parent, version: 1, changing: false }
    }

    fn name(kind: InodeKind, dir: Ino, count: u32) -> InodeEntries {
        InodeEntries { ino: INO, kind, dir, count, changing: false }
    }

    fn is_wrong(inodes: &[&BackPointer], names: &[&InodeEntries]) -> bool {
        let inodes = inodes.iter().map(|tied| (*tied).clone()).collect();
        let names = names.iter().map(|naming| (*naming).clone()).collect();
        InodeFacts { inodes, names }.find_fault(INO).is_some()
    }

    #[test]
    fn names_and_inodes_fit_or_not() {
        let (file, dir) = (inode(InodeKind::File, 2), inode(InodeKind::Dir, 4));
        let (a, b) = (name(InodeKind::File, Ino(5), 1), name(InodeKind::File, Ino(6), 1));
        let (here, there) = (name(InodeKind::Dir, Ino(5), 1), name(InodeKind::Dir, Ino(6), 1));
        assert!(!is_wrong(&[], &[]), "gone");
        assert!(!is_wrong(&[&file], &[&a, &b]));
        assert!(is_wrong(&[&file], &[&a]), "a name too few");
        assert!(is_wrong(&[&file], &[]), "no name");
        assert!(is_wrong(&[], &[&a]), "no inode");
        assert!(is_wrong(&[&file, &file], &[&a, &b]), "two inodes");
        assert!(is_wrong(&[&file], &[&a, &here]), "two kinds");
        let gone = inode(InodeKind::File, 0);
        assert!(is_wrong(&[&gone], &[]), "nobody keeps it");
        let kept = BackPointer { kept: true, ..gone.clone() };
        assert!(!is_wrong(&[&kept], &[]));
        assert!(!is_wrong(&[&dir], &[&here]));
        assert!(is_wrong(&[&dir], &[&there]), "it lies elsewhere");
        assert!(is_wrong(&[&dir], &[&here, &there]), "two names");
        let removed = inode(InodeKind::Dir, 0);
        assert!(is_wrong(&[&removed], &[&here]), "removed, and named");
    }
}
